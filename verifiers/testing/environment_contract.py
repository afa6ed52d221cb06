"""The contract of environments, checked on a real one with a scripted model. Each problem is a sentence."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from verifiers.concurrency import run_sync
from verifiers.envs.env_group import EnvGroup, inner_row, routed_name
from verifiers.envs.environment import Environment
from verifiers.envs.play import score
from verifiers.errors import AuthorError, EndpointUnavailable, Error
from verifiers.messages import normalize_messages
from verifiers.rollouts.limits import RolloutLimits, run_limits
from verifiers.runs.output import decode_line, encode_line, is_jsonable, output_from_state
from verifiers.state import State
from verifiers.tasks import Row, input_key
from verifiers.testing.scripted_client import Reply, ScriptedClient, call
from verifiers.types import Messages

MOST_ANSWERS = 64
"""Number of model requests after which a rollout counts as endless."""
PATIENCE_S = 60.0
"""Maximum time for the check of one promise, in seconds."""
SHORT_LIMIT_S = 0.05
"""Time limit under which a rollout with a silent model must end, in seconds."""
WORDS = "I do not know."


class ContractBroken(AuthorError, AssertionError):
    """An environment or a client breaks its contract. The message lists the problems; `problems` holds them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(f"- {problem}" for problem in self.problems)


@dataclass(frozen=True)
class _Subject:
    """The environment under check, and the rows for the check."""

    env: Environment
    rows: list[Row]
    answer: Callable[[Messages], Any]

    def client(self) -> ScriptedClient:
        """A model that replies with `answer` or with words, and calls one tool if it has tools."""
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
    """Raise ContractBroken if the environment breaks its contract.

    `rows`: number of rows to check. `answer`: the model's reply to a prompt. By default the model calls the first tool
    once, if there are tools, and then says that it does not know the answer. `except_for`: promises to skip, by their
    keys in `PROMISES`. The check plays some rollouts with a scripted model and calls the real reward functions. Inside
    a running event loop it works in a separate thread.
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
    """Return the problems that `check_environment` raises, as a list of sentences; empty if there are none."""
    if unknown := set(except_for) - set(PROMISES):
        raise ValueError(
            f"Unknown promises: {sorted(unknown)}. The promises are {sorted(PROMISES)}."
        )
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
            break  # later checks would repeat the same problem
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
                    yield f"{where}: a message has None under {empty}. Leave these keys out."
        for key, value in row.items():
            if key != "prompt" and not is_jsonable(value):
                yield f"{where}: {key!r} holds a {type(value).__name__}, which JSON does not support."
    ids = [row["example_id"] for row in subject.rows]
    if len(set(ids)) < len(ids):
        yield f"Rows share an example_id: {ids}. Rollouts of one id are scored as one group."


async def _rows_are_the_same_each_time(subject: _Subject) -> AsyncIterator[str]:
    source = subject.env.source("eval")
    count = len(subject.rows)
    if not source.is_endless:
        source.inputs(count, 7)  # shuffling must not change the rows of other callers
    before = [input_key(row) for row in subject.rows]
    if [input_key(row) for row in source.inputs(count)] != before:
        yield "Reading the rows twice gives different rows. Fix the seed of the code that makes them."


async def _a_rollout_ends_by_itself(subject: _Subject) -> AsyncIterator[str]:
    client = subject.client()

    def counted(prompt: Messages) -> Any:
        if len(client.requests) > MOST_ANSWERS:
            raise _Endless(f"no stop condition held after {MOST_ANSWERS} responses")
        return subject.answer(prompt)

    client = ScriptedClient(counted)
    for row in subject.rows:
        client.requests.clear()
        state = await subject.play(client, row)
        where = f"Row {row['example_id']}"
        if len(client.requests) > MOST_ANSWERS:
            yield (
                f"{where}: no stop condition held after {MOST_ANSWERS} responses. Set max_turns, or mark a method with "
                "@vf.stop that becomes true."
            )
        elif state.error is not None:
            yield f"{where}: the rollout failed although the model responded: {state.error}"
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
        yield f"A rollout that is saved and read again lacks {sorted(missing)}."
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
        # Measured times, `…_time`, differ between rollouts.
        metrics = {k: v for k, v in (state.metrics or {}).items() if not k.endswith("_time")}
        results.append((_requests(client), state.reward, metrics, state.stop_condition))
    for what, one, other in zip(
        ("prompts", "reward", "metrics", "stop condition"), *results, strict=True
    ):
        if one != other:
            yield f"The same row and the same replies gave different {what}: {one!r:.150} and {other!r:.150}."


async def _rollouts_do_not_share_state(subject: _Subject) -> AsyncIterator[str]:
    row = subject.rows[0]
    before = input_key(row)
    client = subject.client()
    async with asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(subject.play(client, row)) for _ in range(2)]
    one, other = (task.result() for task in playing)
    if input_key(row) != before:
        yield "A rollout changed its dataset row. Change the values in the state instead."
    for key, value in one.items():
        shared = isinstance(value, list | dict) and value and other.get(key) is value
        if shared and key not in _SHARED_ON_PURPOSE:
            yield f"Two rollouts of a row share the object in state[{key!r}]; each can change the other's value."


async def _cleanup_runs_however_a_rollout_ends(subject: _Subject) -> AsyncIterator[str]:
    owner = _owner(subject.env, subject.rows[0])
    for ending in ("success", "a failed model call", "cancellation"):
        is_requested = asyncio.Event()

        def answer(
            prompt: Messages, ending: str = ending, is_requested: asyncio.Event = is_requested
        ) -> Any:
            is_requested.set()
            if ending == "success":
                return subject.answer(prompt)
            if ending == "cancellation":
                return Reply("too late", after=asyncio.Event())
            return EndpointUnavailable("scripted failure")

        with _counted_cleanups(owner) as calls:
            playing = asyncio.ensure_future(subject.play(ScriptedClient(answer)))
            if ending == "cancellation":
                waiting = asyncio.ensure_future(is_requested.wait())
                await asyncio.wait({playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
                playing.cancel()
                waiting.cancel()
            [result] = await asyncio.gather(playing, return_exceptions=True)
        if ending == "cancellation" and not isinstance(result, asyncio.CancelledError):
            yield f"A cancelled rollout continued: it ended with {result!r:.150} instead of CancelledError."
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
        yield f"After its time limit a rollout must stop as 'timeout_reached'; it stopped as {state.stop_condition!r}."
    # A reward function that reads `completion[-1]` may raise here; it then counts 0.0 and its error is saved.
    await score(subject.env, [state], alone=False)
    if state.reward is None:
        yield "A rollout that ran out of time must be scored; its reward is None."


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
"""Name → check of every promise, in the order of the checks."""

_SHARED_ON_PURPOSE = ("tool_defs", "sampling_args")
_FOUNDATIONS = ("rows are well-formed", "a rollout ends by itself")


# ------------------------------------------------------------------------------------------------- tools


class _Endless(AuthorError):
    """A rollout requested more replies than any check provides."""


def _requests(client: ScriptedClient) -> list[Any]:
    return [[_without_call_ids(message) for message in prompt] for prompt in client.prompts]


def _without_call_ids(message: Any) -> dict[str, Any]:
    fields = {key: value for key, value in message.items() if key != "tool_call_id"}
    if fields.get("tool_calls"):
        fields["tool_calls"] = [(made["name"], made["arguments"]) for made in message["tool_calls"]]
    return fields


def _owner(env: Environment, row: Row) -> Environment:
    """Return the environment that plays the row: a member, for a group of environments."""
    while isinstance(env, EnvGroup):
        env = env.env_map[routed_name(row, env.env_map)]
        if isinstance(env, EnvGroup):
            row = inner_row(row)
    return env


@contextmanager
def _counted_cleanups(env: Environment) -> Iterator[dict[str, int]]:
    """Count the calls of every cleanup handler, by name, while the block runs."""
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
