"""Score the rollouts of a saved run again: with the present rubric of the environment, or with another one.

Nothing is played: the rubric receives a state made from each saved rollout. A rollout whose environment crashed keeps
its void reward. The new scores are added to the `score_history` of each rollout, or replace the old ones, which move
there; each entry names its author, date, reason and rubric.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from verifiers.comparison.agreement import cohens_kappa, krippendorffs_alpha
from verifiers.errors import ConfigError, voids_reward
from verifiers.messages import normalize_messages
from verifiers.rubrics.rubric import Rubric
from verifiers.runs.description import RunDescription
from verifiers.runs.output import jsonable
from verifiers.runs.statistics import NAN
from verifiers.runs.store import RunStore, iterate_index, read_output
from verifiers.runs.summary import finite, summarize
from verifiers.state import RolloutTiming, State
from verifiers.types import RewardFunc, RolloutOutput

Which = Literal["all", "failed"]
SCORE_KEYS = ("reward", "metrics", "errors", "score_details", "judge_response")
"""Keys of an output that scoring writes."""
_NOT_IN_STATE = frozenset(
    {*SCORE_KEYS, "score_history", "timing", "error_chain", "long_error_chain", "token_usage"}
)
_SUMMARY_KEYS = (
    "avg_reward",
    "avg_reward_error_free",
    "reward_stderr",
    "reward_ci95",
    "avg_metrics",
    "avg_error",
    "num_errors",
    "num_failed",
    "num_reward_errors",
    "pass_at_k",
    "pass_all_k",
)
"""Keys of the metadata that depend on scores."""


class Agreement(NamedTuple):
    """How far scores agree, over the rollouts that all of them scored."""

    rollouts: int
    kappa: float
    """Cohen's kappa of passing: the new reward and the saved one. NaN with other numbers of scorings."""
    alpha: float
    """Krippendorff's alpha of the rewards, on an interval scale."""
    correlation: float
    """Pearson's correlation of the new and the saved rewards."""


class Rescored(NamedTuple):
    """The result of scoring a run again."""

    scored: int
    changed: int
    """Number of rollouts whose reward changed."""
    failed: int
    """Number of rollouts in which a reward function raised again."""
    kept: int
    """Number of rollouts that were not scored again."""
    old_mean: float
    new_mean: float
    """Mean rewards of the rollouts that were scored again."""
    agreement: Agreement
    repeats: Agreement | None
    """Agreement of the repetitions among each other, if there were several."""


async def rescore(
    folder: str | Path,
    rubric: Rubric,
    *,
    which: Which = "all",
    overwrite: bool = False,
    repeat: int = 1,
    author: str = "",
    reason: str = "",
    name: str = "",
    max_concurrent: int = 64,
    on_progress: Callable[[int], object] | None = None,
) -> Rescored:
    """Score the rollouts of a saved run with `rubric` and save the scores.

    `which="failed"` takes only rollouts in which a reward function (for example a judge) failed or that have no reward.
    With `overwrite` the new scores become the scores of the run, and its metadata is computed again; otherwise they are
    only added to the history. `repeat` scores each rollout several times, to measure the agreement of a judge with
    itself; the last scores count. `name` is the name of the rubric in the history. Raises RunLocked while another
    process writes the run, and ConfigError for a rubric whose functions need all rollouts of an example if only some
    are taken.
    """
    if repeat < 1:
        raise ConfigError(f"The number of repetitions must be at least 1; got {repeat}.")
    folder = Path(folder)
    note = {
        "author": author,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "reason": reason,
        "rubric": name or type(rubric).__name__,
    }
    with RunStore.open(folder) as store:
        groups = _groups(folder, which, rubric)
        results = await _score_groups(folder, rubric, groups, repeat, max_concurrent, on_progress)
        measured = _measured_only(rubric)
        changed = {
            position: _with_scores(output, scores[-1], note, measured, overwrite=overwrite)
            for position, (output, scores) in results.items()
        }
        await asyncio.to_thread(store.replace, changed)
        if overwrite:
            store.write_metadata(_metadata(store))
        threshold = float(store.metadata.get("pass_threshold") or 0.5)
    total = sum(1 for _ in iterate_index(folder))
    return _result(list(results.values()), total, threshold, repeat)


class _Member(NamedTuple):
    position: int
    place: Any


def _groups(folder: Path, which: Which, rubric: Rubric) -> list[list[_Member]]:
    """Return the rollouts to score, by example."""
    groups: dict[Hashable, list[_Member]] = defaultdict(list)
    is_partial: set[Hashable] = set()
    for position, (place, short) in enumerate(iterate_index(folder)):
        key = short.get("input_key") or str(short.get("example_id"))
        error = short.get("error")
        if error is not None and voids_reward(error):
            continue
        if (
            which == "failed"
            and not short.get("errors")
            and finite(short.get("reward")) is not None
        ):
            is_partial.add(key)
            continue
        groups[key].append(_Member(position, place))
    if rubric.has_group_rewards and (split := is_partial & groups.keys()):
        raise ConfigError(
            f"The rubric scores all rollouts of an example together, and in {len(split)} examples only some scores "
            "failed. Score all rollouts again."
        )
    return list(groups.values())


async def _score_groups(
    folder: Path,
    rubric: Rubric,
    groups: Sequence[Sequence[_Member]],
    repeat: int,
    max_concurrent: int,
    on_progress: Callable[[int], object] | None,
) -> dict[int, tuple[RolloutOutput, list[dict[str, Any]]]]:
    """Return position → the saved rollout, and its scores of each repetition."""
    limit = asyncio.Semaphore(max_concurrent)
    results: dict[int, tuple[RolloutOutput, list[dict[str, Any]]]] = {}

    async def one(members: Sequence[_Member]) -> None:
        async with limit:
            outputs = [read_output(folder, member.place) for member in members]
            rounds = [await _scores(rubric, outputs) for _ in range(repeat)]
        for member, output, *scores in zip(members, outputs, *rounds, strict=True):
            results[member.position] = (output, scores)
        if on_progress is not None:
            on_progress(len(members))

    async with asyncio.TaskGroup() as tasks:
        for members in groups:
            tasks.create_task(one(members))
    return results


async def _scores(rubric: Rubric, outputs: Sequence[RolloutOutput]) -> list[dict[str, Any]]:
    states = [state_of(output) for output in outputs]
    try:
        if rubric.has_group_rewards:
            await rubric.score_group(states)
        else:
            await _all(rubric.score_rollout(state) for state in states)
    finally:
        for state in states:
            await rubric.cleanup(state)
    return [
        {
            "reward": state.reward,
            "metrics": dict(state.metrics or {}),
            "errors": list(state.reward_errors or ()),
            "score_details": state.score_details,
            "judge_response": state.get("judge_response"),
        }
        for state in states
    ]


async def _all(work: Iterable[Awaitable[Any]]) -> None:
    for one in work:
        await one


def state_of(output: Mapping[str, Any]) -> State:
    """Return a state with the data of a saved rollout and without its scores.

    Reward functions that read state keys need them among the state columns of the run. A saved error is a mapping.
    """
    metrics = output.get("metrics") or {}
    fields = {
        key: value
        for key, value in output.items()
        if key not in _NOT_IN_STATE and not (key in metrics and metrics[key] == value)
    }
    state = State(fields)
    for key in ("prompt", "completion"):
        if isinstance(value := fields.get(key), list):
            state[key] = normalize_messages(value, field_name=key)
    state.trajectory = fields.get("trajectory") or []
    state.timing = RolloutTiming()
    return state


def _measured_only(rubric: Rubric) -> set[str]:
    """Return the names of the metrics that only read the state of the rollout, such as `num_turns`."""
    functions = zip(rubric._get_reward_funcs(), rubric._get_reward_weights(), strict=True)
    return {
        getattr(function, "__name__", "")
        for function, weight in functions
        if weight == 0 and list(inspect.signature(function).parameters) == ["state"]
    }


def _with_scores(
    output: RolloutOutput,
    scores: dict[str, Any],
    note: Mapping[str, Any],
    measured: Set[str],
    *,
    overwrite: bool,
) -> RolloutOutput:
    """Return the rollout with new scores in its history, or with new scores and the old ones in its history.

    Metrics that the new rubric does not have stay. So do those of `measured` if the trajectory was not saved, because
    only the trajectory tells their values.
    """
    scores = {key: value for key, value in jsonable(scores).items() if value is not None}
    before = output.get("metrics") or {}
    kept_names = measured & before.keys() if "trajectory" not in output else set()
    scores["metrics"] |= {name: before[name] for name in kept_names}
    history = list(output.get("score_history") or ())
    if not overwrite:
        return RolloutOutput({**output, "score_history": [*history, {**note, **scores}]})
    old = {key: output[key] for key in SCORE_KEYS if output.get(key) is not None}
    kept = {
        key: value
        for key, value in output.items()
        if key not in SCORE_KEYS and not (key in before and before[key] == value)
    }
    scores["metrics"] = before | scores["metrics"]
    entry = {**(output.get("scored_by") or {}), **old}
    new = {**kept, **scores, "scored_by": dict(note), "score_history": [*history, entry]}
    for name, value in scores["metrics"].items():
        new.setdefault(name, value)
    return RolloutOutput(new)


def _metadata(store: RunStore) -> dict[str, Any]:
    """Return the metadata of the run with the numbers of its present scores."""
    metadata = dict(store.metadata)
    threshold = float(metadata.get("pass_threshold") or 0.5)
    summary = summarize((short for _, short in iterate_index(store.folder)), threshold)
    numbers = cast(dict[str, Any], RunDescription("", "", 0, 0).metadata(summary))
    return metadata | {key: numbers[key] for key in _SUMMARY_KEYS}


# --- the rubric


def load_rubric(place: str) -> Rubric:
    """Return the rubric at `file.py:name`: a Rubric, a function that returns one, or a single reward function.

    Raises ConfigError for a file or a name that does not exist, and for any other object.
    """
    path, _, name = place.rpartition(":")
    if not path or not name:
        raise ConfigError(f"{place!r} does not name a rubric. Write file.py:object.")
    spec = importlib.util.spec_from_file_location(f"rubric_of_{Path(path).stem}", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}.") from error
    found = getattr(module, name, None)
    if callable(found) and not inspect.signature(found).parameters:
        found = found()
    if isinstance(found, Rubric):
        return found
    if callable(found):
        return Rubric(funcs=[cast(RewardFunc, found)])
    raise ConfigError(
        f"{path} has no rubric {name!r}: expected a Rubric, a function that returns one, or a reward function; found "
        f"{type(found).__name__}."
    )


# --- agreement


def _result(
    results: Sequence[tuple[RolloutOutput, list[dict[str, Any]]]],
    total: int,
    threshold: float,
    repeat: int,
) -> Rescored:
    old = [finite(output.get("reward")) for output, _ in results]
    rounds = [[_reward_of(scores[number]) for _, scores in results] for number in range(repeat)]
    new = rounds[-1]
    return Rescored(
        scored=len(results),
        changed=sum(a != b for a, b in zip(old, new, strict=True)),
        failed=sum(value is None for value in new),
        kept=total - len(results),
        old_mean=_mean(old),
        new_mean=_mean(new),
        agreement=agreement([old, new], threshold),
        repeats=agreement(rounds, threshold) if repeat > 1 else None,
    )


def _reward_of(scores: Mapping[str, Any]) -> float | None:
    return None if scores["errors"] else finite(scores["reward"])


def _mean(values: Sequence[float | None]) -> float:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else NAN


def agreement(rounds: Sequence[Sequence[float | None]], threshold: float = 0.5) -> Agreement:
    """Return the agreement of several scorings of the same rollouts; None is a missing score.

    `threshold` is the reward from which a rollout passes. Kappa and correlation need exactly two scorings.
    """
    complete = [values for values in zip(*rounds, strict=True) if None not in values]
    kappa = correlation = NAN
    if len(rounds) == 2 and len(complete) > 1:
        first, second = np.array(complete, np.float64).T
        kappa = cohens_kappa((first >= threshold).tolist(), (second >= threshold).tolist())
        if np.ptp(first) > 0 and np.ptp(second) > 0:
            correlation = float(np.corrcoef(first, second)[0, 1])
    alpha = krippendorffs_alpha(rounds, scale="interval") if rounds and rounds[0] else NAN
    return Agreement(len(complete), kappa, alpha, correlation)
