"""A rollout ↔ one line of `results.jsonl`.

Every line is strict JSON. NaN and infinities, which JSON does not have, become null. What JSON has no type for is
converted here and nowhere else: numpy scalars and arrays, dates, paths, sets, bytes, dataclasses, pydantic models.
A value of any other type is saved as its `repr`, with a warning that names its key: one odd value must not cost the
rollout.
"""

from __future__ import annotations

import base64
import json
import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson

from verifiers.records import Record
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)

MAX_REPR_CHARACTERS = 2000
"""Longest `repr` that is saved for a value of an unknown type."""

MAX_DEPTH = 200
"""Deepest nesting that is saved; what lies deeper, or contains itself, is saved as its `repr`."""

# With PASSTHROUGH_SUBCLASS every dict subclass comes to `_Converter`, which drops the None fields of records.
_FAST = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_APPEND_NEWLINE
_LENIENT = _FAST | orjson.OPT_NON_STR_KEYS


def encode_line(output: Mapping[str, Any]) -> bytes:
    """One line of JSON with its line break. Never fails on a value: see the module."""
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
        ):  # keys that are not text; integers beyond 64 bits; lone surrogates; too deep
            converter.unknown.clear()
    # The standard library writes large integers exactly and lone surrogates as escapes.
    return json.dumps(_plain(value, converter, 0)).encode() + b"\n"


def decode_line(line: bytes) -> RolloutOutput:
    """The rollout of one line. Lines with NaN, as 0.1.x wrote them, are read too.

    Raises ValueError when the line is not a JSON object.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"expected a JSON object, found {type(fields).__name__}")
    return RolloutOutput(fields)


def encode_document(value: Mapping[str, Any]) -> bytes:
    """An indented JSON document, for files people read; same conversions as `encode_line`."""
    return (
        json.dumps(orjson.loads(encode_line(value)), indent=2, ensure_ascii=False).encode() + b"\n"
    )


def jsonable(value: Any) -> Any:
    """The value as JSON would give it back: only dict, list, str, int, float, bool and None."""
    return json.loads(_encode(value, _Converter()))


def is_jsonable(value: Any) -> bool:
    """Whether `value` is saved as data rather than as a `repr`."""
    converter = _Converter()
    _encode(value, converter)
    return not converter.unknown


class _Converter:
    """The `default` of orjson; remembers the values it had to save as their `repr`."""

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
    """`repr(value)`, shortened, and never an exception: an author's `__repr__` may raise."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # any author code may be behind it
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= MAX_REPR_CHARACTERS else text[:MAX_REPR_CHARACTERS] + "…"


def _plain(value: Any, converter: _Converter, depth: int) -> Any:
    """`value` made of JSON types only; the slow path, for what orjson refuses."""
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
    """Name the keys whose values were saved as their `repr`."""
    wanted = {id(value) for value in unknown}
    places = sorted(
        {place for key in output for place in _places(output[key], wanted, str(key), 0)}
    )
    kinds = sorted({type(value).__name__ for value in unknown})
    logger.warning(
        "Example %s: JSON has no form for the values of type %s at %s; their repr was saved. "
        "Store plain values, or leave the key out of state_columns.",
        output.get("example_id"),
        ", ".join(kinds),
        ", ".join(places) or "(inside another object)",
    )


def _places(value: Any, wanted: set[int], place: str, depth: int) -> list[str]:
    if id(value) in wanted:
        return [place]
    if depth > 8:  # enough to be helpful, and an end for values that contain themselves
        return []
    if isinstance(value, Mapping):
        items = [(f"{place}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
    else:
        return []
    return [found for where, item in items for found in _places(item, wanted, where, depth + 1)]
