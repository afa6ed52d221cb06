import math
from collections import Counter

import numpy as np
import pytest
import scipy  # which imports its parts on use
from hypothesis import assume, given
from hypothesis import strategies as st

from verifiers.runs.statistics import (
    beta_interval,
    beta_quantile,
    bootstrap_interval,
    clustered_mean,
    estimate_from_sums,
    examples_needed,
    minimum_detectable_effect,
    naive_stderr,
    normal_quantile,
    paired_difference,
    pass_all_k,
    pass_at_k,
    powers_of_two,
    spread_of,
    student_t_cdf,
    student_t_quantile,
    wilson_interval,
)

REWARDS = st.floats(-10, 10, allow_subnormal=False)


@st.composite
def clustered(draw, min_clusters=2):
    sizes = draw(st.lists(st.integers(1, 6), min_size=min_clusters, max_size=8))
    clusters = [cluster for cluster, size in enumerate(sizes) for _ in range(size)]
    values = draw(st.lists(REWARDS, min_size=len(clusters), max_size=len(clusters)))
    order = draw(st.permutations(range(len(values))))
    return [values[i] for i in order], [clusters[i] for i in order]


# --- quantiles


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0.5, 1e7))
def test_student_quantiles_agree_with_scipy(probability, df):
    assume(abs(probability - 0.5) > 1e-3)  # nearer to 0.5 scipy itself is off by up to 4e-5
    assert student_t_quantile(probability, df) == pytest.approx(
        scipy.stats.t.ppf(probability, df), rel=1e-9
    )


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 30, 99, 1000, 19_999, 20_001, 1e6])
@pytest.mark.parametrize("probability", [0.975, 0.995, 0.95, 0.025, 1e-9])
def test_student_quantiles_at_the_usual_points(probability, df):
    assert student_t_quantile(probability, df) == pytest.approx(
        scipy.stats.t.ppf(probability, df), rel=1e-9
    )


def test_student_quantiles_with_closed_forms():
    for p in (0.6, 0.9, 0.999999):
        assert student_t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
        closed = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert student_t_quantile(p, 2) == pytest.approx(closed, rel=1e-9)
    assert student_t_quantile(0.5, 7) == 0.0
    assert student_t_quantile(0.5 + 1e-6, 4) == pytest.approx(1e-6 / 0.375, rel=1e-9)


@given(st.floats(-50, 50), st.floats(0.5, 1e5))
def test_student_probabilities_agree_with_scipy(value, df):
    assert student_t_cdf(value, df) == pytest.approx(
        scipy.stats.t.cdf(value, df), rel=1e-7, abs=1e-12
    )


def test_student_at_the_edges():
    assert student_t_cdf(math.inf, 3) == 1.0
    assert student_t_cdf(-math.inf, 3) == 0.0
    with pytest.raises(ValueError, match="between 0 and 1"):
        student_t_quantile(1.0, 3)
    with pytest.raises(ValueError, match="must be positive"):
        student_t_quantile(0.9, 0)
    with pytest.raises(ValueError, match="must be positive"):
        student_t_cdf(0.9, math.nan)


def test_normal_quantiles_agree_with_scipy():
    for p in (1e-9, 0.025, 0.5, 0.975):
        assert normal_quantile(p) == pytest.approx(scipy.stats.norm.ppf(p), rel=1e-9, abs=1e-12)


# --- means


@given(clustered())
def test_clustered_errors_agree_with_statsmodels(data):
    import statsmodels.api as sm

    values, clusters = data
    assume(min(values) < 0 or max(values) > 1)  # rewards in [0, 1] have an interval of their own
    assume(max(values) - min(values) > 1e-6)
    model = sm.OLS(values, np.ones(len(values)))
    fit = model.fit(cov_type="cluster", cov_kwds={"groups": np.array(clusters)}, use_t=True)
    found = clustered_mean(values, clusters)
    low, high = fit.conf_int()[0]
    assert found.mean == pytest.approx(fit.params[0], rel=1e-6, abs=1e-6)
    # statsmodels computes the covariance from squared sums, so its own error is that of a square root near zero.
    assert found.stderr == pytest.approx(fit.bse[0], rel=1e-6, abs=1e-6)
    assert found.low == pytest.approx(low, rel=1e-6, abs=2e-5)
    assert found.high == pytest.approx(high, rel=1e-6, abs=2e-5)
    assert (found.clusters, found.observations) == (len(set(clusters)), len(values))


@given(st.lists(REWARDS, min_size=2, max_size=30))
def test_one_rollout_an_example_gives_the_ordinary_error(values):
    found = clustered_mean(values, range(len(values)))
    assert found.stderr == pytest.approx(scipy.stats.sem(values), rel=1e-6, abs=1e-9)
    assert naive_stderr(values) == pytest.approx(scipy.stats.sem(values), rel=1e-6, abs=1e-9)
    if found.stderr > 1e-6 and (min(values) < 0 or max(values) > 1):
        low, high = scipy.stats.t.interval(
            0.95, len(values) - 1, found.mean, scipy.stats.sem(values)
        )
        assert found.interval == pytest.approx((low, high), rel=1e-6, abs=1e-6)


@given(clustered())
def test_the_error_is_that_of_the_cited_formula(data):
    values, clusters = data
    array, labels = np.array(values), np.array(clusters)
    n, m = len(array), array.mean()
    cross = sum(
        (array[i] - m) * (array[j] - m)
        for i in range(n)
        for j in range(n)
        if labels[i] == labels[j]
    )
    count = len(set(clusters))
    expected = math.sqrt(max(0.0, cross) / n**2 * count / (count - 1))
    assert clustered_mean(values, clusters).stderr == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_rollouts_that_always_agree_are_worth_one_each():
    values = [1.0] * 8 + [0.0] * 8
    clusters = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert clustered_mean(values, clusters).stderr == pytest.approx(scipy.stats.sem([1, 1, 0, 0]))
    assert naive_stderr(values) < clustered_mean(values, clusters).stderr / 1.9


def test_means_of_almost_nothing():
    nothing = clustered_mean([], [])
    assert (nothing.clusters, nothing.observations) == (0, 0)
    assert math.isnan(nothing.mean)
    one = clustered_mean([0.5, 1.0], ["a", "a"])
    assert (one.mean, one.clusters) == (0.75, 1)
    assert math.isnan(one.stderr)
    assert 0 < one.low < 0.25  # one example says little, but rewards lie in [0, 1]
    beyond = clustered_mean([5.0, 6.0], ["a", "a"])
    assert math.isnan(beyond.low)
    equal = clustered_mean([0.3] * 6, [0, 0, 1, 1, 2, 2])
    assert equal.mean == pytest.approx(0.3)
    assert equal.stderr == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(naive_stderr([1.0]))


def test_every_value_needs_a_label():
    with pytest.raises(ValueError, match="got 2 values, 1 labels"):
        clustered_mean([1.0, 2.0], ["a"])


@given(clustered())
def test_sums_are_enough(data):
    values, clusters = data
    sums, counts = {}, {}
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + value
        counts[cluster] = counts.get(cluster, 0) + 1
    again = estimate_from_sums(
        list(sums.values()), [counts[c] for c in sums], spread=spread_of(values)
    )
    assert again == pytest.approx(clustered_mean(values, clusters), rel=1e-9, abs=1e-9, nan_ok=True)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(1000):
        difficulty = generator.normal(0.5, 0.2, 20)
        values = (difficulty[:, None] + generator.normal(0, 0.1, (20, 4))).reshape(-1)
        found = clustered_mean(values, np.repeat(np.arange(20), 4))
        hits += found.low <= 0.5 <= found.high
    assert 0.93 < hits / 1000 < 0.97


# --- intervals of rewards in [0, 1]


@given(st.sampled_from([0.025, 0.975, 0.005, 0.5]), st.floats(0.5, 1e4), st.floats(0.5, 1e4))
def test_beta_quantiles_agree_with_scipy(probability, a, b):
    assert beta_quantile(probability, a, b) == pytest.approx(
        scipy.stats.beta.ppf(probability, a, b), rel=1e-8, abs=1e-12
    )


def test_beta_quantiles_of_very_many_rollouts_are_normal():
    expected = scipy.stats.beta.ppf(0.975, 9e6, 1e6)
    assert beta_quantile(0.975, 9e6, 1e6) == pytest.approx(expected, rel=1e-6)
    # Few failures among many rollouts are not: there the distribution keeps its skewness.
    skewed = scipy.stats.beta.ppf(0.975, 3.0, 3e6)
    assert beta_quantile(0.975, 3.0, 3e6) == pytest.approx(skewed, rel=1e-6)


def test_the_beta_interval_with_jeffreys_prior_agrees_with_statsmodels():
    from statsmodels.stats.proportion import proportion_confint

    for successes, trials in ((1, 20), (10, 20), (19, 20), (199, 200)):
        expected = proportion_confint(successes, trials, method="jeffreys")
        assert beta_interval(successes, trials, 0.5) == pytest.approx(expected, abs=1e-9)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0, 1)),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_intervals_of_rewards_in_0_1_stay_there_and_hold_the_mean(rewards, confidence):
    found = clustered_mean([r for _, r in rewards], [e for e, _ in rewards], confidence)
    assert 0 <= found.low <= found.mean + 1e-12
    assert found.mean - 1e-12 <= found.high <= 1
    assert found.low < found.high


@pytest.mark.parametrize(
    ("rewards", "low", "high"),
    [
        ([0.0, 1.0], 0.073, 0.927),  # Student's t: [-5.853, 6.853]
        ([0.0] * 20, 0.0, 0.134),  # Student's t: [0, 0]
        ([1.0] * 20, 0.866, 1.0),
        ([1.0], 0.148, 1.0),
        ([0.0], 0.0, 0.852),
        ([1.0] * 19 + [0.0], 0.779, 0.993),  # Student's t: [0.845, 1.055]
        ([0.5] * 20, 0.433, 0.567),  # a share of up to 13 % of other examples was not seen
        ([0.3, 0.4], 0.089, 0.766),
    ],
)
def test_intervals_of_few_or_equal_rewards_are_honest(rewards, low, high):
    found = clustered_mean(rewards, range(len(rewards)))
    assert found.interval == pytest.approx((low, high), abs=1e-3)


def test_rollouts_that_always_agree_give_the_interval_of_one_each():
    once = clustered_mean([1.0, 0.0] * 10, range(20))
    four = clustered_mean([1.0, 0.0] * 40, list(range(20)) * 4)
    assert four.interval == pytest.approx(once.interval, abs=0.01)


def test_rewards_in_0_1_that_vary_little_keep_a_narrow_interval():
    values = np.random.default_rng(2).normal(0.5, 0.02, 50)
    found = clustered_mean(values, range(50))
    low, high = scipy.stats.t.interval(0.95, 49, values.mean(), scipy.stats.sem(values))
    assert found.interval == pytest.approx((low, high), abs=1e-4)


def test_rewards_beyond_0_1_keep_the_t_interval_unless_all_are_equal():
    values = [2.0, -1.0, 0.5, 3.0]
    found = clustered_mean(values, range(4))
    expected = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    assert found.interval == pytest.approx(expected, rel=1e-9)
    assert all(math.isnan(end) for end in clustered_mean([2.0, 2.0, 2.0], range(3)).interval)


# Coverage. Examples are drawn at random; the chance of a right answer of each comes from a Beta distribution with the
# given mean and with a + b = 1.5, so that two rollouts of one example have a correlation of 1 / (1 + 1.5) = 0.4. With
# one rollout per example the rewards are then independent with the given mean, whatever the Beta distribution.
CELLS = [(n, mean) for n in (20, 50, 200) for mean in (0.5, 0.9, 0.99)]
BETA_WEIGHT = 1.5


def exact_coverage(n, mean):
    """The probability that the interval of n independent 0/1 rewards holds the mean."""
    covered = 0.0
    for ones in range(n + 1):
        found = clustered_mean([1.0] * ones + [0.0] * (n - ones), range(n))
        if found.low <= mean <= found.high:
            covered += scipy.stats.binom.pmf(ones, n, mean)
    return covered


def nearest_possible_coverage(n, mean):
    """The coverage nearest to 95 % that any interval has whose ends grow with the number of ones."""
    chances = scipy.stats.binom.pmf(np.arange(n + 1), n, mean)
    sums = [chances[a:b].sum() for a in range(n + 1) for b in range(a + 1, n + 2)]
    return min(sums, key=lambda share: abs(share - 0.95))


@pytest.mark.parametrize(("n", "mean"), CELLS)
def test_the_interval_of_one_rollout_per_example_covers_the_mean_in_95_percent(n, mean):
    found = exact_coverage(n, mean)
    if (n, mean) in ((20, 0.99), (50, 0.99)):
        # No method can: 82 % of the runs of 20 have no failure, 98.3 % at most one, and nothing lies between.
        assert not 0.935 <= nearest_possible_coverage(n, mean) <= 0.965
        assert found == pytest.approx(nearest_possible_coverage(n, mean))
        assert found > 0.965
    else:
        assert 0.935 <= found <= 0.965


def simulated_coverage(n, mean, runs, *, rollouts=4, weight=BETA_WEIGHT, seed=0):
    """The share of simulated runs whose interval holds the mean; equal runs are computed once."""
    generator = np.random.default_rng([seed, n, int(mean * 100)])
    chances = generator.beta(mean * weight, (1 - mean) * weight, (runs, n))
    right = generator.binomial(rollouts, chances)
    kinds = [tuple(np.bincount(row, minlength=rollouts + 1)) for row in right]
    labels = np.repeat(np.arange(n), rollouts)
    hits = 0
    for kind, times in Counter(kinds).items():
        values = [
            float(rollout < ones)
            for ones in np.repeat(range(rollouts + 1), kind)
            for rollout in range(rollouts)
        ]
        found = clustered_mean(values, labels)
        hits += times * (found.low <= mean <= found.high)
    return hits / runs


@pytest.mark.parametrize(("n", "mean"), CELLS)
def test_the_interval_of_four_rollouts_per_example_covers_the_mean_in_95_percent(n, mean):
    assert 0.935 <= simulated_coverage(n, mean, 1500) <= 0.965


@pytest.mark.long
@pytest.mark.parametrize(("n", "mean"), CELLS)
def test_the_interval_of_four_rollouts_per_example_covers_the_mean_in_95_percent_of_many_runs(
    n, mean
):
    assert 0.935 <= simulated_coverage(n, mean, 40_000, seed=1) <= 0.965


@pytest.mark.parametrize(("n", "a", "b"), [(20, 2, 2), (50, 9, 1), (200, 0.9, 0.1)])
def test_the_interval_of_rewards_between_0_and_1_covers_the_mean(n, a, b):
    generator = np.random.default_rng([n, int(a * 10)])
    values = generator.beta(a, b, (1000, n))
    mean = a / (a + b)
    hits = sum(
        found.low <= mean <= found.high
        for found in (clustered_mean(row, range(n)) for row in values)
    )
    assert 0.93 <= hits / 1000 <= 0.97


# --- proportions, bootstrap


@given(st.integers(0, 500), st.integers(1, 500), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_agrees_with_statsmodels(successes, trials, confidence):
    from statsmodels.stats.proportion import proportion_confint

    assume(successes <= trials)
    expected = proportion_confint(successes, trials, alpha=1 - confidence, method="wilson")
    assert wilson_interval(successes, trials, confidence) == pytest.approx(expected, abs=1e-9)


def test_wilson_at_the_edges():
    assert wilson_interval(0, 10).low == 0.0
    assert wilson_interval(10, 10).high == 1.0
    assert all(math.isnan(end) for end in wilson_interval(0, 0))


def test_the_bootstrap_agrees_with_scipy_and_repeats_with_its_seed():
    values = np.random.default_rng(3).normal(0.6, 0.2, 60)
    expected = scipy.stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    ).confidence_interval
    found = bootstrap_interval(values, range(60), seed=5, resamples=20_000)
    assert found == pytest.approx((expected.low, expected.high), abs=2e-3)
    assert found == bootstrap_interval(values, range(60), seed=5, resamples=20_000)


def test_the_bootstrap_draws_whole_examples():
    values, clusters = [1.0] * 50 + [0.0] * 50, [0] * 50 + [1] * 50
    assert bootstrap_interval(values, clusters, seed=0) == (0.0, 1.0)
    assert all(math.isnan(end) for end in bootstrap_interval([1.0], [0], seed=0))


# --- pass@k


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(samples, data):
    successes = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    draws = scipy.stats.hypergeom(samples, successes, k)
    assert pass_at_k(samples, successes, k) == pytest.approx(1 - draws.pmf(0), abs=1e-9)
    assert pass_all_k(samples, successes, k) == pytest.approx(draws.pmf(k), abs=1e-9)


def test_pass_at_k_of_thousands_of_samples_does_not_overflow():
    assert pass_at_k(10_000, 5, 100) == pytest.approx(
        1 - scipy.stats.hypergeom(10_000, 5, 100).pmf(0)
    )
    assert pass_at_k(4, 0, 2) == 0.0
    assert pass_all_k(4, 4, 4) == 1.0


@pytest.mark.parametrize(
    ("samples", "successes", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0)]
)
def test_impossible_counts_are_refused(samples, successes, k):
    with pytest.raises(ValueError, match="Needs 0 ≤ successes"):
        pass_at_k(samples, successes, k)


def test_the_reported_ks():
    assert [powers_of_two(n) for n in (0, 1, 3, 4, 9)] == [[], [1], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


# --- comparing


@given(
    st.lists(
        st.tuples(
            st.lists(REWARDS, min_size=1, max_size=4), st.lists(REWARDS, min_size=1, max_size=4)
        ),
        min_size=2,
        max_size=12,
    )
)
def test_paired_differences_agree_with_scipy(pairs):
    first = {i: a for i, (a, _) in enumerate(pairs)}
    second = {i: b for i, (_, b) in enumerate(pairs)}
    found = paired_difference(first, second)
    means = [np.mean(a) for a, _ in pairs], [np.mean(b) for _, b in pairs]
    assume(np.std(np.subtract(*means)) > 1e-3)
    test = scipy.stats.ttest_rel(means[1], means[0])
    low, high = test.confidence_interval()
    if all(0 <= reward <= 1 for a, b in pairs for reward in a + b):
        low, high = max(-1.0, low), min(1.0, high)
    assert found.p_value == pytest.approx(test.pvalue, rel=1e-6, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-6)
    assert found.examples == len(pairs)


def test_unpaired_examples_are_counted():
    found = paired_difference({1: [0.0], 2: [0.0], 3: [1.0]}, {2: [1.0], 3: [1.0], 4: [1.0]})
    assert (found.difference, found.examples, found.unpaired) == (0.5, 2, 2)


def test_comparisons_of_almost_nothing():
    assert paired_difference({1: [1.0]}, {2: [1.0]}).examples == 0
    single = paired_difference({1: [1.0]}, {1: [0.0]})
    assert single.difference == -1.0
    assert math.isnan(single.p_value)
    assert paired_difference({1: [1.0], 2: [1.0]}, {1: [1.0], 2: [1.0]}).p_value == 1.0


def test_equal_differences_are_not_taken_for_certainty():
    better = paired_difference({1: [0.0], 2: [0.0]}, {1: [1.0], 2: [1.0]})
    assert (better.difference, better.p_value) == (
        1.0,
        0.5,
    )  # both signs agree by chance once in two
    assert better.low < 0.0
    assert better.high == 1.0
    same = {i: [float(i % 2)] for i in range(20)}
    none = paired_difference(same, same)
    assert (none.difference, none.p_value) == (0.0, 1.0)
    assert (none.low, none.high) == pytest.approx((-0.134, 0.134), abs=1e-3)
    beyond = paired_difference({1: [2.0], 2: [5.0]}, {1: [4.0], 2: [7.0]})
    assert (beyond.difference, beyond.p_value) == (2.0, 0.5)
    assert math.isnan(beyond.low)


def test_differences_of_rewards_in_0_1_have_an_interval_within_their_bounds():
    found = paired_difference({1: [0.0], 2: [0.5]}, {1: [1.0], 2: [0.5]})
    assert (found.low, found.high) == (-1.0, 1.0)


def test_pairing_sees_differences_that_difficulty_hides():
    generator = np.random.default_rng(0)
    difficulty = generator.uniform(0, 1, 200)
    first = {i: [d + generator.normal(0, 0.05)] for i, d in enumerate(difficulty)}
    second = {i: [d + 0.03 + generator.normal(0, 0.05)] for i, d in enumerate(difficulty)}
    assert paired_difference(first, second).p_value < 0.001
    unpaired = scipy.stats.ttest_ind(
        [v[0] for v in first.values()], [v[0] for v in second.values()]
    )
    assert unpaired.pvalue > 0.05


def test_the_needed_number_of_examples_is_that_of_the_formula():
    z = scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)
    # Variance 1/9 between examples, Bernoulli(1/2)-like variance 1/6 within, one rollout each: the effect is 3 points.
    variance = 1 / 9 + 2 / 6
    assert examples_needed(0.03, between_variance=1 / 9, within_variance=1 / 6) == math.ceil(
        z**2 * variance / 0.03**2
    )
    with pytest.raises(ValueError, match="No number of examples"):
        examples_needed(0.0, between_variance=1)


@given(st.integers(1, 10_000), st.floats(0.001, 1), st.floats(0, 1), st.integers(1, 64))
def test_the_detectable_effect_and_the_needed_examples_are_inverse(
    examples, between, within, rollouts
):
    given_values = {
        "between_variance": between,
        "within_variance": within,
        "rollouts_per_example": rollouts,
    }
    effect = minimum_detectable_effect(examples, **given_values)
    assert examples_needed(effect * (1 + 1e-9), **given_values) == examples


def test_a_run_of_the_needed_size_finds_the_effect_as_often_as_promised():
    generator = np.random.default_rng(1)
    effect, between, within, rollouts = 0.1, 0.04, 0.09, 3
    n = examples_needed(
        effect, between_variance=between, within_variance=within, rollouts_per_example=rollouts
    )
    found = 0
    for _ in range(1500):
        shift = generator.normal(effect, math.sqrt(between), n)
        noise = generator.normal(0, math.sqrt(within), (2, n, rollouts)).mean(axis=2)
        differences = shift + noise[1] - noise[0]
        found += abs(differences.mean()) > 1.96 * differences.std(ddof=1) / math.sqrt(n)
    assert 0.76 < found / 1500 < 0.86
