"What a notebook cannot show of the text side: other processes give the same bytes, and the real reviews and tokenizer, where they are on disk."
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT, environment

from layerdescent.config import read_yaml
from layerdescent.text import deduplicate, leakage, load_tokenizer, read_reviews, split_documents, tokenise

PROGRAM = '''
import hashlib, sys
from layerdescent.text import *
documents, _ = deduplicate(synthetic_reviews(300, seed=3))
splits = drop_near(split_documents(documents, seed=1))
tokenizer = word_tokenizer(splits['train'].text)
tokens, _ = tokenise(splits['train'], tokenizer)
print(hashlib.sha256(tokens.save(sys.argv[1]).read_bytes()).hexdigest(), hashlib.sha256(tokenizer.to_str().encode()).hexdigest())
'''


def test_another_process_with_another_hash_seed_prepares_the_same_bytes(tmp_path):
    said = [subprocess.run([sys.executable, '-c', PROGRAM, str(tmp_path/seed)], env=environment(ROOT) | dict(PYTHONHASHSEED=seed, RAYON_NUM_THREADS=threads, TOKENIZERS_PARALLELISM=parallel), capture_output=True, text=True)
            for seed, threads, parallel in (('1', '1', 'false'), ('2', '2', 'true'))]
    assert said[0].stdout and said[0].stdout == said[1].stdout, said[0].stderr + said[1].stderr


@pytest.fixture(scope='module')
def reviews():
    folder = ROOT/'data'/'movie-reviews'
    if not folder.is_dir(): pytest.skip('data/movie-reviews is not here')
    return read_reviews(folder, 'imdb')


def test_the_imdb_reviews_are_those_we_describe(reviews):
    assert reviews.label.value_counts().to_dict() == {0: 12_500, 1: 12_500}
    assert round(reviews.text.str.contains('<br />').mean(), 2) == .59
    documents, counts = deduplicate(reviews)
    assert counts == dict(rows=25_000, identical=96, duplicates=99, contradictory=0, documents=24_901)
    assert not documents.text.str.contains('<br').any()
    splits = split_documents(documents, seed=0)
    assert {k: len(v) for k, v in splits.items()} == dict(train=19_921, validation=2_490, test=2_490)
    some = {k: v.head(2000) for k, v in splits.items()}
    assert all(found['exact'] == 0 for found in leakage(some).values())


def test_tokens_are_those_of_the_stock_tokenizer_with_the_middle_cut_out(reviews):
    if not (ROOT/'data'/'minilm').is_dir(): pytest.skip('data/minilm is not here')
    from transformers import AutoTokenizer
    stock = AutoTokenizer.from_pretrained(ROOT/'data'/'minilm', local_files_only=True)
    some = deduplicate(reviews.sample(200, random_state=0))[0]
    tokens, lengths = tokenise(some, load_tokenizer(ROOT/'data'/'minilm'), max_length=64, head_tokens=16)
    for row, text in enumerate(some.text):
        full = stock(text, truncation=False)['input_ids']
        assert lengths[row] == len(full)
        expected = full if len(full) <= 64 else full[:17] + full[-47:]
        np.testing.assert_array_equal(tokens.input_ids[row, :len(expected)], expected)


def chosen(trials, kind, gamma_train):
    "The rule of regime.ipynb: of a method's trials that never reached the cap the one with the lowest validation loss of the last layer under the noise of training."
    last = trials[(trials.kind == kind) & (trials.layer == trials.layer.max()) & ((trials.gamma - gamma_train).abs() < 1e-9) & (trials.at_max == 0)]
    return json.loads(last.loc[last.loss.idxmin()].spec)


@pytest.mark.parametrize('name', ['ut', 'distilbert', 'roberta', 'llama'])
def test_the_settings_of_figure_4_are_the_ones_chosen_among_equal_trials(name):
    study = read_yaml(ROOT/'params.yaml')['train_text'][f'fig4-rt-{name}']
    trials = pd.read_csv(ROOT/'results'/'tuning'/f'text-{name}.csv')
    assert trials.groupby('kind').trial.nunique().nunique() == 1, 'every method has as many trials'
    setting = json.loads(trials.setting.iloc[0])
    assert {k: study[k] for k in ('architecture', 'options', 'steps', 'gamma_train', 'noise_scale')} == {k: setting[k] for k in ('architecture', 'options', 'steps', 'gamma_train', 'noise_scale')}
    assert not set(trials.seed) & set(study['seeds'])
    for method, spec in study['methods'].items():
        wanted = chosen(trials, spec['kind'], study['gamma_train'])
        assert {k: spec[k] for k in wanted} == wanted, method
