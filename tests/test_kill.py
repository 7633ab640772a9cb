"kill -9 in mid-training, of DVC, of the runner and of the kernel: nothing stays alive, and the next `dvc repro` goes on from the checkpoint to the same bits."
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml
from conftest import command, environment

STAGE, KEY = 'train_text@killed', 'killed'


def wait(condition, seconds, what):
    end = time.time() + seconds
    while time.time() < end:
        found = condition()
        if found: return found
        time.sleep(0.05)
    raise AssertionError(f'waited {seconds} s for {what}')


def processes(project):
    "This project's runners, kernels and their worker processes, by what they are."
    found = dict(runner=[], kernel=[], worker=[])
    for p in psutil.process_iter(['cmdline', 'environ', 'status']):
        words, where = p.info['cmdline'] or [], (p.info['environ'] or {}).get('PYTHONPATH', '')
        if str(project) not in where.split(os.pathsep) or p.info['status'] == psutil.STATUS_ZOMBIE: continue
        if 'layerdescent.pipeline' in words and 'python' in words[0]: found['runner'].append(p)
        if 'ipykernel_launcher' in words: found['kernel'].append(p)
        if any('multiprocessing.spawn' in w for w in words): found['worker'].append(p)
    return found


def set_test_rows(project, rows, workers=1):
    "Another number of test rows, or of workers, is another stage to DVC and the same training."
    values = yaml.safe_load((project/'params.yaml').read_text())
    values['train_text'][KEY] |= dict(test_rows=rows, workers=workers)
    (project/'params.yaml').write_text(yaml.safe_dump(values, sort_keys=False))


def weights(project):
    return {r['method']: r['weights_sha256'] for r in json.loads((project/'build'/'scores'/KEY/'runs.json').read_text())}


def start(project, *words):
    return subprocess.Popen(list(words), cwd=project, env=environment(project), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)


@pytest.fixture(scope='module')
def project(smoke, tmp_path_factory):
    "A copy of the smoke clone with a training stage of a few seconds, and the weights of a run that nobody disturbed."
    folder = tmp_path_factory.mktemp('kill')/'project'
    shutil.copytree(smoke, folder, symlinks=True, ignore=shutil.ignore_patterns('runs'))
    values = yaml.safe_load((folder/'params.yaml').read_text())
    stage = next(iter(values['train_text'].values()))
    stage |= dict(methods={'erm': stage['methods']['erm'], 'constrained': stage['methods']['constrained']}, seeds=[0], steps=200, test_rows=30)
    values['train_text'] = {KEY: stage}
    (folder/'params.yaml').write_text(yaml.safe_dump(values, sort_keys=False))
    command(folder, sys.executable, '-m', 'layerdescent.pipeline', 'run', 'train_text', KEY)
    return folder, weights(folder)


@pytest.mark.parametrize('rows, victim', [(31, 'dvc'), (32, 'runner'), (33, 'kernel')])
def test_after_kill_9_the_next_repro_goes_on_to_the_same_weights(project, rows, victim):
    folder, undisturbed = project
    set_test_rows(folder, rows, workers=2)
    checkpoint = folder/'runs'/'train'/KEY/'constrained-0'/'checkpoint.pt'
    assert not checkpoint.exists()
    dvc = start(folder, 'dvc', 'repro', STAGE)
    try:
        wait(checkpoint.exists, 300, 'the first checkpoint')
        running = processes(folder)
        assert {k: len(v) for k, v in running.items()} == dict(runner=1, kernel=1, worker=2)
        os.kill(dvc.pid if victim == 'dvc' else running[victim][0].pid, signal.SIGKILL)
        wait(lambda: not any(processes(folder).values()), 20, f'runner, kernel and workers to end after kill -9 of the {victim}')
        said, _ = dvc.communicate(timeout=60)
    finally:
        if dvc.poll() is None: dvc.kill()
    assert dvc.returncode != 0 and 'Traceback' not in said
    if victim == 'kernel': assert f'error: {STAGE}: its kernel was killed' in said
    assert checkpoint.exists() and not (folder/'build'/'scores'/KEY/'runs.json').exists()

    again = start(folder, 'dvc', 'repro', STAGE)
    most = 0
    while again.poll() is None:
        most = max(most, len(processes(folder)['kernel']))
        time.sleep(0.2)
    said = again.stdout.read()
    again.stdout.close()
    assert again.returncode == 0, said
    assert most == 1 and 'constrained seed 0: continuing from step' in said, said
    assert weights(folder) == undisturbed
    assert not list((folder/'runs'/'train').rglob('checkpoint*'))


def test_a_second_trainer_is_refused_with_the_number_of_the_first(project):
    folder, _ = project
    set_test_rows(folder, 34)
    lock = folder/'runs'/'train'/KEY
    code = f'from layerdescent.train import run_lock\nwith run_lock({str(lock)!r}): print("held", flush=True); input()'
    first = subprocess.Popen([sys.executable, '-c', code], env=environment(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        first.stdout.readline()
        done = command(folder, sys.executable, '-m', 'layerdescent.pipeline', 'run', 'train_text', KEY, check=False)
    finally:
        first.kill()
        first.communicate()
    assert done.returncode == 1 and done.stderr.startswith('error: ') and f'process {first.pid} is training' in done.stderr
