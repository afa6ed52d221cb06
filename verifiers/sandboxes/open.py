"""Get a sandbox: `open_sandbox` for one, `LoopBackends` for an environment, `SandboxPool` for sandboxes that are
ready before they are needed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, NamedTuple, get_args

from verifiers.concurrency import PerLoop
from verifiers.errors import AuthorError, ConfigError
from verifiers.sandboxes.errors import IsolationUnavailable, SandboxError, SandboxImageError
from verifiers.sandboxes.sandbox import Sandbox, SandboxBackend
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)
RETRY_S = (0.1, 0.5, 2.0, 10.0)
"""Delay before the next attempt, by the number of failures in a row. The last delay repeats."""
MAX_WAITED_OF_TTL = 0.1
"""The part of its lifetime that a sandbox may spend in the pool."""

BackendName = Literal["local", "unsafe-local", "gvisor", "docker", "podman", "prime"]
BACKEND_VARIABLE = "VF_SANDBOX_BACKEND"
"""Environment variable with the name of the default back end. `--sandbox-backend` sets it."""


def default_backend_name() -> BackendName:
    """Return the name in `VF_SANDBOX_BACKEND`, or "local". Raises ConfigError for an unknown name."""
    name = os.environ.get(BACKEND_VARIABLE) or "local"
    if name not in get_args(BackendName):
        raise ConfigError(
            f"{BACKEND_VARIABLE}={name!r} is not a sandbox back end. Choose one of {', '.join(get_args(BackendName))}."
        )
    return name  # pyright: ignore[reportReturnType] # it has just been checked


def backend_by_name(name: BackendName) -> SandboxBackend:
    """Return a back end with its default configuration, not yet started. Raises ValueError for an unknown name."""
    # Imported here, so that only the chosen back end is loaded.
    if name == "local":
        from verifiers.sandboxes.local import LocalBackend

        return LocalBackend()
    if name == "unsafe-local":
        from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend

        return UnsafeLocalBackend()
    if name == "gvisor":
        from verifiers.sandboxes.gvisor import GVisorBackend

        return GVisorBackend()
    if name in ("docker", "podman"):
        from verifiers.sandboxes.containers import ContainerBackend, ContainerConfig

        return ContainerBackend(ContainerConfig(engine=name))
    if name == "prime":
        from verifiers.sandboxes.prime import PrimeBackend

        return PrimeBackend()
    raise ValueError(
        f"{name!r} is not a sandbox back end. Choose one of {', '.join(get_args(BackendName))}."
    )


class LoopBackends:
    """The back end of the running event loop.

    Created from a name, it opens a back end in each event loop on first use and closes it with that loop, or by
    `aclose()`. None stands for the name in `VF_SANDBOX_BACKEND`, or "local". Created from a back end, it returns that
    back end and never closes it, since the caller owns it.
    """

    def __init__(self, given: SandboxBackend | BackendName | None = None) -> None:
        backend = default_backend_name() if given is None else given
        self._backend = backend
        self._opened: PerLoop[SandboxBackend] = PerLoop(
            lambda: _backend_of(backend), lambda opened: opened.aclose()
        )
        _backend_of(backend)  # raises for an unknown name; starts nothing

    @property
    def name(self) -> str:
        """Name of the back end."""
        return self._backend if isinstance(self._backend, str) else self._backend.name

    def here(self) -> SandboxBackend:
        """Return the back end of the running event loop."""
        return self._opened.here() if isinstance(self._backend, str) else self._backend

    async def aclose(self) -> None:
        """Close the back ends of all loops."""
        await self._opened.aclose()


@asynccontextmanager
async def open_sandbox(
    spec: SandboxSpec | None = None, *, backend: SandboxBackend | BackendName | None = None
) -> AsyncGenerator[Sandbox]:
    """Return a sandbox that is terminated at the end of the block. It starts while the block already runs.

    Pass a back end to share its processes among many sandboxes; a name opens a back end for this block only. The
    default is the name in the environment variable VF_SANDBOX_BACKEND, or "local".
    """
    backend = default_backend_name() if backend is None else backend
    async with AsyncExitStack() as stack:
        if isinstance(backend, str):
            backend = await stack.enter_async_context(backend_by_name(backend))
        sandbox = await backend.create(spec or SandboxSpec())
        yield await stack.enter_async_context(sandbox)


class SandboxPool:
    """Keeps `size` sandboxes of one specification ready. Use it as `async with`. Each sandbox is handed out once.

    The caller that acquires a sandbox terminates it. The pool terminates the other sandboxes at the end of the block.
    It also replaces a sandbox that has spent a tenth of its `ttl_s` in the pool, so that the caller receives most of
    the lifetime.
    """

    def __init__(self, backend: SandboxBackend, spec: SandboxSpec, *, size: int) -> None:
        if size < 1:
            raise ValueError(f"A pool needs a size of at least 1, got {size}.")
        self._backend = backend
        self._spec = spec
        self._size = size
        self._ready: deque[_Waiting] = deque()
        self._stale: set[asyncio.Task[None]] = set()
        self._needs_more = asyncio.Event()
        self._filler: asyncio.Task[None] | None = None

    @property
    def ready_count(self) -> int:
        """Number of sandboxes that can be acquired without waiting."""
        return len(self._ready)

    async def __aenter__(self) -> SandboxPool:
        if self._filler is not None:
            raise RuntimeError("This pool is already open.")
        self._needs_more.set()
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
        """Return a ready sandbox, or one that is starting if none is ready. Raises SandboxCreationError."""
        if self._filler is None:
            raise RuntimeError("This pool is not open; use `async with SandboxPool(…) as pool`.")
        while self._ready:
            sandbox, since_s = self._ready.popleft()
            self._needs_more.set()
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
                self._needs_more.clear()
                await self._needs_more.wait()
            try:
                await self._add_one()
            except (AuthorError, IsolationUnavailable, SandboxImageError) as error:
                logger.warning("the warm pool stays empty: %s", error)
                return  # another attempt cannot help, and the caller of acquire() receives the error
            except SandboxError as error:
                failures += 1
                # The caller of acquire() receives the error; here, the pool only tries again.
                logger.warning("a sandbox for the warm pool did not start: %s", error)
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


def _backend_of(backend: SandboxBackend | BackendName) -> SandboxBackend:
    return backend_by_name(backend) if isinstance(backend, str) else backend


class _Waiting(NamedTuple):
    """A sandbox in the pool, and the time of its creation."""

    sandbox: Sandbox
    since_s: float


async def _is_alive(sandbox: Sandbox) -> bool:
    try:
        await sandbox.ready()
    except SandboxError:
        return False  # its lifetime ended, or its zygote died, in the pool
    return True
