"""When to try a request again, and after how long: values in, a decision out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0
"""An endpoint that asks for more is not limiting a rate but out of quota: the request fails and says so."""

MOST_UNCERTAIN_RETRIES = 1
"""Repeats of a request the endpoint may have worked on (time limit, connection lost after sending): a model call is
costly and not idempotent, so it is repeated once, under the same `Idempotency-Key`."""


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Seconds the endpoint asks us to wait: `retry-after-ms`, or `Retry-After` in seconds or as an HTTP date.

    `now_s`: seconds since the epoch. None when it does not say, or says nonsense.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and (wait := _number(milliseconds)) is not None:
        return max(0.0, wait / 1000)
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    if (wait := _number(value)) is not None:
        return max(0.0, wait)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None


def backoff_s(attempt: int, draw: float | None = None) -> float:
    """Wait before attempt `attempt + 1`: exponential with full jitter.

    `draw` in [0, 1) replaces the random draw. Source: "full jitter" of Amazon's architecture blog,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(attempt, 16))
    return ceiling * (random.random() if draw is None else draw)


def wait_s(attempt: int, asked_s: float | None, draw: float | None = None) -> float:
    """Wait before the next attempt: what the endpoint asks, spread a little so that not all come back at once."""
    if asked_s is None:
        return backoff_s(attempt, draw)
    return asked_s + min(1.0, 0.1 * asked_s) * (random.random() if draw is None else draw)
