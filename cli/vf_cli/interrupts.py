"""Ctrl-C and SIGTERM while an evaluation runs: once to finish properly, twice to stop at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from verifiers.rubrics.watchdog import watchdog

Result = TypeVar("Result")


async def interruptible(
    work: Callable[[asyncio.Event], Awaitable[Result]], on_first: Callable[[], None]
) -> Result:
    """Await `work(stop)`. The first signal sets `stop` and calls `on_first`, the second cancels the work (and breaks
    off code that holds up the loop), a third ends the process where it is.

    Raises KeyboardInterrupt when the work was cancelled by a signal.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running = asyncio.ensure_future(work(stop))
    signals = 0

    def receive(*_: object) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            loop.call_soon_threadsafe(finish)
        elif signals == 2:
            loop.call_soon_threadsafe(running.cancel)
            if not stop.is_set() and asyncio.current_task(loop) is not None:
                # The loop has not come round since the first: code of a task that never gives way is holding it up,
                # and this handler runs in its midst.
                raise asyncio.CancelledError
        else:
            os._exit(130)

    def finish() -> None:
        stop.set()
        on_first()

    # Handlers of the signal module, not of the loop: they also run while author code holds the loop up.
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {
            number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)
        }
        if hasattr(signal, "SIGURG"):
            watchdog.interrupt_signal(signal.SIGURG)
    try:
        return await running
    except asyncio.CancelledError:
        if signals >= 2:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
