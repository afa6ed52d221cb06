"""Sandbox back ends for environments: chosen by name, opened once per event loop."""

from __future__ import annotations

from verifiers.per_loop import PerLoop
from verifiers.sandboxes.open import BackendName, backend_by_name, default_backend_name
from verifiers.sandboxes.sandbox import SandboxBackend


class LoopBackends:
    """The back end of the running event loop.

    Made from a name, it opens a back end in each event loop on first use and closes it with that loop, or by
    `aclose()`. None is the name in `VF_SANDBOX_BACKEND`, else "local". Made from a back end, it returns that back end
    and never closes it: it belongs to the caller.
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


def _backend_of(backend: SandboxBackend | BackendName) -> SandboxBackend:
    return backend_by_name(backend) if isinstance(backend, str) else backend
