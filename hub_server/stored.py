"""The check of everything that the hub stores as JSON or text, and of every page that it sends. Pure.

Values that pass can be stored by both databases and read by every client: UTF-8 without lone surrogates, finite
numbers, a bounded depth, a bounded number of values, a bounded size. `encoded` proves this by encoding. Routes call
it inside their transaction, so that a value that cannot be sent is not kept.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any

import orjson

from hub_server.errors import BadRequest, TooLarge
from verifiers.hub.wire import value_count

MAX_DEPTH = 64
"""Maximum nesting of lists and objects. Encoders of common languages fail between 250 and 1,000 levels."""
MAX_VALUES = 100_000
"""Maximum number of commas and brackets in one JSON body. Each may be a value, which takes 10 to 30 times its bytes in
memory.
"""
PAGE_BYTES = 1024**2 - 16 * 1024
"""Maximum size of the rows of a list. With the rest of the answer a page has less than 1 MiB."""

_CUTS = ((500, 50), (200, 10), (60, 5), (15, 3), (15, 1))
"""Numbers of characters of a text and items of a list that remain, tried one after the other."""


def parse(body: bytes, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON body. Raises BadRequest with the cause, TooLarge for too many values."""
    if value_count(body) > max_values:
        raise TooLarge(f"The JSON has more than {max_values} values; send it in smaller parts.")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"The body is not JSON that can be stored: {error}. Numbers must be finite, texts valid Unicode."
        ) from error


def parse_request(body: bytes) -> Any:
    """Return the value like `parse`, and refuse deep nesting and NUL characters, which PostgreSQL cannot store."""
    value = parse(body)
    may_be_deep = body.count(b"[") + body.count(b"{") > MAX_DEPTH
    if may_be_deep or b"\\u0000" in body:
        _check(value)
    return value


def _check(value: Any) -> None:
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str):
            if "\x00" in item:
                raise BadRequest(
                    "A text contains a NUL character (U+0000), which cannot be stored."
                )
        elif isinstance(item, dict | list):
            if depth >= MAX_DEPTH:
                raise BadRequest(f"The JSON is nested more than {MAX_DEPTH} levels deep.")
            inside = [*item, *item.values()] if isinstance(item, dict) else item
            waiting.extend((part, depth + 1) for part in inside)


def encoded(value: Any, what: str, max_bytes: int | None = None) -> bytes:
    """Return the value as JSON. Raises BadRequest if the value has no JSON form, TooLarge above `max_bytes`."""
    try:
        text = orjson.dumps(value)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise BadRequest(f"{what} cannot be written as JSON: {error}.") from error
    if max_bytes is not None and len(text) > max_bytes:
        raise TooLarge(f"{what} has {len(text)} bytes; the maximum is {max_bytes}.")
    return text


def mended(value: Any, depth: int = 0) -> Any:
    """Return the value in a form that can be encoded. Earlier releases stored values without a check."""
    if isinstance(value, str):
        text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text.replace("\x00", "")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 10**300 else None
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        return "(nested too deep)"
    if isinstance(value, list):
        return [mended(item, depth + 1) for item in value]
    return {mended(str(key)): mended(item, depth + 1) for key, item in value.items()}


def fitted(rows: Sequence[dict[str, Any]], free: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of a list, cut so that together they have at most `PAGE_BYTES`. Only fields in `free` are cut.

    Leaving rows out would be worse: a client that continues with the next page would never see them.
    """
    fitting = list(rows)
    for characters, items in _CUTS:
        if len(orjson.dumps(fitting)) <= PAGE_BYTES:
            break
        fitting = [
            {
                key: _cut(item, characters, items) if key in free else item
                for key, item in row.items()
            }
            for row in fitting
        ]
    return fitting


def _cut(value: Any, characters: int, items: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= characters else value[: characters - 1] + "…"
    if isinstance(value, list):
        # An object in a list is short, and its names and digests mean nothing when they are cut.
        return [i if isinstance(i, dict) else _cut(i, characters, items) for i in value[:items]]
    if isinstance(value, dict):
        kept = list(value.items())[:items]
        return {key[:characters]: _cut(item, characters, items) for key, item in kept}
    return value
