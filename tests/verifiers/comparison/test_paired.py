import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from verifiers.comparison.paired import (
    PairedCounts,
    bootstrap_interval_of_mean,
    mcnemar,
    paired_mean,
    posterior_interval,
    sign_flip_p,
    tango_interval,
    tost_p,
    unpaired_stderr,
)

DIFFERENCES = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=12)
COUNTS = st.builds(PairedCounts, *[st.integers(0, 40)] * 4).filter(lambda counts: counts.n > 0)


# --- the t-test


@given(DIFFERENCES)
def test_mean_interval_and_p_value_agree_with_scipy(differences):
    found = paired_mean(differences)
    if np.ptp(differences) < 1e-3:
        return
    test = scipy.stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(0.9)
    assert found.p_value == pytest.approx(test.pvalue, rel=1e-6, abs=1e-9)
    assert found.interval(0.9) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.one_sided(0.95) == pytest.approx((low, high), rel=1e-6, abs=1e-9)


def test_clustered_errors_agree_with_statsmodels():
    generator = np.random.default_rng(3)
    clusters = [f"c{number}" for number in generator.integers(0, 9, 60)]
    d = generator.normal(0.1, 1, 60) + [len(label) + int(label[1]) / 3 for label in clusters]
    model = sm.OLS(d, np.ones(60)).fit()
    robust = model.get_robustcov_results(
        "cluster", groups=np.unique(clusters, return_inverse=True)[1], use_correction=False
    )
    count = len(set(clusters))
    found = paired_mean(d, clusters)
    assert found.df == count - 1
    assert found.stderr == pytest.approx(robust.bse[0] * math.sqrt(count / (count - 1)), rel=1e-9)


def test_one_example_per_cluster_is_the_same_as_no_clusters():
    d = [0.1, -0.4, 0.3, 0.0]
    assert paired_mean(d, ["a", "b", "c", "d"]) == pytest.approx(paired_mean(d), rel=1e-12)


@pytest.mark.parametrize(
    ("differences", "mean", "p_value"),
    [([0.0, 0.0, 0.0], 0.0, 1.0), ([0.5] * 4, 0.5, 2**-3), ([1.0], 1.0, math.nan)],
)
def test_differences_without_a_variance(differences, mean, p_value):
    found = paired_mean(differences)
    assert found.mean == mean
    assert found.p_value == pytest.approx(p_value, nan_ok=True)


def test_no_differences_and_wrong_clusters():
    assert math.isnan(paired_mean([]).mean)
    with pytest.raises(ValueError, match="3 differences, 2 clusters"):
        paired_mean([1, 2, 3], ["a", "b"])


def test_the_unpaired_error_is_welchs():
    a, b = [1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.5]
    statistic = scipy.stats.ttest_ind(a, b, equal_var=False).statistic
    assert unpaired_stderr(a, b) == pytest.approx((np.mean(a) - np.mean(b)) / statistic)


# --- 0/1 rewards


@given(COUNTS)
def test_mcnemar_agrees_with_statsmodels(counts):
    table = [[counts.both, counts.candidate_only], [counts.baseline_only, counts.neither]]
    exact, mid = mcnemar(counts)
    assert exact == pytest.approx(statsmodels_mcnemar(table, exact=True).pvalue, rel=1e-9)
    m = counts.candidate_only + counts.baseline_only
    k = min(counts.candidate_only, counts.baseline_only)
    at = scipy.stats.binom.pmf(k, m, 0.5) if m else 0.0
    assert mid == pytest.approx(min(1.0, 2 * scipy.stats.binom.cdf(k, m, 0.5) - at), rel=1e-9)


@given(COUNTS)
def test_tangos_interval_holds_the_estimate_and_the_differences_its_score_accepts(counts):
    low, high = tango_interval(counts)
    n, b, c = counts.n, counts.candidate_only, counts.baseline_only
    assert -1 <= low <= (b - c) / n <= high <= 1
    z = scipy.stats.norm.ppf(0.975)
    for delta in np.linspace(-0.99, 0.99, 23):
        # The restricted maximum likelihood of the probability of "baseline only", found numerically.
        lowest = max(0.0, -delta)
        q = scipy.optimize.minimize_scalar(
            lambda q, delta=delta: (
                -(
                    b * math.log(max(q + delta, 1e-300))
                    + c * math.log(max(q, 1e-300))
                    + (n - b - c) * math.log(max(1 - 2 * q - delta, 1e-300))
                )
            ),
            bounds=(lowest, (1 - delta) / 2),
            method="bounded",
            options={"xatol": 1e-10},
        ).x
        variance = n * (2 * q + delta * (1 - delta))
        if variance < 1e-6:
            continue
        score = (b - c - n * delta) / math.sqrt(variance)
        if abs(abs(score) - z) > 1e-3:
            assert (abs(score) < z) == (low <= delta <= high)


def test_the_posterior_has_the_moments_of_the_dirichlet_distribution():
    counts = PairedCounts(10, 5, 2, 8)
    low, high = posterior_interval(counts, seed=1)
    p = scipy.stats.dirichlet([11, 6, 3, 9])
    mean = p.mean()[1] - p.mean()[2]
    covariance = p.cov()
    deviation = math.sqrt(covariance[1, 1] + covariance[2, 2] - 2 * covariance[1, 2])
    assert low == pytest.approx(mean - 1.96 * deviation, abs=0.02)
    assert high == pytest.approx(mean + 1.96 * deviation, abs=0.02)
    assert posterior_interval(counts, seed=1) == (low, high)


# --- resampling


@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 2)), min_size=1, max_size=8))
def test_the_exact_sign_flip_test_counts_all_signs(differences):
    totals = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in product((1, -1), repeat=len(differences))
    ]
    expected = np.mean(np.array(totals) >= abs(sum(differences)) - 1e-9)
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_the_random_sign_flip_test_agrees_with_scipy_and_with_its_seed():
    d = np.random.default_rng(0).normal(0.25, 1, 60)
    expected = scipy.stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(1)
    ).pvalue
    assert sign_flip_p(d, seed=5) == pytest.approx(expected, abs=0.012)
    assert sign_flip_p(d, seed=5) == sign_flip_p(d, seed=5)


def test_differences_of_one_cluster_share_their_sign():
    d = [1.0, 1.0, 1.0, 1.0]
    assert sign_flip_p(d) == 2 / 16
    assert sign_flip_p(d, ["a", "a", "b", "b"]) == 2 / 4


def test_a_p_value_from_random_signs_is_never_zero():
    assert sign_flip_p(np.ones(100), permutations=999) == 1 / 1000


def test_the_bootstrap_interval_agrees_with_scipy():
    d = np.random.default_rng(0).normal(0.25, 1, 150)
    expected = scipy.stats.bootstrap(
        (d,), np.mean, method="percentile", n_resamples=9999, rng=np.random.default_rng(1)
    ).confidence_interval
    assert bootstrap_interval_of_mean(d) == pytest.approx(tuple(expected), abs=0.02)
    assert math.isnan(bootstrap_interval_of_mean([1.0]).low)


# --- equivalence


def test_equivalence_agrees_with_statsmodels():
    d = np.random.default_rng(0).normal(0.02, 0.1, 40)
    expected = sm.stats.DescrStatsW(d).ttost_mean(-0.05, 0.05)[0]
    assert tost_p(paired_mean(d), 0.05) == pytest.approx(expected)
    with pytest.raises(ValueError, match="must be positive"):
        tost_p(paired_mean(d), 0.0)


# --- coverage


@pytest.mark.parametrize("n", [20, 50, 200])
def test_the_t_interval_of_continuous_differences_covers_95_percent(n):
    generator = np.random.default_rng(n)
    d = generator.beta(2, 1, (20_000, n)) - generator.beta(1, 1, (20_000, n))
    mean, stderr = d.mean(axis=1), d.std(axis=1, ddof=1) / math.sqrt(n)
    half = paired_mean(d[0]).interval().high - paired_mean(d[0]).mean
    t = half / paired_mean(d[0]).stderr
    covered = np.abs(mean - (2 / 3 - 1 / 2)) <= t * stderr
    assert 0.935 <= covered.mean() <= 0.965


@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("p", [(0.5, 0.2, 0.1, 0.2), (0.8, 0.1, 0.05, 0.05), (0.3, 0.3, 0.3, 0.1)])
def test_tangos_interval_covers_95_percent(n, p):
    if n * (p[1] + p[2]) < 5:
        pytest.skip("The few possible outcomes have no interval with a coverage near 95 %.")
    draws = np.random.default_rng(n).multinomial(n, p, 4000)
    kinds, repeats = np.unique(draws[:, :3], axis=0, return_counts=True)
    covered = 0
    for (both, b, c), count in zip(kinds, repeats, strict=True):
        low, high = tango_interval(PairedCounts(int(both), int(b), int(c), n - int(both + b + c)))
        covered += count * (low <= p[1] - p[2] <= high)
    assert 0.935 <= covered / 4000 <= 0.965
