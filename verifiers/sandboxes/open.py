"""The short way to one sandbox: `async with open_sandbox(spec) as sandbox`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, get_args

from verifiers.errors import ConfigError
from verifiers.sandboxes.sandbox import Sandbox, SandboxBackend
from verifiers.sandboxes.spec import SandboxSpec

BackendName = Literal["local", "unsafe-local", "gvisor", "docker", "podman", "prime"]
BACKEND_VARIABLE = "VF_SANDBOX_BACKEND"
"""Environment variable that names the back end of everything that names none itself; `--sandbox-backend` sets it."""


def default_backend_name() -> BackendName:
    """The name in `VF_SANDBOX_BACKEND`, else "local". Raises ConfigError for a name that does not exist."""
    name = os.environ.get(BACKEND_VARIABLE) or "local"
    if name not in get_args(BackendName):
        raise ConfigError(
            f"{BACKEND_VARIABLE}={name!r} is not a sandbox back end. Choose one of {', '.join(get_args(BackendName))}."
        )
    return name  # pyright: ignore[reportReturnType] # it has just been checked


def backend_by_name(name: BackendName) -> SandboxBackend:
    """A back end with its default configuration; nothing is started yet. Raises ValueError for an unknown name."""
    # Imported where it is used: each back end brings its own machinery.
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


@asynccontextmanager
async def open_sandbox(
    spec: SandboxSpec | None = None, *, backend: SandboxBackend | BackendName | None = None
) -> AsyncGenerator[Sandbox]:
    """A sandbox that is terminated at the end of the block. It comes up while the block already runs.

    Pass a back end to share its machinery among many sandboxes; a name opens one for this block alone. Without one,
    the environment variable VF_SANDBOX_BACKEND names it, else it is "local".
    """
    backend = default_backend_name() if backend is None else backend
    async with AsyncExitStack() as stack:
        if isinstance(backend, str):
            backend = await stack.enter_async_context(backend_by_name(backend))
        sandbox = await backend.create(spec or SandboxSpec())
        yield await stack.enter_async_context(sandbox)
