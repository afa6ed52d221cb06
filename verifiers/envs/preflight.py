"""Report mistakes that would fail every rollout or make every reward meaningless: before the first rollout if possible,
otherwise at the first one (`EarlyStop`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from verifiers.clients.failures import NoSuchRoute
from verifiers.configs import ClientConfig
from verifiers.envs import stops
from verifiers.envs.protocol import RunnableEnvironment
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    Error,
    MissingAnswer,
    RewardArgumentError,
    error_chain,
    saved_types,
)
from verifiers.rollouts.limits import current_limits
from verifiers.rubrics.missing_answers import functions_that_need_answers, stores_answer
from verifiers.rubrics.reward_call import RewardCall, argument_error
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import scores_plainly
from verifiers.state import State

ENDS_THE_RUN: tuple[type[Error], ...] = (AuthenticationError, ConfigError, MissingAnswer)
"""Errors that would also fail every other rollout."""

_PACKAGE = __name__.partition(".")[0]
_SETUP_METHODS = frozenset({"setup_state", "init_state", "rollout"})


# ---------------------------------------------------------------------------------------------- rows without answer


def check_rows(env: RunnableEnvironment, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise MissingAnswer for the first row without an `answer` if a reward function needs one.

    An environment that prepares its own states may set the answer there; `check_answer` checks those states.
    """
    row = next((row for row in rows if row.get("answer") is None), None)
    if row is not None and not _prepares_states(env):
        check_answer(env, row)


def check_arguments(
    env: RunnableEnvironment, rows: Sequence[Mapping[str, Any]]
) -> dict[str, RewardArgumentError]:
    """Return the reward functions with an argument that no row has, with their errors.

    Raises the first certain error, unless the environment prepares its own states and could add the argument.
    """
    if not env.score_rollouts or not rows:
        return {}
    later = getattr(env, "scoring_arguments", ())  # an environment offers these when it scores
    unbound = unbound_functions(env.rubric, rows)
    found = {name: error for name, error in unbound.items() if error.argument not in later}
    certain = [error for error in found.values() if error.is_certain]
    if certain and not _prepares_states(env):
        raise certain[0]
    return found


def check_answer(env: RunnableEnvironment, row: Mapping[str, Any]) -> None:
    """Raise MissingAnswer if a row, or the state made from it, has no `answer` and a reward function needs one."""
    if row.get("answer") is not None or not env.score_rollouts:
        return
    if not (names := _functions_in_need(env)):
        return
    fields = row.input_fields if isinstance(row, State) else row
    keys = [key for key in fields if key != "prompt"]
    raise MissingAnswer(
        f"Row {row.get('example_id')} has no 'answer', and the reward function {names[0]!r} uses the answer "
        f"(an empty answer is part of every text). The row has {keys}. Give every row an 'answer', or give the "
        f"parameter a default value if {names[0]!r} works without an answer."
    )


def _functions_in_need(env: RunnableEnvironment) -> list[str]:
    calls = env.rubric.reward_calls()
    known = env._answer_needs
    if known is None or known[0] is not calls:
        later = any(
            stores_answer(method)
            for name, method in _author_methods(env)
            if name not in _SETUP_METHODS
        )
        known = (calls, [] if later else functions_that_need_answers(env.rubric))
        env._answer_needs = known
    return known[1]


def _prepares_states(env: RunnableEnvironment) -> bool:
    return bool(env._setup_handlers) or any(
        name in _SETUP_METHODS for name, _ in _author_methods(env)
    )


def _author_methods(env: RunnableEnvironment) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return the functions that the author of an environment wrote: methods outside this package, and tools."""
    for cls in type(env).__mro__:
        if cls.__module__.partition(".")[0] != _PACKAGE:
            for name, value in vars(cls).items():
                if callable(value):
                    yield name, value
    for tool in getattr(env, "tools", None) or []:
        if callable(tool):
            yield getattr(tool, "__name__", ""), tool


# ---------------------------------------------------------------------------------- arguments without value


_OFFERED = frozenset({"prompt", "completion", "answer", "state", "task", "info"})


def unbound_functions(
    rubric: Rubric, rows: Sequence[Mapping[str, Any]]
) -> dict[str, RewardArgumentError]:
    """Return the reward functions with an argument that neither a row nor the rubric offers, with their errors.

    An error is not certain if the rubric offers objects that depend on the rollout.
    """
    if not scores_plainly(rubric):
        return {}  # the rubric calls its functions in its own way
    members = getattr(rubric, "rubrics", None)
    if members is not None:
        return {
            name: error
            for member in members
            for name, error in unbound_functions(member, rows).items()
        }
    kind = type(rubric)
    found: dict[str, RewardArgumentError] = {}
    provided = frozenset[str]().union(
        *(getattr(provider, "provides", ()) for provider in rubric.score_object_providers)
    )
    for call in rubric.reward_calls():
        objects = {*rubric.class_objects} if call.per_group else {*rubric.class_objects, *provided}
        missing = _missing(call, objects, rows)
        if missing is None:
            continue
        fields = {name for row in rows[:1] for name in row}
        offered = {*_OFFERED, *objects, *fields}
        if call.per_group:
            offered = {f"{name}s" for name in _OFFERED | fields} | objects
        found[call.name] = error = argument_error(call.name, missing, offered)
        if call.per_group:
            error.is_certain = not rubric.group_score_object_providers and (
                kind.group_score_objects is Rubric.group_score_objects
            )
        else:
            error.is_certain = kind.score_objects is Rubric.score_objects and all(
                hasattr(provider, "provides") for provider in rubric.score_object_providers
            )
    return found


def _missing(
    call: RewardCall, objects: AbstractSet[str], rows: Sequence[Mapping[str, Any]]
) -> str | None:
    """Return the first argument of a function that nothing offers."""
    for name in sorted(call.required):
        names = {name, name.removesuffix("s")} if call.per_group else {name}
        if name in objects or names & _OFFERED:
            continue
        if not any(names & row.keys() for row in rows):
            return name
    return None


# ---------------------------------------------------------------------------------- what is missing from an environment


def warn_once(env: RunnableEnvironment) -> None:
    """Log a warning, once per environment, if nothing scores its rollouts or nothing ends them."""
    if env._is_checked:
        return
    env._is_checked = True
    if _is_unscored(env):
        env.logger.warning(
            "%s has no rubric, so every reward is 0.0. Pass rubric=vf.Rubric(funcs=[…]), or rubric=vf.Rubric() "
            "if no reward is wanted.",
            env._shown_name,
        )
    if _is_endless(env):
        env.logger.warning(
            "%s has no max_turns and nothing else that ends a rollout: each rollout continues until the prompt is too "
            "long. Pass max_turns=…, mark a method with @vf.stop, or set state['final_env_response'].",
            env._shown_name,
        )


def _is_unscored(env: RunnableEnvironment) -> bool:
    rubrics: Sequence[Any] = getattr(env.rubric, "rubrics", [env.rubric])
    return (
        env.score_rollouts
        and any(rubric is env._default_rubric for rubric in rubrics)
        and all(scores_plainly(rubric) for rubric in rubrics)
        and not any(call.weight for call in env.rubric.reward_calls())
    )


def _is_endless(env: Any) -> bool:
    """Whether only a prompt that is too long can end a rollout."""
    if getattr(env, "max_turns", 1) > 0 or env.timeout_seconds or current_limits().are_set:
        return False
    if env.max_total_completion_tokens > 0 or stops.any_specific(env._stop_conditions):
        return False
    return not any(
        name in ("is_completed", "rollout") or _names_final_response(method)
        for name, method in _author_methods(env)
    )


def _names_final_response(method: Any) -> bool:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return code is not None and "final_env_response" in (*code.co_consts, *code.co_names)


# ------------------------------------------------------------------------------------------------ at the first rollout


class EarlyStop:
    """Ends a run whose first rollouts show that every other rollout would fail too."""

    def __init__(
        self, suspects: Mapping[str, RewardArgumentError] | None = None, endpoints: int = 1
    ) -> None:
        """`suspects` are functions with an argument that no row has. The environment could still add the argument to
        the state, so one rollout is played before the others.
        """
        self._suspects = suspects or {}
        self._endpoints = endpoints
        self._unknown_routes = 0
        self._is_answered = False
        self._is_scored = False
        self._first: asyncio.Event | None = None

    async def wait(self) -> None:
        """Return at once. With suspects, only the first caller returns at once; others wait for the first `played`."""
        if not any(error.is_certain for error in self._suspects.values()):
            return
        if self._first is None:
            self._first = asyncio.Event()
        else:
            await self._first.wait()

    def played(self, rollout: Mapping[str, Any]) -> None:
        """Check a rollout (a `State` or an output) after it was played. Raise the error that ends the run."""
        error = rollout.get("error")
        if error is not None:
            self._failed(rollout, error)
        else:
            self._is_answered = True
            if self._suspects and isinstance(rollout, State):
                self._check_suspects(rollout)
        if self._first is not None:
            self._first.set()

    def _failed(self, rollout: Mapping[str, Any], error: Any) -> None:
        if (fatal := _as_kind(error, ENDS_THE_RUN)) is not None:
            raise fatal
        if self._is_answered:
            return
        if rollout.get("trajectory") or rollout.get("completion"):
            self._is_answered = True
        elif (unknown := _as_kind(error, (NoSuchRoute,), with_causes=True)) is not None:
            self._unknown_routes += 1
            if self._unknown_routes >= self._endpoints:
                raise unknown

    def _check_suspects(self, state: State) -> None:
        fields = {field for name in state.input_fields for field in (name, f"{name}s")}
        for error in self._suspects.values():
            if error.is_certain and error.argument not in fields:
                raise error
        self._suspects = {n: error for n, error in self._suspects.items() if not error.is_certain}

    def scored(self, rollout: Mapping[str, Any]) -> None:
        """Check the scoring of a rollout. Raise the error that ends the run."""
        entries = rollout.get("reward_errors") or rollout.get("errors") or ()
        for entry in entries:
            if entry.get("error") == "RewardArgumentError" and entry["function"] in self._suspects:
                raise RewardArgumentError(entry["message"])
            if not self._is_scored and "NoSuchRoute" in saved_types(entry):
                raise NoSuchRoute(entry["message"])  # the model of a judge
        if not entries and rollout.get("error") is None:
            self._is_scored = True


def _as_kind(
    error: Any, kinds: tuple[type[Error], ...], *, with_causes: bool = False
) -> Error | None:
    """Return an error, or a saved one, as an exception of one of these kinds; None if it is of another kind."""
    if isinstance(error, BaseException):
        links = error_chain(error) if with_causes else [error]
        return next((link for link in links if isinstance(link, kinds)), None)
    if not isinstance(error, Mapping):
        return None
    names = set(saved_types(error)) if with_causes else {error.get("error")}
    for kind in kinds:
        loaded = [kind, *kind.__subclasses__()]
        if any(one.__name__ in names for one in loaded):
            return kind(_message(error))
    return None


def _message(error: Mapping[str, Any]) -> str:
    """Return the text of a saved error: for `KeyError('board')`, `board`."""
    import ast

    text = str(error.get("error_chain_repr", "")).split(" -> ")[0]
    _, _, inner = text.partition("(")
    try:
        message = ast.literal_eval(inner.removesuffix(")"))
    except (ValueError, SyntaxError):
        return text
    return message if isinstance(message, str) else text


def endpoint_count(client: Any) -> int:
    """Return the number of endpoints among which a client distributes its requests."""
    if isinstance(client, ClientConfig):
        return max(1, len(client.endpoint_configs))
    channel = getattr(client, "_channel", None)
    return max(1, len(getattr(channel, "endpoints", ()) or ()))
