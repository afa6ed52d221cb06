"""Calls of an author's hooks, sync or async, with the arguments that their signatures name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from verifiers.errors import ConfigError

if TYPE_CHECKING:
    from verifiers.state import State

ROLLOUT_ARGUMENTS = ("state", "env", "task", "resources")
"""Arguments that a hook of a rollout may name. `resources` belongs to a later API and is always None."""


async def call_hook(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `hook(*args, **kwargs)`, awaited if it is awaitable."""
    value = hook(*args, **kwargs)
    if type(value) is CoroutineType:  # the usual case; isawaitable costs four times as much
        return await value
    return await value if inspect.isawaitable(value) else value


async def call_rollout_hook(hook: Callable[..., Any], env: Any, state: State, **others: Any) -> Any:
    """Call a `@vf.setup`, `@vf.stop` or `@vf.cleanup` handler of `env` for one rollout.

    The handler receives those of `ROLLOUT_ARGUMENTS` that it names, and all of them if it has `**kwargs`. A single
    parameter of another name receives the state. Raises ConfigError if the handler has any other required parameter.
    """
    wanted = _wanted(hook)
    if wanted.is_plain and not others:
        return await call_hook(hook, state)
    offered = {"state": state, "env": env, "task": state["task"], "resources": None, **others}
    named = {name: offered[name] for name in wanted.names}
    if wanted.takes_all:
        named |= others
    return await call_hook(hook, *([state] if wanted.takes_state_first else []), **named)


def check_rollout_hooks(hooks: list[Callable[..., Any]]) -> None:
    """Raise ConfigError for the first hook that `call_rollout_hook` cannot call."""
    for hook in hooks:
        _wanted(hook)


class _Wanted(NamedTuple):
    """The arguments that a hook receives."""

    takes_state_first: bool
    """Whether the first parameter, which may have any name, receives the state."""
    names: tuple[str, ...]
    """Those of `ROLLOUT_ARGUMENTS` that are passed by name."""
    takes_all: bool
    """Whether it has `**kwargs`."""
    is_plain: bool
    """Whether `hook(state)` is the complete call."""


_known: WeakKeyDictionary[Any, _Wanted] = WeakKeyDictionary()


def _wanted(hook: Callable[..., Any]) -> _Wanted:
    function = getattr(hook, "__func__", hook)
    try:
        known = _known.get(function)
    except TypeError:  # an object without weak references or without a hash
        return _wanted_by(hook)
    if known is None:
        known = _known[function] = _wanted_by(hook)
    return known


def _wanted_by(hook: Callable[..., Any]) -> _Wanted:
    try:
        parameters = list(inspect.signature(hook).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return _Wanted(True, (), False, True)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [p.name for p in parameters if p.kind in by_name and p.name in ROLLOUT_ARGUMENTS]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    first = parameters[0] if parameters else None
    takes_first = (
        first is not None
        and first.name not in names
        and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD, first.VAR_POSITIONAL)
        and "state" not in names
    )
    others = [
        p.name
        for p in parameters[1 if takes_first else 0 :]
        if p.kind in (*by_name, inspect.Parameter.POSITIONAL_ONLY)
        and p.default is p.empty
        and p.name not in ROLLOUT_ARGUMENTS
    ]
    if others:
        name = getattr(hook, "__qualname__", None) or repr(hook)
        raise ConfigError(
            f"The handler {name} has the parameter {', '.join(map(repr, others))}. Its parameters may be "
            f"{', '.join(map(repr, ROLLOUT_ARGUMENTS))}."
        )
    if takes_all:
        names = [n for n in ROLLOUT_ARGUMENTS if not (takes_first and n == "state")]
    takes_state_only = (
        names == ["state"]
        and parameters[0].name == "state"
        and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )
    is_plain = not takes_all and (takes_state_only or (takes_first and not names))
    return _Wanted(takes_first, tuple(names), takes_all, is_plain)
