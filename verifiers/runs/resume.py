"""`--resume`: which saved run continues (`run_to_continue`), and which of its rollouts are missing (`continue_run`).

`plan` is a pure function from rows and saved rollouts to the missing rollouts; `continue_run` applies it to a folder.

A rollout is identified by its example (`example_id`), by the content of the example's row (`input_key`) and by its
number within the example (`rollout_index`). Lines of 0.1.14 have only the `example_id`; their rows count as unchanged,
and their numbers follow the order in which they were saved.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from verifiers.configs import EvalConfig, OnChanged
from verifiers.errors import LATE_NAMES, RETRYABLE, ConfigError, saved_types, type_names
from verifiers.runs.folders import (
    METADATA_FILE,
    RESULTS_FILE,
    is_run_folder,
    not_a_run,
    runs_folder,
    saved_runs,
)
from verifiers.runs.output import jsonable
from verifiers.runs.store import RunNotFound, RunStore, load_metadata
from verifiers.tasks import Row as TaskRow
from verifiers.tasks import input_key
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]


class RunMismatch(ConfigError):
    """The settings of a saved run differ from those of the run that continues it."""


class DatasetChanged(RunMismatch):
    """Rows of the dataset differ from the rows of the saved rollouts."""


class MissingRollout(NamedTuple):
    """One rollout that must be run."""

    row: Row
    rollout_index: int
    """0 … r-1 within the example."""


class ChangedRow(NamedTuple):
    """An example whose row differs from the row of its saved rollouts."""

    example_id: Any
    saved_key: str
    current_key: str


@dataclass(frozen=True)
class ResumePlan:
    """The rollouts to run, and the treatment of each saved rollout. Positions count the saved rollouts from 0."""

    missing: tuple[MissingRollout, ...]
    """In the order of the rows, then by `rollout_index`."""
    kept: tuple[int, ...]
    """Saved rollouts of the requested run; `kept` and `missing` together are exactly the requested rollouts."""
    superseded: Mapping[int, str] = field(default_factory=dict)
    """Saved rollouts that are run again, with the reason; pass this to `RunStore.supersede` before running."""
    surplus: tuple[int, ...] = ()
    """Saved rollouts that the run does not need: other examples, further rollouts, duplicates."""
    changed: tuple[ChangedRow, ...] = ()
    """Examples whose row changed since they were saved."""

    def groups(self) -> list[tuple[Row, list[int]]]:
        """The missing rollouts by example: each row with the rollout indices to run."""
        groups: dict[int, tuple[Row, list[int]]] = {}
        for row, rollout_index in self.missing:
            groups.setdefault(id(row), (row, []))[1].append(rollout_index)
        return list(groups.values())

    def __str__(self) -> str:
        """Describe the plan in one line."""
        parts = [f"{len(self.kept)} rollouts saved, {len(self.missing)} to run"]
        if self.superseded:
            parts.append(f"{len(self.superseded)} saved rollouts run again")
        if self.changed:
            parts.append(f"{len(self.changed)} examples changed")
        if self.surplus:
            parts.append(f"{len(self.surplus)} saved rollouts not part of this run")
        return "; ".join(parts)


class _Saved(NamedTuple):
    position: int
    rollout_index: int | None
    failure: str | None
    """The reason to run the rollout again, or None."""


def plan(
    rows: Sequence[Row],
    rollouts_per_example: int,
    saved: Iterable[Mapping[str, Any]],
    *,
    whole_groups: bool = False,
    is_retryable: Callable[[Mapping[str, Any]], bool] | None = None,
    on_changed: OnChanged | Literal["refuse"] = "stop",
) -> ResumePlan:
    """Return the plan that completes `rollouts_per_example` rollouts of every row.

    `rows` have unique `example_id`s; the `input_key` is taken from the row or computed. `saved` is read once and may
    be a stream. `whole_groups`: rollouts of one example are scored together, so an example with a missing rollout is
    run again as a whole. `is_retryable` selects failed rollouts to run again, e.g. `failed_by_infrastructure`.
    `on_changed="rerun"` runs the rollouts of changed rows again, "keep" keeps them.

    Raises DatasetChanged if rows changed and `on_changed` is "stop" (or its older name "refuse"), ConfigError
    if two rows share an id.
    """
    if rollouts_per_example < 1:
        raise ConfigError(f"rollouts_per_example must be at least 1; got {rollouts_per_example}.")
    keys = {}
    for row in rows:
        if row["example_id"] in keys:
            raise ConfigError(
                f"Two rows have the example_id {row['example_id']!r}; give every row a unique id."
            )
        keys[row["example_id"]] = row.get("input_key") or input_key(row)
    by_example, superseded, surplus, changed = _sorted_by_row(
        keys, saved, is_retryable, keep_changed=on_changed == "keep"
    )
    if changed and on_changed in ("stop", "refuse"):
        raise DatasetChanged(_changed_message(changed, keys))
    missing: list[MissingRollout] = []
    kept: list[int] = []
    for row in rows:
        slots, extra = _slots(by_example.get(row["example_id"], ()), rollouts_per_example)
        surplus += extra
        rerun = {s.position: s.failure for s in slots if s is not None and s.failure is not None}
        lacking = [i for i, s in enumerate(slots) if s is None or s.failure is not None]
        if whole_groups and lacking:
            for slot in slots:
                if slot is not None:
                    rerun.setdefault(
                        slot.position, "its group is scored together and was not complete"
                    )
            lacking = list(range(rollouts_per_example))
        superseded |= rerun
        kept += [s.position for s in slots if s is not None and s.position not in rerun]
        missing += [MissingRollout(row, rollout_index) for rollout_index in lacking]
    return ResumePlan(
        missing=tuple(missing),
        kept=tuple(sorted(kept)),
        superseded=dict(sorted(superseded.items())),
        surplus=tuple(sorted(surplus)),
        changed=changed,
    )


def _sorted_by_row(
    keys: Mapping[Any, str],
    saved: Iterable[Mapping[str, Any]],
    is_retryable: Callable[[Mapping[str, Any]], bool] | None,
    *,
    keep_changed: bool,
) -> tuple[dict[Any, list[_Saved]], dict[int, str], list[int], tuple[ChangedRow, ...]]:
    """Return saved rollouts by example id; those of changed rows with the reason; those of other rows; the changed
    rows.
    """
    by_example: dict[Any, list[_Saved]] = {}
    superseded: dict[int, str] = {}
    surplus: list[int] = []
    changed: dict[Any, ChangedRow] = {}
    for position, output in enumerate(saved):
        example_id = output.get("example_id")
        current_key = keys.get(example_id)
        saved_key = output.get("input_key")
        if current_key is None:
            surplus.append(position)
            continue
        is_changed = False
        if saved_key is not None and saved_key != current_key:
            is_changed = True
            changed.setdefault(example_id, ChangedRow(example_id, saved_key, current_key))
        if is_changed and not keep_changed:
            superseded[position] = f"the row changed: input_key {saved_key} is now {current_key}"
        else:
            failure = None
            if is_retryable is not None and is_retryable(output):
                failure = f"it failed with {_error_name(output)} and is tried again"
            by_example.setdefault(example_id, []).append(
                _Saved(position, output.get("rollout_index"), failure)
            )
    return by_example, superseded, surplus, tuple(changed.values())


def _slots(saved: Iterable[_Saved], count: int) -> tuple[list[_Saved | None], list[int]]:
    """Return the saved rollouts of one example by number, and the positions of the surplus ones."""
    slots: list[_Saved | None] = [None] * count
    unnumbered: list[_Saved] = []
    surplus: list[int] = []
    for rollout in saved:
        index = rollout.rollout_index
        if index is None:
            unnumbered.append(rollout)
        elif 0 <= index < count and slots[index] is None:
            slots[index] = rollout
        else:
            surplus.append(rollout.position)
    free = iter([index for index, slot in enumerate(slots) if slot is None])
    for rollout in unnumbered:
        index = next(free, None)
        if index is None:
            surplus.append(rollout.position)
        else:
            slots[index] = rollout
    return slots, surplus


def _changed_message(changed: Sequence[ChangedRow], keys: Mapping[Any, str]) -> str:
    ids = ", ".join(str(row.example_id) for row in changed[:5]) + (" …" if len(changed) > 5 else "")
    still_there = set(keys.values())
    moved = sum(row.saved_key in still_there for row in changed)
    order = (
        f" {moved} of the old rows are now at another position: check whether the order changed."
        if moved
        else ""
    )
    return (
        f"{len(changed)} saved examples now have other content in the dataset (example ids {ids}).{order} "
        "Restore the dataset, start a new run, or resume with `--on-changed rerun` (on_changed='rerun') to run these "
        "examples again, or with `--on-changed keep` to keep their saved rollouts."
    )


# --- failures


def failed_by_infrastructure(output: Mapping[str, Any]) -> bool:
    """Whether infrastructure failed the rollout or its scoring, so that another attempt may succeed
    (`verifiers.errors.RETRYABLE`, also as a cause).
    """
    error = output.get("error")
    types = saved_types(error) if isinstance(error, Mapping) else [error]
    retryable = type_names(RETRYABLE) | LATE_NAMES
    return any(name in retryable for name in types) or any(
        isinstance(entry, Mapping) and entry.get("voids_reward")
        for entry in output.get("errors") or ()
    )


def _error_name(output: Mapping[str, Any]) -> str | None:
    error = output.get("error") or next(iter(output.get("errors") or ()), None)
    return error.get("error") if isinstance(error, Mapping) else error


# --- settings


class SettingDifference(NamedTuple):
    """A setting of a saved run that differs from the requested one."""

    setting: str
    saved: Any
    wanted: Any
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.setting}: saved {self.saved!r}, requested {self.wanted!r}{self.rule}"


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[SettingDifference]:
    """Return the settings in `wanted` that keep the saved run from being continued.

    `num_examples` and `rollouts_per_example` may have grown (-1 means all examples); all others, e.g. `env_id`,
    `model`, `env_args`, `sampling_args`, must be equal as JSON; sampling arguments that are None, which 0.1.14 saves,
    count as absent. Settings that the saved run does not have are not compared.
    """
    different: list[SettingDifference] = []
    for setting, value in wanted.items():
        if setting not in saved:
            continue
        old = saved[setting]
        if setting in ("num_examples", "rollouts_per_example"):
            if isinstance(old, int) and 0 <= value < old:
                different.append(SettingDifference(setting, old, value, " (it may only grow)"))
        elif not _are_equal(setting, old, value):
            different.append(SettingDifference(setting, old, value))
    return different


def _are_equal(setting: str, saved: Any, wanted: Any) -> bool:
    wanted = jsonable(wanted)
    if setting == "sampling_args" and isinstance(saved, dict) and isinstance(wanted, dict):
        return _given(saved) == _given(wanted)
    return saved == wanted


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def validate_resume_metadata(
    results_path: Path,
    env_id: str,
    model: str,
    num_examples: int,
    rollouts_per_example: int,
    **settings: Any,
) -> None:
    """Raise RunMismatch with every differing setting, unless the run at `results_path` can be continued.

    `settings`: further settings to compare, e.g. `env_args` and `sampling_args`. Raises RunNotFound without a run.
    """
    wanted = {
        "env_id": env_id,
        "model": model,
        "num_examples": num_examples,
        "rollouts_per_example": rollouts_per_example,
        **settings,
    }
    different = differences(load_metadata(results_path), wanted)
    if different:
        raise RunMismatch(
            f"The run at {results_path} cannot be continued with these settings (metadata mismatch): "
            f"{'; '.join(map(str, different))}. Use the saved settings or start a new run."
        )


# --- the run to continue


def run_to_continue(
    config: EvalConfig,
    env_id: str,
    count_examples: Callable[[], int],
    settings: Mapping[str, Any],
) -> Path | None:
    """Return the run that `--resume` continues: `resume_path`, or the latest incomplete run with these settings.

    None without `--resume`, and, with a warning, if no run matches. `count_examples` returns the number of examples of
    the evaluation and is called only for a search. Raises RunNotFound if `resume_path` is not a run.
    """
    if config.resume_path is not None:
        if not is_run_folder(config.resume_path):
            raise RunNotFound(not_a_run(config.resume_path))
        return config.resume_path
    if not config.resume:
        return None
    folder = find_latest_incomplete(
        env_id,
        config.model,
        count_examples(),
        config.rollouts_per_example,
        config.env_dir_path,
        config.output_dir,
        settings=settings,
    )
    if folder is None:
        logger.warning(
            "There is no incomplete run of %s with %s and these settings to resume; a new run begins.",
            env_id,
            config.model,
        )
    return folder


def find_latest_incomplete(
    env_id: str,
    model: str,
    num_examples: int,
    rollouts_per_example: int,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> Path | None:
    """Return the most recently written run that is incomplete and can be continued with these settings; else None.

    A run can be continued by the same environment and model with at least the same number of examples and of rollouts,
    and with equal `settings` (`env_args`, `sampling_args`), as far as the run has saved them.
    """
    total = num_examples * rollouts_per_example
    for folder in saved_runs(runs_folder(env_id, model, env_dir_path, output_dir)):
        metadata = _metadata_or_none(folder)
        if (
            metadata is not None
            and metadata.get("env_id") == env_id
            and metadata.get("model") == model
            and _at_most(metadata.get("num_examples"), num_examples)
            and _at_most(metadata.get("rollouts_per_example"), rollouts_per_example)
            and all(
                name not in metadata or _are_equal(name, metadata[name], value)
                for name, value in (settings or {}).items()
            )
            and sum(1 for _ in _complete_lines(folder / RESULTS_FILE)) < total
        ):
            return folder
    return None


def _at_most(saved: Any, wanted: int) -> bool:
    return isinstance(saved, int) and saved <= wanted


def _metadata_or_none(folder: Path) -> dict[str, Any] | None:
    """Whether the run can be continued. A run whose metadata cannot be read is skipped; opening it by name reports
    why.
    """
    try:
        metadata = json.loads((folder / METADATA_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) else None


def _complete_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"}\n") or line.endswith(b"}"):
                yield line


# --- the rest of a run


class Continuation(NamedTuple):
    """A saved run that goes on."""

    kept: list[RolloutOutput]
    """Saved rollouts that are results of the run."""
    missing: list[tuple[TaskRow, list[int]]]
    """Rows with the rollout indices to run."""


def continue_run(
    store: RunStore,
    rows: Sequence[TaskRow],
    input_keys: Mapping[Any, str],
    rollouts_per_example: int,
    *,
    whole_groups: bool,
    retry_failed: bool,
    on_changed: OnChanged | Literal["refuse"],
) -> Continuation | None:
    """Return the rest of a saved run, and supersede its rollouts that run again; None if nothing is saved.

    `input_keys` are the keys of the rows by `example_id`. `retry_failed` runs rollouts again that infrastructure
    failed. For the other options and the errors see `plan`.
    """
    saved = list(store.outputs())
    if not saved:
        return None
    rest = plan(
        [{**row, "input_key": input_keys[row["example_id"]]} for row in rows],
        rollouts_per_example,
        saved,
        whole_groups=whole_groups,
        is_retryable=failed_by_infrastructure if retry_failed else None,
        on_changed=on_changed,
    )
    logger.info("Continuing %s: %s", store.folder, rest)
    if rest.superseded:
        store.supersede(rest.superseded)
    by_id = {row["example_id"]: row for row in rows}
    return Continuation(
        [saved[position] for position in rest.kept],
        [(by_id[row["example_id"]], indices) for row, indices in rest.groups()],
    )
