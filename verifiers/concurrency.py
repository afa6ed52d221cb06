"""Helpers for asynchronous code: one value per event loop, coroutines from synchronous code, and v0's helpers.

Connections, servers and sandbox back ends belong to the event loop that opened them. Clients and environments do not:
one client may be used in several calls of `asyncio.run`, or in several threads. `PerLoop` connects the two.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

Value = TypeVar("Value")


class _Open(NamedTuple, Generic[Value]):
    value: Value
    guard: AsyncGenerator[None]


class PerLoop(Generic[Value]):
    """Open a value in each event loop on first use, and close it before that loop ends.

    The first of three events closes a value: `aclose()`, the garbage collection of this object, or the end of the loop.
    The end of the loop closes it after all other tasks of the loop have finished.
    """

    def __init__(
        self, open_value: Callable[[], Value], close: Callable[[Value], Awaitable[object]]
    ) -> None:
        self._open_value = open_value
        self._close = close
        self._in_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Value]] = (
            WeakKeyDictionary()
        )

    def here(self) -> Value:
        """Return the value of the running event loop."""
        loop = asyncio.get_running_loop()
        opened = self._in_loop.get(loop)
        if opened is None:
            for ended in [known for known in self._in_loop if known.is_closed()]:
                del self._in_loop[ended]  # the loop ended without finishing its generators
            value = self._open_value()
            opened = self._in_loop[loop] = _Open(value, _guard(value, self._close, self._in_loop))
            _start(opened.guard)
        return opened.value

    async def aclose(self) -> None:
        """Close the values of all loops. The values of loops that have ended were closed with them."""
        running = asyncio.get_running_loop()
        for loop, opened in list(self._in_loop.items()):
            if loop is running:
                await opened.guard.aclose()
            elif loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(opened.guard.aclose(), loop)
                await asyncio.wrap_future(closing)

    async def aclose_here(self) -> None:
        """Close the value of the running event loop; the next call of `here` opens a new one."""
        opened = self._in_loop.get(asyncio.get_running_loop())
        if opened is not None:
            await opened.guard.aclose()


async def _guard(
    value: Value,
    close: Callable[[Value], Awaitable[object]],
    in_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open[Value]],
) -> AsyncGenerator[None]:
    # An event loop that ends, by `asyncio.run` or otherwise, finishes its asynchronous generators after all its tasks.
    # It also finishes a generator that is garbage-collected. No other hook closes a value before its loop ends.
    loop = asyncio.get_running_loop()
    try:
        yield
    finally:
        in_loop.pop(loop, None)
        await close(value)


def _start(guard: AsyncGenerator[None]) -> None:
    # Run the generator up to its `yield`, which awaits nothing, without awaiting: `here` is a plain function.
    with suppress(StopIteration):
        guard.__anext__().send(None)


Value = TypeVar("Value")


class NullContext:
    """A context manager that does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class NullAsyncContext:
    """An asynchronous context manager that does nothing: a semaphore without a limit."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


async def maybe_await(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `func(*args, **kwargs)` and await the result if it is awaitable."""
    value = func(*args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def maybe_call_with_named_args(func: Callable[..., Any], **objects: Any) -> Any:
    """Call `func` with the objects that it names (all, if it takes `**kwargs`), and await the result if it is
    awaitable.
    """
    parameters = inspect.signature(func).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        objects = {name: value for name, value in objects.items() if name in parameters}
    return await maybe_await(func, **objects)


async def maybe_semaphore(
    limit: int | None = None,
) -> AbstractAsyncContextManager[Any]:
    """Return a semaphore of `limit` slots; for None, 0 and less, a context manager without a limit."""
    return asyncio.Semaphore(limit) if limit is not None and limit > 0 else NullAsyncContext()


async def with_sem(
    sem: AbstractAsyncContextManager[Any], coro: Coroutine[Any, Any, Value]
) -> Value:
    """Return the coroutine's value, awaited while holding the semaphore."""
    try:
        async with sem:
            return await coro
    finally:
        coro.close()  # the coroutine never started if waiting for the semaphore was cancelled


@dataclass(frozen=True)
class EventLoopLagStats:
    """Lag of the event loop, in seconds."""

    min: float = 0.0
    mean: float = 0.0
    median: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0
    n: int = 0


class EventLoopLagMonitor:
    """Measures how late the event loop wakes a sleeper: `run()` in a task, `get_lag_stats()` at any time."""

    def __init__(self, measure_interval: float = 0.1, max_measurements: int = 1000) -> None:
        self.measure_interval = measure_interval
        self.lags: deque[float] = deque(maxlen=max_measurements)

    async def measure_lag(self) -> float:
        """Return one measurement, in seconds."""
        due = time.perf_counter() + self.measure_interval
        await asyncio.sleep(self.measure_interval)
        lag_s = max(0.0, time.perf_counter() - due)
        self.lags.append(lag_s)
        return lag_s

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await self.measure_lag()

    def run_in_background(self) -> asyncio.Task[None]:
        """Run `run` as a task of the running loop. Cancel the task to end it."""
        return asyncio.create_task(self.run())

    def get_lag_stats(self) -> EventLoopLagStats:
        """Return statistics of the latest measurements."""
        ordered = sorted(self.lags)
        if not ordered:
            return EventLoopLagStats()

        def quantile(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

        mean = sum(ordered) / len(ordered)
        return EventLoopLagStats(
            ordered[0],
            mean,
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
            ordered[-1],
            len(ordered),
        )

    def reset(self) -> None:
        """Discard all measurements."""
        self.lags.clear()


__all__ = [
    "EventLoopLagMonitor",
    "EventLoopLagStats",
    "NullAsyncContext",
    "NullContext",
    "maybe_await",
    "maybe_call_with_named_args",
    "maybe_semaphore",
    "with_sem",
]


def run_sync(make: Callable[[], Awaitable[Value]]) -> Value:
    """Run a coroutine from code that is not async; in a separate thread if a loop is running in this thread.

    The end of its loop closes the connections and sandbox back ends that the coroutine opened.
    """

    running: list[tuple[asyncio.AbstractEventLoop, Any]] = []

    async def run() -> Value:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await make()

    if not _in_running_loop():
        return asyncio.run(run())
    results: list[Any] = []
    context = contextvars.copy_context()

    def in_thread() -> None:
        try:
            results.append((context.run(asyncio.run, run()), None))
        except BaseException as error:  # noqa: BLE001 - handed to the calling thread
            results.append((None, error))
        finished.set()

    # Not `thread.join()`: after one interrupt, it treats the thread as ended (CPython before 3.13).
    finished = threading.Event()
    thread = threading.Thread(target=in_thread, name="run-sync")
    try:
        thread.start()
        finished.wait()
    except BaseException:  # Ctrl-C in a notebook: the caller no longer waits for the run
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)
        finished.wait()
        raise
    value, error = results[0]
    if error is not None:
        raise error
    return value


def _in_running_loop() -> bool:
    # A separate function: otherwise the RuntimeError would be in the chain of every error raised in the `except` block.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
