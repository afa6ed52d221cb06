"""From `State` to `RolloutOutput`, and from `RolloutOutput` to one line of `results.jsonl` and back.

Every line is strict JSON. NaN and infinities, which JSON does not have, become null. Types that JSON does not have are
converted here and nowhere else: numpy scalars and arrays, dates, paths, sets, bytes, dataclasses, pydantic models.
A value of any other type is saved as its `repr`, with a warning that names its key, so that one such value does not
cost the rollout.
"""

from __future__ import annotations

import base64
import json
import logging
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

from verifiers.errors import error_info
from verifiers.messages import sanitize_tool_calls, serialize_message_for_output
from verifiers.records import Record
from verifiers.state import (
    LIVE_KEYS,
    RolloutTiming,
    State,
    StateUsageTracker,
    TimeSpan,
    TimeSpans,
)
from verifiers.types import RolloutOutput, TokenUsage

logger = logging.getLogger(__name__)

MAX_REPR_CHARACTERS = 2000
"""Maximum length of the `repr` that is saved for a value of an unknown type."""

MAX_DEPTH = 200
"""Maximum nesting. A deeper value, or a value that contains itself, is saved as its `repr`."""

# With PASSTHROUGH_SUBCLASS, orjson passes every dict subclass to `_Converter`, which drops the None fields of records.
_FAST = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_APPEND_NEWLINE
_LENIENT = _FAST | orjson.OPT_NON_STR_KEYS


def encode_line(output: Mapping[str, Any]) -> bytes:
    """Return one line of JSON with its line break. No value makes it fail: see the module."""
    converter = _Converter()
    line = _encode(output, converter)
    if converter.unknown:
        _warn(output, converter.unknown)
    return line


def _encode(value: Any, converter: _Converter) -> bytes:
    for options in (_FAST, _LENIENT):
        try:
            return orjson.dumps(value, converter, options)
        except (
            TypeError
        ):  # keys that are not text; integers beyond 64 bits; lone surrogates; deep nesting
            converter.unknown.clear()
    # The standard library writes large integers exactly and lone surrogates as escapes.
    return json.dumps(_plain(value, converter, 0)).encode() + b"\n"


def decode_line(line: bytes) -> RolloutOutput:
    """Return the rollout of one line, also of a line with NaN, as 0.1.x wrote them.

    Raises ValueError if the line is not a JSON object.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, found {type(fields).__name__}")
    return RolloutOutput(fields)


def encode_document(value: Mapping[str, Any]) -> bytes:
    """Return an indented JSON document, for files that people read; converts values as `encode_line` does."""
    return (
        json.dumps(orjson.loads(encode_line(value)), indent=2, ensure_ascii=False).encode() + b"\n"
    )


def encode_value(value: Any) -> bytes:
    """Return one line of JSON of any value; converts values as `encode_line` does, without warnings."""
    return _encode(value, _Converter())


def jsonable(value: Any) -> Any:
    """Return the value after a round trip through JSON: dict, list, str, int, float, bool and None only."""
    return json.loads(encode_value(value))


def is_jsonable(value: Any) -> bool:
    """Whether `value` is saved as data rather than as a `repr`."""
    converter = _Converter()
    _encode(value, converter)
    return not converter.unknown


class _Converter:
    """The `default` of orjson; records the values that it saved as their `repr`."""

    __slots__ = ("unknown",)

    def __init__(self) -> None:
        self.unknown: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value, Record):
                return {key: item for key, item in value.items() if item is not None}
            return dict(value)
        for kinds, convert in _CONVERSIONS:
            if isinstance(value, kinds):
                return convert(value)
        dump = getattr(value, "model_dump", None)
        if callable(dump) and not isinstance(value, type):
            return dump(exclude_none=True)
        to_list = getattr(value, "tolist", None)
        if callable(to_list) and not isinstance(value, type):
            return to_list()  # numpy kinds that orjson refuses, tensors
        if isinstance(value, BaseException):
            return repr(value)
        self.unknown.append(value)
        return safe_repr(value)


def _from_set(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def _from_bytes(value: bytes | bytearray | memoryview) -> str:
    raw = bytes(value)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "data:;base64," + base64.b64encode(raw).decode()


_CONVERSIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, lambda value: value.value),
    (str, str.__str__),
    (bool, bool),
    (int, int.__int__),
    (float, float.__float__),
    (Decimal, float),
    (PurePath, str),
    ((set, frozenset), _from_set),
    ((bytes, bytearray, memoryview), _from_bytes),
    (timedelta, timedelta.total_seconds),
    (array, array.tolist),
    (Mapping, dict),
    (Sequence, list),
)


def safe_repr(value: Any) -> str:
    """Return `repr(value)`, shortened. Never raises, although an author's `__repr__` may."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # any author code may be behind it
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= MAX_REPR_CHARACTERS else text[:MAX_REPR_CHARACTERS] + "…"


def _plain(value: Any, converter: _Converter, depth: int) -> Any:
    """Return `value` made of JSON types only. The slow path, for values that orjson refuses."""
    if value is None or isinstance(value, bool):
        return value
    kind = type(value)
    if kind is str or kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        converter.unknown.append(value)
        return safe_repr(value)
    if kind is dict:
        return {_key(key): _plain(item, converter, depth + 1) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_plain(item, converter, depth + 1) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return _plain(fields, converter, depth + 1)
    return _plain(converter(value), converter, depth + 1)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(key) if isinstance(key, int | float) else safe_repr(key)


def _warn(output: Mapping[str, Any], unknown: list[Any]) -> None:
    """Log the keys whose values were saved as their `repr`."""
    identities = {id(value) for value in unknown}
    places = sorted(
        {place for key in output for place in _places(output[key], identities, str(key), 0)}
    )
    kinds = sorted({type(value).__name__ for value in unknown})
    logger.warning(
        "Example %s: JSON has no form for the values of type %s at %s; their repr was saved. "
        "Store plain values, or leave the key out of state_columns.",
        output.get("example_id"),
        ", ".join(kinds),
        ", ".join(places) or "(inside another object)",
    )


def _places(value: Any, identities: set[int], path: str, depth: int) -> list[str]:
    if id(value) in identities:
        return [path]
    if depth > 8:  # enough to be helpful, and a limit for values that contain themselves
        return []
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return []
    return [inner for where, item in items for inner in _places(item, identities, where, depth + 1)]


_of = (
    dict.get
)  # `State.get` resolves views; the library's own keys are plain keys, and this path is hot


def output_from_state(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """Return the value of one rollout that is returned and saved.

    `state_columns` are further keys of the state to keep; a key that the state does not have gives None. A reward that
    was never computed is 0.0. Metrics are under `metrics` and, as in 0.1.14, again top-level keys, unless a key of
    that name already exists.
    """
    error, reward, metrics = state.error, state.reward, state.metrics
    output = RolloutOutput(
        example_id=_of(state, "example_id", 0),
        prompt=_saved_messages(state.prompt),
        completion=_saved_messages(state.completion),
    )
    for key in ("answer", "info", "task"):
        if value := _of(state, key):
            output[key] = value
    output["reward"] = 0.0 if reward is None else reward
    output["error"] = None if error is None else saved_error(error)
    output["timing"] = saved_timing(state.timing)
    output["is_completed"] = bool(state.is_completed)
    output["is_truncated"] = bool(state.is_truncated)
    output["stop_condition"] = state.stop_condition
    output["metrics"] = {} if metrics is None else dict(metrics)
    output["tool_defs"] = state.tool_defs
    if (usage := token_usage(state)) is not None:
        output["token_usage"] = usage
    if (saved := output["error"]) is not None:  # 0.1.14 repeats the two chains at the top level
        output["error_chain"] = saved.get("error_chain_repr")
        output["long_error_chain"] = saved.get("error_chain_str")
    output["errors"] = list(state.reward_errors or ())
    for key in ("rollout_index", "input_key", "judge_response", "score_details"):
        if (value := _of(state, key)) is not None:
            output[key] = value
    own = frozenset(output)
    if metrics:
        for name, value in metrics.items():
            output.setdefault(name, value)
    for key in state_columns or ():
        if key not in own:
            output[key] = _column(state, key)
    return output


def _column(state: State, key: str) -> Any:
    if key in LIVE_KEYS:
        return None
    # `state.get("turn")` is for authors who count turns themselves, and must not return the library's own count.
    return state[key] if key == "turn" else state.get(key)


def _saved_messages(messages: Any) -> Any:
    """Return messages in the form of 0.1.14: tool calls as JSON text; the `content` of such a message is "" if missing.

    Text (of completion environments) and None stay unchanged.
    """
    if not isinstance(messages, list | tuple):
        return messages
    plain = [m if isinstance(m, dict) else _message_fields(m) for m in messages]
    for index, message in enumerate(plain):
        if message.get("tool_calls"):
            [changed] = sanitize_tool_calls([message])
            plain[index] = {key: value for key, value in changed.items() if value is not None}
        if isinstance(message.get("content"), list):
            plain[index] = serialize_message_for_output(plain[index])
    return plain


def _message_fields(message: Any) -> dict[str, Any]:
    if hasattr(
        message, "model_dump"
    ):  # an OpenAI response message that an author appended unchanged
        return message.model_dump(exclude_none=True)
    if isinstance(message, Mapping):
        return dict(message)
    return {"role": "text", "content": str(message)}


def saved_error(error: Any) -> Any:
    """Return the `ErrorInfo` of an exception; an error that is already data (of a resumed or remote rollout) stays
    unchanged.
    """
    if isinstance(error, BaseException):
        return error_info(error)
    if isinstance(error, Mapping):
        return dict(error)
    text = str(error)
    return {"error": text, "error_chain_repr": text, "error_chain_str": text}


def saved_timing(timing: Any) -> dict[str, Any]:
    """Return timing as a plain dict with the derived values `duration`, `total` and `overhead`."""
    if timing is None:
        return {}
    if not isinstance(timing, RolloutTiming):
        return timing.model_dump() if hasattr(timing, "model_dump") else dict(timing)
    setup, generation, scoring = timing.setup, timing.generation, timing.scoring
    model, env = _saved_spans(timing.model), _saved_spans(timing.env)
    start_time = timing.start_time
    saved_setup, saved_scoring = _saved_span(setup), _saved_span(scoring)
    end = scoring.end or generation.end
    total = max(0.0, end - start_time) if end else 0.0
    busy = saved_setup["duration"] + saved_scoring["duration"] + model["duration"] + env["duration"]
    return {
        "start_time": start_time,
        "setup": saved_setup,
        "generation": _saved_span(generation),
        "scoring": saved_scoring,
        "model": model,
        "env": env,
        "total": total,
        "overhead": max(0.0, total - busy),
    }


def _saved_span(span: TimeSpan) -> dict[str, float]:
    start, end = span.start, span.end
    return {"start": start, "end": end, "duration": max(0.0, end - start) if end else 0.0}


def _saved_spans(spans: TimeSpans) -> dict[str, Any]:
    saved = [_saved_span(span) for span in spans.spans]
    return {"spans": saved, "duration": sum(span["duration"] for span in saved) if saved else 0.0}


def token_usage(state: State) -> TokenUsage | None:
    """Return the tokens of a rollout, or None if no model call reported any.

    The totals come from the environment's counters (`token_usage`, the usage tracker), else from the responses of the
    trajectory. `final_*` describe the last context: `final_output_tokens` counts all tokens that the model generated,
    `final_input_tokens` the other tokens of the last call, so tokens that turns share count once.
    """
    trajectory = state.trajectory
    counted = _of(state, "token_usage")
    if counted is None:
        for tracker in (state.usage_tracker, state.usage):
            counted = tracker.snapshot() if isinstance(tracker, StateUsageTracker) else tracker
            if counted:
                break
    if not counted and not trajectory:
        return None
    calls = [tokens for step in trajectory or () if (tokens := _step_tokens(step)) is not None]
    if not counted:
        if not calls:
            return None
        totals = (sum(call[0] for call in calls), sum(call[1] for call in calls))
    else:
        totals = (counted["input_tokens"], counted["output_tokens"])
    usage: TokenUsage = {"input_tokens": float(totals[0]), "output_tokens": float(totals[1])}
    if trajectory:
        usage.update(_context_tokens(calls))  # type: ignore[typeddict-item]  # the two `final_*` keys
    return usage


def context_tokens(trajectory: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return `final_output_tokens` and `final_input_tokens` of a trajectory; see `token_usage`."""
    return _context_tokens(
        [tokens for step in trajectory if (tokens := _step_tokens(step)) is not None]
    )


def _context_tokens(calls: list[tuple[int, int]]) -> dict[str, int]:
    written = sum(output for _, output in calls)
    last = sum(calls[-1]) if calls else 0
    return {"final_output_tokens": written, "final_input_tokens": max(0, last - written)}


def _step_tokens(step: Mapping[str, Any]) -> tuple[int, int] | None:
    response = step.get("response")
    return None if response is None else reported_tokens(response)


def reported_tokens(response: Any) -> tuple[int, int] | None:
    """Return the (prompt tokens, completion tokens) that a response reports, or None."""
    usage = (
        response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    )
    if usage is None:
        return None
    if isinstance(usage, dict):
        return usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return getattr(usage, "prompt_tokens", 0) or 0, getattr(usage, "completion_tokens", 0) or 0


_OWN = frozenset(name for name, key in vars(State).items() if hasattr(key, "__set_name__"))
"""The library's own keys, which every state has."""
NEAR = 0.75
"""Minimum similarity of two names, from 0 to 1, to report one as a typo of the other."""


class StateColumns:
    """The requested state columns that no rollout has had so far.

    A misspelt name would give a column of nulls without any report. A column that only some rollouts have is right, and
    null in the others, so the run goes on. A warning follows the first rollout if a similar name exists (a typo,
    reported early); another at the end names every column that no rollout had.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self.missing = [name for name in dict.fromkeys(wanted) if name not in _OWN]
        self._known: dict[str, None] = {}
        self._told: set[str] = set()

    def saw(
        self, outputs: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Look for the columns in finished rollouts. Rollouts of another process come without `states`: null counts as
        absent.

        Failed rollouts are skipped, because they may have ended before their environment wrote anything.
        """
        if not self.missing:
            return
        is_first = not self._known
        for index, output in enumerate(outputs):
            if output.get("error") is not None:
                continue
            present = {name: None for name, value in output.items() if value is not None}
            if states is not None:
                present |= dict.fromkeys(states[index])
            self._known |= present
            self.missing = [name for name in self.missing if name not in present]
        if is_first and (slips := [name for name in self.missing if self._near(name)]):
            self._told.update(slips)
            logger.warning("The first rollout has no %s", self._described(slips))

    def report(self) -> None:
        """Warn about columns that no rollout had, except those that were reported before."""
        untold = [name for name in self.missing if name not in self._told]
        if untold and self._known:
            logger.warning(
                "No rollout had a %s Saved as null. Existing keys: %s.",
                self._described(untold),
                ", ".join(sorted(self._candidates())),
            )

    def _candidates(self) -> Collection[str]:
        return {*self._known, *_OWN} - LIVE_KEYS

    def _near(self, name: str) -> str | None:
        matches = get_close_matches(name, self._candidates(), n=1, cutoff=NEAR)
        return matches[0] if matches else None

    def _described(self, names: Sequence[str]) -> str:
        """`state column 'scroe' (did you mean 'score'?), 'x'.`"""
        shown = [
            f"{name!r} (did you mean {near!r}?)" if (near := self._near(name)) else repr(name)
            for name in names
        ]
        return f"state column {', '.join(shown)}."
