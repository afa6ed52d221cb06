"""Ctrl-C and SIGTERM while an event loop runs: once to finish properly, twice to stop at once (see `guardian`)."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from verifiers.rubrics.watchdog import watchdog
from vf_cli.guardian import OnSignal, guarded

Result = TypeVar("Result")


@contextmanager
def _handled_by(on_signal: OnSignal) -> Iterator[None]:
    with guarded() as guard:
        if guard is None:
            yield
            return
        guard.start_guardian()
        guard.signals = 0  # a signal before has raised KeyboardInterrupt, and something went on
        before, guard.on_signal = guard.on_signal, on_signal
        try:
            yield
        finally:
            guard.on_signal = before


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets. Enter in the event loop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    with _handled_by(lambda _: loop.call_soon_threadsafe(stop.set)):
        yield stop


async def interruptible(
    work: Callable[[asyncio.Event], Awaitable[Result]], on_first: Callable[[], None]
) -> Result:
    """Await `work(stop)`. The first signal sets `stop` and calls `on_first`. The second cancels the work, also while
    code of a task holds the loop.

    Raises KeyboardInterrupt when a signal cancelled the work.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running = asyncio.ensure_future(work(stop))
    is_cancelled = False

    def receive(signals: int) -> None:
        nonlocal is_cancelled
        if signals == 1:
            loop.call_soon_threadsafe(finish)
            return
        is_cancelled = True
        loop.call_soon_threadsafe(running.cancel)
        if not stop.is_set() and asyncio.current_task(loop) is not None:
            # The loop has not come round since the first signal: a task that never gives way holds the loop, and this
            # handler runs within that task.
            raise asyncio.CancelledError

    def finish() -> None:
        stop.set()
        on_first()

    with _handled_by(receive):
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGURG"):
            watchdog.interrupt_signal(signal.SIGURG)
        try:
            return await running
        except asyncio.CancelledError:
            if is_cancelled:
                raise KeyboardInterrupt from None
            raise
