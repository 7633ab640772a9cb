"What the tests share: the checkout, a clone of it as it is now, and the smoke pipeline run once in such a clone."
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

os.environ.update(OMP_NUM_THREADS='1', MKL_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1', DVC_NO_ANALYTICS='1', SOURCE_DATE_EPOCH='0')
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from layerdescent.pipeline import clear_results, copy_sources, git  # noqa: E402  (the checkout's, not an installed one)


def environment(folder: Path) -> dict:
    "The environment of a program that works in a checkout: this interpreter's programs, that checkout's package."
    env = {k: v for k, v in os.environ.items() if not k.startswith(('LAYERDESCENT_', 'GIT_', 'DVC_ROOT', 'DVC_STAGE'))}
    return env | dict(PATH=f'{Path(sys.executable).parent}{os.pathsep}{env["PATH"]}', PYTHONPATH=str(folder))


def command(folder: Path, *words, check=True, **more) -> subprocess.CompletedProcess:
    "Run a program in a checkout."
    done = subprocess.run([*map(str, words)], cwd=folder, env=environment(folder) | more, capture_output=True, text=True)
    if check: assert done.returncode == 0, f'{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}'
    return done


def commit(folder: Path, message: str) -> None:
    "Commit everything in a clone."
    git(folder, 'add', '-A')
    git(folder, '-c', 'user.name=test', '-c', 'user.email=test@localhost', 'commit', '-q', '--allow-empty', '-m', message)


def clone(to: Path, profile: str | None = None) -> Path:
    "A clone of the checkout as it is now (uncommitted sources included), with a profile as its params.yaml and that committed."
    git(ROOT, 'clone', '-q', '--no-hardlinks', str(ROOT), str(to))
    copy_sources(ROOT, to, leave=())
    if profile:
        shutil.copy(ROOT/'profiles'/f'{profile}.yaml', to/'params.yaml')
        clear_results(to)
    commit(to, 'as it is now')
    return to


@pytest.fixture(scope='session')
def twins(tmp_path_factory) -> list[tuple[Path, str]]:
    "Two clean clones of one commit in which the smoke profile has run, side by side on two cores, and what `dvc repro` said in each; their results, lock and data.dvc are committed."
    first = clone(tmp_path_factory.mktemp('smoke')/'project', 'smoke')
    folders = [first, first.parent/'twin']
    git(first, 'clone', '-q', str(first), str(folders[1]))
    running = [subprocess.Popen(['dvc', 'repro'], cwd=folder, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for folder in folders]
    with ThreadPoolExecutor(2) as readers: said = [*readers.map(lambda process: process.communicate()[0], running)]
    for folder, process, text in zip(folders, running, said):
        assert process.returncode == 0, text[-8000:]
        commit(folder, 'results')
    return [*zip(folders, said)]


@pytest.fixture(scope='session')
def smoke(twins) -> Path:
    "A clone in which the smoke profile has run once, everything committed. Tests leave it as they found it."
    return twins[0][0]
