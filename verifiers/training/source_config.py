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
    """Examples in a batch."""
    rollouts_per_group: int = Field(ge=1)
    """Rollouts of each example: the group whose mean is the baseline."""
    max_in_flight: int = Field(default=128, ge=1)
    """Rollouts played at the same time, evaluations included."""
    max_off_policy_steps: int = Field(default=8, ge=0)
    """How many policy versions may lie between the beginning of a group and the step that trains on it."""
    on_stale: Literal["drop", "mask"] = "drop"
    """What happens to a group that is too old: dropped whole, or only its too old tokens are masked."""
    max_groups_ahead: int | None = Field(default=None, ge=1)
    """Groups begun and not yet in a batch. None: what fills `max_in_flight`, and one batch; a group that waits for its
    last rollouts counts by those alone, while the groups are not more than `max_off_policy_steps` / 2 batches."""
    rollout_timeout_s: float | None = Field(default=None, gt=0)
    """Longest one rollout may take, in seconds; it is then scored as it is. One that has sampled nothing is the
    machinery's failure and played again elsewhere: an endpoint that hangs gives back its places. None: no limit but
    the environment's and the client's."""
    max_attempts: int = Field(default=3, ge=1)
    """How often a rollout that the machinery failed is played."""
    min_healthy: int = Field(default=2, ge=1)
    """A group with fewer healthy rollouts is dropped (for groups of one rollout: 1)."""
    keep_without_signal: bool = False
    """Keep groups whose rollouts all did equally well; they cost a place in the batch and teach nothing."""
    advantage: str = "group_mean"
    """Name of the estimator, see `verifiers.training.advantages`."""
    on_drift: OnDrift = "fork"
    """What is made of rollouts whose turns do not continue each other, see `samples_of`."""
    difficulty: DifficultyConfig = Field(default_factory=DifficultyConfig)
    env_weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each environment of an `EnvGroup`. Empty: by their numbers of examples."""
    seed: int = 0
    give_up_after: int = Field(default=1000, ge=1)
    """Groups that may be dropped for failure or missing signal in a row before `next_batch` raises SourceStalled."""

    unreachable_timeout_s: float = Field(default=600.0, gt=0)
    """How long no endpoint may be reachable before `next_batch` raises SourceStalled, in seconds."""

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
        """The numbers for `Dispatch`."""
        batch = self.groups_per_batch
        filled = -(-self.max_in_flight // self.rollouts_per_group)
        busy = max(2 * batch, filled + batch)
        # One batch leaves with each step, so this many make the mean group half as old as it may become. With more,
        # long groups are dropped as stale, and what is trained on is no longer what the policy does.
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
