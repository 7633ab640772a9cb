"Contracts between files: what is generated, declared twice, or promised somewhere must agree."
import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib import metadata

import pytest
import yaml
from conftest import ROOT, command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from layerdescent.config import checked, read_yaml
from layerdescent.pipeline import git, notebook_parameters, notebook_source, readme, stage_modules, stage_parameters, stages

NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
LIBRARY = [p for p in NOTEBOOKS if re.match(r'\d\d_', p.name)]
PAPER = [p for p in NOTEBOOKS if p.parent.name == 'paper']
PROFILES = [ROOT/'params.yaml', *sorted((ROOT/'profiles').glob('*.yaml'))]
NOT_SECTIONS = {'profile', 'machine', 'threads', 'expected_seconds', 'disk_gib', 'verify'}
PYPROJECT = tomllib.loads((ROOT/'pyproject.toml').read_text())
SETTINGS = ConfigParser(delimiters=['='])
SETTINGS.read(ROOT/'settings.ini')
DVC = yaml.safe_load((ROOT/'dvc.yaml').read_text())['stages']
stem = lambda p: p.stem


def cells(path): return json.loads(path.read_text())['cells']


def tracked(): return [p for p in git(ROOT, 'ls-files', '-z').stdout.split('\0') if p and (ROOT/p).is_file()]


# ---- generated files

def test_export_is_in_sync_with_the_notebooks(tmp_path):
    shutil.copytree(ROOT/'nbs', tmp_path/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    shutil.copy(ROOT/'settings.ini', tmp_path)
    (tmp_path/'layerdescent').mkdir()
    command(tmp_path, 'nbdev_export')
    def package(root): return {p.name: p.read_text() for p in (root/'layerdescent').glob('*.py')}
    here, made = package(ROOT), package(tmp_path)
    differ = sorted(n for n in here.keys() | made.keys() if here.get(n) != made.get(n))
    assert not differ, f'layerdescent/ is not what the notebooks export: {differ}. Edit the notebooks, never layerdescent/, and run nbdev_export.'


def test_readme_is_in_sync_with_the_index():
    if git(ROOT, 'status', '--porcelain', 'results').stdout: pytest.skip('results/ differs from the commit that the README describes')
    assert (ROOT/'README.md').read_text() == readme(ROOT), 'README.md is not what nbs/index.ipynb renders to: run `make readme`.'


# ---- notebooks

@pytest.mark.parametrize('path', PAPER, ids=stem)
def test_a_paper_notebook_has_one_typed_parameters_cell_and_no_outputs(path):
    assert all(v is None or isinstance(v, bool | int | float | str | list | dict) for v in notebook_parameters(path).values())
    for cell in cells(path):
        if cell['cell_type'] == 'code': assert cell['outputs'] == [] and cell['execution_count'] is None, f'{path.name} is committed with outputs: its stage would rerun. Clear them.'
        assert '#| export' not in ''.join(cell['source']), 'paper notebooks export nothing'


@pytest.mark.parametrize('path', LIBRARY, ids=stem)
def test_a_library_notebook_has_the_projects_form(path):
    code = [''.join(c['source']) for c in cells(path) if c['cell_type'] == 'code']
    title = next(''.join(c['source']) for c in cells(path) if c['cell_type'] == 'markdown')
    assert code[0].startswith(f'#| default_exp {path.stem[3:]}')
    assert re.match(r'# .+\n+> .+', title), 'an H1 with a one-line > subtitle comes first'
    exported = [c for c in code if c.startswith('#| export')]
    assert exported and all(len(c.splitlines()) <= 46 for c in exported), 'an exported cell is longer than 45 lines'
    asserting = [c for c in code if not c.startswith('#| export') and re.search(r'\bassert\b|\btest_\w+\(|assert_\w+\(', c)]
    assert 3*len(asserting) >= len(exported), f'{len(asserting)} asserting cells for {len(exported)} exported ones'
    assert not re.search(r'^\s*from \S+ import \*', '\n'.join(code), re.M), 'no star imports'


def test_a_library_notebook_imports_only_lower_numbers():
    number = {p.stem[3:]: int(p.stem[:2]) for p in LIBRARY}
    assert len(set(number.values())) == len(number), 'two notebooks have one number'
    for path in LIBRARY:
        for node in ast.walk(ast.parse(notebook_source(path))):
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('layerdescent.'):
                other = node.module.split('.')[1]
                assert other == path.stem[3:] or number[other] < number[path.stem[3:]], f'{path.name} imports {other}, which has no lower number'


# ---- parameters and stages

def sections(path): return {k: v for k, v in read_yaml(path).items() if k not in NOT_SECTIONS}


def has_entries(name):
    "Whether a notebook's section of params.yaml holds one mapping per stage, rather than parameters."
    return 'foreach' in DVC[name] if name in DVC else 'key' in notebook_parameters(ROOT/'nbs'/'paper'/f'{name}.ipynb')


@pytest.mark.parametrize('path', PROFILES, ids=stem)
def test_a_profile_type_checks_against_the_notebooks(path):
    assert read_yaml(path)['profile'] == ('cpu' if path.name == 'params.yaml' else path.stem)
    for name, section in sections(path).items():
        for key in section if has_entries(name) else [None]: stage_parameters(ROOT, name, key, path)


@pytest.mark.parametrize('path', PROFILES, ids=stem)
def test_every_method_of_a_profile_makes_an_objective(path):
    from layerdescent.train import METHOD, make_objective
    for section in ('train_video', 'train_text'):
        for key, entry in sections(path).get(section, {}).items():
            for name, spec in entry['methods'].items(): make_objective(checked(METHOD, spec, f'{path.name}, {section}.{key}.methods.{name}'), 6, name)


@pytest.mark.parametrize('path', PROFILES, ids=stem)
def test_a_profile_declares_the_seconds_of_every_stage(path):
    assert set(read_yaml(path)['expected_seconds']) == set(stages(ROOT, path))


def test_the_cpu_profile_promises_55_minutes_and_the_smoke_profile_5():
    install = 180
    assert sum(read_yaml(ROOT/'params.yaml')['expected_seconds'].values()) + install <= 55*60
    assert sum(read_yaml(ROOT/'profiles'/'smoke.yaml')['expected_seconds'].values()) <= 5*60


@pytest.mark.parametrize('name', DVC)
def test_a_stage_depends_on_exactly_what_its_notebook_imports(name):
    notebook, body = ROOT/'nbs'/'paper'/f'{name}.ipynb', DVC[name].get('do', DVC[name])
    wanted = {f'nbs/paper/{name}.ipynb', *(f'layerdescent/{m}.py' for m in stage_modules(notebook, ROOT/'layerdescent'))}
    code = {d for d in body['deps'] if d.startswith(('nbs/', 'layerdescent/'))}
    assert code == wanted, f'dvc.yaml, {name}: deps must name {", ".join(sorted(wanted))}'
    assert not {d for d in body['deps'] if d.rstrip('/') in ('data', 'layerdescent', 'nbs', 'results')}, 'a whole folder is no dependency: it changes for reasons that are not the stage\'s'
    assert body['cmd'] == f'python -m layerdescent.pipeline run {name}' + (' ${key}' if 'foreach' in DVC[name] else '')


@pytest.mark.parametrize('name', DVC)
def test_a_stage_depends_on_exactly_the_parameters_its_notebook_takes(name):
    body, takes = DVC[name].get('do', DVC[name]), notebook_parameters(ROOT/'nbs'/'paper'/f'{name}.ipynb')
    assert set(body['params']) == {f'{name}.${{key}}' if 'foreach' in DVC[name] else name, *(k for k in ('threads', 'profile') if k in takes)}


def test_every_path_has_one_owner_and_results_stay_in_git():
    outs = [(n, o if isinstance(o, str) else next(iter(o)), {} if isinstance(o, str) else next(iter(o.values()))) for n, b in DVC.items() for kind in ('outs', 'metrics') for o in b.get('do', b).get(kind, [])]
    for name, path, how in outs:
        assert path.startswith(('downloads/', 'build/')) or (path.startswith('results/') and how.get('cache') is False), f'{name}: {path}'
        assert not path.startswith(('data', 'results/run')), f'{name}: {path}'
    assert yaml.safe_load((ROOT/'data.dvc').read_text()).get('frozen', False) is False, 'data.dvc must be an unfrozen import'


# ---- packages, versions, metadata

def requirements(text): return [Requirement(line) for line in text if line and not line.startswith('#')]


LOCK = {canonicalize_name(r.name): str(r.specifier) for r in requirements((ROOT/'constraints.txt').read_text().splitlines())}
EXTRAS = PYPROJECT['project']['optional-dependencies']


def test_the_lock_pins_plain_versions():
    for name, pin in LOCK.items(): assert re.fullmatch(r'==[0-9][0-9A-Za-z.]*', pin), f'constraints.txt: {name}{pin}'


def test_the_lock_covers_every_declared_dependency():
    for r in requirements([*PYPROJECT['project']['dependencies'], *(d for e in EXTRAS.values() for d in e)]):
        assert canonicalize_name(r.name) in LOCK and LOCK[canonicalize_name(r.name)].removeprefix('==') in r.specifier, f'constraints.txt and pyproject.toml disagree about {r}'


def test_the_lock_covers_everything_that_installs():
    "The closure of the declared dependencies, as the installed packages declare them for this platform."
    todo, seen = requirements([*PYPROJECT['project']['dependencies'], *(d for e in EXTRAS.values() for d in e)]), set()
    while todo:
        r = todo.pop()
        name, extras = canonicalize_name(r.name), r.extras or {''}
        for extra in extras:
            if (name, extra) in seen or (r.marker and not any(r.marker.evaluate(dict(extra=e)) for e in extras)): continue
            seen.add((name, extra))
            try: declared = metadata.requires(name) or []
            except metadata.PackageNotFoundError: continue   # the docs extra, where it is not installed
            assert name in LOCK, f'constraints.txt lacks {name}'
            for d in map(Requirement, declared):
                if not d.marker or d.marker.evaluate(dict(extra=extra)): todo.append(d)
    assert len(seen) > 50


def test_what_the_package_imports_is_declared():
    provides = metadata.packages_distributions()
    declared = {canonicalize_name(r.name) for r in requirements(PYPROJECT['project']['dependencies'])}
    paper = {canonicalize_name(r.name) for r in requirements(EXTRAS['paper'])}
    lazily = dict(weights={'onnx'}, classifiers={'peft'}, corpora={'datasets'}, theory={'scipy'})   # imported inside a function, which says in a sentence what to install
    for path in sorted((ROOT/'layerdescent').glob('*.py')):
        allowed = declared | (paper if path.stem in ('pipeline', 'plots', 'breadth') else paper & lazily.get(path.stem, set()))
        tree = ast.parse(path.read_text())
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names} | {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module and not n.level}
        for top in {n.split('.')[0] for n in names} - set(sys.stdlib_module_names) - {'layerdescent'}:
            assert allowed & {canonicalize_name(d) for d in provides.get(top, [top])}, f'{path.name} imports {top}, which its dependencies in pyproject.toml do not give'


def test_versions_agree():
    import layerdescent
    citation = yaml.safe_load((ROOT/'CITATION.cff').read_text())
    assert SETTINGS['DEFAULT']['version'] == layerdescent.__version__ == citation['version']
    assert SETTINGS['DEFAULT']['min_python'] in PYPROJECT['project']['requires-python']
    assert PYPROJECT['project']['license'] == citation['license'] == 'Apache-2.0' and 'Apache License' in (ROOT/'LICENSE').read_text()
    assert SETTINGS['DEFAULT']['allowed_cell_metadata_keys'] == 'tags', 'nbdev_clean would strip the parameters tag'


HEAVY = {'torch', 'dvc', 'papermill', 'nbdev', 'nbconvert', 'pandas', 'transformers'}


def loaded_by(statement):
    done = subprocess.run([sys.executable, '-c', f'{statement}; import sys; print(*{{m.split(".")[0] for m in sys.modules}})'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_is_light():
    assert not loaded_by('import layerdescent') & HEAVY


def test_no_module_needs_the_pipelines_tools():
    modules = sorted(p.stem for p in (ROOT/'layerdescent').glob('*.py') if not p.stem.startswith('_'))
    blocked = 'import sys; sys.modules.update({n: None for n in ("dvc", "papermill", "nbdev", "nbconvert", "nbclient", "execnb", "fastcore")}); '
    loaded_by(blocked + '; '.join(f'import layerdescent.{m}' for m in modules))


# ---- what must not be in the repository

FORBIDDEN = [r'/(?:root|work|home)/', r'/(?:tmp|opt)/\w', r'pypi\W+org', r'python\W*hosted']


def test_no_machine_paths_or_registry_hosts_in_tracked_files():
    for name in tracked():
        if name in ('tests/test_contracts.py', 'LICENSE') or not (ROOT/name).read_bytes()[:1024].isascii() and name.endswith(('.png', '.pdf')): continue
        text = (ROOT/name).read_text(errors='replace')
        for pattern in FORBIDDEN:
            found = re.search(pattern, text)
            assert not found, f'{name}: {text[max(0, found.start() - 40):found.end() + 40]!r}'


def test_nothing_large_is_tracked():
    for name in tracked(): assert (ROOT/name).stat().st_size < 2_000_000, name
