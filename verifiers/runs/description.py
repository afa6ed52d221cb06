"""`RunDescription`: what is known of a run before it starts; with a summary it becomes `metadata.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from verifiers.runs.saved import FORMAT_VERSION
from verifiers.runs.summary import Summary, summarize
from verifiers.types import GenerateMetadata, VersionInfo


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunDescription:
    """What was asked for, and with what."""

    env_id: str
    model: str
    num_examples: int
    rollouts_per_example: int
    env_args: Mapping[str, Any] = field(default_factory=dict)
    base_url: str = ""
    """Endpoint without credentials; see `provenance.endpoint_url`."""
    sampling_args: Mapping[str, Any] = field(default_factory=dict)
    state_columns: Sequence[str] = ()
    path_to_save: Path | None = None
    pass_threshold: float = 0.5
    version_info: VersionInfo | None = None
    provenance: Mapping[str, Any] | None = None
    """See `provenance.provenance`."""
    date: str = field(default_factory=_now)
    """When the run was started, ISO 8601 with time zone."""

    def metadata(
        self,
        summary: Summary | None = None,
        *,
        time_s: float | None = None,
        tools: list[Any] | None = None,
    ) -> GenerateMetadata:
        """The metadata of 0.1.14 under its names, and ours beside it.

        Ours: `format_version`, `avg_reward_error_free`, `reward_stderr`, `reward_ci95`, `num_errors`, `num_failed`,
        `num_reward_errors`, `num_truncated`, `cost` (when a price was given), `provenance`. What cannot be computed,
        e.g. an error of one example, is None. `tools`: those that every rollout had.
        """
        summary = summarize([], self.pass_threshold) if summary is None else summary
        reward, clean = summary.reward, summary.reward_error_free
        metadata: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "env_id": self.env_id,
            "env_args": dict(self.env_args),
            "model": self.model,
            "base_url": self.base_url,
            "num_examples": self.num_examples,
            "rollouts_per_example": self.rollouts_per_example,
            "sampling_args": dict(self.sampling_args),
            "date": self.date,
            "time": summary.wall_time_s if time_s is None else time_s,
            "avg_reward": reward.mean if summary.rollouts else 0.0,
            "avg_reward_error_free": _number(clean.mean),
            "reward_stderr": _number(reward.stderr),
            "reward_ci95": None if math.isnan(reward.low) else [reward.low, reward.high],
            "avg_metrics": {name: metric.estimate.mean for name, metric in summary.metrics.items()},
            "avg_error": summary.error_rate,
            "num_errors": summary.error_count,
            "num_failed": summary.failed,
            "num_reward_errors": summary.reward_error_rollouts,
            "num_truncated": summary.truncated,
            "pass_at_k": {str(k): estimate.mean for k, estimate in summary.pass_at_k.items()},
            "pass_all_k": {str(k): estimate.mean for k, estimate in summary.pass_all_k.items()},
            "pass_threshold": self.pass_threshold,
            "usage": summary.tokens.per_rollout,
            "version_info": self.version_info,
            "state_columns": list(self.state_columns),
            "path_to_save": self.path_to_save,
            "tools": tools,
            "provenance": None if self.provenance is None else dict(self.provenance),
        }
        if summary.cost is not None:
            metadata["cost"] = summary.cost
        return cast(GenerateMetadata, metadata)  # with our additions


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
