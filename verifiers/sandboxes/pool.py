"""Sandboxes that are up before anybody needs them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from typing import NamedTuple

from verifiers.errors import AuthorError
from verifiers.sandboxes.errors import IsolationUnavailable, SandboxError, SandboxImageError
from verifiers.sandboxes.sandbox import Sandbox, SandboxBackend
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)

RETRY_S = (0.1, 0.5, 2.0, 10.0)
"""How long to wait before the next attempt, after so many failures in a row; the last goes on for ever."""
MAX_WAITED_OF_TTL = 0.1
"""The part of its life that a sandbox may spend waiting."""


class SandboxPool:
    """Keeps `size` sandboxes of one specification ready. Use as `async with`; each sandbox is handed out once.

    The caller who acquires a sandbox terminates it. Those nobody acquired are terminated at the end of the block, and
    so is one that has spent a tenth of its `ttl_s` here, which is replaced: a lifetime is for whoever acquires it.
    """

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, *, size: int) -> None:
        if size < 1:
            raise ValueError(f"A pool needs a size of at least 1, got {size}.")
        self._backend = backend
        self._spec = spec
        self._size = size
        self._ready: deque[_Waiting] = deque()
        self._stale: set[asyncio.Task[None]] = set()
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
        await asyncio.gather(*(waiting.sandbox.terminate() for waiting in leftovers), *self._stale)

    async def acquire(self) -> Sandbox:
        """A ready sandbox, at once if there is one; otherwise one that is coming up. Raises SandboxCreationError."""
        if self._filler is None:
            raise RuntimeError("This pool is not open; use `async with SandboxPool(…) as pool`.")
        while self._ready:
            sandbox, since_s = self._ready.popleft()
            self._wanted.set()
            if time.monotonic() - since_s > (self._spec.ttl_s or math.inf) * MAX_WAITED_OF_TTL:
                ending = asyncio.get_running_loop().create_task(sandbox.terminate())
                self._stale.add(ending)
                ending.add_done_callback(self._stale.discard)
            elif await _is_alive(sandbox):
                return sandbox
        return await self._backend.create(self._spec)

    async def _fill(self) -> None:
        failures = 0
        while True:
            if len(self._ready) >= self._size:
                self._wanted.clear()
                await self._wanted.wait()
            try:
                await self._add_one()
            except (AuthorError, IsolationUnavailable, SandboxImageError) as error:
                logger.warning("the warm pool stays empty: %s", error)
                return  # trying again cannot help, and whoever acquires gets the error
            except SandboxError as error:
                failures += 1
                # The caller of acquire() gets the error; here it is only worth trying again.
                logger.warning("a sandbox for the warm pool did not come up: %s", error)
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S)) - 1])
            else:
                failures = 0

    async def _add_one(self) -> None:
        since_s = time.monotonic()
        sandbox = await self._backend.create(self._spec)
        try:
            await sandbox.ready()
        except BaseException:
            await sandbox.terminate()
            raise
        self._ready.append(_Waiting(sandbox, since_s))


class _Waiting(NamedTuple):
    """A sandbox that nobody has acquired yet."""

    sandbox: Sandbox
    since_s: float


async def _is_alive(sandbox: Sandbox) -> bool:
    try:
        await sandbox.ready()
    except SandboxError:
        return False  # its lifetime ended, or its zygote died, while it waited here
    return True
