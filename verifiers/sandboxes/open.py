"""The short way to one sandbox: `async with open_sandbox(spec) as sandbox`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, get_args

from verifiers.sandboxes.sandbox import Sandbox, SandboxBackend
from verifiers.sandboxes.spec import SandboxSpec

BackendName = Literal["local", "unsafe-local", "gvisor", "docker", "podman", "prime"]


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
        f"There is no sandbox back end {name!r}; there are {', '.join(get_args(BackendName))}."
    )


@asynccontextmanager
async def open_sandbox(
    spec: SandboxSpec | None = None, *, backend: SandboxBackend | BackendName = "local"
) -> AsyncGenerator[Sandbox]:
    """A sandbox that is terminated at the end of the block. It comes up while the block already runs.

    Pass a back end to share its machinery among many sandboxes; a name opens one for this block alone.
    """
    async with AsyncExitStack() as stack:
        if isinstance(backend, str):
            backend = await stack.enter_async_context(backend_by_name(backend))
        sandbox = await backend.create(spec or SandboxSpec())
        yield await stack.enter_async_context(sandbox)
