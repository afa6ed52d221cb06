"""What the rewards of a run say: means, standard errors, intervals, pass@k, comparisons. Pure functions, numpy only.

Rollouts of one example are alike, so they are no independent sample; the *examples* are. Every standard error here
is therefore clustered by example unless its name says otherwise. What cannot be computed (the error of a mean of one
example, any figure of nothing) is NaN.

Sources, cited by number at each function:
    [1] Miller 2024, Adding Error Bars to Evals, https://arxiv.org/abs/2411.00640
    [2] Cameron, Miller 2015, A Practitioner's Guide to Cluster-Robust Inference, J. Human Resources 50(2)
    [3] Chen et al. 2021, Evaluating Large Language Models Trained on Code, https://arxiv.org/abs/2107.03374
    [4] Yao et al. 2024, tau-bench, https://arxiv.org/abs/2406.12045
    [5] Wilson 1927, Probable Inference, JASA 22(158)
    [6] Abramowitz, Stegun 1964, Handbook of Mathematical Functions
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
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
    """A mean and how well it is known."""

    mean: float
    stderr: float
    """Standard error of the mean."""
    low: float
    """Lower end of the confidence interval."""
    high: float
    """Upper end of the confidence interval."""
    clusters: int
    """Independent units: examples."""
    observations: int
    """Values: rollouts."""

    @property
    def interval(self) -> Interval:
        """The confidence interval."""
        return Interval(self.low, self.high)


# ------------------------------------------------------------------------------------- quantiles


def normal_quantile(probability: float) -> float:
    """The point below which a standard normal value lies with this probability, in (0, 1)."""
    return NormalDist().inv_cdf(probability)


def student_t_cdf(value: float, df: float) -> float:
    """Probability that Student's t with `df` > 0 degrees of freedom is at most `value`."""
    if not df > 0:
        raise ValueError(f"Degrees of freedom must be positive; got {df!r}.")
    if math.isinf(value):
        return float(value > 0)
    tail = 0.5 * _regularized_beta(
        df / 2, 0.5, df / (df + value * value), value * value / (df + value * value)
    )
    return 1.0 - tail if value > 0 else tail


def student_t_quantile(probability: float, df: float) -> float:
    """The point below which Student's t with `df` > 0 degrees of freedom lies with this probability, in (0, 1).

    Relative error below 1e-9. For `df` above 20,000 the expansion around the normal quantile [6, 26.7.5] is used.
    """
    if not 0 < probability < 1:
        raise ValueError(f"A probability lies between 0 and 1; got {probability!r}.")
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
    """The positive point above which t lies with probability `tail` < 0.5: bracket, then bisect on a log scale."""

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
    """I_x(a, b) [6, 26.5.8], by Lentz's evaluation of its continued fraction.

    `one_minus_x` is given apart because 1 - x loses all digits when x is near 1.
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


# ------------------------------------------------------------------------------------- means


def naive_stderr(values: ArrayLike) -> float:
    """Standard error of the mean as if all values were independent: s / sqrt(n) [1]."""
    array = _floats(values)
    return float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else NAN


def clustered_mean(
    values: ArrayLike, clusters: Sequence[Hashable] | NDArray[np.generic], confidence: float = 0.95
) -> Estimate:
    """The mean of all values, with standard error and interval clustered by `clusters` (one label a value).

    With S_c the sum and n_c the number of the values of cluster c, G clusters, n values, mean m:
    SE² = G/(G-1) · Σ_c (S_c - n_c·m)² / n². This is the clustered standard error of [1] with the small-sample
    factor of [2]; for one value a cluster it is s/√n. The interval uses Student's t with G - 1 degrees of
    freedom [2], which is wider than the normal one and honest for few examples.
    """
    array = _floats(values)
    sums, counts = _cluster_sums(array, clusters)
    return estimate_from_sums(sums, counts, confidence)


def estimate_from_sums(sums: ArrayLike, counts: ArrayLike, confidence: float = 0.95) -> Estimate:
    """`clustered_mean` from each cluster's sum and number of values."""
    sums_C, counts_C = _floats(sums), _floats(counts)
    clusters, total = counts_C.size, float(counts_C.sum())
    if total == 0:
        return Estimate(NAN, NAN, NAN, NAN, 0, 0)
    mean = float(sums_C.sum() / total)
    if clusters < 2:
        return Estimate(mean, NAN, NAN, NAN, clusters, int(total))
    deviations_C = sums_C - counts_C * mean
    stderr = math.sqrt(clusters / (clusters - 1) * float(deviations_C @ deviations_C)) / total
    half = student_t_quantile(0.5 + confidence / 2, clusters - 1) * stderr
    return Estimate(mean, stderr, mean - half, mean + half, clusters, int(total))


def wilson_interval(successes: float, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion [5]: inside [0, 1] and right near 0 and 1, where mean ± z·SE fails.

    For independent trials. Rollouts of one example are not independent; for them use `clustered_mean`.
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
    """Percentile interval of the mean from resampling whole clusters with replacement [2].

    Assumes nothing of the distribution; for few examples it is too narrow, where `clustered_mean` is not.
    """
    sums_C, counts_C = _cluster_sums(_floats(values), clusters)
    if sums_C.size < 2:
        return Interval(NAN, NAN)
    generator = np.random.default_rng(seed)
    means: list[Floats] = []
    rows = max(
        1, min(resamples, 4_000_000 // sums_C.size)
    )  # at most 32 MB of random numbers at once
    for start in range(0, resamples, rows):
        size = (min(rows, resamples - start), sums_C.size)
        drawn = generator.integers(0, sums_C.size, size=size)
        means.append(sums_C[drawn].sum(axis=1) / counts_C[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(low), float(high))


# ------------------------------------------------------------------------------------- pass@k


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Probability that at least one of `k` samples is a success, estimated without bias from `samples` ≥ `k`.

    1 - C(n-c, k) / C(n, k) [3, equation 1]. Raises ValueError for impossible counts.
    """
    _check_counts(samples, successes, k)
    return 1.0 - _ratio_of_choices(samples - successes, samples, k)


def pass_all_k(samples: int, successes: int, k: int) -> float:
    """Probability that all of `k` samples are successes (pass^k), without bias: C(c, k) / C(n, k) [4]."""
    _check_counts(samples, successes, k)
    return _ratio_of_choices(successes, samples, k)


def _ratio_of_choices(part: int, whole: int, k: int) -> float:
    """C(part, k) / C(whole, k) as a product, so that no factorial overflows."""
    if part < k:
        return 0.0
    return math.prod((part - i) / (whole - i) for i in range(k))


def _check_counts(samples: int, successes: int, k: int) -> None:
    if not (0 <= successes <= samples and 1 <= k <= samples):
        raise ValueError(
            f"Needs 0 ≤ successes ≤ samples and 1 ≤ k ≤ samples; got {successes=}, {samples=}, {k=}."
        )


def powers_of_two(up_to: int) -> list[int]:
    """1, 2, 4 … ≤ `up_to`: the values of k that runs report."""
    return [1 << power for power in range(up_to.bit_length())] if up_to > 0 else []


# ------------------------------------------------------------------------------------- comparing runs


class Comparison(NamedTuple):
    """The mean of a second run minus that of a first one, on the examples both have."""

    difference: float
    stderr: float
    low: float
    high: float
    p_value: float
    """Probability of a difference at least this large if there were none (two-sided)."""
    examples: int
    """Examples that both runs have."""
    unpaired: int
    """Examples that only one of them has; they are left out."""


def paired_difference(
    first: Mapping[Hashable, Sequence[float]],
    second: Mapping[Hashable, Sequence[float]],
    confidence: float = 0.95,
) -> Comparison:
    """Compare two runs example by example [1, paired differences].

    Each maps an example to its rewards; each example counts once, by its mean, so runs may differ in rollouts per
    example. The questions' difficulty cancels out: the error is that of the differences, Student's t with n - 1
    degrees of freedom.
    """
    shared = [key for key in first if key in second and len(first[key]) and len(second[key])]
    unpaired = len(first.keys() | second.keys()) - len(shared)
    differences = np.array(
        [np.mean(second[key]) - np.mean(first[key]) for key in shared], np.float64
    )
    if not shared:
        return Comparison(NAN, NAN, NAN, NAN, NAN, 0, unpaired)
    mean = float(differences.mean())
    stderr = naive_stderr(differences)
    if math.isnan(stderr):
        return Comparison(mean, NAN, NAN, NAN, NAN, len(shared), unpaired)
    df = len(shared) - 1
    half = student_t_quantile(0.5 + confidence / 2, df) * stderr
    if stderr == 0:
        p_value = 1.0 if mean == 0 else 0.0
    else:
        p_value = 2 * student_t_cdf(-abs(mean / stderr), df)
    return Comparison(mean, stderr, mean - half, mean + half, p_value, len(shared), unpaired)


def examples_needed(
    effect: float,
    *,
    between_variance: float,
    within_variance: float = 0.0,
    rollouts_per_example: int = 1,
    significance: float = 0.05,
    power: float = 0.8,
) -> int:
    """Examples that two runs need so that a true paired difference of `effect` is found with probability `power`.

    n = (z_{α/2} + z_β)² · (ω² + 2σ²/K) / δ² [1, power analysis]: ω² is the variance over examples of the difference of
    the two runs' expected rewards (`between_variance`), σ² the variance of one run's reward within an example
    (`within_variance`, the same for both), K the rollouts per example of each.
    """
    if effect == 0:
        raise ValueError(
            "No number of examples shows a difference of 0; give the smallest one that matters."
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
    """The smallest true paired difference that `examples` examples find with probability `power`.

    `examples_needed` solved for the effect [1, power analysis].
    """
    variance = between_variance + 2 * within_variance / rollouts_per_example
    return _needed_z(significance, power) * math.sqrt(variance / examples)


def _needed_z(significance: float, power: float) -> float:
    return normal_quantile(1 - significance / 2) + normal_quantile(power)


# ------------------------------------------------------------------------------------- parts


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64).reshape(-1)


def _cluster_sums(
    values: Floats, clusters: Sequence[Hashable] | NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """Sum and number of the values of each cluster."""
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
