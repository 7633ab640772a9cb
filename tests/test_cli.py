"What a person sees at the command line: one clear sentence and a failing status for everything that can be put right."
import json
import shutil
import subprocess

import pytest
from conftest import ROOT, clone, command


@pytest.fixture(scope='module')
def checkout(tmp_path_factory): return clone(tmp_path_factory.mktemp('cli')/'project')


def fails_with_one_line(done, *words):
    assert done.returncode == 1, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and done.stderr.startswith('error: '), done.stderr
    for word in words: assert word in done.stderr


def cli(folder, *words): return command(folder, 'python', '-m', 'layerdescent.pipeline', *words, check=False)


def set_parameters(folder, text):
    (folder/'params.yaml').write_text(text)


def test_an_unknown_notebook_names_those_there_are(checkout):
    fails_with_one_line(cli(checkout, 'run', 'fig99'), "no notebook 'fig99'", 'claims')


def test_an_unknown_key_names_those_there_are(checkout):
    fails_with_one_line(cli(checkout, 'run', 'train_text', 'fig99'), "no entry 'fig99'")


def test_an_unknown_or_mistyped_parameter_is_one_sentence_and_writes_nothing(checkout):
    before = (checkout/'params.yaml').read_text()
    try:
        set_parameters(checkout, 'fig1: {metrix: a}')
        fails_with_one_line(cli(checkout, 'run', 'fig1'), 'fig1.ipynb', "unknown parameter 'metrix'")
        set_parameters(checkout, 'fig1: {metrics: 3}')
        fails_with_one_line(cli(checkout, 'run', 'fig1'), 'fig1.ipynb', "'metrics' must be str")
        set_parameters(checkout, 'fig1: {}\nfig1: {}')
        fails_with_one_line(cli(checkout, 'run', 'fig1'), "'fig1' is written twice")
    finally: set_parameters(checkout, before)
    assert not (checkout/'runs').exists()
    assert command(checkout, 'git', 'status', '--porcelain').stdout == ''


def test_a_lost_parameters_tag_is_an_error(checkout):
    path = checkout/'nbs'/'paper'/'fig1.ipynb'
    before = path.read_text()
    notebook = json.loads(before)
    for cell in notebook['cells']: cell['metadata'].pop('tags', None)
    try:
        path.write_text(json.dumps(notebook))
        fails_with_one_line(cli(checkout, 'run', 'fig1'), 'fig1.ipynb', '0 cells tagged `parameters`')
    finally: path.write_text(before)


def test_an_unknown_profile_names_those_there_are(checkout):
    fails_with_one_line(cli(checkout, 'worktree', 'huge'), "no profile 'huge'", 'smoke')


def test_a_changed_download_fails_the_cpu_profile(checkout):
    path = checkout/'data.dvc'
    before = path.read_text()
    try:
        path.write_text(before.replace('.dir', '0.dir'))
        fails_with_one_line(cli(checkout, 'data'), 'data.dvc')
    finally: path.write_text(before)
    assert cli(checkout, 'data').returncode == 0


def test_the_plan_says_stages_minutes_and_disk(checkout):
    said = command(checkout, 'python', '-m', 'layerdescent.pipeline', 'plan').stdout
    assert all(word in said for word in ('Profile cpu', 'minutes', 'GiB of disk', 'train_text@fig1-imdb-minilm'))


def test_outside_a_checkout_the_error_says_so(tmp_path):
    fails_with_one_line(command(tmp_path, 'python', '-m', 'layerdescent.pipeline', 'plan', check=False, PYTHONPATH=str(ROOT)), 'not inside a layerdescent checkout')


# ---- make

def make(folder, *words, path=None):
    return command(folder, 'make', *words, check=False, **(dict(PATH=path) if path else {}))


@pytest.fixture
def makefile(tmp_path):
    for name in ('Makefile', 'constraints.txt', 'pyproject.toml'): shutil.copy(ROOT/name, tmp_path)
    return tmp_path


def test_make_without_git_says_that_dvc_needs_it(makefile):
    done = make(makefile, 'paper')
    assert done.returncode == 2 and 'error: this copy is not a git checkout' in done.stderr and not (makefile/'.venv').exists()


def test_make_with_an_old_python_names_the_version_it_found(makefile):
    subprocess.run(['git', 'init', '-q'], cwd=makefile, check=True)
    old = makefile/'python2.7'
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 2.7.18" || exit 1\n')
    old.chmod(0o755)
    done = make(makefile, 'test', f'PYTHON={old}')
    assert done.returncode == 2 and 'needs Python 3.11 or newer' in done.stderr and 'Python 2.7.18' in done.stderr and not (makefile/'.venv').exists()
    done = make(makefile, 'test', 'PYTHON=no-such-python')
    assert done.returncode == 2 and 'needs Python 3.11 or newer' in done.stderr


def test_make_lists_its_targets(makefile):
    said = make(makefile).stdout
    for target in ('paper', 'test', 'smoke', 'figures', 'lab', 'docs', 'bench', 'tune', 'clean'): assert f'make {target} ' in said


def test_all_of_an_unknown_notebook_is_an_error_too(checkout):
    done = cli(checkout, 'run', 'nonsense', '--all')
    assert done.returncode == 1 and 'nonsense' in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_mistyped_section_is_named(checkout):
    params = checkout/'params.yaml'
    before = params.read_text()
    params.write_text(before + 'trainn: {a: {}}\n')
    done = cli(checkout, 'plan')
    params.write_text(before)
    assert done.returncode == 1 and "'trainn'" in done.stderr


def test_verify_of_a_folder_that_is_not_there_is_an_error(checkout):
    done = cli(checkout, 'verify', '--folder', 'nonsense')
    assert done.returncode == 1 and 'no folder nonsense' in done.stderr
