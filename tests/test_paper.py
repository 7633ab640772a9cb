"The paper profile, which nobody here could run: its weights and texts come through a mirror of stand-ins, and the rehearsal cuts nothing but sizes. `make rehearse` runs all of its stages."
import pytest
import torch
import yaml
from conftest import ROOT
from stand_ins import cut, text_mirror, weights_mirror

from layerdescent.classifiers import check_texts, make_classifier
from layerdescent.config import UserError, read_yaml
from layerdescent.corpora import CORPORA, official_splits, tokenise_pairs
from layerdescent.perturb import GaussianNoise
from layerdescent.pipeline import stages
from layerdescent.sources import fetch
from layerdescent.text import load_tokenizer, special_ids, tokenise
from layerdescent.train import TrainConfig, make_objective, train
from layerdescent.weights import published, write_weights

PROFILE = read_yaml(ROOT/'profiles'/'paper.yaml')


@pytest.fixture(scope='module')
def mirror(tmp_path_factory):
    folder = tmp_path_factory.mktemp('mirror')
    text_mirror(folder)
    weights_mirror(folder)
    return folder


def bring(name, mirror, to): return fetch(name, to/name, mirror=mirror, stand_in=True, partial=to/'partial')


@pytest.mark.parametrize('name', ['imdb-hub', 'sst2', 'mnli'])
def test_a_data_set_of_the_hub_comes_from_a_mirror_marked_as_a_stand_in(name, mirror, tmp_path):
    with pytest.raises(UserError, match='checksum mismatch'): fetch(name, tmp_path/'checked', mirror=mirror, partial=tmp_path/'partial')
    folder = bring(name, mirror, tmp_path)
    assert (folder/'STAND-IN.json').is_file()
    splits, counts = official_splits(name, folder)
    assert counts['train_rows'] == 300 and len(splits['test']) == counts['test_rows'] == 150
    assert {*splits['test'].label} == set(range(len(CORPORA[name].classes)))


@pytest.mark.parametrize(('system', 'weights', 'corpus'), [('roberta', 'roberta-large', 'mnli'), ('distilbert', 'distilbert-uncased', 'sst2'), ('llama', 'tinyllama', 'imdb-hub'), ('llama', 'tinyllama', 'mnli')])
def test_published_weights_train_on_official_splits(system, weights, corpus, mirror, tmp_path):
    data, source = bring(corpus, mirror, tmp_path), bring(weights, mirror, tmp_path)
    folder = write_weights(published(source), source/'tokenizer.json', tmp_path/'weights', 'a stand-in')
    table, tokenizer = official_splits(corpus, data)[0]['train'][:60], load_tokenizer(folder)
    tokens, _ = tokenise_pairs(table, tokenizer, 24) if 'pair' in table.columns else tokenise(table, tokenizer, 24, 8)
    pad, classes = special_ids(tokenizer)[2], len(CORPORA[corpus].classes)
    assert pad == dict(roberta=1, distilbert=0, llama=0)[system]
    options = next(e['options'] for e in PROFILE['train_text'].values() if e['architecture'] == system)
    model = make_classifier(system, folder, classes, 0, dict(pad=pad) | options)
    check_texts(model, tokens, classes)
    batch = {k: v for k, v in tokens.batch(torch.arange(6)).items() if k != 'labels'}
    wider = dict(input_ids=torch.nn.functional.pad(batch['input_ids'], (0, 5), value=pad), attention_mask=torch.nn.functional.pad(batch['attention_mask'], (0, 5)))
    with torch.no_grad(): assert (model(**wider) - model(**batch)).abs().max() < 1e-5     # wherever padding is, positions and readout are those of the text
    run = train(model, tokens, make_objective(dict(kind='constrained', alpha=.02), model.depth), TrainConfig(2, 8, 1e-3, precision='bf16'), tmp_path/'run', GaussianNoise(.8, 'rms'))
    assert len(run.rows) == 2 and all(torch.tensor(r['f']).isfinite().all() for r in run.rows)


def test_the_paper_profile_holds_what_the_paper_names():
    assert {(e['dataset'], e['arch'].split('-')[0]) for k, e in PROFILE['evaluate'].items() if k.startswith('fig4')} == {(d, a) for d in ('imdb', 'mnli', 'sst2') for a in ('ut', 'distilbert', 'roberta', 'llama')}
    assert {(e['dataset'], e['arch']) for k, e in PROFILE['evaluate'].items() if k.startswith('fig2')} == {(d, a) for d in ('ucsd-ped2', 'avenue', 'shanghaitech') for a in ('dust', 'ut', 'vit')}
    assert not any(e for e in PROFILE['fetch'].values()), 'official bytes only'


def test_the_rehearsal_cuts_nothing_but_sizes(tmp_path):
    small = cut(PROFILE)
    (tmp_path/'params.yaml').write_text(yaml.safe_dump(small, sort_keys=False))
    assert stages(ROOT, tmp_path/'params.yaml') == stages(ROOT, ROOT/'profiles'/'paper.yaml')
    kept = lambda p: {(section, key): {k: v for k, v in entry.items() if k not in ('steps', 'batch_size', 'test_rows', 'max_windows', 'stride_train', 'windows', 'validation_windows', 'stand_in')}
                      for section, values in p.items() if section not in ('expected_seconds', 'machine') and isinstance(values, dict) for key, entry in values.items() if isinstance(entry, dict)}
    assert kept(small) == kept(PROFILE)
