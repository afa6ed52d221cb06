"""From inputs to outputs: what `Environment.generate` and `evaluate` do, as functions of an environment."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from verifiers.clients import resolve_client
from verifiers.envs.calls import model_response_for_client, run_group, run_rollout
from verifiers.envs.early_stop import EarlyStop, endpoint_count
from verifiers.envs.hooks import call_rollout_hook
from verifiers.envs.options import GenerateOptions, merged_sampling_args
from verifiers.envs.run_record import RunRecord, Task
from verifiers.envs.serving import as_units, remote_schedule
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    DatasetError,
    RewardError,
    is_void,
    scoring_error_info,
    text_of,
    voids_reward,
)
from verifiers.rollouts.garbage import fewer_collections
from verifiers.rollouts.limits import run_limits
from verifiers.rollouts.retries import with_retries
from verifiers.rollouts.schedule import Limits, Schedule, first_failure
from verifiers.rollouts.scope import close_scope
from verifiers.rubrics.scoring import write_void
from verifiers.runs.output import output_from_state
from verifiers.state import State
from verifiers.tasks import Row, TaskSource, is_arrow, is_rows
from verifiers.types import GenerateOutputs, RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

__all__ = [
    "GenerateOptions",
    "as_rows",
    "clean_up",
    "eval_inputs",
    "model_response_for_client",
    "new_id",
    "play_group",
    "run_group",
    "run_rollout",
    "run_rows",
    "run_sync",
    "score",
]

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


def new_id() -> str:
    """32 random hexadecimal digits, at a fraction of the cost of `uuid4().hex`."""
    return os.urandom(16).hex()


# ------------------------------------------------------------------------------------------ parts of a rollout


async def play_group(
    env: Environment,
    inputs: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None,
    limit: Any = None,
) -> list[State]:
    """The rollouts of one example, played concurrently, unscored; `limit` is held by each while it plays."""

    async def play(row: Mapping[str, Any]) -> State:
        async with limit or nullcontext():
            return await env.rollout(row, client, model, sampling_args)

    return await _together([play(row) for row in inputs])


async def _together(work: Sequence[Coroutine[Any, Any, Value]]) -> list[Value]:
    """The values of coroutines run concurrently. The first that raises cancels the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    return [task.result() for task in running]


async def score(env: Environment, states: list[State], *, alone: bool) -> None:
    """Score finished rollouts of one example (each `alone`, or as a group) and let the rubric clean up.

    Reward functions do not see rollouts that crashed (`errors.voids_reward`): their reward is void. What an
    author's own scoring raises is recorded on the rollouts it was to score, which count 0.0. A wrong key or
    configuration ends the run: it would fail for every rollout.
    """
    start = time.time()
    scored = await _scorable(env, states)
    if alone and len(scored) > 1:
        await _together([_scored_or_recorded(env, [state], alone=True) for state in scored])
    elif scored:
        await _scored_or_recorded(env, scored, alone=alone)
    end = time.time()
    for state in scored:
        if state.error is not None and voids_reward(state.error):  # lost while it was scored
            write_void(state, state.metrics or {})
    for state in states:
        state.timing.scoring.start = start
        state.timing.scoring.end = end
        await env.rubric.cleanup(state)


async def _scorable(env: Environment, states: list[State]) -> list[State]:
    """Run the `@vf.update` handlers, and leave out the rollouts whose reward is void."""
    if env.has_update_handlers:
        going = [state for state in states if state.error is None or not voids_reward(state.error)]
        if going:
            await env._update_before_scoring(going)
    if all(state.error is None for state in states):
        return states
    if env.score_rollouts:
        return await env.rubric.without_void(states)
    return states


async def _scored_or_recorded(env: Environment, states: list[State], *, alone: bool) -> None:
    try:
        if not env.score_rollouts:
            await env.rubric.dummy_score_group(states)
        elif alone:
            await env.rubric.score_rollout(states[0])
        else:
            await env.rubric.score_group(states)
    except (AuthenticationError, ConfigError):
        raise
    except Exception as error:
        message = f"Scoring failed: {type(error).__name__}: {text_of(error)}"
        logger.warning(message, exc_info=error)
        entry = scoring_error_info(error, type(env.rubric), type(env.rubric).__name__)
        for state in states:
            state.reward = 0.0 if state.reward is None else state.reward
            state.metrics = state.metrics or {}
            state.reward_errors = [*(state.reward_errors or []), {**entry, "message": message}]
            if is_void(state):
                write_void(state, state.metrics)


async def clean_up(env: Environment, state: State) -> None:
    """Run the cleanup handlers of one rollout and leave its scope.

    A handler that raises stops no other. What the first one raised is the error of a rollout that had none. Raises
    ConfigError at the end when a handler could not be called.
    """
    uncallable: ConfigError | None = None
    for handler in env._cleanup_handlers:
        try:
            await call_rollout_hook(handler, env, state)
        except ConfigError as error:
            uncallable = error
        except Exception as error:
            logger.exception("Cleanup handler %s failed", getattr(handler, "__name__", handler))
            if state.error is None:
                env._note_error(state, error)
    await close_scope(state)
    if uncallable is not None:
        raise uncallable


# -------------------------------------------------------------------------------------------------- inputs


def eval_inputs(
    env: Environment, num_examples: int, rollouts_per_example: int, seed: int | None
) -> list[Row]:
    """The evaluation rows, each repeated `rollouts_per_example` times side by side."""
    if rollouts_per_example < 1:
        raise ConfigError(f"rollouts_per_example must be at least 1; got {rollouts_per_example}.")
    cls = type(env)
    from verifiers.envs.environment import Environment as Base

    if cls.get_eval_dataset is Base.get_eval_dataset and cls.get_dataset is Base.get_dataset:
        rows = env.source("eval").inputs(num_examples, seed)
    else:
        given = env.get_eval_dataset(n=num_examples, **({} if seed is None else {"seed": seed}))
        rows = TaskSource(given, env.row_format).inputs()
    return [row for row in rows for _ in range(rollouts_per_example)]


def as_rows(env: Environment, inputs: Any) -> list[Row]:
    """Inputs of `generate` as rows: a `datasets.Dataset`, a list of rows, or v0's dict of columns."""
    if isinstance(inputs, Mapping):
        if "prompt" in inputs and isinstance(inputs["prompt"], list) and "example_id" not in inputs:
            count = len(inputs["prompt"])
            columns = {name: values for name, values in inputs.items() if len(values) == count}
            inputs = [{name: values[i] for name, values in columns.items()} for i in range(count)]
        elif all(isinstance(values, list) for values in inputs.values()):
            inputs = [
                dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)
            ]
        else:
            inputs = [inputs]
    if not (is_rows(inputs) or is_arrow(inputs)):
        raise DatasetError(
            f"generate takes a Dataset or a list of rows; got {type(inputs).__name__}: {inputs!r:.200}"
        )
    return TaskSource(inputs, env.row_format).inputs()


def _grouped(rows: Sequence[Row]) -> list[list[Task]]:
    groups: dict[Any, list[Task]] = {}
    for row in rows:
        group = groups.setdefault(row["example_id"], [])
        group.append(Task(row, len(group)))
    return list(groups.values())


# -------------------------------------------------------------------------------------------------- the run


async def run_rows(
    env: Environment,
    rows: list[Row],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None,
    options: GenerateOptions,
) -> GenerateOutputs:
    """Play, score, save and summarise every input."""
    client = resolve_client(client)
    sampling_args = merged_sampling_args(env.sampling_args, sampling_args)
    if options.scoring_timeout_s is not None:
        env.rubric.set_scoring_timeout_s(options.scoring_timeout_s)
    with run_limits(options.rollout_limits(model)):
        suspects = env._check_before_run(rows)
    early_stop = EarlyStop(suspects, endpoint_count(client))
    record = RunRecord.start(env, rows, client, model, sampling_args, options)
    try:
        groups = record.missing(_grouped(rows))
        if options.on_start is not None:
            flat = [task.row for group in groups for task in group]
            options.on_start(
                rows, flat if options.independent_scoring else [[t.row for t in g] for g in groups]
            )
        schedule: Schedule[Any, Any]
        if env.env_client is None:
            schedule = _schedule(env, client, model, sampling_args, options, record, early_stop)
        else:
            schedule, in_groups = remote_schedule(
                env, client, model, sampling_args, options, record, early_stop
            )
            groups = as_units(groups, in_groups=in_groups)
        watcher = _stop_when(options.stop, schedule)
        try:
            with run_limits(options.rollout_limits(model)), fewer_collections():
                await schedule.run(groups)
        finally:
            if watcher is not None:
                watcher.cancel()
        outputs = record.finish(interrupted=schedule.stopped)
    except Exception as error:
        record.failed(error)
        raise
    finally:
        record.close()
    if options.save_to_hf_hub:
        from verifiers.runs.publish import push_results_to_hf_hub

        await asyncio.to_thread(push_results_to_hf_hub, outputs, options.hf_hub_dataset_name)
    return outputs


def _schedule(
    env: Environment,
    client: Any,
    model: str,
    sampling_args: SamplingArgs,
    options: GenerateOptions,
    record: RunRecord,
    early_stop: EarlyStop,
) -> Schedule[Task, State]:
    async def play(task: Task) -> State:
        await early_stop.wait()

        async def once() -> State:
            return await env.rollout(task.row, client, model, sampling_args)

        if options.max_retries:
            state = await with_retries(
                once, lambda state: state.error, options.max_retries, on_retry=options.on_retry
            )
        else:
            state = await once()
        early_stop.played(state)
        state["rollout_index"] = task.rollout_index
        return state

    async def score_group(states: list[State]) -> None:
        await score(env, states, alone=options.independent_scoring)
        for state in states:
            early_stop.scored(state)
        if options.strict:
            for state in states:
                if state.reward_errors:
                    raise RewardError(state.reward_errors[0]["message"])

    async def deliver(index: int, states: list[State]) -> None:
        new = [output_from_state(state, options.state_columns) for state in states]
        await record.add(new, [state.get("trajectory") for state in states], states)

    limits = Limits(options.max_concurrent, options.max_concurrent_scoring)
    return Schedule(play, score_group, deliver, limits)


def _stop_when(
    stop: asyncio.Event | None, schedule: Schedule[Any, Any]
) -> asyncio.Task[None] | None:
    if stop is None:
        return None

    async def watch() -> None:
        await stop.wait()
        schedule.stop()

    return asyncio.create_task(watch())


# ---------------------------------------------------------------------------------------------- sync callers


def run_sync(make: Callable[[], Awaitable[Value]]) -> Value:
    """Run a coroutine from code that is not async; in a thread of its own when a loop is running here already.

    Connections and sandbox back ends opened for it are closed with its loop.
    """

    running: list[tuple[asyncio.AbstractEventLoop, Any]] = []

    async def run() -> Value:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    if not _in_running_loop():
        return asyncio.run(run())
    results: list[Any] = []
    context = contextvars.copy_context()

    def in_thread() -> None:
        try:
            results.append((context.run(asyncio.run, run()), None))
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread
            results.append((None, error))
        finished.set()

    # Not `thread.join()`: interrupted once, it takes the thread for ended (CPython before 3.13).
    finished = threading.Event()
    thread = threading.Thread(target=in_thread, name="run-sync")
    try:
        thread.start()
        finished.wait()
    except BaseException:  # Ctrl-C in a notebook: nobody would wait for the run any more
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    value, error = results[0]
    if error is not None:
        raise error
    return value


def _in_running_loop() -> bool:
    # A function of its own: the RuntimeError would stand in the chain of every error that is raised in its `except`.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def outputs_of(
    states: Sequence[State], state_columns: Sequence[str] | None = None
) -> list[RolloutOutput]:
    """The outputs of finished rollouts."""
    return [output_from_state(state, state_columns) for state in states]
