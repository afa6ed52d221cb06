"""`UnsafeLocalBackend`: no isolation at all. For code you wrote yourself, and for debugging.

Code in it can read your files, use your network and kill your processes. You must request it twice: by the name of
the back end and by `isolation_min="none"`.
"""

from __future__ import annotations

import os
import sys

from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.errors import (
    OTHER_BACKEND,
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxImageError,
)
from verifiers.sandboxes.local.plain_process import PlainProcessMachine
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec


class UnsafeLocalBackend(GuestBackend):
    """See `SandboxBackend`. Isolation level "none"."""

    name = "unsafe-local"

    def _machine(self, spec: SandboxSpec) -> PlainProcessMachine:
        return PlainProcessMachine(
            spec, python=_interpreter(spec), uid=None, restrict=False, info=_info
        )

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        return _info(spec.workdir)

    def _check(self, spec: SandboxSpec) -> None:
        if spec.isolation_min != "none":
            raise IsolationUnavailable(
                "The back end 'unsafe-local' protects nothing, and the specification asks for isolation_min="
                f"{spec.isolation_min!r}. If the code is your own, set isolation_min='none'."
            )
        if not sys.platform.startswith("linux"):
            raise IsolationUnavailable(f"The guest needs Linux, this is {sys.platform}.")
        if spec.image != "host":
            raise SandboxImageError(
                f"The back end 'unsafe-local' cannot use the image {spec.image!r}; it has image 'host' only. "
                + OTHER_BACKEND
            )
        if spec.folders:
            raise SandboxCapabilityMissing(
                f"Without isolation, {', '.join(spec.folders)} would be folders of this machine itself."
            )
        if not isinstance(spec.network, str):
            raise SandboxCapabilityMissing("Without isolation, the network cannot be filtered.")


def _interpreter(spec: SandboxSpec) -> list[str]:
    if spec.packages not in (None, "host"):
        return [os.path.join(spec.packages, "bin", "python"), "-I", "-B"]
    return [spec.python or sys.executable, "-I", "-B"]


def _info(workdir: str) -> SandboxInfo:
    names = ["memory", "processes", "cpu", "disk", "network"]
    limits = dict.fromkeys(names, "not enforced")
    notes = ("No isolation: the code has all rights of this program and no limits.",)
    return SandboxInfo("unsafe-local", "none", workdir, limits, notes)
