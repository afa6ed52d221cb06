"""Play and score the rollouts of one example: one implementation for runs, environment servers and trainers.

`Environment.play_and_score` is the entry. `play` and `score` are its two halves, for callers that act between them:
a run plays each rollout in a separate task, and scores a group after its last rollout.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

from verifiers.envs.hooks import call_rollout_hook
from verifiers.envs.protocol import RunnableEnvironment
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    Error,
    is_void,
    note_error,
    note_scoring_error,
    text_of,
    voids_reward,
)
from verifiers.rollouts.retries import with_retries
from verifiers.rollouts.schedule import first_failure
from verifiers.rollouts.scope import close_scope
from verifiers.rubrics.scoring import write_void
from verifiers.state import State
from verifiers.types import SamplingArgs

logger = logging.getLogger(__name__)

Value = TypeVar("Value")
Limit = AbstractAsyncContextManager[Any]
"""A semaphore, or another context manager that is entered during the work."""


async def play_and_score(
    env: RunnableEnvironment,
    rows: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    *,
    alone: bool | None = None,
    max_retries: int = 0,
    play_limit: Limit | None = None,
    score_limit: Limit | None = None,
    fatal: tuple[type[Error], ...] = (),
) -> list[State]:
    """See `Environment.play_and_score`."""

    async def one(row: Mapping[str, Any]) -> State:
        async with play_limit or nullcontext():
            state = await play(env, row, client, model, sampling_args, max_retries=max_retries)
        if isinstance(state.error, fatal):
            raise state.error
        return state

    states = await _together([one(row) for row in rows])
    async with score_limit or nullcontext():
        await score(env, states, alone=not env.requires_group_rollouts if alone is None else alone)
    return states


async def play(
    env: RunnableEnvironment,
    row: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    *,
    max_retries: int = 0,
    on_retry: Callable[[], None] | None = None,
) -> State:
    """Play one rollout, unscored. After an infrastructure error, repeat it up to `max_retries` times."""
    if not max_retries:
        return await env.rollout(row, client, model, sampling_args)
    return await with_retries(
        lambda: env.rollout(row, client, model, sampling_args),
        lambda state: state.error,
        max_retries,
        on_retry=on_retry,
    )


async def _together(work: Sequence[Coroutine[Any, Any, Value]]) -> list[Value]:
    """Run coroutines concurrently and return their values. The first exception cancels the others and is raised."""
    if len(work) == 1:
        return [await work[0]]
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    return [task.result() for task in running]


async def score(env: RunnableEnvironment, states: list[State], *, alone: bool) -> None:
    """Score finished rollouts of one example (each `alone`, or as a group) and run the rubric's cleanup.

    A crashed rollout (`errors.voids_reward`) is hidden from reward functions: its reward is void. An exception of an
    author's own scoring is recorded on its rollouts, which count 0.0. Wrong credentials or a wrong configuration end
    the run, because they would fail every rollout.
    """
    start = time.time()
    scored = await _scorable(env, states)
    if alone and len(scored) > 1:
        await _together([_scored_or_recorded(env, [state], alone=True) for state in scored])
    elif scored:
        await _scored_or_recorded(env, scored, alone=alone)
    end = time.time()
    for state in scored:
        if state.error is not None and voids_reward(
            state.error
        ):  # its sandbox or endpoint failed during scoring
            write_void(state, state.metrics or {})
    for state in states:
        state.timing.scoring.start = start
        state.timing.scoring.end = end
        await env.rubric.cleanup(state)


async def _scorable(env: RunnableEnvironment, states: list[State]) -> list[State]:
    """Run the `@vf.update` handlers, and exclude the rollouts whose reward is void."""
    if env.has_update_handlers:
        going = [state for state in states if state.error is None or not voids_reward(state.error)]
        if going:
            await env._update_before_scoring(going)
    if all(state.error is None for state in states):
        return states
    if env.score_rollouts:
        return await env.rubric.without_void(states)
    return states


async def _scored_or_recorded(
    env: RunnableEnvironment, states: list[State], *, alone: bool
) -> None:
    try:
        if not env.score_rollouts:
            await env.rubric.dummy_score_group(states)
        else:
            await env._score(states, alone=alone)
    except (AuthenticationError, ConfigError):
        raise
    except Exception as error:
        message = f"Scoring failed: {type(error).__name__}: {text_of(error)}"
        logger.warning(message, exc_info=error)
        kind = type(env.rubric)
        for state in states:
            state.reward = 0.0 if state.reward is None else state.reward
            state.metrics = state.metrics or {}
            note_scoring_error(state, error, kind, kind.__name__, message)
            if is_void(state):
                write_void(state, state.metrics)


async def clean_up(env: RunnableEnvironment, state: State) -> None:
    """Run the cleanup handlers of one rollout and leave its scope.

    A handler that raises does not stop the others. The first exception becomes the rollout's error if the rollout has
    no error yet. Raises ConfigError at the end if a handler could not be called.
    """
    uncallable: ConfigError | None = None
    for handler in env._cleanup_handlers:
        try:
            await call_rollout_hook(handler, env, state)
        except ConfigError as error:
            uncallable = error
        except Exception as error:
            logger.exception("Cleanup handler %s failed", getattr(handler, "__name__", handler))
            note_error(state, error, env)
    await close_scope(state)
    if uncallable is not None:
        raise uncallable
