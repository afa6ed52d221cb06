"""Sample sizes from a pilot: the variances of one or two saved runs, and the examples that a comparison needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from verifiers.comparison.runs import RunNumbers, example_means, pair, read_runs
from verifiers.comparison.variance import examples_for, two_levels
from verifiers.errors import ConfigError

ROLLOUTS = (1, 2, 4, 8, 16)
"""Rollouts per example in the table of a plan."""


class PilotVariances(NamedTuple):
    """The variances that a plan needs."""

    between: float
    """ω²: variance over examples of the true difference of the two runs."""
    within: tuple[float, float]
    """σ² of each run: variance of the reward within an example."""
    examples: int
    """Number of examples behind these numbers."""


def pilot_variances(runs: Sequence[str | Path], correlation: float = 0.5) -> PilotVariances:
    """Return the variances of one pilot run, or of two runs.

    One run: σ² is measured, the second run is assumed to have the same, and ω² = 2·(1 - ρ)·V for the variance V of the
    examples' true means and the expected `correlation` ρ of the two runs. Two runs: ω² is measured. Raises ConfigError
    for more than two runs, fewer than two examples, and a pilot without an example with two rollouts.
    """
    if not 1 <= len(runs) <= 2:
        raise ConfigError(f"A plan needs one pilot run or two runs; got {len(runs)}.")
    numbers = read_runs(runs, metrics=False)
    first, second = numbers[0], numbers[-1]
    shared = pair(first, second).shared
    if len(shared) < 2:
        raise ConfigError("A pilot needs at least two examples; run it with a larger -n.")
    if len(numbers) == 1:
        return _of_one_run(first, shared, correlation)
    differences = example_means(second.rewards, shared) - example_means(first.rewards, shared)
    levels = two_levels(
        [first.rewards[key] for key in shared], [second.rewards[key] for key in shared], differences
    )
    if math.isnan(levels.sampling):
        raise ConfigError(
            "The pilot needs at least two rollouts per example in each run (-r 2): otherwise nothing separates the "
            "noise of rollouts from the differences of examples."
        )
    return PilotVariances(levels.between, (levels.within_first, levels.within_second), len(shared))


def _of_one_run(run: RunNumbers, examples: Sequence[str], correlation: float) -> PilotVariances:
    several = [np.array(run.rewards[key]) for key in examples if len(run.rewards[key]) > 1]
    if not several:
        raise ConfigError(
            f"The pilot {run.folder} has one rollout per example, so the noise of one rollout is not known. "
            "Run it with at least two (-r 2), or give two runs with two each."
        )
    within = float(np.mean([values.var(ddof=1) for values in several]))
    means = example_means(run.rewards, examples)
    sizes = float(np.mean([1 / len(run.rewards[key]) for key in examples]))
    true_variance = max(0.0, float(means.var(ddof=1)) - within * sizes)
    return PilotVariances(2 * (1 - correlation) * true_variance, (within, within), len(examples))


def plan_table(
    variances: PilotVariances, effects: Sequence[float], *, power: float, significance: float
) -> list[list[int]]:
    """Return for each effect the examples needed with each number of rollouts in `ROLLOUTS`."""
    return [
        [
            examples_for(
                effect,
                between=variances.between,
                within=variances.within,
                rollouts=(k, k),
                power=power,
                significance=significance,
            )
            for k in ROLLOUTS
        ]
        for effect in effects
    ]
