"""`SourceConfig`: how a source makes batches."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verifiers.training.advantages import estimator_of
from verifiers.training.difficulty import DifficultyConfig, check_weights
from verifiers.training.dispatch import DispatchLimits
from verifiers.training.samples import OnDrift


class SourceConfig(BaseModel):
    """How batches are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups_per_batch: int = Field(ge=1)
    """Number of examples per batch."""
    rollouts_per_group: int = Field(ge=1)
    """Number of rollouts per example: the group whose mean is the baseline."""
    max_in_flight: int = Field(default=128, ge=1)
    """Maximum number of rollouts played at the same time, evaluations included."""
    max_off_policy_steps: int = Field(default=8, ge=0)
    """Maximum number of policy versions between the start of a group and the step that trains on it."""
    on_stale: Literal["drop", "mask"] = "drop"
    """Treatment of a group that is too old: the whole group is dropped, or only its too old tokens are masked."""
    max_groups_ahead: int | None = Field(default=None, ge=1)
    """Maximum number of groups started and not yet in a batch. None: enough to fill `max_in_flight`, plus one batch.
    A group that waits for its last rollouts counts by those alone, up to `max_off_policy_steps` / 2 batches of
    groups.
    """
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    """Maximum seconds per rollout; the rollout is then scored as it is. A rollout that has sampled nothing counts as
    an infrastructure failure and is played again elsewhere, so that a hanging endpoint frees its slots. None: only
    the limits of the environment and the client apply.
    """
    max_attempts: int = Field(default=3, ge=1)
    """Maximum number of attempts for a rollout that failed for infrastructure reasons."""
    min_healthy: int = Field(default=2, ge=1)
    """A group with fewer healthy rollouts is dropped (for groups of one rollout: 1)."""
    keep_without_signal: bool = False
    """Keep groups whose rollouts all have the same reward. They use a place in the batch and have no gradient."""
    advantage: str = "group_mean"
    """Name of the estimator, see `verifiers.training.advantages`."""
    on_drift: OnDrift = "fork"
    """Treatment of rollouts whose turns do not continue each other, see `samples_of`."""
    difficulty: DifficultyConfig = Field(default_factory=DifficultyConfig)
    env_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each environment of an `EnvGroup`. Empty: by their numbers of examples."""
    seed: int = 0
    give_up_after: int = Field(default=1000, ge=1)
    """Number of consecutive groups without a usable result after which `next_batch` raises SourceStalled."""

    unreachable_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds without any reachable endpoint after which `next_batch` raises SourceStalled."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_weights("env_weights", self.env_weights)
        estimator_of(self.advantage)
        if self.max_groups_ahead is not None and self.max_groups_ahead < self.groups_per_batch:
            raise ValueError(
                f"max_groups_ahead={self.max_groups_ahead} is less than a batch of {self.groups_per_batch} groups, "
                "which would then never fill"
            )
        return self

    def limits(self) -> DispatchLimits:
        """The parameters of `Dispatch`."""
        batch = self.groups_per_batch
        filled = -(-self.max_in_flight // self.rollouts_per_group)
        busy = max(2 * batch, filled + batch)
        # One batch leaves with each step, so this number makes the mean group half as old as the limit. With more, long
        # groups are dropped as stale, and the trained rollouts no longer represent the policy.
        in_time = (self.max_off_policy_steps + 1) * batch // 2
        return DispatchLimits(
            groups_per_batch=batch,
            rollouts_per_group=self.rollouts_per_group,
            max_in_flight=self.max_in_flight,
            max_off_policy_steps=self.max_off_policy_steps,
            max_groups_ahead=self.max_groups_ahead or max(busy, in_time),
            max_rollouts_ahead=(self.max_groups_ahead or busy) * self.rollouts_per_group,
            max_attempts=self.max_attempts,
            on_stale=self.on_stale,
        )
