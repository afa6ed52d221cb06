"""The runs of a comparison: their numbers per rollout, the pairing of examples, and the guard of comparability.

Only the index of a run is read, not its messages. Two rollouts belong to the same example if the content of their rows
is equal (`input_key`). Runs without this hash (of the public 0.1.14) are paired by a hash of the saved prompt, answer
and info; their lines are then read once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verifiers.errors import ConfigError, is_void
from verifiers.runs.output import encode_value
from verifiers.runs.statistics import NAN, Floats
from verifiers.runs.store import iterate_index, iterate_outputs, load_metadata
from verifiers.runs.summary import finite

COSTS = {"input tokens": "input_tokens", "output tokens": "output_tokens"}
TURNS, SECONDS = "turns", "seconds"


@dataclass
class RunNumbers:
    """The numbers of one run, by example."""

    folder: Path
    name: str
    """Short name in tables: the model, made unique among the compared runs."""
    metadata: dict[str, Any]
    rewards: dict[str, list[float]] = field(default_factory=dict)
    """Example → one reward per rollout. Void and missing rewards count 0.0."""
    clean: dict[str, list[float]] = field(default_factory=dict)
    """The same without failed rollouts. An example whose rollouts all failed is absent."""
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Metric or cost → example → finite values."""
    example_ids: dict[str, Any] = field(default_factory=dict)
    """Example → its `example_id` in this run."""
    duplicates: int = 0
    """Number of rollouts whose row has the content of another row of the run."""
    clusters: dict[str, Hashable] = field(default_factory=dict)
    """Example → label of its cluster, if a cluster field was given."""

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return sum(map(len, self.rewards.values()))

    @property
    def is_binary(self) -> bool:
        """Whether every example has one rollout and every reward is 0 or 1."""
        return all(len(r) == 1 and r[0] in (0.0, 1.0) for r in self.rewards.values())

    def drop(self, example: str) -> None:
        """Leave an example out."""
        for values in (self.rewards, self.clean, self.example_ids, *self.values.values()):
            values.pop(example, None)

    def passes(self, threshold: float) -> dict[str, tuple[int, int]]:
        """Return example → (rollouts, rollouts whose reward is at least the threshold)."""
        return {
            key: (len(rewards), sum(reward >= threshold for reward in rewards))
            for key, rewards in self.rewards.items()
        }


def read_runs(
    folders: Sequence[str | Path], *, cluster: str | None = None, metrics: bool = True
) -> list[RunNumbers]:
    """Return the numbers of the runs, with names that tell them apart.

    `cluster`: a field of the saved rollouts, such as `info.repository`, whose value groups correlated examples. Raises
    RunNotFound for a folder without a run, ConfigError for a run without rollouts or a field that no rollout has.
    """
    metadatas = [load_metadata(Path(folder)) for folder in folders]
    names = _names(folders, metadatas)
    runs = [
        RunNumbers(Path(folder), name, metadata)
        for folder, name, metadata in zip(folders, names, metadatas, strict=True)
    ]
    try:
        for run in runs:
            _fill(run, cluster=cluster, metrics=metrics)
    except KeyError:  # a rollout without `input_key`
        runs = [RunNumbers(run.folder, run.name, run.metadata) for run in runs]
        for run in runs:
            _fill(run, cluster=cluster, metrics=metrics, hashes_content=True)
    for run in runs:
        if not run.rewards:
            raise ConfigError(
                f"The run at {run.folder} has no rollouts; there is nothing to compare."
            )
        if cluster is not None and set(run.clusters.values()) == {None}:
            raise ConfigError(
                f"No rollout of {run.folder} has the field {cluster!r}. Give a field of results.jsonl, "
                "such as info.repository."
            )
    return runs


def _names(folders: Sequence[str | Path], metadatas: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one short name per run: the model if all differ, else the model and the folder, else A, B, C …"""
    models = [str(metadata.get("model") or "run") for metadata in metadatas]
    if len(set(models)) == len(models):
        return models
    names = [
        f"{model} ({Path(folder).name})" for model, folder in zip(models, folders, strict=True)
    ]
    if len(set(names)) == len(names):
        return names
    return [f"{letter}: {name}" for letter, name in zip("ABCDEFGH", names, strict=False)]


def _contents(folder: Path, cluster: str | None) -> tuple[list[str], list[Hashable]]:
    """Return for each rollout the hash of its example's content, and the value of the cluster field."""
    hashes: list[str] = []
    labels: list[Hashable] = []
    known: dict[bytes, str] = {}
    for output in iterate_outputs(folder, []):
        row = encode_value([output.get(key) for key in ("prompt", "answer", "info", "task")])
        hashes.append(known.setdefault(row, hashlib.sha256(row).hexdigest()))
        value = None if cluster is None else _field(output, cluster)
        labels.append(None if value is None else str(value))
    return hashes, labels


def _field(output: Mapping[str, Any], path: str) -> Any:
    value: Any = output
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _fill(
    run: RunNumbers, *, cluster: str | None, metrics: bool, hashes_content: bool = False
) -> None:
    """Read a run. Raises KeyError for a rollout without `input_key`, unless the content is hashed."""
    hashes: Sequence[str] | None = None
    labels: Sequence[Hashable] | None = None
    if hashes_content or cluster is not None:
        hashes, labels = _contents(run.folder, cluster)
    ids: dict[str, Any] = run.example_ids
    for number, (_, output) in enumerate(iterate_index(run.folder)):
        key = hashes[number] if hashes is not None and hashes_content else output["input_key"]
        reward = finite(output.get("reward"))
        counted = 0.0 if reward is None or is_void(output) else reward
        run.rewards.setdefault(key, []).append(counted)
        if reward is not None and output.get("error") is None and not output.get("errors"):
            run.clean.setdefault(key, []).append(reward)
        if ids.setdefault(key, output.get("example_id")) != output.get("example_id"):
            run.duplicates += 1
        if labels is not None and cluster is not None:
            run.clusters.setdefault(key, labels[number])
        for name, value in _values(output, metrics=metrics):
            run.values.setdefault(name, {}).setdefault(key, []).append(value)


def _values(output: Mapping[str, Any], *, metrics: bool) -> Iterator[tuple[str, float]]:
    """Yield the finite metrics of a rollout, and its tokens, turns and seconds under the names of the report."""
    all_metrics = output.get("metrics") or {}
    usage = output.get("token_usage") or {}
    timing = output.get("timing") or {}
    found = dict(all_metrics) if metrics else {}
    found |= {name: usage.get(key) for name, key in COSTS.items()}
    found[TURNS] = all_metrics.get("num_turns")
    found[SECONDS] = timing.get("total", timing.get("total_ms", 0.0) / 1000)
    for name, value in found.items():
        if (number := finite(value)) is not None:
            yield name, number


# --- pairing


class Pairing(NamedTuple):
    """The examples of two runs."""

    shared: list[str]
    """Examples that both runs have, in the order of the first."""
    only_first: int
    only_second: int
    duplicates: int
    """Rollouts of rows that have the content of another row of their run; they count for that row."""


def pair(first: RunNumbers, second: RunNumbers) -> Pairing:
    """Pair the examples of two runs by content. Raises ConfigError if they share none."""
    shared = [key for key in first.rewards if key in second.rewards]
    if not shared:
        raise ConfigError(
            f"{first.folder} and {second.folder} share no example, so they cannot be compared. Were they run on "
            "different environments, splits or dataset versions?"
        )
    return Pairing(
        shared,
        len(first.rewards) - len(shared),
        len(second.rewards) - len(shared),
        first.duplicates + second.duplicates,
    )


def example_means(values: Mapping[str, Sequence[float]], examples: Sequence[str]) -> Floats:
    """Return the mean of each example, shape [len(examples)]; NaN for an example without values."""
    return np.array(
        [sum(v) / len(v) if (v := values.get(key)) else NAN for key in examples], np.float64
    )


# --- comparability


class Incompatibility(NamedTuple):
    """A setting in which two runs differ although a comparison of models assumes that it is equal."""

    setting: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.setting}: {_brief(self.first)} and {_brief(self.second)}"


_GUARDED = {
    "environment": ("env_id",),
    "environment version": ("provenance.environment.version", "version_info.env_version"),
    "environment source": (
        "provenance.environment.wheel_sha256",
        "provenance.environment.source_sha256",
    ),
    "environment arguments": ("env_args",),
    "dataset": ("provenance.dataset.sha256",),
    "system prompt": ("provenance.prompt.system_prompt_sha256",),
    "tools": ("provenance.prompt.tools_sha256",),
    "sampling arguments": ("provenance.sampling", "sampling_args"),
    "judge model": ("env_args.judge_model", "provenance.judge"),
    "pass threshold": ("pass_threshold",),
}


def incompatibilities(first: RunNumbers, second: RunNumbers) -> list[Incompatibility]:
    """Return the guarded settings that differ. A setting that one run does not record is not compared."""
    found = []
    for setting, paths in _GUARDED.items():
        for path in paths:
            old, new = _field(first.metadata, path), _field(second.metadata, path)
            if old is None or new is None:
                continue
            if encode_value(old) != encode_value(new):
                found.append(Incompatibility(setting, old, new))
            break
    return found


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else encode_value(value).decode().strip()
    return text if len(text) <= 60 else text[:57] + "…"
