"""A back end for each event loop that asks for one: back ends belong to one loop, environments live through several."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from verifiers.sandboxes.open import BackendName, backend_by_name
from verifiers.sandboxes.sandbox import SandboxBackend

_open_in: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakSet[_Kept]] = (
    weakref.WeakKeyDictionary()
)


async def close_all_backends() -> None:
    """Close what was opened in the running loop, whoever opened it: for a loop that is about to end.

    Without it the end of the loop does the same, but cancels what is just starting at an unlucky moment.
    """
    for kept in list(_open_in.pop(asyncio.get_running_loop(), ())):
        await kept.aclose()


class _Kept:
    """A back end, and the task that closes it when it is told to or when its loop ends."""

    def __init__(self, backend: SandboxBackend) -> None:
        self.backend = backend
        _open_in.setdefault(asyncio.get_running_loop(), weakref.WeakSet()).add(self)
        self._closing = asyncio.Event()
        self._keeper = asyncio.get_running_loop().create_task(
            self._keep(), name=f"keep back end {backend.name}"
        )

    async def _keep(self) -> None:
        try:
            await self._closing.wait()
        finally:
            # `asyncio.run` cancels what is left at its end and waits for it: that closes this back end too.
            await self.backend.aclose()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    async def aclose(self) -> None:
        self._closing.set()
        await asyncio.wait([self._keeper])
        self._keeper.result()


class LoopBackends:
    """Made from a name, it opens a back end in each event loop on first use and closes it with that loop, or by
    `aclose()`. Made from a back end, it hands out that one and never closes it: it belongs to the caller.
    """

    def __init__(self, backend: SandboxBackend | BackendName) -> None:
        self._given = backend
        self._open: Callable[[], SandboxBackend] = lambda: _opened(backend)
        self._in_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Kept] = (
            weakref.WeakKeyDictionary()
        )
        _opened(backend)  # an unknown name is refused here; nothing is started

    @property
    def name(self) -> str:
        """Name of the back end."""
        given = self._given
        return given.name if not isinstance(given, str) else given

    def here(self) -> SandboxBackend:
        """The back end of the running event loop."""
        given = self._given
        if not isinstance(given, str):
            return given
        loop = asyncio.get_running_loop()
        kept = self._in_loop.get(loop)
        if kept is None or kept.is_closing:
            kept = self._in_loop[loop] = _Kept(self._open())
        return kept.backend

    async def aclose(self) -> None:
        """Close the back ends of all loops; those of loops that have ended were closed with them."""
        running = asyncio.get_running_loop()
        for loop, kept in list(self._in_loop.items()):
            if loop is running:
                del self._in_loop[loop]
                await kept.aclose()
            elif loop.is_running():
                del self._in_loop[loop]
                closing = asyncio.run_coroutine_threadsafe(kept.aclose(), loop)
                await asyncio.wrap_future(closing)


def _opened(backend: SandboxBackend | BackendName) -> SandboxBackend:
    return backend_by_name(backend) if isinstance(backend, str) else backend
