"""`GuestBackend`: base class of the back ends whose sandboxes have a guest inside.

A subclass supplies the specifications that it refuses, the `Machine` of a sandbox, and shared resources.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Self

from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.errors import SandboxCreationError, SandboxImageError
from verifiers.sandboxes.guest_sandbox import GuestSandbox, Machine
from verifiers.sandboxes.sandbox import Capability, SandboxInfo, Snapshot
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)


class GuestBackend:
    """See `SandboxBackend`. Tracks the sandboxes of a back end, cleans up after each, and terminates all of them at
    the end.

    Subclasses implement `_check`, `_machine` and `_info`, and override `_close` if their sandboxes share
    resources.
    """

    name: str
    capabilities: frozenset[Capability] = frozenset(
        ("snapshot", "fork_python", "per_command_limits")
    )

    has_images = False
    """Whether an engine runs images here: writable ones, and those of Compose files."""

    def __init__(self, *, admission: Admission | None = None) -> None:
        self._admission = admission or Admission()
        self._sandboxes: set[GuestSandbox] = set()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def _check(self, spec: SandboxSpec) -> None:
        """Raise an error if this back end cannot create such a sandbox. The specification alone decides."""
        raise NotImplementedError

    def _machine(self, spec: SandboxSpec) -> Machine:
        """Return the machine of a new sandbox, not yet started. Called in the event loop; must not block."""
        raise NotImplementedError

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        """Return the description of a sandbox that has not started yet."""
        raise NotImplementedError

    async def _close(self) -> None:
        """Release what the sandboxes share. All of them have ended."""

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> GuestSandbox:
        """See SandboxBackend."""
        if self._is_closed:
            raise SandboxCreationError("This back end has been closed.")
        if not self.has_images and (spec.writable_image or spec.compose is not None):
            wanted = "a writable image" if spec.compose is None else f"{spec.compose.file}"
            raise SandboxImageError(
                f"The back end {self.name!r} cannot run {wanted}. Use Docker or Podman (backend='docker')."
            )
        self._check(spec)
        sandbox = GuestSandbox(
            self.name, spec, self._machine(spec), self._info(spec), self._admission, self._on_gone
        )
        self._sandboxes.add(sandbox)
        return sandbox.begin(snapshot)

    def _on_gone(self, sandbox: GuestSandbox) -> None:
        self._sandboxes.discard(sandbox)
        self._clean_up_in_background(sandbox.gone(), name=f"wait for the end of {sandbox.id}")

    def _clean_up_in_background(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run a task that `aclose` waits for. A failure is logged, because no caller awaits the task."""
        cleanup = asyncio.get_running_loop().create_task(work, name=name)
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._on_cleaned_up)

    def _on_cleaned_up(self, cleanup: asyncio.Task[None]) -> None:
        self._cleanups.discard(cleanup)
        if not cleanup.cancelled() and (error := cleanup.exception()) is not None:
            logger.warning("%s", error)

    async def _cleaned_up(self) -> None:
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    async def aclose(self) -> None:
        """See SandboxBackend."""
        self._is_closed = True
        endings = (sandbox.terminate() for sandbox in list(self._sandboxes))
        outcomes = await asyncio.gather(*endings, return_exceptions=True)
        await self._cleaned_up()
        await self._close()
        for error in outcomes:
            if error is not None:
                raise error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.aclose())
