"""The metadata of a run and the keys of a rollout, prepared for a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from verifiers.runs.output import encode_value
from verifiers.runs.statistics import Estimate
from verifiers.view.notes import Note
from verifiers.view.overview import cost_of
from verifiers.view.sources import Run
from verifiers.view.transcript import Shown, shown, visible


class RunRow(NamedTuple):
    """A run in the list of runs."""

    run: Run
    env_id: str
    model: str
    date: Any
    reward: float | None
    low: float
    high: float
    rollouts: float
    failed: float
    cost: float | None
    time_s: float | None
    is_live: bool
    note: Note

    @property
    def estimate(self) -> Estimate:
        """The reward with its interval."""
        mean = math.nan if self.reward is None else self.reward
        return Estimate(mean, math.nan, self.low, self.high, 0, 0)


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts numbers before texts."""
    if isinstance(value, bool | int | float):
        return (0, -math.inf if value != value else value)  # NaN
    return (1, str(value).casefold())


def note_of(run: Run, key: str | None) -> Note:
    """Return the note of a rollout, or of the run; an empty note where notes cannot be stored."""
    return Note() if run.notes is None else run.notes.of(key)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def run_row(run: Run) -> RunRow:
    """Return a run as the list of runs shows it, from its metadata."""
    metadata = run.metadata
    ends = metadata.get("reward_ci95")
    ends = ends if isinstance(ends, list) and len(ends) == 2 else [None, None]
    reward = metadata.get("avg_reward")
    failed = metadata.get("num_failed", metadata.get("num_errors"))
    planned = _number(metadata.get("num_examples")) * _number(metadata.get("rollouts_per_example"))
    return RunRow(
        run,
        str(metadata.get("env_id") or run.name.partition("--")[0]),
        str(metadata.get("model") or ""),
        metadata.get("date"),
        None if not isinstance(reward, int | float) else float(reward),
        _number(ends[0]),
        _number(ends[1]),
        planned,
        _number(failed),
        cost_of(metadata),
        metadata.get("time") if isinstance(metadata.get("time"), int | float) else None,
        run.is_live,
        note_of(run, None),
    )


def settings(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of a run as (name, text)."""
    provenance = metadata.get("provenance")
    provenance = provenance if isinstance(provenance, Mapping) else {}
    versions = metadata.get("version_info")
    versions = versions if isinstance(versions, Mapping) else {}
    dataset = provenance.get("dataset")
    dataset = dataset if isinstance(dataset, Mapping) else {}
    values = {
        "endpoint": metadata.get("base_url"),
        "API": provenance.get("client_type"),
        "sampling": metadata.get("sampling_args"),
        "arguments": metadata.get("env_args"),
        "environment version": versions.get("env_version"),
        "library version": versions.get("vf_version"),
        "dataset hash": str(dataset.get("sha256") or "")[:12],
        "state columns": metadata.get("state_columns"),
        "failure": metadata.get("failure"),
    }
    return [
        (name, value if isinstance(value, str) else encode_value(value).decode().strip())
        for name, value in values.items()
        if value not in (None, "", {}, [])
    ]


def facts(output: Mapping[str, Any]) -> list[tuple[str, Shown]]:
    """Return the keys of a rollout that the page shows as they are: the row, then columns of the state."""
    drawn = {
        *(
            "example_id",
            "prompt",
            "completion",
            "reward",
            "error",
            "error_chain",
            "long_error_chain",
        ),
        *(
            "timing",
            "is_completed",
            "is_truncated",
            "stop_condition",
            "metrics",
            "token_usage",
            "errors",
        ),
        *(
            "rollout_index",
            "input_key",
            "judge_response",
            "score_details",
            "trajectory",
            "advantage",
        ),
    }
    metrics = output.get("metrics")
    drawn |= set(metrics) if isinstance(metrics, Mapping) else set()
    return [
        (visible(str(name)), shown(value, 4000))
        for name, value in output.items()
        if name not in drawn and value not in (None, "", [], {})
    ]


def error_view(output: Mapping[str, Any]) -> list[tuple[str, Shown]]:
    """Return the error of a rollout as (name, text)."""
    error = output.get("error")
    if error is None:
        return []
    if not isinstance(error, Mapping):
        return [("error", shown(str(error)))]
    names = {
        "error": "type",
        "error_chain_repr": "message",
        "where": "where",
        "traceback": "traceback",
    }
    return [(name, shown(str(error[key]), 12_000)) for key, name in names.items() if error.get(key)]
