"""Run a whole rollout again after an infrastructure error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from verifiers.errors import RETRYABLE, error_chain

Value = TypeVar("Value")


def is_retryable(error: object, retryable: tuple[type[Exception], ...] = RETRYABLE) -> bool:
    """Whether the error, or one of its causes, is an infrastructure error that may pass."""
    return isinstance(error, BaseException) and any(
        isinstance(link, retryable) for link in error_chain(error)
    )


def backoff_s(attempt: int, *, initial_s: float = 1.0, longest_s: float = 60.0) -> float:
    """Return the seconds to wait before attempt `attempt` (1 is the first retry): exponential backoff with full jitter.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return random.uniform(0.0, min(longest_s, initial_s * 2.0 ** (attempt - 1)))


async def with_retries(
    run: Callable[[], Awaitable[Value]],
    error_of: Callable[[Value], object],
    max_retries: int,
    *,
    initial_s: float = 1.0,
    longest_s: float = 60.0,
    on_retry: Callable[[], None] | None = None,
) -> Value:
    """Call `run()` again while its value carries a retryable error and attempts are left. Return the last value."""
    for attempt in range(1, max_retries + 1):
        value = await run()
        if not is_retryable(error_of(value)):
            return value
        if on_retry is not None:
            on_retry()
        await asyncio.sleep(backoff_s(attempt, initial_s=initial_s, longest_s=longest_s))
    return await run()


def maybe_retry(
    func: Callable[..., Awaitable[Any]],
    max_retries: int = 0,
    initial: float = 1.0,
    max_wait: float = 60.0,
    error_types: tuple[type[Exception], ...] = RETRYABLE,
) -> Callable[..., Awaitable[Any]]:
    """v0's wrapper: call again when `func` raises one of `error_types`, or returns states that carry one."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        for attempt in range(1, max_retries + 1):
            try:
                value = await func(*args, **kwargs)
            except error_types:
                pass
            else:
                states = value if isinstance(value, list) else [value]
                found = [s.get("error") for s in states if isinstance(s, dict)]
                if not any(is_retryable(error, error_types) for error in found):
                    return value
            await asyncio.sleep(backoff_s(attempt, initial_s=initial, longest_s=max_wait))
        return await func(*args, **kwargs)

    return call
