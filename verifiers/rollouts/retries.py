"""Retry with exponential backoff: a whole rollout after an infrastructure error, or any call that may pass later."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from verifiers.errors import RETRYABLE, error_chain

Value = TypeVar("Value")


def is_retryable(error: object, retryable: tuple[type[Exception], ...] = RETRYABLE) -> bool:
    """Whether the error, or one of its causes, is an infrastructure error that may pass."""
    return isinstance(error, BaseException) and any(
        isinstance(link, retryable) for link in error_chain(error)
    )


def retry_wait_s(attempt: int, *, initial_s: float = 1.0, longest_s: float = 60.0) -> float:
    """Return the seconds to wait before attempt `attempt` (1 is the first retry): exponential backoff with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return random.uniform(0.0, min(longest_s, initial_s * 2.0 ** (attempt - 1)))


async def with_retries(
    run: Callable[[], Awaitable[Value]],
    error_of: Callable[[Value], object],
    max_retries: int,
    *,
    retryable: tuple[type[Exception], ...] = RETRYABLE,
    raised: tuple[type[Exception], ...] = (),
    initial_s: float = 1.0,
    longest_s: float = 60.0,
    on_retry: Callable[[], None] | None = None,
) -> Value:
    """Call `run()` again while it fails and retries are left. Return the last value, or raise the last exception.

    A call fails if `error_of(value)` is, or is caused by, one of `retryable`, or if it raises one of `raised`.
    """
    for attempt in range(1, max_retries + 1):
        try:
            value = await run()
        except raised:
            pass
        else:
            if not is_retryable(error_of(value), retryable):
                return value
        if on_retry is not None:
            on_retry()
        await asyncio.sleep(retry_wait_s(attempt, initial_s=initial_s, longest_s=longest_s))
    return await run()
