"""The built-in stop conditions as plain predicates, and how they become overridable methods of an environment.

A condition is asked before every turn of every rollout. As a plain function it costs a tenth of an awaited method, so
the loop calls the predicate itself as long as no author has overridden the method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Sequence
from inspect import signature
from typing import Any

from verifiers.decorators import marks, stop
from verifiers.rollouts.limits import current_limits
from verifiers.state import State

Predicate = Callable[[Any, State], bool]
Condition = Callable[..., Coroutine[Any, Any, bool]]


def condition(predicate: Predicate, priority: int = 0) -> Condition:
    """The predicate `(env, state) -> bool` as an async method marked as a stop condition."""

    async def method(self: Any, state: State, **_: Any) -> bool:
        return predicate(self, state)

    method.__name__ = method.__qualname__ = predicate.__name__
    method.__doc__ = predicate.__doc__
    method.predicate = predicate  # type: ignore[attr-defined]  # read by `plan`
    return stop(method, priority=priority)


def plan(
    conditions: Sequence[Callable[..., Any]],
) -> list[tuple[Callable[..., Any], Predicate | None]]:
    """Each condition with its predicate, if it is a built-in one that nobody overrode."""
    return [
        (bound, getattr(getattr(bound, "__func__", bound), "predicate", None))
        for bound in conditions
    ]


def any_of_author(conditions: Sequence[Callable[..., Any]]) -> bool:
    """Whether there is a stop condition besides those that every `MultiTurnEnv` has."""
    return any(predicate not in _GENERAL for _, predicate in plan(conditions))


def unmarked(env: Any) -> list[Callable[..., Any]]:
    """`check_done(state)` of the oldest environments, which was a stop condition by its name alone."""
    method = getattr(type(env), "check_done", None)
    if method is None or marks(method, "stop") or list(signature(method).parameters) != _CHECK_DONE:
        return []
    warnings.warn(
        f"{type(env).__name__}.check_done is taken for a stop condition. Mark it with @vf.stop.",
        DeprecationWarning,
        stacklevel=4,
    )
    return [env.check_done]


_CHECK_DONE = ["self", "state"]


def has_error(env: Any, state: State) -> bool:
    """An error ends the rollout."""
    return state.error is not None


def prompt_too_long(env: Any, state: State) -> bool:
    """The conversation no longer fits the model's context."""
    return bool(dict.get(state, "prompt_too_long"))


def max_turns_reached(env: Any, state: State) -> bool:
    """The model has answered `max_turns` times."""
    return env.max_turns > 0 and len(state.trajectory) >= env.max_turns


def max_total_completion_tokens_reached(env: Any, state: State) -> bool:
    """The model has written all the tokens it may."""
    limit = env.max_total_completion_tokens
    return limit > 0 and state.usage["output_tokens"] >= limit


def max_total_tokens_reached(env: Any, state: State) -> bool:
    """The rollout has used all the tokens this run allows it."""
    return current_limits().tokens_reached(state)


def max_cost_reached(env: Any, state: State) -> bool:
    """The rollout has cost all this run allows it."""
    return current_limits().cost_reached(state)


def has_final_env_response(env: Any, state: State) -> bool:
    """The environment has said its last word."""
    return state.final_env_response is not None


_GENERAL = (
    has_error,
    prompt_too_long,
    max_turns_reached,
    max_total_completion_tokens_reached,
    max_total_tokens_reached,
    max_cost_reached,
    has_final_env_response,
)
"""The stop conditions of every `MultiTurnEnv`."""


def no_tools_called(env: Any, state: State) -> bool:
    """The model has answered without calling a tool."""
    if not state.trajectory:
        return False
    said = state.trajectory[-1]["completion"]
    if not said:
        return True
    message = said[-1]
    return message.get("role") in ("assistant", "text") and not message.get("tool_calls")
