"""Scoring returns values: one `RolloutReward` per rollout, merged without side effects, written to the states once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isfinite
from types import CoroutineType
from typing import Any, NamedTuple

from verifiers.errors import (
    AuthenticationError,
    RewardError,
    ScoringTimeout,
    is_void,
    scoring_error_info,
    text_of,
)
from verifiers.rubrics.reward_call import RewardCall, arguments_of, offered_by_group
from verifiers.rubrics.watchdog import WatchedSteps, watchdog
from verifiers.state import State
from verifiers.types import Score

logger = logging.getLogger(__name__)

DEFAULT_TIME_LIMIT_S = 300.0
"""Maximum duration of one call of a reward function, in seconds."""


class RolloutReward(NamedTuple):
    """The result of scoring one rollout."""

    reward: float
    metrics: dict[str, float]
    errors: list[dict[str, Any]]
    """One entry for each reward function that raised or reached its time limit; the function counted 0.0."""
    details: dict[str, dict[str, Any]] | None = None
    """Reward function → `value` and reasons, for functions that returned a `Score` with reasons."""


async def call_individual(
    call: RewardCall, state: State, objects: Mapping[str, Any], time_limit_s: float
) -> float:
    """Return the value of a reward function for one rollout. Raises RewardError or ScoringTimeout."""
    try:
        value = watchdog.call(
            call.func, arguments_of(call, state, objects), call.name, time_limit_s
        )
        if inspect.isawaitable(value):
            value = await _awaited(value, call.name, time_limit_s)
    except (RewardError, ScoringTimeout, AuthenticationError):
        raise
    except (Exception, SystemExit) as error:  # a model's code may call `exit()`
        raise _raised(call.name, error) from error
    return call.number(value)


async def call_for_group(
    call: RewardCall, states: Sequence[State], objects: Mapping[str, Any], time_limit_s: float
) -> list[float]:
    """Return the values of a group reward function, one per rollout. Raises RewardError or ScoringTimeout."""
    offered = offered_by_group(states, objects)
    try:
        arguments = call.arguments(offered)
        values = watchdog.call(call.func, arguments, call.name, time_limit_s)
        if inspect.isawaitable(values):
            values = await _awaited(values, call.name, time_limit_s)
    except (RewardError, ScoringTimeout, AuthenticationError):
        raise
    except (Exception, SystemExit) as error:  # a model's code may call `exit()`
        raise _raised(call.name, error) from error
    return call.numbers(values, len(states))


async def _awaited(value: Awaitable[Any], name: str, time_limit_s: float) -> Any:
    limit = asyncio.timeout(time_limit_s)
    try:
        async with limit:
            if type(value) is CoroutineType:
                return await WatchedSteps(value, name, time_limit_s)
            return await value
    except ScoringTimeout:
        raise
    except TimeoutError as error:
        if not limit.expired():
            raise _raised(name, error) from error
        raise ScoringTimeout(
            f"Reward function {name!r} ran longer than {time_limit_s:g} s and was cancelled. "
            "Give its own calls a time limit, or raise the scoring time limit."
        ) from None


def _raised(name: str, error: BaseException) -> RewardError:
    return RewardError(f"Reward function {name!r} raised {type(error).__name__}: {text_of(error)}")


class Part(NamedTuple):
    """One reward function of a rubric, with the objects that the rubric offers it."""

    call: RewardCall
    objects: Mapping[str, Any]
    time_limit_s: float


async def score_parts(states: Sequence[State], parts: Sequence[Part]) -> list[RolloutReward]:
    """Score rollouts with functions that each need one rollout only, also functions of several rubrics."""
    if len(states) == 1:
        return [await _score_one(states[0], parts)]
    return list(await asyncio.gather(*(_score_one(state, parts) for state in states)))


async def score_states(
    states: Sequence[State],
    calls: Sequence[RewardCall],
    objects_of: Callable[[State], Mapping[str, Any]],
    group_objects: Mapping[str, Any],
    time_limit_s: float,
) -> list[RolloutReward]:
    """Score the rollouts of one example, in their order.

    Functions run in the order they were added; the rollouts of a group run concurrently. A function that raises
    counts 0.0 and leaves an entry in `RolloutReward.errors`, unless the rollout itself had already failed. If no
    function scores groups, `score_parts` returns the same at less cost.
    """
    metrics: list[dict[str, float]] = [{} for _ in states]
    errors: list[list[dict[str, Any]]] = [[] for _ in states]
    details: list[dict[str, dict[str, Any]]] = [{} for _ in states]
    for call in calls:
        if call.per_group:
            columns = await _group_values(call, states, group_objects, time_limit_s)
        else:
            one = [_value(call, state, objects_of(state), time_limit_s) for state in states]
            columns = await asyncio.gather(*one)
        for index, (value, error) in enumerate(columns):
            metrics[index][call.name] = float(value)
            add_detail(details[index], call.name, value)
            if error is not None and states[index].error is None:
                errors[index].append(error)
    return [
        RolloutReward(
            sum(call.weight * values[call.name] for call in calls), values, found, reasons
        )
        for values, found, reasons in zip(metrics, errors, details, strict=True)
    ]


async def _score_one(state: State, parts: Sequence[Part]) -> RolloutReward:
    metrics: dict[str, float] = {}
    errors: list[dict[str, Any]] = []
    details: dict[str, dict[str, Any]] | None = None
    reward = 0.0
    for call, objects, time_limit_s in parts:
        try:
            # The same steps as call_individual, without a coroutine for the common case of a plain float.
            value = watchdog.call(
                call.func, arguments_of(call, state, objects), call.name, time_limit_s
            )
            if type(value) is not float or not isfinite(value):
                if inspect.isawaitable(value):
                    value = await _awaited(value, call.name, time_limit_s)
                value = call.number(value)
                if type(value) is Score:
                    details = add_detail({} if details is None else details, call.name, value)
                    value = float(value)
        except AuthenticationError:
            raise  # a judge's wrong key would fail every rollout
        # SystemExit too: a reward function may execute a model's code, which may call `exit()`.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - recorded on the score, counted in the summary
            if not isinstance(error, RewardError | ScoringTimeout):
                error = _caused(_raised(call.name, error), error)
            found = _recorded(call, error, [state])
            if state.error is None:
                errors.append(found)
            value = 0.0
        name = call.name
        metrics[name] = metrics[name] + value if name in metrics else value
        reward += call.weight * value
    return RolloutReward(reward, metrics, errors, details)


def add_detail(
    details: dict[str, dict[str, Any]], name: str, value: float
) -> dict[str, dict[str, Any]]:
    """Store the reasons of a `Score` under a function's name, or under `name_2` … if the name is taken."""
    if isinstance(value, Score) and (reasons := value.reasons()):
        _add_entry(details, name, {"value": float(value), **reasons})
    return details


def _add_entry(details: dict[str, dict[str, Any]], name: str, entry: dict[str, Any]) -> None:
    free, number = name, 2
    while free in details:
        free, number = f"{name}_{number}", number + 1
    details[free] = entry


def _caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


async def _value(
    call: RewardCall, state: State, objects: Mapping[str, Any], time_limit_s: float
) -> tuple[float, dict[str, Any] | None]:
    try:
        return await call_individual(call, state, objects, time_limit_s), None
    except (RewardError, ScoringTimeout) as error:
        return 0.0, _recorded(call, error, [state])


async def _group_values(
    call: RewardCall, states: Sequence[State], objects: Mapping[str, Any], time_limit_s: float
) -> list[tuple[float, dict[str, Any] | None]]:
    try:
        values = await call_for_group(call, states, objects, time_limit_s)
        return [(value, None) for value in values]
    except (RewardError, ScoringTimeout) as error:
        return [(0.0, _recorded(call, error, states)) for _ in states]


def _recorded(call: RewardCall, error: Exception, states: Sequence[State]) -> dict[str, Any]:
    for state in states:
        if state.overlong_prompt and not state.trajectory:
            # The exception of the function follows from this cause: there is no reply to score.
            error = _caused(
                RewardError(
                    f"Reward function {call.name!r} has no reply to score, because the rollout ended with "
                    f"prompt_too_long. {state.overlong_prompt} ({error})"
                ),
                error.__cause__ or error,
            )
            break
    # The error of a rollout that had failed before is reported already: there was no completion to score.
    level = logging.DEBUG if all(state.error is not None for state in states) else logging.WARNING
    logger.log(level, "%s", error)
    return scoring_error_info(error, call.func, call.name)


def merge(scores: Sequence[RolloutReward]) -> RolloutReward:
    """Merge the results of several rubrics: rewards add up, and so do metrics of equal names."""
    metrics: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for score in scores:
        for name, value in score.metrics.items():
            metrics[name] = metrics.get(name, 0.0) + value
        for name, entry in (score.details or {}).items():
            _add_entry(details, name, entry)
    return RolloutReward(
        sum(score.reward for score in scores),
        metrics,
        [e for score in scores for e in score.errors],
        details,
    )


def group_advantages(rewards_G: Sequence[float]) -> list[float]:
    """Return the default advantages: each reward minus the group's mean, in the same order; a group of one gives [0.0].

    Scoring writes them (`write_advantages`) where the environment sets none. `verifiers.training.advantages` builds on
    this function: its `group_mean` returns the same values, and its `given_advantages` recognises them, so that the
    estimator of the trainer can replace them. Raises ValueError for an empty group. Source: the group baseline of GRPO,
    https://arxiv.org/abs/2402.03300, section 4.1, without the division by the standard deviation.
    """
    if not rewards_G:
        raise ValueError("A group needs at least one reward.")
    if all(reward == rewards_G[0] for reward in rewards_G):
        return [0.0] * len(rewards_G)  # exactly, which `sum / n` is not for rewards such as 0.1
    mean = sum(rewards_G) / len(rewards_G)
    return [reward - mean for reward in rewards_G]


def write_scores(states: Sequence[State], scores: Sequence[RolloutReward]) -> None:
    """Write the results into the states. A step without its own reward receives the rollout's.

    If infrastructure failed a reward function, the sum of the others is not a reward: the reward is void.
    """
    for state, score in zip(states, scores, strict=True):
        state.reward = score.reward
        state.metrics = score.metrics
        state.reward_errors = score.errors or None
        if score.details or state.score_details:
            state.score_details = score.details or None
        if score.errors and is_void(state):
            write_void(state, score.metrics)
            continue
        for step in state.trajectory or ():
            if step["reward"] is None:
                step["reward"] = score.reward


def write_void(state: State, metrics: dict[str, float]) -> None:
    """Make the reward of a rollout void: reward and advantage 0.0, in every step too."""
    state.reward = 0.0
    state.advantage = 0.0
    state.metrics = metrics
    for step in state.trajectory or ():
        step["reward"] = step["advantage"] = 0.0


async def measured(
    calls: Sequence[RewardCall],
    state: State,
    objects: Mapping[str, Any],
    time_limit_s: float,
) -> dict[str, float]:
    """Return the metrics of a rollout whose reward is void. Functions with weight 0 are called, and left out if they
    raise. All other functions count 0.0 and are not called.
    """
    metrics: dict[str, float] = {}
    for call in calls:
        if call.weight:
            metrics[call.name] = 0.0
        elif not call.per_group:
            try:
                value = await call_individual(call, state, objects, time_limit_s)
                metrics[call.name] = float(value)
            except (RewardError, ScoringTimeout) as error:
                logger.debug("%s", error)
    return metrics


def write_advantages(states: Sequence[State], advantages: Sequence[float]) -> None:
    """Write the advantages into the states. A step without its own advantage receives the rollout's."""
    for state, advantage in zip(states, advantages, strict=True):
        state.advantage = advantage
        for step in state.trajectory or ():
            if step["advantage"] is None:
                step["advantage"] = advantage
