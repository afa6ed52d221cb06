import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from verifiers.comparison.candidates import RankSet, holm, rank_sets, simultaneous_intervals
from verifiers.comparison.paired import paired_mean


@settings(max_examples=15)  # statsmodels collects garbage in every call
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holms_p_values_agree_with_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])


def test_a_missing_p_value_is_not_counted():
    assert holm([0.01, math.nan, 0.04])[::2] == pytest.approx([0.02, 0.04])
    assert math.isnan(holm([0.01, math.nan])[1])


def test_one_comparison_is_about_the_t_test():
    d = np.random.default_rng(0).normal(0.3, 1, 120)
    found = simultaneous_intervals(d)
    assert found.intervals[0] == pytest.approx(paired_mean(d).interval(), abs=0.01)
    assert found.p_values[0] == pytest.approx(paired_mean(d).p_value, abs=0.01)


def test_equal_comparisons_cost_nothing_and_independent_ones_as_much_as_sidak():
    d = np.random.default_rng(0).normal(0, 1, (5, 400))
    alone = simultaneous_intervals(d[:1]).critical
    assert simultaneous_intervals(np.repeat(d[:1], 5, axis=0)).critical == pytest.approx(alone)
    sidak = scipy.stats.norm.ppf(1 - (1 - 0.95 ** (1 / 5)) / 2)
    assert simultaneous_intervals(d).critical == pytest.approx(sidak, abs=0.08)


def test_a_comparison_without_a_variance_has_no_interval_and_does_not_disturb_the_others():
    d = np.random.default_rng(0).normal(0, 1, (2, 50))
    alone = simultaneous_intervals(d)
    found = simultaneous_intervals(np.vstack([d, np.full(50, 0.25)]))
    assert found.intervals[:2] == alone.intervals
    assert math.isnan(found.intervals[2].low)
    assert math.isnan(simultaneous_intervals([[0.5]]).critical)


def test_simultaneous_intervals_cover_all_differences_at_once():
    generator = np.random.default_rng(1)
    truth = np.array([0.0, 0.2, -0.1])[:, None]
    covered = 0
    for trial in range(300):
        shared = generator.normal(0, 1, 60)
        d = truth + 0.7 * shared + generator.normal(0, 0.7, (3, 60))
        found = simultaneous_intervals(d, seed=trial, permutations=999).intervals
        covered += all(low <= t <= high for (low, high), t in zip(found, truth[:, 0], strict=True))
    assert 0.91 <= covered / 300 <= 0.985


def test_clusters_widen_the_intervals():
    d = np.repeat(np.random.default_rng(0).normal(0, 1, 30), 10)
    alone, together = (
        simultaneous_intervals(d, clusters).intervals[0]
        for clusters in (None, [i // 10 for i in range(300)])
    )
    assert together.high - together.low > 2.5 * (alone.high - alone.low)


# --- ranks


def test_candidates_that_are_surely_apart_have_one_rank_and_others_a_range():
    generator = np.random.default_rng(0)
    base = generator.normal(0, 1, 200)
    best, second, third = (base + shift + generator.normal(0, 0.1, 200) for shift in (1, 0.01, 0))
    assert rank_sets([third, best, second]) == [RankSet(2, 3), RankSet(1, 1), RankSet(2, 3)]


def test_equal_differences_rank_only_if_they_cannot_be_chance():
    few, many = np.zeros(3), np.zeros(30)
    assert rank_sets([few, few + 0.1]) == [RankSet(1, 2)] * 2
    assert rank_sets([many, many + 0.1]) == [RankSet(2, 2), RankSet(1, 1)]
    assert rank_sets([many, many]) == [RankSet(1, 2)] * 2
    assert rank_sets([many]) == [RankSet(1, 1)]
