"Runs the paper profile, every stage of it, on tiny stand-ins of its data and weights, in runs/rehearsal: `make rehearse`. Its numbers mean nothing; that it ends does."
import shutil
import subprocess
import sys
import time

import yaml
from conftest import ROOT, clone, commit, environment
from stand_ins import cut, paper_mirror

from layerdescent.config import read_yaml
from layerdescent.pipeline import clear_results, stages


def main():
    folder, started = ROOT/'runs'/'rehearsal', time.time()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    clone(folder)
    clear_results(folder)
    (folder/'params.yaml').write_text(yaml.safe_dump(cut(read_yaml(ROOT/'profiles'/'paper.yaml')), sort_keys=False))
    commit(folder, 'the paper profile, its sizes cut')
    done = subprocess.run(['dvc', 'repro'], cwd=folder, env=environment(folder) | dict(LAYERDESCENT_MIRROR=str(paper_mirror(folder/'runs'/'mirror'))))
    absent = [n for n in stages(folder) if not (folder/'results'/'run'/f"{n.replace('@', '-')}.json").is_file()]
    if done.returncode or absent: sys.exit(f"error: the rehearsal stopped; no record of {', '.join(absent)}. It is in runs/rehearsal.")
    print(f'The paper profile ran end to end on stand-ins: {len(stages(folder))} stages in {(time.time() - started) / 60:.0f} minutes. Figures and tables, which mean nothing, are in runs/rehearsal/results.')


if __name__ == '__main__': main()
