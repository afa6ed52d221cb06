"""Statistics of the rewards of a run: means, standard errors, intervals, pass@k, comparisons. Numpy only.

Rollouts of one example are correlated, so the examples are the independent sample. Every standard error here is
therefore clustered by example unless its name states otherwise. A value that cannot be computed is NaN (the standard
error of the mean of one example, any value of no rewards).

Sources, cited by number at each function:
    [1] Miller 2024, Adding Error Bars to Evals, https://arxiv.org/abs/2411.00640
    [2] Cameron, Miller 2015, A Practitioner's Guide to Cluster-Robust Inference, J. Human Resources 50(2)
    [3] Chen et al. 2021, Evaluating Large Language Models Trained on Code, https://arxiv.org/abs/2107.03374
    [4] Yao et al. 2024, tau-bench, https://arxiv.org/abs/2406.12045
    [5] Wilson 1927, Probable Inference, JASA 22(158)
    [6] Abramowitz, Stegun 1964, Handbook of Mathematical Functions
    [7] Brown, Cai, DasGupta 2001, Interval Estimation for a Binomial Proportion, Statistical Science 16(2)
    [8] Korn, Graubard 1998, Confidence Intervals for Proportions with Small Expected Number of Positive Counts
        Estimated from Survey Data, Survey Methodology 24(2)
    [9] Franco, Little, Louis, Slud 2019, Comparative Study of Confidence Intervals for Proportions in Complex Sample
        Surveys, J. Survey Statistics and Methodology 7(3)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

NAN = math.nan


class Interval(NamedTuple):
    """Lower and upper end."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A mean, its standard error and its confidence interval."""

    mean: float
    stderr: float
    """Standard error of the mean."""
    low: float
    """Lower end of the confidence interval."""
    high: float
    """Upper end of the confidence interval."""
    clusters: int
    """Number of independent units: examples."""
    observations: int
    """Number of values: rollouts."""

    @property
    def interval(self) -> Interval:
        """The confidence interval."""
        return Interval(self.low, self.high)


# --- quantiles


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution for a probability in (0, 1)."""
    return NormalDist().inv_cdf(probability)


def student_t_cdf(value: float, df: float) -> float:
    """Return the probability that Student's t with `df` > 0 degrees of freedom is at most `value`."""
    if not df > 0:
        raise ValueError(f"Degrees of freedom must be positive; got {df!r}.")
    if math.isinf(value):
        return float(value > 0)
    tail = 0.5 * _regularized_beta(
        df / 2, 0.5, df / (df + value * value), value * value / (df + value * value)
    )
    return 1.0 - tail if value > 0 else tail


@lru_cache(maxsize=1024)  # the number of examples is the same in all estimates of a run
def student_t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t with `df` > 0 degrees of freedom, for a probability in (0, 1).

    Relative error below 1e-9. For `df` above 20,000 the expansion around the normal quantile [6, 26.7.5] is used.
    """
    if not 0 < probability < 1:
        raise ValueError(f"A probability must be between 0 and 1; got {probability!r}.")
    if not df > 0:
        raise ValueError(f"Degrees of freedom must be positive; got {df!r}.")
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1 - probability)
    point = _t_near_normal(tail, df) if df > 20_000 else _t_upper_quantile(tail, df)
    return math.copysign(point, probability - 0.5)


def _t_near_normal(tail: float, df: float) -> float:
    z = -normal_quantile(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, start=1))


def _t_upper_quantile(tail: float, df: float) -> float:
    """Return the positive point above which t lies with probability `tail` < 0.5: bracket, then bisect on a log
    scale.
    """

    def above(point: float) -> float:
        square = point * point
        return 0.5 * _regularized_beta(df / 2, 0.5, df / (df + square), square / (df + square))

    low, high = 0.0, 1.0
    while above(high) > tail:
        low, high = high, high * 2
        if high > 1e150:
            return math.inf
    while high - low > 1e-14 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if above(middle) > tail else (low, middle)
    return 0.5 * (low + high)


def _regularized_beta(a: float, b: float, x: float, one_minus_x: float) -> float:
    """Return I_x(a, b) [6, 26.5.8], by Lentz's evaluation of its continued fraction.

    `one_minus_x` is a separate argument because 1 - x loses all digits for x near 1.
    """
    if x <= 0:
        return 0.0
    if one_minus_x <= 0:
        return 1.0
    log_front = (
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log(one_minus_x)
    )
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast; elsewhere use the symmetry
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, one_minus_x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-16:
            break
    return value


# --- means


def naive_stderr(values: ArrayLike) -> float:
    """Return the standard error of the mean as if all values were independent: s / sqrt(n) [1]."""
    array = _floats(values)
    return float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else NAN


class Spread(NamedTuple):
    """Smallest value, largest value and sample variance of single rewards."""

    low: float
    high: float
    variance: float

    @property
    def is_within_bounds(self) -> bool:
        """Whether every reward lies in [0, 1]."""
        return self.low >= 0 and self.high <= 1

    @property
    def is_constant(self) -> bool:
        """Whether all rewards are equal, up to rounding."""
        return self.high - self.low <= 1e-9 * max(1.0, abs(self.high))


def clustered_mean(
    values: ArrayLike, clusters: Sequence[Hashable] | NDArray[np.generic], confidence: float = 0.95
) -> Estimate:
    """Return the mean of all values, with standard error and interval clustered by `clusters` (one label per value).

    With S_c the sum and n_c the number of the values of cluster c, G clusters, n values, mean m: SE² = G/(G-1) · Σ_c
    (S_c - n_c·m)² / n². This is the clustered standard error of [1] with the small-sample factor of [2]; for one value
    per cluster it is s/√n. If every value is in [0, 1], the interval is `bounded_interval`. Otherwise it uses
    Student's t with G - 1 degrees of freedom [2], and is NaN if all values are equal.
    """
    array = _floats(values)
    sums, counts = _cluster_sums(array, clusters)
    return estimate_from_sums(sums, counts, confidence, spread=spread_of(array))


def spread_of(values: ArrayLike) -> Spread:
    """Return the `Spread` of single rewards."""
    array = _floats(values)
    if array.size == 0:
        return Spread(NAN, NAN, NAN)
    variance = float(array.var(ddof=1)) if array.size > 1 else 0.0
    return Spread(float(array.min()), float(array.max()), variance)


def estimate_from_sums(
    sums: ArrayLike, counts: ArrayLike, confidence: float = 0.95, *, spread: Spread
) -> Estimate:
    """`clustered_mean` from the sum and the number of values of each cluster, and the spread of the single values."""
    sums_C, counts_C = _floats(sums), _floats(counts)
    clusters, total = counts_C.size, float(counts_C.sum())
    if total == 0:
        return Estimate(NAN, NAN, NAN, NAN, 0, 0)
    mean = float(sums_C.sum() / total)
    stderr = _clustered_stderr(sums_C, counts_C)
    if spread.is_within_bounds:
        low, high = bounded_interval(sums_C, counts_C, spread, confidence)
    elif clusters < 2 or spread.is_constant:
        low = high = NAN
    else:
        half = student_t_quantile(0.5 + confidence / 2, clusters - 1) * stderr
        low, high = mean - half, mean + half
    return Estimate(mean, stderr, low, high, clusters, int(total))


def _clustered_stderr(sums_C: Floats, counts_C: Floats) -> float:
    clusters, total = counts_C.size, float(counts_C.sum())
    if clusters < 2:
        return NAN
    deviations_C = sums_C - counts_C * (sums_C.sum() / total)
    return math.sqrt(clusters / (clusters - 1) * float(deviations_C @ deviations_C)) / total


# --- intervals within [0, 1]

BINOMIAL_PRIOR = 2 / 3
"""Both parameters of the beta prior for independent 0/1 rewards. The value is between Jeffreys' 1/2, whose interval is
too wide near 0 and 1, and the uniform 1, whose interval is too narrow there. Tuned for the coverage in
`docs/statistics.md`.
"""
CLUSTERED_PRIOR = 1.0
"""The same for an effective number of rollouts, which is itself an estimate [9]."""
ALIKE_PRIOR = 0.7
"""Assumed correlation of the rollouts of one example, before any data. Tuned, see `docs/statistics.md`."""
ALIKE_PRIOR_WEIGHT = 0.25
"""Weight of this assumption, in examples. Tuned, see `docs/statistics.md`."""


def bounded_interval(
    sums_C: Floats, counts_C: Floats, spread: Spread, confidence: float = 0.95
) -> Interval:
    """Return the interval of the mean of rewards in [0, 1], from each example's sum and number of rewards.

    Rewards 0 and 1, one per example: the quantiles of Beta(x + 2/3, n - x + 2/3) for x ones among n [7].
    All other rewards: the quantiles of Beta(m·n' + 1, (1 - m)·n' + 1) for the mean m and the effective number n' of
    independent 0/1 rewards that would have the clustered variance of m, times (z/t)² for the degrees of freedom of
    that variance [8, 9]. Independent 0/1 rewards have the largest variance of all rewards in [0, 1] with the same
    mean, so n' is at least the number of examples. Rewards that are all equal have no variance; they are
    treated as rewards of which an unseen share may have any value in [0, 1].
    """
    total = float(counts_C.sum())
    mean = min(1.0, max(0.0, float(sums_C.sum() / total)))
    # Rollouts per example, from the size of the largest clusters.
    per_example = float(counts_C @ counts_C) / total
    examples = total / per_example
    squares = (
        spread.variance * (total - 1) + total * mean * mean
    )  # Σ v², equal to Σ v for zeros and ones only
    is_binary = total * mean - squares <= 1e-9 * total
    trials = _effective_trials(sums_C, counts_C, spread, confidence)
    if spread.is_constant:
        unseen = min(
            beta_interval(0.0, examples, BINOMIAL_PRIOR, confidence).high,
            beta_interval(0.0, trials, CLUSTERED_PRIOR, confidence).high,
        )
        return Interval(mean * (1 - unseen), mean + (1 - mean) * unseen)
    prior = CLUSTERED_PRIOR
    if (is_binary and per_example == 1) or trials < examples:
        trials, prior = examples, BINOMIAL_PRIOR
    interval = beta_interval(mean * trials, trials, prior, confidence)
    return Interval(min(interval.low, mean), max(interval.high, mean))


def _effective_trials(sums_C: Floats, counts_C: Floats, spread: Spread, confidence: float) -> float:
    """Return the number of independent 0/1 rewards with the same standard error; 0 for fewer than two examples."""
    clusters, total = counts_C.size, float(counts_C.sum())
    if clusters < 2:
        return 0.0
    mean = float(sums_C.sum() / total)
    per_example = float(counts_C @ counts_C) / total
    assumed = 1 + (per_example - 1) * ALIKE_PRIOR
    if spread.is_constant:
        trials = total / assumed
    else:
        # Design effect: the clustered variance divided by that of the same number of independent rollouts. If nearly
        # all examples have only the smallest or only the largest reward, these examples contain little information
        # about the design effect.
        effect = _clustered_stderr(sums_C, counts_C) ** 2 / (spread.variance / total)
        means_C = sums_C / counts_C
        telling = min(
            int(np.count_nonzero(means_C > spread.low + 1e-12)),
            int(np.count_nonzero(means_C < spread.high - 1e-12)),
        )
        effect = (telling * effect + ALIKE_PRIOR_WEIGHT * assumed) / (telling + ALIKE_PRIOR_WEIGHT)
        trials = mean * (1 - mean) / (spread.variance * (total - 1) / total) * total / effect
    upper = 0.5 + confidence / 2
    return trials * (normal_quantile(upper) / student_t_quantile(upper, clusters - 1)) ** 2


def beta_interval(
    successes: float, trials: float, prior: float, confidence: float = 0.95
) -> Interval:
    """Return the equal-tailed interval of a share, from Beta(successes + prior, failures + prior).

    The interval begins at 0 without successes, and ends at 1 without failures [7].
    """
    tail = (1 - confidence) / 2
    a, b = successes + prior, trials - successes + prior
    low = 0.0 if successes <= 0 else beta_quantile(tail, a, b)
    high = 1.0 if successes >= trials else 1.0 - beta_quantile(tail, b, a)
    return Interval(low, high)


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of Beta(a, b) for a probability in (0, 1).

    Newton's method on the distribution function, inside a bracket that halves. For a + b above a million the
    normal distribution with the same mean and variance is used.
    """
    mean = a / (a + b)
    deviation = math.sqrt(mean * (1 - mean) / (a + b + 1))
    start = mean + normal_quantile(probability) * deviation
    if a + b > 1e6 and min(a, b) > 1e3:
        return start
    log_scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    low, high = 0.0, 1.0
    point = start if 0 < start < 1 else mean
    for _ in range(200):
        off = _regularized_beta(a, b, point, 1 - point) - probability
        low, high = (low, point) if off > 0 else (point, high)
        log_density = log_scale + (a - 1) * math.log(point) + (b - 1) * math.log1p(-point)
        following = point - off * math.exp(-log_density) if log_density > -600 else -1.0
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - point) <= 1e-12 * point or not 0 < following < 1:
            return point
        point = following
    return point


def wilson_interval(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's score interval of a proportion [5]: inside [0, 1] and valid near 0 and 1, where mean ± z·SE
    fails.

    For independent trials. Rollouts of one example are not independent; use `clustered_mean` for them.
    """
    if trials == 0:
        return Interval(NAN, NAN)
    z = normal_quantile(0.5 + confidence / 2)
    share = successes / trials
    denominator = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return Interval(low, 1.0 if successes == trials else min(1.0, centre + half))


def bootstrap_interval(
    values: ArrayLike,
    clusters: Sequence[Hashable] | NDArray[np.generic],
    *,
    seed: int,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Return the percentile interval of the mean from resampling whole clusters with replacement [2].

    The method assumes no distribution. For few examples the interval is too narrow; use `clustered_mean` then.
    """
    sums_C, counts_C = _cluster_sums(_floats(values), clusters)
    if sums_C.size < 2:
        return Interval(NAN, NAN)
    generator = np.random.default_rng(seed)
    means: list[Floats] = []
    # At most 32 MB of random numbers at once.
    rows = max(1, min(resamples, 4_000_000 // sums_C.size))
    for start in range(0, resamples, rows):
        size = (min(rows, resamples - start), sums_C.size)
        drawn = generator.integers(0, sums_C.size, size=size)
        means.append(sums_C[drawn].sum(axis=1) / counts_C[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(low), float(high))


# --- pass@k


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Return the probability that at least one of `k` samples is a success: the unbiased estimate from `samples` ≥ `k`.

    1 - C(n-c, k) / C(n, k) [3, equation 1]. Raises ValueError for impossible counts.
    """
    _check_counts(samples, successes, k)
    return 1.0 - _ratio_of_choices(samples - successes, samples, k)


def pass_all_k(samples: int, successes: int, k: int) -> float:
    """Return the unbiased probability that all of `k` samples are successes (pass^k): C(c, k) / C(n, k) [4]."""
    _check_counts(samples, successes, k)
    return _ratio_of_choices(successes, samples, k)


def _ratio_of_choices(part: int, whole: int, k: int) -> float:
    """Return C(part, k) / C(whole, k) as a product, so that no factorial overflows."""
    if part < k:
        return 0.0
    return math.prod((part - i) / (whole - i) for i in range(k))


def _check_counts(samples: int, successes: int, k: int) -> None:
    if not (0 <= successes <= samples and 1 <= k <= samples):
        raise ValueError(
            f"Needs 0 ≤ successes ≤ samples and 1 ≤ k ≤ samples; got {successes=}, {samples=}, {k=}."
        )


def powers_of_two(up_to: int) -> list[int]:
    """Return 1, 2, 4 … ≤ `up_to`: the values of k that runs report."""
    return [1 << power for power in range(up_to.bit_length())] if up_to > 0 else []


# --- comparing runs


class Comparison(NamedTuple):
    """The mean of a second run minus the mean of a first run, on the examples that both have."""

    difference: float
    stderr: float
    low: float
    high: float
    p_value: float
    """Two-sided probability of a difference at least this large if the true difference were 0."""
    examples: int
    """Number of examples in both runs."""
    unpaired: int
    """Number of examples in only one of the runs; they are not compared."""


def paired_difference(
    first: Mapping[Hashable, Sequence[float]],
    second: Mapping[Hashable, Sequence[float]],
    confidence: float = 0.95,
) -> Comparison:
    """Compare two runs example by example [1, paired differences].

    Each argument maps an example to its rewards. Each example counts once, by its mean, so the runs may differ in
    rollouts per example. The difficulty of the examples cancels out: the error is that of the differences, with
    Student's t of n - 1 degrees of freedom. The interval stays in [-1, 1] if all rewards are in [0, 1]. If all
    differences are equal, p is that of the exact sign-flip test, 2^(1-n), or 1 if they are 0.
    """
    shared = [key for key in first if key in second and len(first[key]) and len(second[key])]
    unpaired = len(first.keys() | second.keys()) - len(shared)
    differences = np.array(
        [np.mean(second[key]) - np.mean(first[key]) for key in shared], np.float64
    )
    if not shared:
        return Comparison(NAN, NAN, NAN, NAN, NAN, 0, unpaired)
    mean, examples = float(differences.mean()), len(shared)
    stderr = naive_stderr(differences)
    if math.isnan(stderr):
        return Comparison(mean, NAN, NAN, NAN, NAN, examples, unpaired)
    are_bounded = all(
        0 <= reward <= 1 for run in (first, second) for key in shared for reward in run[key]
    )
    if spread_of(differences).is_constant:
        if abs(mean) <= 1e-9:
            mean = 0.0
        p_value = 1.0 if mean == 0 else 2.0 ** (1 - examples)
        low = high = NAN
        if (
            are_bounded
        ):  # as in `bounded_interval`: an unseen share of the examples may have any difference
            unseen = beta_interval(0.0, examples, BINOMIAL_PRIOR, confidence).high
            low, high = mean - unseen * (1 + mean), mean + unseen * (1 - mean)
        return Comparison(mean, stderr, low, high, p_value, examples, unpaired)
    half = student_t_quantile(0.5 + confidence / 2, examples - 1) * stderr
    low, high = mean - half, mean + half
    if are_bounded:
        low, high = max(-1.0, low), min(1.0, high)
    p_value = 2 * student_t_cdf(-abs(mean / stderr), examples - 1)
    return Comparison(mean, stderr, low, high, p_value, examples, unpaired)


def examples_needed(
    effect: float,
    *,
    between_variance: float,
    within_variance: float = 0.0,
    rollouts_per_example: int = 1,
    significance: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return the number of examples with which two runs detect a true paired difference of `effect` with probability
    `power`.

    n = (z_{α/2} + z_β)² · (ω² + 2σ²/K) / δ² [1, power analysis]: ω² is the variance over examples of the difference of
    the two runs' expected rewards (`between_variance`), σ² the variance of one run's reward within an example
    (`within_variance`, the same for both), K the rollouts per example of each.
    """
    if effect == 0:
        raise ValueError(
            "No number of examples detects a difference of 0; give the smallest difference that matters."
        )
    variance = between_variance + 2 * within_variance / rollouts_per_example
    return max(1, math.ceil(_needed_z(significance, power) ** 2 * variance / effect**2))


def minimum_detectable_effect(
    examples: int,
    *,
    between_variance: float,
    within_variance: float = 0.0,
    rollouts_per_example: int = 1,
    significance: float = 0.05,
    power: float = 0.8,
) -> float:
    """Return the smallest true paired difference that `examples` examples detect with probability `power`.

    `examples_needed` solved for the effect [1, power analysis].
    """
    variance = between_variance + 2 * within_variance / rollouts_per_example
    return _needed_z(significance, power) * math.sqrt(variance / examples)


def _needed_z(significance: float, power: float) -> float:
    return normal_quantile(1 - significance / 2) + normal_quantile(power)


# --- parts


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64).reshape(-1)


def _cluster_sums(
    values: Floats, clusters: Sequence[Hashable] | NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """Return sum and number of the values of each cluster."""
    labels = list(clusters)
    if len(labels) != values.size:
        raise ValueError(
            f"Every value needs one cluster label; got {values.size} values, {len(labels)} labels."
        )
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.intp)
    return (
        np.bincount(index, values, len(numbers)).astype(np.float64),
        np.bincount(index, minlength=len(numbers)).astype(np.float64),
    )
