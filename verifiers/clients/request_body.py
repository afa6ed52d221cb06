"""A request as the bytes that are sent, and what is wrong with one that cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from verifiers.errors import ModelError


def encoded(payload: Mapping[str, Any]) -> bytes:
    """A request body; raises ModelError naming what cannot be written as JSON."""
    try:
        body = orjson.dumps(
            payload, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        )
        # orjson gives even a short text in a block of 4 KiB, which every request in flight would keep. A copy fits.
        return bytes(memoryview(body))
    except TypeError as error:
        # orjson's word for it; a payload that contains itself, say, is not walked through.
        if "surrogates" in str(error) and (broken := lone_surrogate(payload)) is not None:
            raise ModelError(f"The request is not valid Unicode: {broken}") from error
        raise ModelError(
            f"The request cannot be written as JSON: {error}. Keys: {sorted(payload)}"
        ) from error


def lone_surrogate(payload: Mapping[str, Any]) -> str | None:
    """Where a request has half of a surrogate pair, which no UTF-8 can hold; None when it has none."""
    for place, text in _texts(payload, ""):
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return (
                    f"lone surrogate U+{ord(character):04X} at character {position} of {place}. Decode its source with "
                    "errors='replace', or make text of it with text.encode('utf-16', 'surrogatepass').decode('utf-16', "
                    "'replace')."
                )
    return None


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON-like value, keys included, with where it is: `messages[0].content`."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key)
            yield f"a key of {place or 'the request'}", name
            yield from _texts(item, f"{place}.{name}" if place else name)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{place}[{index}]")
    elif hasattr(value, "model_dump"):
        yield from _texts(value.model_dump(exclude_none=True), place)


def _plain(value: Any) -> Any:
    """JSON for what is not plain: pydantic objects, tuples inside, sets."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable: {value!r:.100}")
