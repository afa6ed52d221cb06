"""Read the fields of a JSON body by type. Errors name the field and its value."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from verifiers.endpoint.errors import RequestError

SEED_LIMIT = 2**64


def shown(value: Any) -> str:
    """Return a value as shown in an error message, shortened to 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def refuse(name: str, value: Any, expected: str) -> RequestError:
    """Return the error for a field with an invalid value; the caller raises it."""
    return RequestError(f"{name}={shown(value)} is not valid: expected {expected}.", param=name)


class Fields:
    """A JSON object of a request. A field that is null counts as absent."""

    def __init__(self, body: Any, *, within: str = "") -> None:
        if not isinstance(body, dict):
            raise RequestError(
                f"{within or 'The body'} is {shown(body)}, expected a JSON object.",
                param=within or None,
            )
        self.body = body
        self._within = within

    def get(self, name: str) -> Any:
        """Return the value as received; None if absent."""
        return self.body.get(name)

    def label(self, name: str) -> str:
        """Return the name of a field, prefixed with the name of the enclosing object."""
        return f"{self._within}.{name}" if self._within else name

    def check_known(self, known: frozenset[str]) -> None:
        """Refuse unknown fields: a misspelt option must not be ignored silently."""
        unknown = [name for name in self.body if name not in known and self.body[name] is not None]
        if unknown:
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise RequestError(
                f"This server does not support the field {unknown[0]!r}.{hint}", param=unknown[0]
            )

    def check_neutral(self, neutral: dict[str, tuple[Any, ...]]) -> None:
        """Refuse options that this server lacks, unless their value has no effect."""
        for name, accepted in neutral.items():
            value = self.body.get(name)
            if value is not None and value not in accepted:
                allowed = " or ".join(map(repr, accepted)) or "the field to be left out"
                raise RequestError(
                    f"{name}={shown(value)} is not supported by this server: expected {allowed}.",
                    param=name,
                )

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise refuse(self.label(name), value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """Return a string."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, str):
            raise refuse(self.label(name), value, "a string")
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        """Return an integer in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise refuse(self.label(name), value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """Return a finite number in [low, high]."""
        value = self.body.get(name)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not low <= value <= high
        ):
            raise refuse(self.label(name), value, f"a number from {low:g} to {high:g}")
        return float(value)

    def token_ids(self, name: str, vocab_size: int) -> list[int] | None:
        """Return a list of token ids."""
        value = self.body.get(name)
        if value is None:
            return None
        return check_token_ids(self.label(name), value, vocab_size)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """Return a string or a list of at most `most` non-empty strings as a tuple."""
        value = self.body.get(name)
        if value is None:
            return ()
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise refuse(self.label(name), value, "a string or a list of strings")
        if len(items) > most:
            raise refuse(self.label(name), value, f"at most {most} strings")
        if "" in items:
            raise refuse(self.label(name), value, "strings that are not empty")
        return tuple(items)


def check_token_ids(name: str, value: Any, vocab_size: int) -> list[int]:
    """Return `value` if it is a list of token ids. Raise RequestError otherwise."""
    if not isinstance(value, list):
        raise refuse(name, value, "a list of token ids")
    for item in value:
        if type(item) is not int or not 0 <= item < vocab_size:
            raise RequestError(
                f"{name} holds {shown(item)}: expected token ids from 0 to {vocab_size - 1}.",
                param=name,
            )
    return value


def names(*groups: Iterable[str]) -> frozenset[str]:
    """Return all names of several groups."""
    return frozenset(name for group in groups for name in group)
