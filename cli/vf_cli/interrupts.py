"""Ctrl-C and SIGTERM while an evaluation runs: once to finish properly, twice to stop at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


async def interruptible(
    work: Callable[[asyncio.Event], Awaitable[Result]], on_first: Callable[[], None]
) -> Result:
    """Await `work(stop)`. The first signal sets `stop` and calls `on_first`, the second cancels the work, a third
    ends the process where it is.

    Raises KeyboardInterrupt when the work was cancelled by a signal.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running = asyncio.ensure_future(work(stop))
    signals = 0

    def receive() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            stop.set()
            on_first()
        elif signals == 2:
            running.cancel()
        else:
            os._exit(130)

    handled = [signal.SIGINT, signal.SIGTERM]
    try:
        for number in handled:
            loop.add_signal_handler(number, receive)
    except (NotImplementedError, RuntimeError):
        handled = []  # not on this platform or not in the main thread: Ctrl-C then ends the run at once
    try:
        return await running
    except asyncio.CancelledError:
        if signals >= 2:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
