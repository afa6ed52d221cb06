"""What every environment promises, checked on a real one with a scripted model. Each broken promise is a sentence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from verifiers.envs.env_group import EnvGroup, inner_row, routed_name
from verifiers.envs.environment import Environment
from verifiers.envs.generation import run_sync, score
from verifiers.errors import AuthorError, EndpointUnavailable, Error
from verifiers.messages import normalize_messages
from verifiers.rollouts.limits import RolloutLimits, run_limits
from verifiers.runs.output import decode_line, encode_line, is_jsonable, output_from_state
from verifiers.state import State
from verifiers.tasks import Row, input_key
from verifiers.testing.scripted_client import Reply, ScriptedClient, call
from verifiers.types import Messages

MOST_ANSWERS = 64
"""A rollout that asks the model more often than this does not end, as far as the check can tell."""
PATIENCE_S = 60.0
"""Longest check of one promise, in seconds."""
SHORT_LIMIT_S = 0.05
"""The time limit under which a rollout with a silent model must end, in seconds."""
WORDS = "I do not know."


class ContractBroken(AuthorError, AssertionError):
    """An environment or a client breaks promises; the message lists them, `problems` holds them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(f"- {problem}" for problem in self.problems)


@dataclass(frozen=True)
class _Subject:
    """The environment under check and the rows it is checked with."""

    env: Environment
    rows: list[Row]
    answer: Callable[[Messages], Any]

    def client(self) -> ScriptedClient:
        """A model that answers as the check was told, or with words, and calls one tool when it is offered some."""
        return ScriptedClient(self.answer)

    async def play(self, client: ScriptedClient, row: Row | None = None) -> State:
        return await self.env.rollout(dict(row or self.rows[0]), client, "scripted", {})


def check_environment(
    env: Environment,
    *,
    rows: int = 3,
    answer: Callable[[Messages], Any] | None = None,
    except_for: Collection[str] = (),
) -> None:
    """Raise ContractBroken when the environment breaks a promise.

    `rows`: how many rows are checked. `answer`: what the model says to a prompt; by default it calls the first tool
    once, if there are tools, and then says that it does not know. `except_for`: names of promises not to check, which
    are the keys of `PROMISES`. Costs some rollouts with a scripted model, and calls the reward functions for real.
    Works inside a running event loop too, in a thread of its own.
    """
    problems = run_sync(
        lambda: environment_problems(env, rows=rows, answer=answer, except_for=except_for)
    )
    if problems:
        raise ContractBroken(problems)


async def environment_problems(
    env: Environment,
    *,
    rows: int = 3,
    answer: Callable[[Messages], Any] | None = None,
    except_for: Collection[str] = (),
) -> list[str]:
    """What `check_environment` raises, as a list of sentences; empty when all promises are kept."""
    if unknown := set(except_for) - set(PROMISES):
        raise ValueError(f"No such promises: {sorted(unknown)}; there are {sorted(PROMISES)}.")
    try:
        inputs = env.source("eval").inputs(rows)
    except Error as error:
        return [f"The rows cannot be read: {error}"]
    if not inputs:
        return ["The dataset is empty. An environment needs at least one row."]
    subject = _Subject(env, inputs, answer or _default_answer(env))
    problems: list[str] = []
    for name, promise in PROMISES.items():
        if name in except_for:
            continue
        try:
            async with asyncio.timeout(PATIENCE_S):
                problems += [sentence async for sentence in promise(subject)]
        except TimeoutError:
            problems.append(f"Checking {name!r} did not end within {PATIENCE_S:g} s.")
        except Exception as error:  # noqa: BLE001 - an environment under check may raise anything
            problems.append(f"Checking {name!r}: {type(error).__name__} was raised: {error}")
        if problems and name in _FOUNDATIONS:
            break  # what follows would only repeat it
    return problems


def _default_answer(env: Environment) -> Callable[[Messages], Any]:
    def answer(prompt: Messages) -> Any:
        if env.tool_defs and not any(message["role"] == "tool" for message in prompt):
            return [call(env.tool_defs[0].name)]
        return WORDS

    return answer


# ------------------------------------------------------------------------------------------------ promises


async def _rows_are_well_formed(subject: _Subject) -> AsyncIterator[str]:
    for row in subject.rows:
        where = f"Row {row['example_id']}"
        prompt = row["prompt"]
        if not isinstance(prompt, str):
            for message in normalize_messages(prompt, field_name="prompt"):
                if empty := [key for key, value in message.items() if value is None]:
                    yield f"{where}: a message has None under {empty}. Leave such keys out."
        for key, value in row.items():
            if key != "prompt" and not is_jsonable(value):
                yield f"{where}: {key!r} holds a {type(value).__name__}, which JSON cannot hold."
    ids = [row["example_id"] for row in subject.rows]
    if len(set(ids)) < len(ids):
        yield f"Rows share an example_id: {ids}. Rollouts of one id are scored as one group."


async def _rows_are_the_same_each_time(subject: _Subject) -> AsyncIterator[str]:
    source = subject.env.source("eval")
    count = len(subject.rows)
    if not source.is_endless:
        source.inputs(count, 7)  # whoever shuffles must not change what others see
    before = [input_key(row) for row in subject.rows]
    if [input_key(row) for row in source.inputs(count)] != before:
        yield "Taking the rows twice gives different rows. Fix the seed of whatever makes them."


async def _a_rollout_ends_by_itself(subject: _Subject) -> AsyncIterator[str]:
    client = subject.client()

    def counted(prompt: Messages) -> Any:
        if len(client.requests) > MOST_ANSWERS:
            raise _Endless(f"no stop condition held after {MOST_ANSWERS} answers")
        return subject.answer(prompt)

    client = ScriptedClient(counted)
    for row in subject.rows:
        client.requests.clear()
        state = await subject.play(client, row)
        where = f"Row {row['example_id']}"
        if len(client.requests) > MOST_ANSWERS:
            yield (
                f"{where}: no stop condition held after {MOST_ANSWERS} answers. Set max_turns, or mark a method with "
                "@vf.stop that becomes true."
            )
        elif state.error is not None:
            yield f"{where}: the rollout failed although the model answered: {state.error}"
        if not state.is_completed:
            yield f"{where}: the rollout is over, but state['is_completed'] is false."
        elif not isinstance(state.stop_condition, str):
            yield f"{where}: the rollout is over, but state['stop_condition'] is {state.stop_condition!r}."


async def _scores_are_numbers(subject: _Subject) -> AsyncIterator[str]:
    state = await subject.play(subject.client())
    await score(subject.env, [state], alone=False)
    for error in state.reward_errors or []:
        yield f"Scoring an answer: {error['message']}"
    if not isinstance(state.reward, float | int) or not math.isfinite(state.reward):
        yield f"The reward is {state.reward!r}; it must be a finite number."
    for name, value in (state.metrics or {}).items():
        if not isinstance(value, float | int) or not math.isfinite(value):
            yield f"The metric {name!r} is {value!r}; it must be a finite number."
    if state.completion is None:
        yield "After the rollout state['completion'] is None; reward functions cannot read it."


async def _an_empty_answer_is_scored(subject: _Subject) -> AsyncIterator[str]:
    state = await subject.play(ScriptedClient(lambda prompt: ""))
    await score(subject.env, [state], alone=False)
    for error in state.reward_errors or []:
        yield f"Scoring an empty answer: {error['message']}"


async def _results_can_be_saved(subject: _Subject) -> AsyncIterator[str]:
    state = await subject.play(subject.client())
    await score(subject.env, [state], alone=False)
    output = output_from_state(state)
    saved = decode_line(encode_line(output))
    if missing := set(output) - set(saved):
        yield f"Saved and read again, a rollout lacks {sorted(missing)}."
    try:
        state.assert_serializable()
    except TypeError as error:
        yield f"{error}. Keep live objects in `scope_of(state)`, or on the environment by trajectory_id."


async def _equal_answers_give_equal_results(subject: _Subject) -> AsyncIterator[str]:
    results: list[tuple[Any, ...]] = []
    for _ in range(2):
        client = subject.client()
        state = await subject.play(client)
        await score(subject.env, [state], alone=False)
        # What measures time, `…_time`, is never the same twice.
        metrics = {k: v for k, v in (state.metrics or {}).items() if not k.endswith("_time")}
        results.append((_asked(client), state.reward, metrics, state.stop_condition))
    for what, one, other in zip(
        ("prompts", "reward", "metrics", "stop condition"), *results, strict=True
    ):
        if one != other:
            yield f"The same row and the same answers gave different {what}: {one!r:.150} and {other!r:.150}."


async def _rollouts_do_not_share_state(subject: _Subject) -> AsyncIterator[str]:
    row = subject.rows[0]
    before = input_key(row)
    client = subject.client()
    async with asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(subject.play(client, row)) for _ in range(2)]
    one, other = (task.result() for task in playing)
    if input_key(row) != before:
        yield "A rollout changed the dataset row it was given. Work on the values in the state."
    for key, value in one.items():
        shared = isinstance(value, list | dict) and value and other.get(key) is value
        if shared and key not in _SHARED_ON_PURPOSE:
            yield f"Two rollouts of a row share the object in state[{key!r}]; one can change the other's."


async def _cleanup_runs_however_a_rollout_ends(subject: _Subject) -> AsyncIterator[str]:
    owner = _owner(subject.env, subject.rows[0])
    for ending in ("success", "a failed model call", "cancellation"):
        asked = asyncio.Event()

        def answer(prompt: Messages, ending: str = ending, asked: asyncio.Event = asked) -> Any:
            asked.set()
            if ending == "success":
                return subject.answer(prompt)
            if ending == "cancellation":
                return Reply("too late", after=asyncio.Event())
            return EndpointUnavailable("scripted failure")

        with _counted_cleanups(owner) as calls:
            playing = asyncio.ensure_future(subject.play(ScriptedClient(answer)))
            if ending == "cancellation":
                waiting = asyncio.ensure_future(asked.wait())
                await asyncio.wait({playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
                playing.cancel()
                waiting.cancel()
            [result] = await asyncio.gather(playing, return_exceptions=True)
        if ending == "cancellation" and not isinstance(result, asyncio.CancelledError):
            yield f"A cancelled rollout goes on: it ended with {result!r:.150} instead of CancelledError."
        if ending == "a failed model call" and isinstance(result, BaseException):
            yield f"A failed model call must be the rollout's state['error']; it was raised: {result!r:.150}"
        for name, count in calls.items():
            if count != 1:
                yield f"After {ending} the cleanup handler {name!r} ran {count} times; it must run once."


async def _a_failed_rollout_leaves_its_siblings(subject: _Subject) -> AsyncIterator[str]:
    first = True

    def answer(prompt: Messages) -> Any:
        nonlocal first
        if first:
            first = False
            return EndpointUnavailable("scripted failure")
        return subject.answer(prompt)

    rows = [dict(subject.rows[0]) for _ in range(2)]
    outputs = await subject.env.run_group(rows, ScriptedClient(answer), "scripted", {})
    failed = [output for output in outputs if output["error"] is not None]
    if len(failed) != 1:
        yield f"One of two rollouts had a failing model call; {len(failed)} carry an error."
    elif failed[0]["stop_condition"] != "has_error":
        yield f"A failed rollout must stop as 'has_error'; it stopped as {failed[0]['stop_condition']!r}."


async def _a_silent_model_ends_in_a_timeout(subject: _Subject) -> AsyncIterator[str]:
    silent = ScriptedClient(then=Reply("too late", after=asyncio.Event()))
    with run_limits(RolloutLimits(rollout_timeout_s=SHORT_LIMIT_S)):
        state = await subject.play(silent)
    if state.stop_condition != "timeout_reached":
        yield f"Past its time limit a rollout must stop as 'timeout_reached'; it stopped as {state.stop_condition!r}."
    # A reward function that reads `completion[-1]` may raise here; it counts 0.0 and says so, as it should.
    await score(subject.env, [state], alone=False)
    if state.reward is None:
        yield "A rollout that ran out of time must be scored as it is; its reward is None."


PROMISES: Mapping[str, Callable[[_Subject], AsyncIterator[str]]] = {
    "rows are well-formed": _rows_are_well_formed,
    "rows are the same each time": _rows_are_the_same_each_time,
    "a rollout ends by itself": _a_rollout_ends_by_itself,
    "scores are numbers": _scores_are_numbers,
    "an empty answer is scored": _an_empty_answer_is_scored,
    "results can be saved": _results_can_be_saved,
    "equal answers give equal results": _equal_answers_give_equal_results,
    "rollouts do not share state": _rollouts_do_not_share_state,
    "cleanup runs however a rollout ends": _cleanup_runs_however_a_rollout_ends,
    "a failed rollout leaves its siblings": _a_failed_rollout_leaves_its_siblings,
    "a silent model ends in a timeout": _a_silent_model_ends_in_a_timeout,
}
"""Name → check of every promise, in the order they are checked."""

_SHARED_ON_PURPOSE = ("tool_defs", "sampling_args")
_FOUNDATIONS = ("rows are well-formed", "a rollout ends by itself")


# ------------------------------------------------------------------------------------------------- tools


class _Endless(AuthorError):
    """A rollout asked for more answers than any check gives."""


def _asked(client: ScriptedClient) -> list[Any]:
    return [[_without_call_ids(message) for message in prompt] for prompt in client.prompts]


def _without_call_ids(message: Any) -> dict[str, Any]:
    fields = {key: value for key, value in message.items() if key != "tool_call_id"}
    if fields.get("tool_calls"):
        fields["tool_calls"] = [(made["name"], made["arguments"]) for made in message["tool_calls"]]
    return fields


def _owner(env: Environment, row: Row) -> Environment:
    """The environment that plays the row: a group's own one."""
    while isinstance(env, EnvGroup):
        env = env.env_map[routed_name(row, env.env_map)]
        if isinstance(env, EnvGroup):
            row = inner_row(row)
    return env


@contextmanager
def _counted_cleanups(env: Environment) -> Iterator[dict[str, int]]:
    """Calls of every cleanup handler, by name, while the block runs."""
    kept = env._cleanup_handlers
    calls = dict.fromkeys((handler.__name__ for handler in kept), 0)

    def counting(handler: Callable[..., Any]) -> Callable[..., Any]:
        def counted(state: State) -> Any:
            calls[handler.__name__] += 1
            return handler(state)

        return counted

    env._cleanup_handlers = [counting(handler) for handler in kept]
    try:
        yield calls
    finally:
        env._cleanup_handlers = kept
