"""Where the uncertainty of a comparison comes from, and how many examples and rollouts a comparison needs.

The variance of the mean difference of two runs has two levels. With n examples, K_A and K_B rollouts per example, ω²
the variance over examples of the true difference, and σ² the variance of the reward within an example:

    Var(d̄) = ω²/n + (σ_A²/K_A + σ_B²/K_B)/n

The first term shrinks only with more examples, the second also with more rollouts. Source: Miller 2024, Adding Error
Bars to Evals, https://arxiv.org/abs/2411.00640, sections on resampling and on power analysis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from verifiers.runs.statistics import NAN, normal_quantile


class TwoLevels(NamedTuple):
    """The two levels of the variance of a difference of one example."""

    between: float
    """ω²: variance over examples of the true difference. At least 0."""
    sampling: float
    """σ_A²/K_A + σ_B²/K_B, mean over examples. NaN if no example has two rollouts in each run."""
    within_first: float
    """σ_A²: mean within-example variance of a rollout of the first run."""
    within_second: float
    """σ_B²: the same for the second run."""

    @property
    def total(self) -> float:
        """Variance of the difference of one example."""
        return self.between if math.isnan(self.sampling) else self.between + self.sampling

    @property
    def sampling_share(self) -> float:
        """Share of the variance that more rollouts per example can remove, in [0, 1]; NaN if unknown."""
        if math.isnan(self.sampling):
            return NAN
        return self.sampling / self.total if self.total > 0 else 0.0


def two_levels(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], differences: ArrayLike
) -> TwoLevels:
    """Split the variance of the differences of n examples.

    `first` and `second` hold the rewards of each example, `differences` (shape [n]) the differences of their means. σ²
    is the mean over examples of the sample variance (denominator K - 1), over the examples with at least two rollouts.
    ω² is the variance of the differences minus the sampling variance, at least 0.
    """
    d = np.asarray(differences, np.float64)
    observed = float(d.var(ddof=1)) if d.size > 1 else NAN
    within, sampling = [], 0.0
    for rewards in (first, second):
        arrays = [np.asarray(values, np.float64) for values in rewards]
        variances = [float(values.var(ddof=1)) for values in arrays if values.size > 1]
        mean = float(np.mean(variances)) if variances else NAN
        within.append(mean)
        sampling += mean * float(np.mean([1 / values.size for values in arrays]))
    between = observed if math.isnan(sampling) else max(0.0, observed - sampling)
    return TwoLevels(between, sampling, *within)


def examples_for(
    effect: float,
    *,
    between: float,
    within: tuple[float, float] = (0.0, 0.0),
    rollouts: tuple[int, int] = (1, 1),
    significance: float = 0.05,
    power: float = 0.8,
) -> int:
    """Return the number of examples that detects a true difference of `effect` with probability `power`.

    n = (z_{1-α/2} + z_{1-β})² · (ω² + σ_A²/K_A + σ_B²/K_B) / δ². `between` is ω², `within` (σ_A², σ_B²), `rollouts`
    (K_A, K_B). Raises ValueError for an effect of 0.
    """
    if effect == 0:
        raise ValueError(
            "No number of examples detects a difference of 0; give the smallest difference that matters."
        )
    variance = between + sum(v / k for v, k in zip(within, rollouts, strict=True))
    return max(2, math.ceil(_z(significance, power) ** 2 * variance / effect**2))


def detectable_effect(stderr: float, *, significance: float = 0.05, power: float = 0.8) -> float:
    """Return the smallest true difference that a comparison with this standard error detects with probability `power`.

    δ = (z_{1-α/2} + z_{1-β}) · SE: `examples_for` solved for the effect.
    """
    return _z(significance, power) * stderr


def _z(significance: float, power: float) -> float:
    for name, value in (("significance", significance), ("power", power)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1; got {value!r}.")
    return normal_quantile(1 - significance / 2) + normal_quantile(power)
