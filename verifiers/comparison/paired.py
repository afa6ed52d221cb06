"""Tests and intervals for the mean of paired differences: one difference per example that two runs share.

A difference is the mean reward of the candidate minus that of the baseline on one example. Every function is pure,
takes arrays of float64, and uses numpy only. A value that cannot be computed is NaN.

Sources, cited by number at each function:
    [1] Miller 2024, Adding Error Bars to Evals, https://arxiv.org/abs/2411.00640
    [2] Cameron, Miller 2015, A Practitioner's Guide to Cluster-Robust Inference, J. Human Resources 50(2)
    [3] Fagerland, Lydersen, Laake 2013, The McNemar test for binary matched-pairs data, BMC Med. Res. Methodology 13:91
    [4] Tango 1998, Equivalence test and confidence interval for the difference in proportions for the paired-sample
        design, Statistics in Medicine 17(8)
    [5] Phipson, Smyth 2010, Permutation P-values Should Never Be Zero, Stat. Appl. Genet. Mol. Biol. 9(1)
    [6] Bowyer, Aitchison, Ivanova 2025, Don't Use the CLT in LLM Evals With Fewer Than a Few Hundred Datapoints,
        https://arxiv.org/abs/2503.01747
    [7] Schuirmann 1987, A Comparison of the Two One-Sided Tests Procedure, J. Pharmacokinetics Biopharm. 15(6)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verifiers.runs.statistics import (
    NAN,
    Floats,
    Interval,
    normal_quantile,
    student_t_cdf,
    student_t_quantile,
)

EXACT_EXAMPLES = 15
"""Up to this number of examples (or clusters), the sign-flip test counts all assignments of signs."""
PERMUTATIONS = 10_000
DRAWS = 60_000_000
"""Maximum number of random signs of one test; runs with more examples use fewer permutations, at least 999."""
BLOCK = 4_000_000
"""Numbers that a resampling holds in memory at once."""


class PairedMean(NamedTuple):
    """The mean of paired differences with its standard error and a t interval."""

    mean: float
    stderr: float
    """Standard error of the mean; clustered if clusters were given."""
    df: int
    """Degrees of freedom: clusters (or examples) - 1."""
    p_value: float
    """Two-sided probability of a mean at least this far from 0 if the true mean were 0."""

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the two-sided interval."""
        half = self._quantile(0.5 + confidence / 2) * self.stderr
        return Interval(self.mean - half, self.mean + half)

    def one_sided(self, confidence: float = 0.95) -> Interval:
        """Return the ends of the two one-sided intervals, each with this confidence."""
        half = self._quantile(confidence) * self.stderr
        return Interval(self.mean - half, self.mean + half)

    def _quantile(self, probability: float) -> float:
        if self.df < 1 or math.isnan(self.stderr):
            return NAN
        return student_t_quantile(probability, self.df)


def paired_mean(differences: ArrayLike, clusters: Sequence[Hashable] | None = None) -> PairedMean:
    """Return mean, standard error and t-test of differences of shape [n].

    Without clusters SE² = Σ(d - d̄)² / (n(n - 1)) [1]. With one label per difference, SE² = C/(C - 1) · Σ_c(Σ_{i∈c}(d_i
    - d̄))² / n² for C clusters [2], and the degrees of freedom are C - 1. If all differences are equal, no variance can
    be estimated: p is the exact probability that all signs agree, 2^(1-C), or 1 for a mean of 0.
    """
    d = np.asarray(differences, np.float64)
    if d.size == 0:
        return PairedMean(NAN, NAN, -1, NAN)
    mean = float(d.mean())
    sums = cluster_sums(d - mean, clusters)
    df = sums.size - 1
    if df < 1:
        return PairedMean(mean, NAN, df, NAN)
    stderr = math.sqrt(sums.size / df * float(sums @ sums)) / d.size
    if is_constant(d):
        return PairedMean(mean, 0.0, df, 1.0 if abs(mean) <= 1e-12 else 2.0**-df)
    p_value = 0.0 if stderr == 0 else 2 * student_t_cdf(-abs(mean / stderr), df)
    return PairedMean(mean, stderr, df, p_value)


def unpaired_stderr(first: ArrayLike, second: ArrayLike) -> float:
    """Return the standard error that the difference of two means would have without pairing: √(s_A²/n + s_B²/m)."""
    variances = [
        np.asarray(values, np.float64).var(ddof=1) / np.size(values) if np.size(values) > 1 else NAN
        for values in (first, second)
    ]
    return math.sqrt(float(sum(variances)))


def correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Pearson's correlation of two arrays of shape [n]; NaN if one of them does not vary."""
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.size < 2 or is_constant(a) or is_constant(b):
        return NAN
    return float(np.corrcoef(a, b)[0, 1])


# --- 0/1 rewards, one rollout per example


class PairedCounts(NamedTuple):
    """Examples by the outcome of two runs with one 0/1 reward per example."""

    both: int
    candidate_only: int
    baseline_only: int
    neither: int

    @property
    def n(self) -> int:
        """Number of examples."""
        return sum(self)


def mcnemar(counts: PairedCounts) -> tuple[float, float]:
    """Return (exact p, mid-p) of McNemar's test on the examples in which the runs differ [3].

    exact p = min(1, 2·P[Bin(m, ½) ≤ k]), with m discordant examples of which k are in the smaller group; mid-p is that
    minus P[Bin(m, ½) = k]. The exact test is conservative; the mid-p test is close to its nominal level.
    """
    m = counts.candidate_only + counts.baseline_only
    k = min(counts.candidate_only, counts.baseline_only)
    if m == 0:
        return 1.0, 1.0
    log_terms = np.array([_log_choose(m, i) for i in range(k + 1)]) - m * math.log(2)
    below = float(np.exp(log_terms).sum())
    at = math.exp(log_terms[-1])
    exact = min(1.0, 2 * below)
    return exact, min(1.0, 2 * below - at)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def tango_interval(counts: PairedCounts, confidence: float = 0.95) -> Interval:
    """Return Tango's score interval of p_candidate - p_baseline [4]: the differences that the score test accepts."""
    n, b, c = counts.n, counts.candidate_only, counts.baseline_only
    if n == 0:
        return Interval(NAN, NAN)
    z = normal_quantile(0.5 + confidence / 2)

    def score(delta: float) -> float:
        """Return the score statistic of the hypothesis that the true difference is `delta`."""
        two_n = 2.0 * n
        linear = -b - c + (two_n - b + c) * delta
        constant = -c * delta * (1 - delta)
        q = (math.sqrt(max(0.0, linear * linear - 4 * two_n * constant)) - linear) / (2 * two_n)
        variance = n * (2 * q + delta * (1 - delta))
        difference = b - c - n * delta
        if variance <= 1e-300:
            return math.copysign(math.inf, difference) if difference else 0.0
        return difference / math.sqrt(variance)

    estimate = (b - c) / n
    return Interval(_crossing(score, z, -1.0, estimate), _crossing(score, -z, estimate, 1.0))


def _crossing(score, level: float, low: float, high: float) -> float:
    """Return where a falling function crosses `level` in [low, high], by bisection."""
    if score(low) <= level:
        return low
    if score(high) >= level:
        return high
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return 0.5 * (low + high)


def posterior_interval(
    counts: PairedCounts, *, seed: int, confidence: float = 0.95, draws: int = 100_000
) -> Interval:
    """Return the credible interval of p_candidate - p_baseline under a uniform Dirichlet(1, 1, 1, 1) prior [6].

    For fewer than about 100 examples. The ends are quantiles of `draws` samples of the posterior.
    """
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.array(counts, np.float64) + 1.0, size=draws)
    tail = (1 - confidence) / 2
    low, high = np.quantile(p[:, 1] - p[:, 2], [tail, 1 - tail])
    return Interval(float(low), float(high))


# --- resampling


def sign_flip_p(
    differences: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> float:
    """Return the two-sided p-value of the sign-flip test of a mean of 0.

    T = |Σ s_i·d_i| over random signs s; all differences of one cluster share a sign. Up to 15 examples or clusters all
    signs are counted, and p = #{T ≥ T_observed} / 2^n. Otherwise p = (1 + #{T ≥ T_observed}) / (1 + B) [5].
    """
    sums = cluster_sums(np.asarray(differences, np.float64), clusters)
    if sums.size == 0:
        return NAN
    observed = abs(float(sums.sum()))
    observed -= 1e-12 * max(
        1.0, float(np.abs(sums).sum())
    )  # equal sums in another order differ by rounding
    if sums.size <= EXACT_EXAMPLES:
        numbers = np.arange(1 << sums.size)[:, None]
        signs = 1.0 - 2.0 * (numbers >> np.arange(sums.size) & 1)
        return float(np.mean(np.abs(signs @ sums) >= observed))
    count = max(999, min(permutations, DRAWS // sums.size))
    larger = sum(
        int(np.count_nonzero(np.abs(signs @ sums) >= observed))
        for signs in random_signs(sums.size, count, seed)
    )
    return (1 + larger) / (1 + count)


def random_signs(size: int, count: int, seed: int):
    """Yield `count` rows of random signs in blocks of shape [rows, size], float32."""
    generator = np.random.default_rng(seed)
    rows = max(1, BLOCK // size)
    for start in range(0, count, rows):
        number = min(rows, count - start)
        bits = np.unpackbits(
            generator.integers(0, 256, (number, (size + 7) // 8), np.uint8), axis=1, count=size
        )
        yield 1.0 - 2.0 * bits.astype(np.float32)


def bootstrap_interval_of_mean(
    differences: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    seed: int = 0,
    confidence: float = 0.95,
    resamples: int = PERMUTATIONS,
) -> Interval:
    """Return the percentile interval of the mean from resampling examples, or whole clusters [2].

    For at least 100 examples; with fewer the interval is too narrow.
    """
    d = np.asarray(differences, np.float64)
    sums = cluster_sums(d, clusters)
    sizes = cluster_sums(np.ones_like(d), clusters)
    if sums.size < 2:
        return Interval(NAN, NAN)
    generator = np.random.default_rng(seed)
    count = max(999, min(resamples, DRAWS // sums.size))
    rows = max(1, BLOCK // sums.size)
    means: list[Floats] = []
    for start in range(0, count, rows):
        drawn = generator.integers(0, sums.size, (min(rows, count - start), sums.size))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(low), float(high))


# --- equivalence


def tost_p(estimate: PairedMean, margin: float) -> float:
    """Return the p-value of equivalence within ±`margin`: the larger of two one-sided t-tests [7]."""
    if margin <= 0:
        raise ValueError(f"The margin of equivalence must be positive; got {margin!r}.")
    if estimate.df < 1:
        return NAN
    if estimate.stderr == 0:
        return 0.0 if abs(estimate.mean) < margin else 1.0
    return max(
        student_t_cdf((estimate.mean - margin) / estimate.stderr, estimate.df),
        student_t_cdf((-margin - estimate.mean) / estimate.stderr, estimate.df),
    )


# --- parts


def is_constant(values: NDArray[np.float64]) -> bool:
    """Whether all values are equal, up to rounding."""
    return float(np.ptp(values)) <= 1e-9 * max(1.0, float(np.abs(values).max()))


def cluster_sums(values: Floats, clusters: Sequence[Hashable] | None) -> Floats:
    """Return the sum of the values of each cluster; the values themselves without clusters."""
    if clusters is None:
        return values
    if len(clusters) != values.size:
        raise ValueError(
            f"Every difference needs one cluster; got {values.size} differences, {len(clusters)} clusters."
        )
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(label, len(numbers)) for label in clusters], np.intp)
    return np.bincount(index, values, len(numbers)).astype(np.float64)
