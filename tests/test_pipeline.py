"The pipeline end to end on the smoke profile, in a clone that all these tests share (see conftest.smoke)."
import json

import pytest
import yaml
from conftest import ROOT, command

from layerdescent.pipeline import git, stages, verify


def run_stages(said): return [line.split("'")[1] for line in said.splitlines() if line.startswith('Running stage')]


def status(folder): return git(folder, 'status', '--porcelain').stdout


def test_one_command_makes_every_result(smoke):
    figures = [f'results/figures/{name}.{kind}' for name in ('fig1', 'fig2', 'fig3', 'fig4', 'fig5', 'early_exit', 'frames', 'regime', 'regime_video') for kind in ('png', 'pdf')]
    tables = [f'results/tables/{name}' for name in ('table1.csv', 'table1.md', 'table2.csv', 'table2.md', 'peers-fig2-scenes-dust.csv', 'peers-fig2-scenes-dust.md')]
    for path in (*figures, *tables, 'results/claims.json', 'results/metrics.json'): assert (smoke/path).stat().st_size > 0
    assert list((smoke/'results'/'metrics').glob('*.csv'))
    claims = json.loads((smoke/'results'/'claims.json').read_text())
    assert isinstance(claims, list) and claims
    for claim in claims:
        assert {'id', 'statement', 'profile', 'effect', 'low', 'high', 'n_seeds', 'p', 'verdict', 'artifact', 'stage'} <= claim.keys()
    assert {'C1', 'C2', 'C3', 'C4', 'C5', 'C6', 'C10'} <= {claim['id'] for claim in claims}
    assert len({(claim['artifact'], claim['id']) for claim in claims}) == len(claims)


def test_every_stage_leaves_its_record_and_its_executed_notebook(smoke):
    for name in stages(smoke):
        record = json.loads((smoke/'results'/'run'/f"{name.replace('@', '-')}.json").read_text())
        assert record['stage'] == name and record['seconds'] >= 0 and record['revision'] and record['packages']['torch'] and record['hardware']['cores']
        assert '"papermill"' in (smoke/'runs'/'notebooks'/f'{name}.ipynb').read_text()


def test_a_second_run_runs_no_stage_and_touches_nothing(smoke):
    assert status(smoke) == ''
    done = command(smoke, 'dvc', 'repro')
    assert run_stages(done.stdout) == [] and 'up to date' in done.stdout
    assert status(smoke) == ''


def test_the_figures_module_reruns_the_figures_and_nothing_else(smoke):
    path = smoke/'layerdescent'/'plots.py'
    before = path.read_text()
    try:
        path.write_text(before + '# changed\n')
        ran = run_stages(command(smoke, 'dvc', 'repro').stdout)
    finally: path.write_text(before)
    wanted = {n for n in stages(smoke) if 'layerdescent/plots.py' in (yaml.safe_load((smoke/'dvc.yaml').read_text())['stages'][n.split('@')[0]].get('deps') or [])}
    assert set(ran) == wanted and 'fig1' in ran
    git(smoke, 'checkout', '-q', '--', 'dvc.lock', 'results')


def test_verify_agrees_with_the_commit_and_sees_one_changed_metric(smoke):
    assert verify(smoke)['agree']
    path = sorted((smoke/'results'/'metrics').glob('*.csv'))[0]
    before = path.read_text()
    lines = before.splitlines()
    row = next(i for i, line in enumerate(lines) if ',accuracy,' in line)
    start, value = lines[row].rsplit(',', 1)
    lines[row] = f'{start},{float(value) + 0.5}'
    try:
        path.write_text('\n'.join(lines) + '\n')
        done = command(smoke, 'python', '-m', 'layerdescent.pipeline', 'verify', check=False)
        report = json.loads((smoke/'runs'/'verify.json').read_text())
    finally: path.write_text(before)
    assert done.returncode == 1 and 'accuracy' in done.stderr and '1 differences' in done.stdout
    assert report['agree'] is False and len(report['outside']) == 1


def test_another_clean_clone_makes_the_same_bytes(twins):
    "Nothing but what git holds: every stage ran in both clones, data.dvc was imported on the way, and every result, the lock and data.dvc are the same bytes (on one machine)."
    files = []
    for folder, said in twins:
        assert set(run_stages(said)) == set(stages(folder)) and "Importing 'downloads' -> 'data'" in said
        tree = [line.split('\t') for line in git(folder, 'ls-tree', '-r', 'HEAD').stdout.splitlines()]
        files.append({path: entry for entry, path in tree if not path.startswith('results/run/')})   # the run records hold times
    assert {'dvc.lock', 'data.dvc', 'results/claims.json', 'results/figures/fig2.png'} <= set(files[0])
    assert {path for path in files[0].keys() | files[1].keys() if files[0].get(path) != files[1].get(path)} == set()


def test_an_unknown_parameter_stops_the_pipeline_with_one_sentence(smoke):
    path = smoke/'params.yaml'
    before = path.read_text()
    values = yaml.safe_load(before)
    values['fig1']['gammma'] = 1
    try:
        path.write_text(yaml.safe_dump(values, sort_keys=False))
        done = command(smoke, 'dvc', 'repro', 'fig1', check=False)
    finally: path.write_text(before)
    assert done.returncode != 0 and "error: fig1.ipynb (params.yaml, fig1): unknown parameter 'gammma'" in done.stderr and 'Traceback' not in done.stderr
    git(smoke, 'checkout', '-q', '--', 'results', 'dvc.lock')


def test_results_are_not_written_by_another_profile(smoke):
    "make paper PROFILE=x works in runs/x: a worktree of its own, which git does not see."
    command(smoke, 'python', '-m', 'layerdescent.pipeline', 'worktree', 'smoke')
    assert (smoke/'runs'/'smoke'/'params.yaml').read_text() == (ROOT/'profiles'/'smoke.yaml').read_text() and {p.name for p in (smoke/'runs'/'smoke'/'results').iterdir()} <= {'tuning'}
    assert status(smoke) == ''
    git(smoke, 'worktree', 'remove', '--force', 'runs/smoke')


@pytest.mark.parametrize('folder', ['data', 'downloads', 'build', 'runs', '.venv', '_docs'])
def test_what_the_pipeline_makes_is_ignored_by_git(folder):
    assert git(ROOT, 'check-ignore', '-q', f'{folder}/x', check=False).returncode == 0
