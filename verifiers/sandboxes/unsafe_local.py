"""`UnsafeLocalBackend`: no isolation at all. For code you wrote yourself, and for finding out what goes wrong.

What runs in it can read your files, use your network and kill your processes. It must be asked for twice: by the
name of the back end and by `isolation_min="none"`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.agent_sandbox import AgentSandbox
from verifiers.sandboxes.errors import (
    OTHER_BACKEND,
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxImageError,
)
from verifiers.sandboxes.local.plain_process import PlainProcessMachine
from verifiers.sandboxes.results import SandboxInfo, Snapshot
from verifiers.sandboxes.sandbox import Capability
from verifiers.sandboxes.spec import SandboxSpec


class UnsafeLocalBackend:
    """See `SandboxBackend`. Isolation level "none"."""

    name = "unsafe-local"
    capabilities: frozenset[Capability] = frozenset(
        ("snapshot", "fork_python", "per_command_limits")
    )

    def __init__(self) -> None:
        self._sandboxes: set[AgentSandbox] = set()
        self._admission = Admission()
        self._is_closed = False

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> AgentSandbox:
        """See SandboxBackend."""
        if self._is_closed:
            raise SandboxCreationError("This back end has been closed.")
        self._check(spec)
        machine = PlainProcessMachine(
            spec, python=_interpreter(spec), uid=None, restrict=False, info=_info
        )
        sandbox = AgentSandbox(
            "unsafe",
            spec,
            machine,
            _info(spec.workdir),
            self._admission,
            self._sandboxes.discard,
        )
        self._sandboxes.add(sandbox)
        return sandbox.begin(snapshot)

    def _check(self, spec: SandboxSpec) -> None:
        if spec.isolation_min != "none":
            raise IsolationUnavailable(
                "The back end 'unsafe-local' protects nothing, and the specification asks for isolation_min="
                f"{spec.isolation_min!r}. If the code is your own, say isolation_min='none'."
            )
        if not sys.platform.startswith("linux"):
            raise IsolationUnavailable(f"The agent needs Linux, this is {sys.platform}.")
        if spec.image != "host":
            raise SandboxImageError(
                f"The back end 'unsafe-local' cannot use the image {spec.image!r}; it has image 'host' only. "
                + OTHER_BACKEND
            )
        if spec.folders:
            raise SandboxCapabilityMissing(
                f"Without isolation {', '.join(spec.folders)} would be folders of this machine itself."
            )
        if not isinstance(spec.network, str):
            raise SandboxCapabilityMissing("Without isolation the network cannot be filtered.")

    async def aclose(self) -> None:
        """See SandboxBackend."""
        self._is_closed = True
        await asyncio.gather(*(sandbox.terminate() for sandbox in list(self._sandboxes)))

    async def __aenter__(self) -> UnsafeLocalBackend:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.aclose())


def _interpreter(spec: SandboxSpec) -> list[str]:
    if spec.packages not in (None, "host"):
        return [os.path.join(spec.packages, "bin", "python"), "-I", "-B"]
    return [spec.python or sys.executable, "-I", "-B"]


def _info(workdir: str) -> SandboxInfo:
    names = ["memory", "processes", "cpu", "disk", "network"]
    nothing = dict.fromkeys(names, "not enforced")
    notes = ("No isolation: the code has all rights of this program, and no limits.",)
    return SandboxInfo("unsafe-local", "none", workdir, nothing, notes)
