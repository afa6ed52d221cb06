"""One reward function, bound once: its name, whether it scores rollouts or groups, and the arguments of its calls."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from verifiers.decorators import marks
from verifiers.errors import RewardArgumentError, RewardError
from verifiers.state import State
from verifiers.types import Score

GROUP_NAMES = frozenset({"states", "prompts", "completions", "answers", "tasks", "infos"})
"""A function with one of these parameters receives all rollouts of an example at once."""


@dataclass(frozen=True, slots=True)
class RewardCall:
    """A reward function with the facts that a call needs."""

    func: Callable[..., Any]
    name: str
    weight: float
    per_group: bool
    wants: tuple[str, ...]
    """Named parameters, those with a default last."""
    required: frozenset[str]
    wants_all: bool
    """Whether the function takes `**kwargs`, and therefore every value that a rollout offers."""
    receiver: str | None = None
    """Name of the parameter that a method is bound to (`self`). A field of the row with this name is not passed."""

    def arguments(
        self, offered: Mapping[str, Any], lookup: Callable[[str], Any] | None = None
    ) -> dict[str, Any]:
        """Return the keyword arguments of one call, from `offered` and then from `lookup(name)` (KeyError: none).

        Raises RewardArgumentError if a required argument is missing.
        """
        found = (
            {key: offered[key] for key in offered if key != self.receiver} if self.wants_all else {}
        )
        for name in self.wants:
            if name in offered:
                found[name] = offered[name]
                continue
            if lookup is not None:
                try:
                    found[name] = lookup(name)
                    continue
                except KeyError:
                    pass
            if name in self.required:
                raise argument_error(self.name, name, offered)
        return found

    def number(self, value: Any) -> float:
        """Return the value as a finite float, or the `Score` itself if its reasons can be saved. Raises RewardError for
        any other value.
        """
        if isinstance(value, Score) and math.isfinite(value):
            return self._checked(value)
        try:
            number = float(value)
        except (TypeError, ValueError):
            missing = " Is a `return` missing?" if value is None else ""
            raise RewardError(
                f"Reward function {self.name!r} returned {value!r:.200}; it must return a number.{missing}"
            ) from None
        if not math.isfinite(number):
            raise RewardError(
                f"Reward function {self.name!r} returned {number}; it must be finite."
            )
        return number

    def _checked(self, score: Score) -> Score:
        """Return the score with answer and metadata as JSON. Raises RewardError with the field and the value."""
        if score.explanation is not None and not isinstance(score.explanation, str):
            raise self._wrong(score, "explanation", "it must be text")
        if score.metadata is not None and not isinstance(score.metadata, Mapping):
            raise self._wrong(score, "metadata", "it must be a dict")
        fields: dict[str, Any] = {"answer": score.answer, "metadata": score.metadata}
        for name, value in fields.items():
            if value is None:
                continue
            try:
                plain = dict(value) if isinstance(value, Mapping) else value
                fields[name] = json.loads(json.dumps(plain, allow_nan=False))
            except (TypeError, ValueError, RecursionError) as error:
                raise self._wrong(score, name, f"it must be JSON ({error})") from None
        return Score(score, explanation=score.explanation, **fields)

    def _wrong(self, score: Score, field: str, rule: str) -> RewardError:
        return RewardError(
            f"Reward function {self.name!r} returned a Score of {float(score):g} with the {field} "
            f"{getattr(score, field)!r:.200}; {rule}."
        )

    def numbers(self, values: Any, count: int) -> list[float]:
        """Return one finite float per rollout of a group. Raises RewardError for any other value."""
        if not isinstance(values, Iterable) or isinstance(values, str | Mapping):
            raise RewardError(
                f"Group reward function {self.name!r} returned {values!r:.200}; "
                f"it must return a list of {count} numbers."
            )
        listed = list(values)
        if len(listed) != count:
            raise RewardError(
                f"Group reward function {self.name!r} returned {len(listed)} numbers for {count} rollouts."
            )
        return [self.number(value) for value in listed]


def argument_error(function: str, name: str, offered: Iterable[str]) -> RewardArgumentError:
    """Return the error of a reward function that names an unknown argument, with the closest name that is offered."""
    offered = sorted(offered)
    near = get_close_matches(name, offered, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    error = RewardArgumentError(
        f"Reward function {function!r} asks for {name!r}; it may ask for {offered}.{hint}"
    )
    error.argument = name
    return error


# --- the values that rollouts offer


def offered_by(state: State, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a reward function may name besides the fields of the dataset row."""
    return {
        "prompt": state.get("prompt"),
        "completion": state.get("completion"),
        "answer": state.get("answer", ""),
        "state": state,
        "task": state["task"] if isinstance(state, State) else state.get("task", ""),
        "info": state.get("info", {}),
        **objects,
    }


def offered_by_group(states: Sequence[State], objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a group reward function may name: lists with one value per rollout, and the objects."""
    each = [offered_by(state, {}) for state in states]
    rows = [state["input"] for state in states]
    fields = {f for state in states for f in state.input_fields if all(f in row for row in rows)}
    for one, row in zip(each, rows, strict=True):
        for field in fields:
            one.setdefault(field, row[field])
    offered: dict[str, Any] = {f"{name}s": [one[name] for one in each] for name in each[0]}
    # A function that is marked for groups may use the singular names for its lists.
    offered |= {name: [one[name] for one in each] for name in each[0] if name not in offered}
    return {**offered, **objects}


_MISSING: Any = object()


def _argument(name: str, state: State, objects: Mapping[str, Any]) -> Any:
    """Return one argument of a reward function. Raises KeyError if the rollout does not offer it."""
    if name in objects:
        return objects[name]
    if name == "state":
        return state
    if state.hidden_fields and name in state.hidden_fields and name not in _OFFERED:
        return state.hidden_fields[name]
    if name in _OFFERED or name in state.input_fields:
        value = dict.get(state, name, _MISSING)
        if value is not _MISSING:
            return value
        if name in _OFFERED:
            return state["task"] if name == "task" else {} if name == "info" else _OFFERED[name]
    raise KeyError(name)


_OFFERED: dict[str, Any] = {
    "answer": "",
    "prompt": None,
    "completion": None,
    "info": None,
    "task": None,
}
"""Values that a rollout offers by name, with the replacement for a missing value (`info`: a new {})."""


def arguments_of(call: RewardCall, state: State, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reward function for one rollout. Raises RewardArgumentError if a required one is
    missing.
    """
    if not call.wants_all:
        try:
            return {name: _argument(name, state, objects) for name in call.wants}
        except KeyError:
            pass  # an optional parameter keeps its default, a required one is reported below
    offered = offered_by(state, objects)
    for field, value in state["input"].items():
        offered.setdefault(field, value)
    return call.arguments(offered)


# --- binding


def is_group_function(func: Callable[..., Any]) -> bool:
    """Whether a function scores a whole group: by its mark, by the names of its parameters, or by `-> list[float]` or
    `-> list[vf.Score]`.
    """
    if marks(func, "reward") or marks(func, "metric"):
        kind = "reward" if marks(func, "reward") else "metric"
        if getattr(func, f"{kind}_stage", "rollout") == "group":
            return True
    signature = _signature(func)
    if GROUP_NAMES & set(signature.parameters):
        return True
    returns = signature.return_annotation
    if isinstance(returns, str):  # `from __future__ import annotations`
        return _LIST_OF_NUMBERS.fullmatch(returns.replace(" ", "")) is not None
    return returns in (list[float], list[Score], list[float | Score], list[Score | float])


_LIST_OF_NUMBERS = re.compile(r"[Ll]ist\[(float|(\w+\.)*Score)(\|(float|(\w+\.)*Score))*\]")


def bind(func: Callable[..., Any], weight: float, taken: Iterable[str] = ()) -> RewardCall:
    """Bind a reward function. If its name is already `taken`, a number is appended."""
    own = function_name(func)
    name, number = own, 2
    used = set(taken)
    while name in used:
        name, number = f"{own}_{number}", number + 1
    parameters = list(_signature(func).parameters.values())
    named = [
        p
        for p in parameters
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    required = frozenset(p.name for p in named if p.default is inspect.Parameter.empty)
    return RewardCall(
        func=func,
        name=name,
        weight=weight,
        per_group=is_group_function(func),
        wants=tuple(sorted((p.name for p in named), key=lambda n: n not in required)),
        required=required,
        wants_all=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters),
        receiver=_receiver(func),
    )


def function_name(func: Callable[..., Any]) -> str:
    """Return the name under which the values of a reward function are reported."""
    inner = getattr(func, "func", func)  # functools.partial
    return getattr(func, "__name__", None) or getattr(inner, "__name__", type(func).__name__)


def _receiver(func: Callable[..., Any]) -> str | None:
    method = func if inspect.ismethod(func) else getattr(func, "__call__", None)  # noqa: B004 - an object that is called
    function = getattr(method, "__func__", None)
    return next(iter(_signature(function).parameters), None) if function is not None else None


def _signature(func: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(func)
    except (ValueError, TypeError):
        return inspect.Signature()
