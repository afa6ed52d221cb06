"""`Batch`: the input of one training step, and the metrics of the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from verifiers.training.dispatch import Cancellation, CancelReason, Entry
from verifiers.training.samples import TokenSample


class Batch(NamedTuple):
    """The input of one training step."""

    step: int
    """Number of batches taken so far, including this one. It continues after a resume."""
    version: int
    """Policy version at the time the batch was taken."""
    samples: list[TokenSample]
    entries: list[Entry]
    """The groups, oldest first; `entry.outcome` is a `GroupOutcome`."""
    metrics: dict[str, float]
    """Metrics of this step, by names such as `reward/mean` and `cancelled/stale`."""


def batch_metrics(
    entries: Sequence[Entry],
    *,
    version: int,
    cancelled: Sequence[Cancellation],
    durations_s: Sequence[float],
    batch_s: Sequence[float] = (),
    stale_s: Sequence[float] = (),
    wall_s: float,
) -> dict[str, float]:
    """Figures by name.

    `durations_s`, `batch_s` and `stale_s` are seconds of single rollouts: of those that finished since the last batch,
    of those in the batch, and of those whose groups were dropped as stale (up to the drop).

    reward/mean, reward/std, reward/<env>      over the rollouts of the batch (not over dropped groups)
    metric/<name>                              means of the environment's metrics
    staleness/mean, staleness/max              policy versions between beginning and training, a group
    tokens/trained, tokens/total, tokens/longest_sample, tokens/truncated
    tokens/sequences                           one a rollout, more where turns do not continue each other
    cancelled/<reason>                         groups dropped since the last batch
    rollouts/finished, rollouts/p50_s, rollouts/p95_s, rollouts/per_s, rollouts/failed
    stale/rollouts                             rollouts of groups dropped as stale since the last batch
    stale/length_selection                     mean seconds of a rollout in the batch, over the mean of these and of the
                                               dropped ones: 1 without a drop; below 1, long rollouts are missing
    step/wall_s                                seconds since the last batch
    """
    outcomes = [entry.outcome for entry in entries]
    rewards = [reward for outcome in outcomes for reward in outcome.rewards]
    samples = [sample for outcome in outcomes for sample in outcome.samples]
    ages = [version - entry.version for entry in entries]
    metrics = {
        "reward/mean": _mean(rewards),
        "reward/std": float(np.std(rewards)) if rewards else 0.0,
        "staleness/mean": _mean(ages),
        "staleness/max": float(max(ages, default=0)),
        "tokens/trained": float(sum(sample.trained_count for sample in samples)),
        "tokens/total": float(sum(len(sample) for sample in samples)),
        "tokens/sequences": float(len(samples)),
        "tokens/longest_sample": float(max((len(sample) for sample in samples), default=0)),
        "tokens/truncated": _mean([outcome.truncated for outcome in outcomes]),
        "rollouts/failed": float(sum(len(outcome.failures) for outcome in outcomes)),
        "stale/rollouts": float(len(stale_s)),
        "stale/length_selection": _selection(batch_s, stale_s),
        "step/wall_s": wall_s,
    }
    by_env: dict[str, list[float]] = {}
    by_metric: dict[str, list[float]] = {}
    for outcome in outcomes:
        by_env.setdefault(outcome.env_id, []).extend(outcome.rewards)
        for name, value in outcome.metrics.items():
            by_metric.setdefault(name, []).append(value)
    if len(by_env) > 1:
        metrics |= {f"reward/{env}": _mean(own) for env, own in by_env.items()}
    metrics |= {f"metric/{name}": _mean(values) for name, values in by_metric.items()}
    reasons = Counter(one.reason for one in cancelled)
    metrics |= {f"cancelled/{reason}": float(reasons[reason]) for reason in CancelReason}
    metrics["rollouts/finished"] = float(len(durations_s))
    metrics["rollouts/per_s"] = len(durations_s) / wall_s if wall_s > 0 else 0.0
    for share in (50, 95):
        metrics[f"rollouts/p{share}_s"] = (
            float(np.percentile(durations_s, share)) if durations_s else 0.0
        )
    return metrics


def _selection(batch_s: Sequence[float], stale_s: Sequence[float]) -> float:
    everything = _mean([*batch_s, *stale_s])
    return _mean(batch_s) / everything if stale_s and batch_s and everything > 0 else 1.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else 0.0
