"""Plain mappings as states. Callers of v0 test hooks and rubrics with a dict that has only the keys they need."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from verifiers.state import State

Method = TypeVar("Method", bound=Callable[..., Any])


def state_of(mapping: Mapping[str, Any]) -> State:
    """Return a state with the values of a mapping. The dataset row, if there is one, is the value of `input`."""
    values = {"trajectory": [], **mapping}
    row = values.pop("input", {})
    state = State.for_row(row if isinstance(row, Mapping) else {"input": row})
    state.begin(values)
    return state


@contextmanager
def as_states(given: Sequence[MutableMapping[str, Any]]) -> Iterator[list[State]]:
    """Yield mappings as states, in their order, and write the changes back. States are yielded as they are."""
    states = [one if isinstance(one, State) else state_of(one) for one in given]
    before = [dict(state.items()) for state in states]
    try:
        yield states
    finally:
        for mapping, state, old in zip(given, states, before, strict=True):
            if mapping is not state:
                _write_back(mapping, state, old)


def _write_back(mapping: MutableMapping[str, Any], state: State, old: Mapping[str, Any]) -> None:
    for key, value in state.items():
        is_new = key not in old and value is not None
        if is_new or (key in old and old[key] is not value):
            mapping[key] = value
    for key in old.keys() - state.keys():
        mapping.pop(key, None)


def also_takes_mappings(method: Method) -> Method:
    """Let an async method, whose first argument is `state` or `states`, accept any mutable mapping as a state."""
    name = list(inspect.signature(method).parameters)[1]
    is_group = name == "states"

    @functools.wraps(method)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.pop(name)
        first = given[0] if is_group and given else given
        if isinstance(first, State):
            return await method(self, given, *args[1:], **kwargs)
        with as_states(given if is_group else [given]) as states:
            return await method(self, states if is_group else states[0], *args[1:], **kwargs)

    return call  # type: ignore[return-value]  # the same signature
