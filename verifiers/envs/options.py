"""The options of `generate` and `evaluate`, in one place: a new option is added here and nowhere else."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from verifiers.configs import OnChanged
from verifiers.errors import ConfigError
from verifiers.notebooks import NotebookProgress, in_notebook
from verifiers.rollouts.limits import RolloutLimits
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
"""Options of older callers that have nothing to do any more, and why."""


@dataclass(frozen=True)
class GenerateOptions:
    """How a run is carried out; everything but what is run on which model."""

    max_concurrent: int = -1
    """Rollouts being generated at once; below 1: no limit."""
    max_concurrent_scoring: int | None = None
    """Groups being scored at once; None: no limit."""
    results_path: Path | None = None
    """Run folder. A run that is there already is continued: only what is missing is run."""
    state_columns: Sequence[str] = ()
    """Further keys of the state to keep in the outputs."""
    save_results: bool = False
    """Save to `results_path`, or to a new folder under `outputs/` without one."""
    push_to_hf_hub: bool = False
    """Upload the results as a dataset to the Hugging Face hub."""
    hf_hub_dataset_name: str | None = None
    """Name of that dataset; None makes one from environment, model and size."""
    independent_scoring: bool = False
    """Score every rollout on its own even where rewards depend on the group."""
    max_retries: int = 0
    """Further attempts for a rollout that the machinery failed."""
    shuffle: bool = False
    """Take the examples in a random order."""
    shuffle_seed: int | None = None
    """Seed of that order; None is 0."""
    rollouts_per_example: int = 1
    """Rollouts of each example."""
    rollout_timeout_s: float | None = None
    """Longest rollout, in seconds; it then ends as `timeout_reached` and is scored as it is."""
    scoring_timeout_s: float | None = None
    """Longest run of one call of a reward function, in seconds; None leaves it to the rubric (300)."""
    max_total_tokens: int | None = None
    """Prompt and completion tokens one rollout may use; it then ends and is scored as it is."""
    max_cost_usd: float | None = None
    """Cost one rollout may cause, by `prices`; it then ends and is scored as it is."""
    prices: PriceTable | None = None
    """What tokens cost; needed for a cost limit and for costs in the summary."""
    strict: bool = False
    """Stop the run at the first reward function that raises."""
    on_changed: OnChanged = "stop"
    """When a run is continued and rows of the dataset have changed since: `stop`, `rerun` what was made from them, or
    `keep` it."""
    accept_changed_rows: bool = False
    """The same as `on_changed="rerun"`."""
    retry_failed: bool = False
    """When a run is continued, run again what the machinery had failed."""
    on_start: StartCallback | None = None
    """Called once with the rows of the run and the rollouts that are still to be played."""
    on_progress: Sequence[ProgressCallback] = ()
    """One callback or several, called after each group with all outputs, the new ones, and the metadata so far."""
    on_log: LogCallback | None = None
    """Called with each message to the user."""
    on_retry: Callable[[], None] | None = None
    """Called when a rollout of this process is about to be played again (`max_retries`)."""
    stop: asyncio.Event | None = field(default=None, compare=False)
    """When set, nothing more is started and running rollouts are cancelled; what is finished is kept."""
    num_examples: int | None = None
    """Examples that were asked for; recorded with a saved run."""

    @classmethod
    def from_call(cls, **given: Any) -> GenerateOptions:
        """Options from the keyword arguments of any v0 generation.

        In a notebook, a run without callbacks shows its progress below the cell, unless `use_tqdm` is False.

        Raises ConfigError for a name that no generation knows.
        """
        known = {option.name for option in fields(cls)}
        shows_progress = given.pop("use_tqdm", True)
        if (limit := given.pop("max_concurrent_generation", None)) is not None:
            given["max_concurrent"] = limit
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
        if given.get("rollouts_per_example", 1) < 1:
            raise ConfigError(
                f"rollouts_per_example must be at least 1; got {given['rollouts_per_example']}."
            )
        if given.get("on_changed", "stop") not in get_args(OnChanged):
            raise ConfigError(
                f"on_changed must be one of {', '.join(get_args(OnChanged))}; got {given['on_changed']!r}."
            )
        if given.get("shuffle_seed") is not None and not given.get("shuffle"):
            warnings.warn("shuffle_seed has no effect without shuffle=True.", stacklevel=3)
        return cls(**given)

    @property
    def shuffle_seed_or_none(self) -> int | None:
        """The seed to shuffle the rows with, None for their own order."""
        return (self.shuffle_seed or 0) if self.shuffle else None

    def rollout_limits(self, model: str) -> RolloutLimits:
        """The limits of each rollout of a run on `model`. Raises ConfigError for a cost limit without a price."""
        cost_usd_of: Callable[[float, float], float] | None = None
        if self.max_cost_usd is not None and self.prices is not None:
            cost_of = self.prices.required_price_of(model).cost
            cost_usd_of = lambda read, written: cost_of(read, written)["total_usd"]  # noqa: E731 - typed above

        return RolloutLimits(
            timeout_s=self.rollout_timeout_s,
            max_total_tokens=self.max_total_tokens,
            max_cost_usd=self.max_cost_usd,
            cost_usd_of=cost_usd_of,
        )

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
        """Tell everyone who asked what has been finished."""
        made: Any = _Lazy(metadata)
        for callback in self.on_progress:
            callback(outputs, new_outputs, made)


class _Lazy(Mapping[str, Any]):
    """A mapping that is computed when somebody reads it: a whole summary for each finished group is not free."""

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
    """`base` updated with `own`; `extra_body` is merged too, and neither is changed."""
    merged = {**base, **(own or {})}
    if base.get("extra_body") or (own or {}).get("extra_body"):
        merged["extra_body"] = {
            **(base.get("extra_body") or {}),
            **((own or {}).get("extra_body") or {}),
        }
    elif "extra_body" in merged:
        merged["extra_body"] = {}
    return merged
