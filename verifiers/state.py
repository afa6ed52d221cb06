"""`State`: all data of one rollout as one flat dict, and the timing and token counts in it.

The fields of the dataset row are ordinary keys; `state["input"]` is a view of them that writes through. The
library's own keys are declared once, as typed properties, and the library uses only those. All other keys belong to
the author. Timing objects are small, have slots, and are readable as mappings.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from math import isfinite
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NotRequired, Self, TypedDict, TypeVar, overload

from verifiers.records import Messages, Response, SamplingArgs, Tool


class TrajectoryStepTokens(TypedDict):
    """Token ids of one turn; shapes as in `ResponseTokens`."""

    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    overlong_prompt: bool
    is_truncated: bool
    routed_experts: NotRequired[list[list[list[int]]] | None]


class TrajectoryStep(TypedDict):
    """One turn: the prompt, and the response of the model."""

    prompt: Messages
    completion: Messages
    response: Response
    tokens: TrajectoryStepTokens | None
    reward: float | None
    advantage: float | None
    is_truncated: bool
    trajectory_id: str
    extras: dict[str, Any]


class TokenUsage(TypedDict):
    """Token counts of a rollout. `final_*`: of the last context, where tokens shared by turns count once."""

    input_tokens: float
    output_tokens: float
    final_input_tokens: NotRequired[float]
    final_output_tokens: NotRequired[float]


class _Fields(MutableMapping[str, Any]):
    """Slots that are readable as a mapping. A run has too many timing objects for dicts."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"{type(self).__name__} fields cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={self[n]!r}' for n in self._names)})"

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dict of the fields."""
        return {
            name: value.model_dump() if isinstance(value, _Fields) else _dumped(value)
            for name, value in self.items()
        }


def _dumped(value: Any) -> Any:
    return [item.model_dump() for item in value] if isinstance(value, list) else value


class TimeSpan(_Fields):
    """From `start` to `end`, in seconds since the epoch; `duration` is 0 until the end is set."""

    __slots__ = ("end", "start")
    _names = ("start", "end", "duration")

    def __init__(self, start: float = 0.0, end: float = 0.0) -> None:
        self.start = start
        self.end = end

    @property
    def duration(self) -> float:
        """Seconds from start to end, never negative."""
        return max(0.0, self.end - self.start) if self.end else 0.0


class TimeSpans(_Fields):
    """Spans of repeated work, for example of every model call; `duration` is their sum in seconds."""

    __slots__ = ("spans",)
    _names = ("spans", "duration")

    def __init__(self, spans: list[TimeSpan] | None = None) -> None:
        self.spans = spans if spans is not None else []

    @property
    def duration(self) -> float:
        """Sum of the spans, in seconds."""
        return sum(span.duration for span in self.spans)


class RolloutTiming(_Fields):
    """Durations of the phases of a rollout, in seconds. The `*_ms` names of generation (a) return milliseconds."""

    __slots__ = ("env", "generation", "model", "scoring", "setup", "start_time")
    _names = ("start_time", "setup", "generation", "scoring", "model", "env", "total", "overhead")

    def __init__(
        self,
        start_time: float | None = None,
        setup: TimeSpan | None = None,
        generation: TimeSpan | None = None,
        scoring: TimeSpan | None = None,
        model: TimeSpans | None = None,
        env: TimeSpans | None = None,
        *,
        generation_ms: float | None = None,
        scoring_ms: float | None = None,
        total_ms: float | None = None,
    ) -> None:
        self.start_time = time.time() if start_time is None else start_time
        self.setup = setup or TimeSpan()
        self.generation = generation or TimeSpan()
        self.scoring = scoring or TimeSpan()
        self.model = model or TimeSpans()
        self.env = env or TimeSpans()
        if (generation_ms, scoring_ms, total_ms) != (None, None, None):
            self._take_ms(generation_ms or 0.0, scoring_ms or 0.0, total_ms)

    def _take_ms(self, generation_ms: float, scoring_ms: float, total_ms: float | None) -> None:
        """Place scoring directly after generation, so that both durations and the total keep the given values."""
        total_s = (generation_ms + scoring_ms if total_ms is None else total_ms) / 1000
        end = self.start_time + total_s
        scored_from = end - scoring_ms / 1000
        self.generation = TimeSpan(scored_from - generation_ms / 1000, scored_from)
        self.scoring = TimeSpan(scored_from, end)

    @property
    def generation_ms(self) -> float:
        """Duration of generation, in milliseconds."""
        return 1000 * self.generation.duration

    @property
    def scoring_ms(self) -> float:
        """Duration of scoring, in milliseconds."""
        return 1000 * self.scoring.duration

    @property
    def total_ms(self) -> float:
        """`total`, in milliseconds."""
        return 1000 * self.total

    @property
    def total(self) -> float:
        """Seconds from the start to the end of scoring, or of generation if nothing was scored."""
        end = self.scoring.end or self.generation.end
        return max(0.0, end - self.start_time) if end else 0.0

    @property
    def overhead(self) -> float:
        """Seconds outside of model calls, the environment, setup and scoring."""
        known = self.setup.duration + self.scoring.duration
        return max(0.0, self.total - known - self.model.duration - self.env.duration)


def extract_usage_tokens(response: Any) -> tuple[int, int]:
    """Return the (prompt tokens, completion tokens) of a response of any API; a missing value counts 0.

    `input_tokens` and `output_tokens` are used if the names of the chat API hold no tokens.
    """
    usage = (
        response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    )
    if usage is None:
        return 0, 0
    for names in (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        counts = [
            max(
                0, int(_count(usage.get(n) if isinstance(usage, dict) else getattr(usage, n, None)))
            )
            for n in names
        ]
        if any(counts):
            return counts[0], counts[1]
    return 0, 0


def _count(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):  # None, other text
        return 0.0
    return number if isfinite(number) else 0.0


class StateUsageTracker(dict[str, Any]):
    """Token counts of a rollout so far: `state["usage_tracker"]`, and `state["usage"]` unless an author sets that."""

    __slots__ = ("_is_seen",)

    def __init__(self, input_tokens: float = 0.0, output_tokens: float = 0.0) -> None:
        super().__init__(input_tokens=input_tokens, output_tokens=output_tokens)
        self._is_seen = bool(input_tokens or output_tokens)

    @property
    def usage(self) -> Mapping[str, float]:
        """A read-only view of the counts."""
        return MappingProxyType(self)

    def increment(
        self, input_tokens: float = 0, output_tokens: float = 0, *, mark_seen: bool = True
    ) -> None:
        """Add the token counts of a call that the environment made. Raises ValueError for negative counts.

        `mark_seen=False` keeps `snapshot` None until another call is counted.
        """
        added = _count(input_tokens), _count(output_tokens)
        if min(added) < 0:
            raise ValueError(
                f"Token usage increments must be non-negative; got {input_tokens!r} and {output_tokens!r}."
            )
        self["input_tokens"] += added[0]
        self["output_tokens"] += added[1]
        self._is_seen = self._is_seen or mark_seen

    def increment_from_response(self, response: Any) -> None:
        """Add the tokens that a response reports."""
        if getattr(response, "usage", None) is not None:
            self.increment(*extract_usage_tokens(response))

    def snapshot(self) -> TokenUsage | None:
        """Return the counts so far; None if no call was counted."""
        if not self._is_seen:
            return None
        return {"input_tokens": self["input_tokens"], "output_tokens": self["output_tokens"]}


Value = TypeVar("Value")

LIVE_KEYS = frozenset({"client", "scope", "usage_tracker"})
"""Keys that hold live objects: never saved, never pickled."""


class _Key(Generic[Value]):
    """A key of the library as a typed attribute."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, state: None, owner: type) -> Self: ...
    @overload
    def __get__(self, state: State, owner: type) -> Value: ...
    def __get__(self, state: State | None, owner: type) -> Any:
        if state is None:
            return self
        return dict.get(state, self.name)

    def __set__(self, state: State, value: Value) -> None:
        dict.__setitem__(state, self.name, value)


class InputView(MutableMapping[str, Any]):
    """The dataset row inside a state: reads and writes go to the state."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, key: str) -> Any:
        if key not in self._state.input_fields:
            raise KeyError(key)
        hidden = self._state.hidden_fields
        return hidden[key] if hidden is not None and key in hidden else self._state[key]

    def __setitem__(self, key: str, value: Any) -> None:
        hidden = self._state.hidden_fields
        if hidden is not None and key in hidden:
            hidden[key] = value
            return
        self._state[key] = value
        if key not in self._state.input_fields:
            self._state.input_fields = (*self._state.input_fields, key)

    def __delitem__(self, key: str) -> None:
        hidden = self._state.hidden_fields
        del (hidden if hidden is not None and key in hidden else self._state)[key]
        self._state.input_fields = tuple(f for f in self._state.input_fields if f != key)

    def __iter__(self) -> Iterator[str]:
        hidden = self._state.hidden_fields or ()
        return (f for f in self._state.input_fields if f in hidden or f in self._state)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def copy(self) -> dict[str, Any]:
        """Return the row as a plain dict."""
        return dict(self)


class State(dict[str, Any]):
    """One rollout: its input, its trajectory, its results, and the author's own keys."""

    __slots__ = ("hidden_fields", "input_fields")

    input_fields: tuple[str, ...]
    """Names of the dataset row's fields."""
    hidden_fields: dict[str, Any] | None
    """Fields of the row whose names are keys of the library; only `state["input"]` shows them."""

    client: _Key[Any] = _Key()
    model: _Key[str] = _Key()
    sampling_args: _Key[SamplingArgs | None] = _Key()
    prompt: _Key[Messages] = _Key()
    completion: _Key[Messages | None] = _Key()
    trajectory: _Key[list[TrajectoryStep]] = _Key()
    trajectory_id: _Key[str] = _Key()
    tool_defs: _Key[list[Tool] | None] = _Key()
    reward: _Key[float | None] = _Key()
    metrics: _Key[dict[str, float] | None] = _Key()
    advantage: _Key[float | None] = _Key()
    reward_errors: _Key[list[dict[str, Any]] | None] = _Key()
    """Errors of reward functions in the scoring of this rollout; `None` if there are none."""
    score_details: _Key[dict[str, dict[str, Any]] | None] = _Key()
    """Reward function → `value`, `answer`, `explanation` and `metadata` of the `Score` that the function returned."""
    error: _Key[BaseException | dict[str, str] | None] = _Key()
    is_completed: _Key[bool] = _Key()
    is_truncated: _Key[bool] = _Key()
    stop_condition: _Key[str | None] = _Key()
    overlong_prompt: _Key[str | None] = _Key()
    """Size of a prompt that did not fit the model's context, and the endpoint's message."""
    final_env_response: _Key[Any] = _Key()
    timing: _Key[RolloutTiming] = _Key()
    usage: _Key[StateUsageTracker] = _Key()
    usage_tracker: _Key[StateUsageTracker | None] = _Key()
    """Counts the tokens of the rollout; an author may write other values into `usage`."""
    timed_out: _Key[bool | None] = _Key()

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        row = dict.pop(self, "input", None)
        self.input_fields = ()
        self.hidden_fields = None
        if row is not None:
            self["input"] = row

    @classmethod
    def for_row(cls, row: Mapping[str, Any]) -> Self:
        """Return a state that holds only the fields of a dataset row."""
        state = cls.__new__(cls)
        state.hidden_fields = None
        state._take_row(row)
        return state

    def begin(self, values: Mapping[str, Any]) -> None:
        """Add the library's own keys to the state of a row; fields of the row with such names are hidden."""
        if same := self.keys() & _OWN_KEYS:
            self._hide(same)
        dict.update(self, values)

    @classmethod
    def for_task(cls, task: Mapping[str, Any]) -> Self:
        """v0's name for `for_row`."""
        return cls.for_row(task)

    def _take_row(self, row: Mapping[str, Any]) -> None:
        dict.update(self, row)
        self.input_fields = tuple(row)
        if dict.__contains__(self, "input"):
            self._hide({"input"})

    def _hide(self, names: Iterable[str]) -> None:
        """Move these fields of the row to the place that only `state["input"]` shows."""
        moved = {name: dict.pop(self, name) for name in names}
        self.hidden_fields = moved if self.hidden_fields is None else self.hidden_fields | moved

    def __missing__(self, key: str) -> Any:
        if key == "input":
            return InputView(self)
        if key == "task":
            return InputView(self)  # a row without a task is its own task, as in generation (b)
        if key == "usage_tracker":
            return self["usage"]
        if key == "oai_tools":
            return self.get("tool_defs")
        if key == "responses":
            return [step["response"] for step in self.get("trajectory") or []]
        if key == "turn":
            return len(self.get("trajectory") or [])
        raise KeyError(key)

    def __setitem__(self, key: str, value: Any) -> None:
        if key != "input":
            dict.__setitem__(self, key, value)
        elif isinstance(value, Mapping):
            self._take_row(value)
        else:
            raise TypeError(
                f"state['input'] is the dataset row, and {value!r:.100} is not a mapping. "
                "Keep the value under another key."
            )

    def update(self, *args: Any, **fields: Any) -> None:
        """Like `dict.update`; a value for `input` replaces the dataset row."""
        new = dict(*args, **fields)
        row = new.pop("input", None)
        dict.update(self, new)
        if row is not None:
            self["input"] = row

    def __ior__(self, other: Any) -> Self:  # type: ignore[override]  # dict's overloads
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Like `dict.setdefault`; `input` always has a value."""
        return self["input"] if key == "input" else dict.setdefault(self, key, default)

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key == "input"

    def get(self, key: str, default: Any = None) -> Any:
        """Like `dict.get`, views included."""
        if dict.__contains__(self, key):
            return dict.__getitem__(self, key)
        if key in ("input", "usage_tracker", "oai_tools", "responses"):
            try:
                return self[key]
            except KeyError:
                return default
        return default

    def copy(self) -> State:
        """Return a shallow copy."""
        copied = State.for_row(self)
        copied.input_fields = self.input_fields
        copied.hidden_fields = None if self.hidden_fields is None else dict(self.hidden_fields)
        return copied

    def saved_items(self, keys: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the values under `keys` (default: all) without live objects."""
        chosen = self if keys is None else keys
        return {k: self[k] for k in chosen if k not in LIVE_KEYS and (k in self or k == "task")}

    def assert_serializable(self) -> None:
        """Raise TypeError with the first key of the author whose value cannot be written as JSON."""
        import json

        for key, value in self.saved_items().items():
            try:
                json.dumps(value, default=lambda item: item.model_dump())
            except (TypeError, ValueError, AttributeError) as error:
                raise TypeError(f"state[{key!r}] is not JSON serializable: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.saved_items(), self.input_fields, self.hidden_fields)


_OWN_KEYS = frozenset(
    [name for name, value in vars(State).items() if isinstance(value, _Key) and name != "prompt"]
    + ["prompt_too_long", "rollout_index", "scope"]
)
"""Keys of the library that no field of the dataset row sets."""


def _restore(
    items: dict[str, Any], input_fields: tuple[str, ...], hidden_fields: dict[str, Any] | None
) -> State:
    state = State.for_row(items)
    state.input_fields = input_fields
    state.hidden_fields = hidden_fields
    return state
