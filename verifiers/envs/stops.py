"""Stop conditions: how a built-in one is declared, and in which form the loop asks it.

The loop asks every condition before every turn of every rollout. A plain function costs a tenth of an awaited method.
The loop therefore calls the predicate of a built-in condition itself, unless an author has overridden the method.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Sequence
from inspect import signature
from typing import Any

from verifiers.decorators import marks, stop
from verifiers.state import State
from verifiers.v0.plain_states import as_states

Predicate = Callable[[Any, State], bool]
Condition = Callable[..., Coroutine[Any, Any, bool]]


def condition(*, priority: int = 0, general: bool = False) -> Callable[[Predicate], Condition]:
    """Declare a built-in stop condition: a plain method `(self, state) -> bool` becomes an async `@vf.stop` method.

    `general` marks the conditions that every `MultiTurnEnv` has.
    """

    def declare(predicate: Predicate) -> Condition:
        async def method(self: Any, state: State, **_: Any) -> bool:
            with as_states([state]) as [own]:
                return predicate(self, own)

        method.__name__ = method.__qualname__ = predicate.__name__
        method.__doc__ = predicate.__doc__
        method.predicate = predicate  # type: ignore[attr-defined]  # read by `plan`
        predicate.general = general  # type: ignore[attr-defined]  # read by `any_specific`
        return stop(method, priority=priority)

    return declare


def plan(
    conditions: Sequence[Callable[..., Any]],
) -> list[tuple[Callable[..., Any], Predicate | None]]:
    """Return each condition with its predicate; None for an author's condition, overrides of built-in ones included."""
    return [
        (bound, getattr(getattr(bound, "__func__", bound), "predicate", None))
        for bound in conditions
    ]


def any_specific(conditions: Sequence[Callable[..., Any]]) -> bool:
    """Whether there is a stop condition besides those that every `MultiTurnEnv` has."""
    return any(not getattr(predicate, "general", False) for _, predicate in plan(conditions))


def unmarked(env: Any) -> list[Callable[..., Any]]:
    """Return `check_done(state)` of the oldest environments, which was a stop condition by its name alone."""
    method = getattr(type(env), "check_done", None)
    if method is None or marks(method, "stop") or list(signature(method).parameters) != _CHECK_DONE:
        return []
    warnings.warn(
        f"{type(env).__name__}.check_done is used as a stop condition. Mark it with @vf.stop.",
        DeprecationWarning,
        stacklevel=4,
    )
    return [env.check_done]


_CHECK_DONE = ["self", "state"]
