import numpy as np
import pytest

from verifiers.comparison.plan import pilot_variances, plan_table
from verifiers.errors import ConfigError


def rewards(n, k, seed, spread=0.2):
    generator = np.random.default_rng(seed)
    means = np.random.default_rng(0).normal(0.5, 0.3, n)
    return {i: list(means[i] + generator.normal(0, spread, k)) for i in range(n)}


def test_two_runs_measure_the_variance_of_their_difference(make_run):
    first, second = make_run("a", rewards(400, 4, 1)), make_run("b", rewards(400, 4, 2))
    found = pilot_variances([first, second])
    assert found.between < 0.003
    assert found.within == pytest.approx((0.04, 0.04), rel=0.1)
    assert found.examples == 400


def test_one_run_assumes_a_correlation(make_run):
    run = make_run("a", rewards(400, 4, 1))
    assert pilot_variances([run], 0.5).between == pytest.approx(0.09, rel=0.15)
    assert pilot_variances([run], 0.9).between == pytest.approx(0.018, rel=0.15)


def test_the_table_has_a_row_per_effect_and_falls_with_rollouts(make_run):
    variances = pilot_variances([make_run("a", rewards(50, 4, 1))], 0.9)
    table = plan_table(variances, [0.01, 0.1], power=0.8, significance=0.05)
    assert [len(row) for row in table] == [5, 5]
    assert all(row == sorted(row, reverse=True) for row in table)
    assert table[0][0] == pytest.approx(100 * table[1][0], rel=0.02)


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_one_rollout_per_example_is_not_enough(make_run, names):
    runs = [make_run(name, {0: [1.0], 1: [0.0]}) for name in names]
    with pytest.raises(ConfigError, match="-r 2"):
        pilot_variances(runs)


def test_wrong_numbers_of_runs_and_examples_are_refused(make_run):
    run = make_run("a", {0: [1.0, 0.0]})
    with pytest.raises(ConfigError, match="larger -n"):
        pilot_variances([run])
    with pytest.raises(ConfigError, match="got 3"):
        pilot_variances([run, run, run])
