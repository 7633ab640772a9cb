"""The verdict rule as contracts: fixed before the first full run (METHOD, section 5)."""
import itertools
import json

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from layerdescent.config import UserError
from layerdescent.evaluate import (MIN_SEEDS, VERDICTS, better_at_matched_clean, claim, component, composite_verdict, degrades_gracefully, denoises_better, depth_helps, gain_cells, keeps_quality, layers_descend,
                                   paired_interval, read_metrics, run_metrics, sign_flip_p, verdict, verdict_sentence)

SMALLEST = 0.01


@pytest.mark.parametrize('low, high, expected', [
    (0.02, 0.06, 'reproduced'),         # above the smallest effect altogether
    (0.001, 0.03, 'reproduced'),        # excludes 0, may be larger than the smallest effect
    (0.0, 0.03, 'inconclusive'),        # touching 0 does not exclude it
    (-0.01, 0.03, 'inconclusive'),      # excludes neither 0 nor an interesting effect
    (-0.01, 0.01, 'inconclusive'),      # touching the smallest effect does not exclude it
    (-0.01, 0.009, 'not reproduced'),   # excludes every interesting effect
    (0.001, 0.006, 'not reproduced'),   # real and negligible: this verdict goes first
    (-0.05, -0.02, 'not reproduced'),   # the opposite of the claim
])
def test_five_seeds_get_the_verdict_of_their_interval(low, high, expected):
    assert verdict(low, high, SMALLEST, n_seeds=5) == expected


@pytest.mark.parametrize('n_seeds', [1, 2, 3, 4])
@pytest.mark.parametrize('low, high', [(0.02, 0.06), (-0.05, -0.02), (-0.01, 0.03)])
def test_fewer_than_five_seeds_never_get_a_verdict(n_seeds, low, high):
    assert verdict(low, high, SMALLEST, n_seeds) == 'inconclusive'


def test_a_single_seed_has_no_interval_and_no_verdict():
    mean, low, high = paired_interval([0.3])
    assert (mean, low, high) == (0.3, None, None)
    assert verdict(low, high, SMALLEST, 1) == 'inconclusive'


@pytest.mark.parametrize('min_seeds', [0, 1, 4])
def test_no_parameter_lowers_the_number_of_seeds(min_seeds):
    assert MIN_SEEDS == 5
    with pytest.raises(UserError, match='min_seeds must be at least 5'):
        verdict(0.02, 0.06, SMALLEST, 5, min_seeds=min_seeds)
    assert verdict(0.02, 0.06, SMALLEST, 9, min_seeds=10) == 'inconclusive'


def test_a_wider_interval_never_turns_undecided_into_decided():
    ends = np.linspace(-0.03, 0.03, 25)
    for low, high in itertools.combinations(ends, 2):
        if verdict(low, high, SMALLEST, 5) == 'inconclusive':
            assert verdict(low - 0.001, high + 0.001, SMALLEST, 5) == 'inconclusive'


def test_more_of_the_effect_never_makes_the_verdict_worse():
    rank = {'not reproduced': 0, 'inconclusive': 1, 'reproduced': 2}
    for width in (0.001, 0.009, 0.02, 0.1):
        ranks = [rank[verdict(low, low + width, SMALLEST, 5)] for low in np.linspace(-0.2, 0.2, 401)]
        assert ranks == sorted(ranks)


@pytest.mark.parametrize('low, high, smallest', [(0.2, 0.1, 0.01), (0.1, 0.2, -0.01), (float('nan'), 0.2, 0.01), (0.1, float('inf'), 0.01), (0.1, 0.2, float('nan'))])
def test_nonsense_is_refused_with_a_sentence(low, high, smallest):
    with pytest.raises(UserError, match='interval|0 or more'):
        verdict(low, high, smallest, 5)


@pytest.mark.parametrize('parts', list(itertools.product(VERDICTS, repeat=3)))
def test_a_composite_claim_holds_only_if_every_part_holds(parts):
    whole = composite_verdict(list(parts))
    assert (whole == 'reproduced') == all(p == 'reproduced' for p in parts)
    assert (whole == 'not reproduced') == any(p == 'not reproduced' for p in parts)


@pytest.mark.parametrize('parts', [[], ['yes'], ['reproduced', 'Reproduced']])
def test_a_composite_claim_refuses_unknown_parts(parts):
    with pytest.raises(UserError):
        composite_verdict(parts)


def test_the_interval_is_the_paired_t_interval_and_has_no_randomness():
    d = np.array([0.02, 0.035, 0.01, 0.03, 0.025])
    mean, low, high = paired_interval(d)
    half = 2.7764451052 * d.std(ddof=1) / np.sqrt(5)  # the printed quantile for 4 degrees of freedom
    assert np.allclose([mean, low, high], [d.mean(), d.mean() - half, d.mean() + half], atol=1e-9)
    assert paired_interval(d) == paired_interval(d.tolist()) == (mean, low, high)
    assert np.allclose(paired_interval(d[::-1]), (mean, low, high))


def test_without_an_effect_a_false_reproduction_is_as_rare_as_promised():
    """Normal seeds without an effect: the lower end passes 0 in 2.5 % of the draws (three standard errors allowed)."""
    null = np.random.default_rng(0).standard_normal((4000, 5))
    rate = np.mean([verdict(*paired_interval(d)[1:], 0.0, 5) == 'reproduced' for d in null])
    assert abs(rate - 0.025) < 3 * np.sqrt(0.025 * 0.975 / len(null))


def test_five_seeds_cannot_reach_a_sign_flip_p_below_one_in_sixteen():
    assert sign_flip_p([1.0, 1.1, 0.9, 5.0, 2.0]) == 2 / 32
    draws = np.random.default_rng(1).standard_normal((200, 5))
    assert min(sign_flip_p(d) for d in draws) >= 2 / 32


def test_a_margin_moves_the_border_and_the_printed_interval_is_the_judged_one():
    worse = [-0.004, 0.001, -0.002, -0.003, 0.002]
    strict, lenient = component('strict', worse), component('lenient', worse, margin=0.01)
    assert strict['verdict'] == 'inconclusive' and lenient['verdict'] == 'reproduced'
    assert lenient['raw_effect'] == strict['effect'] == -0.0012
    for part in (strict, lenient):
        assert part['verdict'] == verdict(part['low'], part['high'], part['smallest_effect'], part['n_seeds'])


def test_a_claim_is_decided_by_its_weakest_part():
    strong = component('strong', [1.0, 1.1, 0.9, 1.2, 1.0])
    unsure = component('unsure', [0.1, -0.1, 0.2, 0.0, -0.1])
    absent = component('absent', [0.001, 0.002, 0.0, -0.001, 0.001], smallest_effect=0.1)
    for parts, expected, decided_by in [([strong], 'reproduced', 'strong'), ([strong, unsure], 'inconclusive', 'unsure'), ([strong, unsure, absent], 'not reproduced', 'absent')]:
        row = claim('C', 'all hold', parts)
        assert (row['verdict'], row['decided_by']) == (expected, decided_by)
        assert row['p'] == next(part['p'] for part in parts if part['name'] == decided_by)
        assert row['p_all'] == (max(part['p'] for part in parts) if expected == 'reproduced' else None)
        assert row['refutation_error'] == pytest.approx(0.025 * len(parts))
        assert row['verdict'] == verdict(row['low'], row['high'], row['smallest_effect'], row['n_seeds'])


@pytest.mark.parametrize('differences', [[0.2, 0.21, 0.19, 0.2, 0.22], [-0.2, -0.21, -0.19, -0.2, -0.22]])
def test_a_constraint_that_never_acted_decides_nothing(differences):
    part = component('effect', differences)
    assert claim('C', 'holds', [part])['verdict'] != 'inconclusive'
    idle = claim('C', 'holds', [part], dict(largest_multiplier=0.0, fraction_at_max=0.0, reason='constraint inactive', note=''))
    assert (idle['verdict'], idle['reason'], idle['p_all']) == ('inconclusive', 'constraint inactive', None)


@pytest.mark.parametrize('value, smallest', [(3e-7, 0.0), (0.0099999996, 0.01)])
def test_what_is_printed_is_what_was_judged(value, smallest):
    part = component('effect', [value] * 5, smallest)
    assert part['verdict'] == verdict(part['low'], part['high'], smallest, 5)


def test_layers_that_all_descend_are_rarely_called_refuted():
    """Six layers that truly descend by three times the smallest effect, in five noisy seeds."""
    studies = np.random.default_rng(3).normal(0.003, 0.005, size=(200, 5, 6))
    refuted = [composite_verdict([component('', layer, 0.001)['verdict'] for layer in study.T]) == 'not reproduced' for study in studies]
    assert np.mean(refuted) < 0.1


# ---- claims about video, on tables made up row by row

LEVELS, TRAINED, LAYERS = (0.0, 0.13, 0.3, 0.5), 0.13, 3


def study(last, *, layers=LAYERS, trained=TRAINED, rising=None, spread=0.002, seeds=5, idle_seed=None, task='video'):
    "A tidy table: `last` gives every method's RMSE at the last layer for each noise level; `rising`: methods whose last layer but one is worse than the one before."
    rows = []
    for method, values in last.items():
        for seed in range(seeds):
            wobble = 1 + spread * [0.7, -1.1, 0.2, 1.3, -0.9, 0.4, -0.3][seed] * (1 if method == 'constrained' else -1)
            active = dict(largest_multiplier=0.0 if seed == idle_seed else 2.0, fraction_active=0.0 if seed == idle_seed else 0.5, fraction_at_max=0.0) if method.startswith('constrained') else {}
            rows += [(method, seed, None, None, name, value) for name, value in dict(gamma_train=trained, **active).items()]
            for gamma, value in zip(LEVELS, values):
                rmse = np.linspace(2, 1, layers + 1) * value * wobble
                if method in (rising or ()): rmse[-2] = rmse[-3] + 0.05 * value
                rows += [(method, seed, gamma, layer, name, x) for layer, r in enumerate(rmse) for name, x in dict(loss=r * r, rmse=r).items()]
                rows.append((method, seed, gamma, None, 'largest_increase_rmse', np.diff(rmse).max()))
    table = pd.DataFrame(rows, columns=['method', 'seed', 'gamma', 'layer', 'metric', 'value']).astype(dict(gamma='Float64', layer='Int64'))
    return table.assign(task=task, dataset='made up', arch='dust', alpha=None, depth=layers)


def saved(gain, clean=0.0): return dict(erm=(0.03, 0.05, 0.1, 0.2), constrained=(0.03 * (1 - clean), 0.05 * (1 - clean), 0.1 * (1 - gain), 0.2 * (1 - gain)))


def depths(constrained, erm, **more):
    "A depth study at L = 3 and L = 12: the RMSE under the largest noise of both methods, shallow and deep; all trained clean, with ERM stopped early beside them."
    def at(level, clean): return (clean, level / 4, level / 2, level)
    return {layers: study({'erm': at(e, 0.005), 'constrained': at(c, 0.02), 'erm-early': at(1.05 * c, 0.021)}, layers=layers, trained=0.0, **more) for layers, c, e in zip((3, 12), constrained, erm)}


SMALLEST_SHARE = 0.02
C1_VIDEO = dict(smallest_decrease=0.0005, smallest_increase=0.0005, margin=0.002)


def early(early_clean=0.021, early_ood=1.05, **more):
    return study({'erm': (0.005, 0.1, 0.2, 0.4), 'constrained': (0.02, 0.09, 0.18, 0.36), 'erm-early': (early_clean, *(early_ood * x for x in (0.09, 0.18, 0.36)))}, trained=0.0, **more)


CASES = {
    'C1 descends, erm does not': (lambda **m: layers_descend(study(saved(0.05), rising=['erm'], **m), TRAINED, **C1_VIDEO), 'reproduced'),
    'C1 erm descends too': (lambda **m: layers_descend(study(saved(0.05), **m), TRAINED, **C1_VIDEO), 'not reproduced'),
    'C1 constrained rises': (lambda **m: layers_descend(study(saved(0.05), rising=['erm', 'constrained'], **m), TRAINED, **C1_VIDEO), 'not reproduced'),
    'C1 layer 0 ruined': (lambda **m: layers_descend(study(saved(0.05, clean=-0.2), rising=['erm'], **m), TRAINED, **C1_VIDEO), 'not reproduced'),
    'C1 undecided': (lambda **m: layers_descend(study(saved(0.05), rising=['erm'], **(dict(spread=0.1) | m)), TRAINED, **C1_VIDEO), 'inconclusive'),
    'C3 saves': (lambda **m: denoises_better(dict(a=study(saved(0.05), **m)), SMALLEST_SHARE), 'reproduced'),
    'C3 loses': (lambda **m: denoises_better(dict(a=study(saved(-0.05), **m)), SMALLEST_SHARE), 'not reproduced'),
    'C3 saves too little': (lambda **m: denoises_better(dict(a=study(saved(0.01), **m)), SMALLEST_SHARE), 'not reproduced'),
    'C3 undecided': (lambda **m: denoises_better(dict(a=study(saved(0.02), **(dict(spread=0.02) | m))), SMALLEST_SHARE), 'inconclusive'),
    'C3 over two studies': (lambda **m: denoises_better(dict(a=study(saved(0.08), **m), b=study(saved(0.0), **m)), SMALLEST_SHARE), 'reproduced'),
    'C3 over a gain and a loss': (lambda **m: denoises_better(dict(a=study(saved(0.04), **m), b=study(saved(-0.06), **m)), SMALLEST_SHARE), 'not reproduced'),
    'C6 kept': (lambda **m: keeps_quality(study(saved(0.0, clean=0.01), **m), SMALLEST_SHARE), 'reproduced'),
    'C6 lost': (lambda **m: keeps_quality(study(saved(0.0, clean=-0.05), **m), SMALLEST_SHARE), 'not reproduced'),
    'C6 undecided': (lambda **m: keeps_quality(study(saved(0.0, clean=-0.02), **m), SMALLEST_SHARE), 'inconclusive'),
    'C4 as drawn': (lambda **m: depth_helps(depths((0.4, 0.35), (0.41, 0.45), **m), *[SMALLEST_SHARE] * 3), 'reproduced'),
    'C4 erm stays': (lambda **m: depth_helps(depths((0.4, 0.35), (0.41, 0.41), **m), *[SMALLEST_SHARE] * 3), 'not reproduced'),
    'C4 erm falls too': (lambda **m: depth_helps(depths((0.4, 0.35), (0.45, 0.41), **m), *[SMALLEST_SHARE] * 3), 'not reproduced'),
    'C4 constrained rises': (lambda **m: depth_helps(depths((0.35, 0.4), (0.41, 0.45), **m), *[SMALLEST_SHARE] * 3), 'not reproduced'),
    'C4 constrained is worse': (lambda **m: depth_helps(depths((0.6, 0.5), (0.41, 0.45), **m), *[SMALLEST_SHARE] * 3), 'not reproduced'),
    'C4 undecided': (lambda **m: depth_helps(depths((0.4, 0.39), (0.41, 0.42), **(dict(spread=0.05) | m)), *[SMALLEST_SHARE] * 3), 'inconclusive'),
    'C4@early still better': (lambda **m: better_at_matched_clean(early(**m), SMALLEST_SHARE, match=0.1), 'reproduced'),
    'C4@early worse': (lambda **m: better_at_matched_clean(early(early_ood=0.95, **m), SMALLEST_SHARE, match=0.1), 'not reproduced'),
    'C4@early undecided': (lambda **m: better_at_matched_clean(early(early_ood=1.02, **(dict(spread=0.05) | m)), SMALLEST_SHARE, match=0.1), 'inconclusive'),
    'C4@early not matched, cleaner': (lambda **m: better_at_matched_clean(early(early_clean=0.017, **m), SMALLEST_SHARE, match=0.1), 'inconclusive'),
    'C4@early not matched, less clean: a success all the more': (lambda **m: better_at_matched_clean(early(early_clean=0.024, **m), SMALLEST_SHARE, match=0.1), 'reproduced'),
}


@pytest.mark.parametrize('name', CASES)
def test_a_video_claim_comes_out_as_its_table_was_made(name):
    make, expected = CASES[name]
    row = make()
    assert row['verdict'] == expected, verdict_sentence(row)
    assert f', {expected}' in verdict_sentence(row)
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize('name', CASES)
def test_a_video_claim_is_open_if_the_constraints_of_one_seed_never_acted(name):
    row = CASES[name][0](idle_seed=3)
    assert row['verdict'] == 'inconclusive' and row['reason'].startswith('constraint inactive')


@pytest.mark.parametrize('name', CASES)
def test_a_video_claim_is_open_with_four_seeds(name):
    assert CASES[name][0](seeds=4)['verdict'] == 'inconclusive'


def last(table, method, gamma):
    at = table[(table.method == method) & (table.metric == 'rmse') & (table.gamma == gamma) & (table.layer == LAYERS)]
    return at.sort_values('seed').value.to_numpy()


def test_the_effect_of_c3_is_the_mean_share_of_the_rmse_saved_above_the_training_noise():
    table = study(saved(0.05, clean=-0.5))  # what happens up to the training noise has no part in it
    expected = np.mean([1 - last(table, 'constrained', g) / last(table, 'erm', g) for g in (0.3, 0.5)], axis=0)
    row = denoises_better(dict(a=table), SMALLEST_SHARE)
    assert row['gamma'] == [0.3, 0.5] and row['effect'] == pytest.approx(expected.mean(), abs=1e-6)
    assert (row['low'], row['high']) == pytest.approx(paired_interval(expected)[1:], abs=1e-6)


def test_over_several_studies_seeds_are_averaged_first():
    tables = dict(a=study(saved(0.08)), b=study(saved(-0.01), spread=0.01))
    expected = np.mean([[1 - last(t, 'constrained', g) / last(t, 'erm', g) for g in (0.3, 0.5)] for t in tables.values()], axis=(0, 1))
    row = denoises_better(tables, SMALLEST_SHARE)
    assert (row['low'], row['high']) == pytest.approx(paired_interval(expected)[1:], abs=1e-6) and row['n_seeds'] == 5


def test_the_grid_counts_what_the_intervals_say():
    table = study(dict(erm=(0.03, 0.05, 0.1, 0.2), constrained=(0.033, 0.05, 0.095, 0.19)))
    grid = gain_cells(dict(a=table))
    assert [c['outcome'] for c in grid] == ['loss', 'tie', 'win', 'win'] and [c['beyond_training'] for c in grid] == [False, False, True, True]
    for cell in grid:
        mean, low, high = paired_interval(1 - last(table, 'constrained', cell['gamma']) / last(table, 'erm', cell['gamma']))
        assert (cell['effect'], cell['low'], cell['high']) == pytest.approx((mean, low, high), abs=1e-6)
        assert cell['rmse'] == {m: pytest.approx(last(table, m, cell['gamma']).mean(), abs=1e-6) for m in ('constrained', 'erm')}
    row = denoises_better(dict(a=table, b=study(saved(0.05), idle_seed=0)), SMALLEST_SHARE)
    assert row['cells'] == dict(wins=2, ties=1, losses=1, undecided=4) and row['cells_beyond'] == dict(wins=2, ties=0, losses=0, undecided=2) and row['studies'] == dict(wins=1, ties=0, losses=0, undecided=1)


def test_studies_that_share_no_seeds_are_not_averaged():
    with pytest.raises(UserError, match='different seeds'): denoises_better(dict(a=study(saved(0.05)), b=study(saved(0.05), seeds=6)), SMALLEST_SHARE)


def test_the_clean_price_of_depth_and_of_stopping_early_is_in_the_row():
    tables = depths((0.4, 0.35), (0.41, 0.45))
    assert depth_helps(tables, *[SMALLEST_SHARE] * 3)['clean_rmse'] == pytest.approx(dict(constrained=0.02, erm=0.005), rel=0.01)
    row = better_at_matched_clean(tables[12], SMALLEST_SHARE, match=0.1)
    assert row['clean_rmse'] == pytest.approx({'constrained': 0.02, 'erm-early': 0.021, 'erm': 0.005}, rel=0.01) and row['clean_apart'] == pytest.approx(-1 / 21, abs=0.01)
    assert 'clean RMSE' in verdict_sentence(row)


def test_the_rmse_of_a_study_is_that_of_all_its_pixels_at_once():
    errors = np.random.default_rng(0).normal(size=(1, 4, 30, 8, 64)) * np.linspace(0.3, 0.1, 4)[None, :, None, None, None] * np.random.default_rng(1).uniform(0.2, 2, (30, 1, 1))
    metrics = run_metrics([0.13], dict(loss=(errors**2).mean((-1, -2)).astype(np.float32)), alpha=0.1, task='video')
    for layer in range(4):
        pooled = np.sqrt((errors[0, layer]**2).mean())
        found = metrics[metrics.layer == layer].set_index('metric').value
        assert found['rmse'] == pytest.approx(pooled, rel=1e-6) and found['psnr'] == pytest.approx(10 * np.log10(1 / pooled**2), abs=1e-4)


def test_the_committed_verdicts_of_figure_1_are_what_the_rule_gives_today():
    rows = [row for row in json.loads((ROOT/'results'/'claims.json').read_text()) if row['artifact'] == 'fig1-imdb-minilm']
    table = read_metrics(ROOT/'results'/'metrics'/'fig1-imdb-minilm.csv')
    by_id = {row['id']: row for row in rows}
    def same(row): assert row == {k: v for k, v in by_id[row['id']].items() if k not in ('profile', 'artifact', 'stage')}
    c1, c2, c6 = (by_id[i]['components'] for i in ('C1', 'C2', 'C6'))
    same(layers_descend(table, 0.2, c1[0]['smallest_effect'], c1[-1]['smallest_effect'], c1[-2]['margin']))
    same(degrades_gracefully({'fig1-imdb-minilm': table}, c2[0]['smallest_effect']))
    same(keeps_quality(table, c6[0]['margin']))


def test_c1_of_video_asks_for_shares_of_the_rmse():
    table = study(saved(0.05), rising=['erm'])
    def rmse(method, layer): return table[(table.method == method) & (table.metric == 'rmse') & (table.gamma == TRAINED) & (table.layer == layer)].sort_values('seed').value.to_numpy()
    effects = {c['name']: c['effect'] for c in layers_descend(table, TRAINED, **C1_VIDEO)['components']}
    assert effects['decrease of constrained at layer 2'] == pytest.approx((1 - rmse('constrained', 2) / rmse('constrained', 1)).mean(), abs=1e-6)
    assert effects['largest increase of erm'] == pytest.approx((rmse('erm', 2) - rmse('erm', 1)).mean(), abs=1e-6)
    assert effects['layer 0, erm - constrained'] == pytest.approx((rmse('erm', 0) - rmse('constrained', 0)).mean() + 0.002, abs=1e-6)
