"""Several candidates at once: p-values, intervals and ranks that hold for all of them together.

Sources, cited by number at each function:
    [1] Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure, Scand. J. Statistics 6(2)
    [2] Westfall, Young 1993, Resampling-Based Multiple Testing (max-T)
    [3] Mogstad, Romano, Shaikh, Wilhelm 2024, Inference for Ranks with Applications to Mobility across Neighborhoods
        and Academic Achievement across Countries, Review of Economic Studies 91(1)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from verifiers.comparison.paired import DRAWS, PERMUTATIONS, cluster_sums, random_signs
from verifiers.runs.statistics import NAN, Floats, Interval


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values [1], in the order of the arguments. NaN stays NaN and is not counted."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p == p)
    adjusted = [NAN] * len(p_values)
    largest = 0.0
    for position, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - position) * p))
        adjusted[place] = largest
    return adjusted


class Simultaneous(NamedTuple):
    """Intervals that contain all true differences at once with the stated confidence."""

    critical: float
    """Multiple of the standard error: the quantile of the largest |t| under random signs."""
    intervals: list[Interval]
    p_values: list[float]
    """Adjusted for the number of comparisons."""


def simultaneous_intervals(
    differences: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
    permutations: int = PERMUTATIONS,
) -> Simultaneous:
    """Return intervals of several mean differences, of shape [comparisons, n], that hold together (max-|t| [2]).

    Random signs are applied to the centred differences of an example (or cluster) in all comparisons at once, which
    keeps the correlation of the comparisons. A comparison whose differences are all equal has a NaN interval.
    """
    d = np.atleast_2d(np.asarray(differences, np.float64))
    n = d.shape[1]
    means = d.mean(axis=1)
    sums = np.stack([cluster_sums(row, clusters) for row in d - means[:, None]])
    units = sums.shape[1]
    if units < 2:
        empty = [Interval(NAN, NAN)] * len(d)
        return Simultaneous(NAN, empty, [NAN] * len(d))
    scale = np.sqrt(units / (units - 1))
    stderr = scale * np.sqrt((sums**2).sum(axis=1)) / n
    varies = stderr > 1e-12
    largest = _largest_t(sums[varies], permutations, seed)
    critical = float(np.quantile(largest, confidence)) if largest.size else NAN
    intervals, p_values = [], []
    for mean, error, does_vary in zip(means, stderr, varies, strict=True):
        if not does_vary:
            intervals.append(Interval(NAN, NAN))
            p_values.append(NAN)
            continue
        half = critical * float(error)
        intervals.append(Interval(float(mean) - half, float(mean) + half))
        larger = int(np.count_nonzero(largest >= abs(mean) / error))
        p_values.append((1 + larger) / (1 + largest.size))
    return Simultaneous(critical, intervals, p_values)


def _largest_t(sums: Floats, permutations: int, seed: int) -> Floats:
    """Return the largest |t| over the comparisons for each assignment of signs; `sums` has shape [comparisons,
    units].
    """
    if not len(sums):
        return np.empty(0)
    units = sums.shape[1]
    squares = (sums**2).sum(axis=1)
    found: list[Floats] = []
    count = max(999, min(permutations, DRAWS // (units * len(sums))))
    for signs in random_signs(units, count, seed):
        totals = signs @ sums.T  # [rows, comparisons]
        # The variance of the flipped sums around their own mean.
        spread = np.maximum(squares - totals**2 / units, 1e-300) * units / (units - 1)
        found.append((np.abs(totals) / np.sqrt(spread)).max(axis=1))
    return np.concatenate(found)


class RankSet(NamedTuple):
    """The ranks that the data do not exclude; 1 is the highest mean."""

    best: int
    worst: int


def rank_sets(
    means: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[RankSet]:
    """Return for each candidate the set of ranks that holds for all candidates at once [3].

    `means` has shape [candidates, n]: one value per candidate and example. With simultaneous intervals of all pairs,
    the rank of m is in [1 + #{j: j is surely above m}, N - #{j: j is surely below m}].
    """
    values = np.asarray(means, np.float64)
    count = len(values)
    pairs = list(combinations(range(count), 2))
    if not pairs:
        return [RankSet(1, 1)] * count
    differences = np.stack([values[j] - values[m] for m, j in pairs])
    intervals = simultaneous_intervals(
        differences, clusters, confidence=confidence, seed=seed
    ).intervals
    units = values.shape[1] if clusters is None else len(set(clusters))
    # Differences that are all equal have no variance; their signs agree by chance with probability 2^(1-units).
    is_chance = len(pairs) * 2.0 ** (1 - units) >= 1 - confidence
    above, below = [0] * count, [0] * count
    for (m, j), difference, interval in zip(pairs, differences, intervals, strict=True):
        low, high = interval
        if math.isnan(low):
            low = high = 0.0 if is_chance else float(difference.mean())
        if low > 0:
            above[m] += 1
            below[j] += 1
        elif high < 0:
            above[j] += 1
            below[m] += 1
    return [RankSet(1 + above[m], count - below[m]) for m in range(count)]
