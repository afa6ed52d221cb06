"""Sandboxes that are up before anybody needs them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from verifiers.sandboxes.errors import SandboxError
from verifiers.sandboxes.sandbox import Sandbox, SandboxBackend
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)

RETRY_S = (0.1, 0.5, 2.0, 10.0)
"""How long to wait before the next attempt, after so many failures in a row; the last goes on for ever."""


class SandboxPool:
    """Keeps `size` sandboxes of one specification ready. Use as `async with`; each sandbox is handed out once.

    The caller who acquires a sandbox terminates it. Those nobody acquired are terminated at the end of the block.
    """

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, *, size: int) -> None:
        if size < 1:
            raise ValueError(f"A pool needs a size of at least 1, got {size}.")
        self._backend = backend
        self._spec = spec
        self._size = size
        self._ready: deque[Sandbox] = deque()
        self._wanted = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    @property
    def ready_count(self) -> int:
        """How many could be acquired at once now."""
        return len(self._ready)

    async def __aenter__(self) -> SandboxPool:
        if self._filler is not None:
            raise RuntimeError("This pool is open already.")
        self._wanted.set()
        self._filler = asyncio.get_running_loop().create_task(self._fill(), name="fill pool")
        return self

    async def __aexit__(self, *exc: object) -> None:
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.cancel()
            await asyncio.wait([filler])
        leftovers, self._ready = list(self._ready), deque()
        await asyncio.gather(*(sandbox.terminate() for sandbox in leftovers))

    async def acquire(self) -> Sandbox:
        """A ready sandbox, at once if there is one; otherwise one that is coming up. Raises SandboxCreationError."""
        if self._filler is None:
            raise RuntimeError("This pool is not open; use `async with SandboxPool(…) as pool`.")
        while self._ready:
            sandbox = self._ready.popleft()
            self._wanted.set()
            if await _is_alive(sandbox):
                return sandbox
        return await self._backend.create(self._spec)

    async def _fill(self) -> None:
        failures = 0
        while True:
            if len(self._ready) >= self._size:
                self._wanted.clear()
                await self._wanted.wait()
            sandbox = await self._backend.create(self._spec)
            try:
                await sandbox.ready()
            except SandboxError as error:
                failures += 1
                # The caller of acquire() gets the error; here it is only worth trying again.
                logger.warning("a sandbox for the warm pool did not come up: %s", error)
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S)) - 1])
            except asyncio.CancelledError:
                await sandbox.terminate()
                raise
            else:
                failures = 0
                self._ready.append(sandbox)


async def _is_alive(sandbox: Sandbox) -> bool:
    try:
        await sandbox.ready()
    except SandboxError:
        return False  # its lifetime ended, or its zygote died, while it waited here
    return True
