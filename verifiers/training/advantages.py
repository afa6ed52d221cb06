"""Rewards of one group (the rollouts of one example) → advantages.

`_G`: one value per rollout of the group, in order. Every estimator is a pure function `rewards_G → advantages_G`. It
returns zeros for a group with equal rewards, which shows no difference between its rollouts. The default, reward minus
mean, is `verifiers.rubrics.scoring.group_advantages`: scoring writes it into the states, and `given_advantages`
recognises it here.

| name             | advantage of rollout i       | source                                              |
|------------------|------------------------------|-----------------------------------------------------|
| `group_mean`     | r_i - mean(r)                | INTELLECT-3, https://arxiv.org/abs/2512.16144       |
| `group_mean_std` | (r_i - mean(r)) / std(r)     | GRPO, https://arxiv.org/abs/2402.03300, section 4.1 |
| `leave_one_out`  | r_i - mean of the others     | RLOO, https://arxiv.org/abs/2402.14740              |
| `max_rl`         | (r_i - mean(r)) / mean(r)    | MaxRL, https://arxiv.org/abs/2602.02710             |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from verifiers.errors import ConfigError
from verifiers.rubrics.scoring import group_advantages
from verifiers.training.samples import (
    OnDrift,
    TokenSample,
    failure_of,
    reward_of,
    rollout_advantage,
    samples_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

Estimator = Callable[[Sequence[float]], "NDArray[np.float64]"]

INTELLECT_2_PENALTY_PER_TOKEN = 0.0003
"""Weight of the length reward in INTELLECT-2, https://arxiv.org/abs/2505.07291."""


def group_mean(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    """Return each reward minus the group's mean, as `group_advantages`. Without division, the spread of an example's
    rewards is its weight.
    """
    rewards = _rewards(rewards_G)
    if _all_same(rewards):
        return np.zeros_like(rewards)
    return np.array(group_advantages(rewards.tolist()))


def group_mean_std(rewards_G: Sequence[float], *, epsilon: float = 1e-4) -> NDArray[np.float64]:
    """Return each reward minus the mean, over the sample standard deviation (n - 1) plus `epsilon`."""
    rewards = _rewards(rewards_G)
    if _all_same(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)


def leave_one_out(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    """Return each reward minus the mean of the others: an unbiased baseline."""
    rewards = _rewards(rewards_G)
    if _all_same(rewards):
        return np.zeros_like(rewards)
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


def max_rl(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    """Return each reward minus the mean, over the mean: for 0/1 rewards the gradient of a truncated log-likelihood.

    Rare successes have more weight: one success in G has the advantage G - 1. A group without success returns zeros.
    Raise ValueError for negative rewards, for which the estimator is undefined.
    """
    rewards = _rewards(rewards_G)
    if rewards.min() < 0:
        raise ValueError(f"max_rl needs rewards of at least 0; got {rewards.min():g}.")
    if _all_same(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / rewards.mean()


def length_penalized(
    rewards_G: Sequence[float],
    lengths_G: Sequence[float],
    targets_G: Sequence[float],
    *,
    per_token: float = INTELLECT_2_PENALTY_PER_TOKEN,
) -> NDArray[np.float64]:
    """Return rewards minus `per_token` for every token by which a rollout differs from its target length.

    The target length is part of the prompt. Source: INTELLECT-2, https://arxiv.org/abs/2505.07291, after L1,
    https://arxiv.org/abs/2503.04697.
    """
    lengths, targets = np.asarray(lengths_G, float), np.asarray(targets_G, float)
    rewards = _rewards(rewards_G)
    if not len(rewards) == len(lengths) == len(targets):
        raise ValueError(
            f"A group of {len(rewards)} rewards has {len(lengths)} lengths and {len(targets)} targets."
        )
    return rewards - per_token * np.abs(targets - lengths)


ESTIMATORS: dict[str, Estimator] = {
    "group_mean": group_mean,
    "group_mean_std": group_mean_std,
    "leave_one_out": leave_one_out,
    "max_rl": max_rl,
}


def estimator_of(name: str | Estimator) -> Estimator:
    """Return the estimator of that name; a function passes unchanged. Raise ConfigError for an unknown name."""
    if callable(name):
        return name
    if name not in ESTIMATORS:
        raise ConfigError(
            f"{name!r} is not an advantage estimator; estimators: {', '.join(ESTIMATORS)}."
        )
    return ESTIMATORS[name]


def _rewards(rewards_G: Sequence[float]) -> NDArray[np.float64]:
    rewards = np.asarray(rewards_G, np.float64)
    if rewards.ndim != 1 or not len(rewards):
        raise ValueError(f"A group has at least one reward; got {rewards_G!r:.100}.")
    if not np.isfinite(rewards).all():
        raise ValueError(f"Rewards must be finite numbers; got {rewards_G!r:.100}.")
    return rewards


def _all_same(rewards: NDArray[np.float64]) -> bool:
    # Compare exactly rather than by the deviation: the mean of equal floats may differ in the last bit.
    return bool((rewards == rewards[0]).all())


# ------------------------------------------------------------------------------------------------ whole groups


@dataclass(frozen=True)
class GroupSamples:
    """The samples of one group, with advantages."""

    samples: list[TokenSample]
    rewards: list[float]
    """Rewards of the rollouts that did not fail."""
    advantages: list[float]
    """Advantages of the same rollouts."""
    failures: list[str]
    """Reasons why the other rollouts failed."""

    @property
    def has_signal(self) -> bool:
        """Whether the rewards differ. If they are equal, every gradient is zero."""
        return any(self.advantages) or any(s.advantages is not None for s in self.samples)


def given_advantages(
    rewards_G: Sequence[float | None],
    advantages_G: Sequence[float | None],
    healthy: Sequence[int],
) -> list[float] | None:
    """Return the advantages that an environment set on the healthy rollouts (by index) of a group; None without them.

    Scoring writes `verifiers.rubrics.scoring.group_advantages` where the environment sets nothing (of all rollouts
    that did not crash; older versions counted crashes as 0). The estimator replaces those values.
    """
    given = [own for n in healthy if (own := advantages_G[n]) is not None and math.isfinite(own)]
    if not given or len(given) < len(healthy):
        return None
    # Healthy rollouts have a finite reward, so there is at least one; a crashed rollout has none.
    finite = {
        n: reward
        for n, reward in enumerate(rewards_G)
        if reward is not None and math.isfinite(reward)
    }
    older = {n: finite.get(n, 0.0) for n in range(len(rewards_G))}
    is_default = False
    for rewards in (finite, older):
        default = dict(zip(rewards, group_advantages(list(rewards.values())), strict=True))
        is_default |= np.allclose(given, [default[n] for n in healthy], rtol=1e-6, atol=1e-9)
    return None if is_default else given


def group_samples(
    outputs: Sequence[Mapping[str, Any]],
    estimator: str | Estimator = "group_mean",
    *,
    group_id: str = "",
    env_id: str = "",
    on_drift: OnDrift = "fork",
) -> GroupSamples:
    """Return the samples of the rollouts of one example.

    Failed rollouts give no samples and do not enter the baseline. Advantages that the environment set (on all healthy
    rollouts) replace the estimator's.
    """
    healthy = [index for index, output in enumerate(outputs) if failure_of(output) is None]
    failures = [reason for output in outputs if (reason := failure_of(output)) is not None]
    rewards = [float(outputs[index]["reward"]) for index in healthy]
    given = given_advantages(
        [reward_of(output) for output in outputs],
        [rollout_advantage(output) for output in outputs],
        healthy,
    )
    if not healthy:
        advantages: list[float] = []
    else:
        advantages = given or estimator_of(estimator)(rewards).tolist()
    samples = [
        sample.with_advantage(advantage)
        for index, advantage in zip(healthy, advantages, strict=True)
        for sample in samples_of(
            outputs[index], on_drift=on_drift, group_id=group_id, env_id=env_id
        )
    ]
    return GroupSamples(samples, rewards, advantages, failures)
