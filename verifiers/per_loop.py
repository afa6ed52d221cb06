"""`PerLoop`: one value per event loop, for objects that live longer than a loop.

Connections, servers and sandbox back ends belong to the event loop that opened them. Clients and environments do not:
the same one may be used in several calls of `asyncio.run`, or in several threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

Value = TypeVar("Value")


class _Open(NamedTuple, Generic[Value]):
    value: Value
    guard: AsyncGenerator[None]


class PerLoop(Generic[Value]):
    """Open a value in each event loop on first use, and close it before that loop ends.

    A value is closed by `aclose()`, when this object is garbage-collected, or at the end of the loop, whichever comes
    first. The end of the loop closes it after all other tasks of the loop have finished.
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
