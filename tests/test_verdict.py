"""The verdict rule as contracts: fixed before the first full run (METHOD, section 5)."""
import itertools

import numpy as np
import pytest

from layerdescent.config import UserError
from layerdescent.evaluate import MIN_SEEDS, VERDICTS, claim, component, composite_verdict, paired_interval, sign_flip_p, verdict

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
