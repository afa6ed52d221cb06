"""The keyword arguments of `generate` and `evaluate`; `verifiers.run_options` declares those that are plain values."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError
from verifiers.notebooks import NotebookProgress, in_notebook
from verifiers.rollouts.limits import RolloutLimits
from verifiers.run_options import ROLLOUT_OPTIONS, RUN_OPTIONS, Option, RunOptions, choices_of
from verifiers.runs.prices import PriceTable
from verifiers.types import (
    LogCallback,
    ProgressCallback,
    RolloutOutput,
    SamplingArgs,
    StartCallback,
)

_IGNORED = {
    "save_every": "every finished group is saved",
    "interleave_scoring": "generation and scoring always overlap",
    "score_rollouts": "use set_score_rollouts",
}
"""Options of older callers that have no effect any more, with the reason."""
_OLDER = {older: one.name for one in RUN_OPTIONS for older in one.older}


@dataclass(kw_only=True)
class GenerateOptions(RunOptions):
    """Options of one call of `generate` or `evaluate`: those of `RunOptions`, and objects of the calling program."""

    state_columns: Sequence[str] = ()  # pyright: ignore[reportIncompatibleVariableOverride]  # None is replaced
    results_path: Path | None = None
    """Run folder. If the folder already holds a run, only the missing rollouts are run. Without it, `save_results`
    makes a new folder under `outputs/`.
    """
    accept_changed_rows: bool = False
    """The same as `on_changed="rerun"`."""
    retry_failed: bool = False
    """When a run is continued, run those rollouts again that infrastructure failed."""
    on_start: StartCallback | None = None
    """Called once with the rows of the run and the rollouts that are still missing."""
    on_progress: Sequence[ProgressCallback] = ()
    """One callback or several, called after each group with all outputs, the new outputs, and the metadata so far."""
    on_log: LogCallback | None = None
    """Called with each message for the user."""
    on_retry: Callable[[], None] | None = None
    """Called before a rollout of this process is played again (`max_retries`)."""
    stop: asyncio.Event | None = field(default=None, compare=False)
    """When set, no rollout starts any more and running rollouts are cancelled; finished rollouts are kept."""

    @classmethod
    def from_call(cls, **given: Any) -> GenerateOptions:
        """Return options from the keyword arguments of any v0 generation.

        In a notebook, a run without callbacks shows its progress below the cell, unless `use_tqdm` is False.

        Raises ConfigError for an unknown name and for a value that is not valid.
        """
        known = {option.name for option in fields(cls)}
        shows_progress = given.pop("use_tqdm", True)
        for older, name in _OLDER.items():
            if (value := given.pop(older, None)) is not None:
                given[name] = value
        for name in list(given):
            if name in _IGNORED:
                del given[name]
            elif name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"generate and evaluate have no option {name!r}.{hint}")
        progress = given.get("on_progress")
        if shows_progress and progress is None and given.get("on_start") is None and in_notebook():
            bar = NotebookProgress()
            given["on_start"], progress = bar.start, bar.update
        given["on_progress"] = [progress] if callable(progress) else list(progress or ())
        given["state_columns"] = list(given.get("state_columns") or ())
        if given.get("results_path") is not None:
            given["results_path"] = Path(given["results_path"])
        if isinstance(given.get("prices"), str | Path):
            given["prices"] = PriceTable.load(given["prices"])
        for option in RUN_OPTIONS:
            _check(option, given)
        if given.get("shuffle_seed") is not None and not given.get("shuffle"):
            warnings.warn("shuffle_seed has no effect without shuffle=True.", stacklevel=3)
        return cls(**given)

    @property
    def shuffle_seed_or_none(self) -> int | None:
        """The seed to shuffle the rows with, None for their own order."""
        return (self.shuffle_seed or 0) if self.shuffle else None

    def rollout_limits(self, model: str) -> RolloutLimits:
        """Return the limits of each rollout of a run on `model`.

        Raises ConfigError for a cost limit without a price.
        """
        values = {option.name: getattr(self, option.name) for option in ROLLOUT_OPTIONS}
        if self.max_cost_usd is not None and self.prices is not None:
            price = self.prices.required_price_of(model)
            values["input_usd_per_token"] = price.input_usd_per_mtok / 1e6
            values["output_usd_per_token"] = price.output_usd_per_mtok / 1e6
        return RolloutLimits(**values)

    @property
    def saves(self) -> bool:
        """Whether the run is written to disk."""
        return self.save_results or self.results_path is not None

    def report(
        self,
        outputs: list[RolloutOutput],
        new_outputs: list[RolloutOutput],
        metadata: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Call the progress callbacks."""
        lazy: Any = _Lazy(metadata)
        for callback in self.on_progress:
            callback(outputs, new_outputs, lazy)


def _check(option: Option, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value below the minimum, or one that is not among the values of a `Literal`."""
    value = given.get(option.name)
    if value is None:
        return
    choices = choices_of(option)
    if choices and value not in choices:
        raise ConfigError(f"{option.name} must be one of {', '.join(choices)}; got {value!r}.")
    if option.name in _COUNTS and value < option.minimum:
        raise ConfigError(f"{option.name} must be at least {option.minimum:g}; got {value!r}.")


_COUNTS = ("rollouts_per_example", "max_retries")
"""Options with a minimum. Limits of concurrency accept any number here: below 1 means no limit, as in v0."""


class _Lazy(Mapping[str, Any]):
    """A mapping that is computed on first access, because a summary for each finished group costs time."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def _mapping(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._mapping()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())


def merged_sampling_args(base: SamplingArgs, own: SamplingArgs | None) -> SamplingArgs:
    """Return `base` updated with `own`; `extra_body` is merged too, and neither argument is changed."""
    merged = {**base, **(own or {})}
    if base.get("extra_body") or (own or {}).get("extra_body"):
        merged["extra_body"] = {
            **(base.get("extra_body") or {}),
            **((own or {}).get("extra_body") or {}),
        }
    elif "extra_body" in merged:
        merged["extra_body"] = {}
    return merged
