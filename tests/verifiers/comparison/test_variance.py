import math

import numpy as np
import pytest
from statsmodels.stats.power import NormalIndPower

from verifiers.comparison.variance import detectable_effect, examples_for, two_levels


def runs(n, k_first, k_second, between, within, seed=0):
    generator = np.random.default_rng(seed)
    difference = generator.normal(0, math.sqrt(between), n)
    first = generator.normal(0, math.sqrt(within), (n, k_first))
    second = difference[:, None] + generator.normal(0, math.sqrt(within), (n, k_second))
    return list(first), list(second), second.mean(axis=1) - first.mean(axis=1)


def test_the_two_levels_are_found():
    found = two_levels(*runs(20_000, 4, 2, between=0.05, within=0.2))
    assert found.between == pytest.approx(0.05, rel=0.1)
    assert found.within_first == pytest.approx(0.2, rel=0.03)
    assert found.within_second == pytest.approx(0.2, rel=0.03)
    assert found.sampling == pytest.approx(0.2 / 4 + 0.2 / 2, rel=0.03)
    assert found.sampling_share == pytest.approx(0.15 / 0.2, rel=0.05)


def test_no_true_difference_leaves_only_the_sampling():
    found = two_levels(*runs(5_000, 8, 8, between=0.0, within=0.2))
    assert found.between < 0.003
    assert found.sampling_share > 0.94


def test_one_rollout_per_example_tells_nothing_about_the_sampling():
    found = two_levels(*runs(50, 1, 1, between=0.1, within=0.1))
    assert math.isnan(found.sampling)
    assert math.isnan(found.sampling_share)
    assert found.total == found.between


def test_equal_runs_have_no_variance():
    found = two_levels([[1, 1], [0, 0]], [[1, 1], [0, 0]], [0.0, 0.0])
    assert (found.total, found.sampling_share) == (0.0, 0.0)


def test_the_number_of_examples_is_that_of_a_z_test():
    # With one within-variance of 0, the paired comparison is a one-sample z-test of the differences.
    ratio = NormalIndPower(ddof=0).solve_power(0.1 / 0.5, alpha=0.05, power=0.8, ratio=0)
    assert examples_for(0.1, between=0.25) == math.ceil(ratio)
    assert examples_for(0.03, between=1 / 9, within=(1 / 6, 1 / 6)) == 3876


def test_a_run_with_that_many_examples_detects_the_effect_as_often_as_planned():
    n = examples_for(0.2, between=0.1, within=(0.2, 0.3), rollouts=(2, 4), power=0.9)
    stderr = math.sqrt((0.1 + 0.2 / 2 + 0.3 / 4) / n)
    assert detectable_effect(stderr, power=0.9) == pytest.approx(0.2, rel=0.02)
    means = np.random.default_rng(0).normal(0.2, stderr, 20_000)
    assert np.mean(means > 1.96 * stderr) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("call", [lambda: examples_for(0.0, between=1.0)])
def test_an_effect_of_zero_is_refused(call):
    with pytest.raises(ValueError, match="smallest difference that matters"):
        call()


@pytest.mark.parametrize("options", [{"power": 1.0}, {"significance": 0.0}])
def test_impossible_probabilities_are_refused(options):
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        detectable_effect(0.1, **options)
