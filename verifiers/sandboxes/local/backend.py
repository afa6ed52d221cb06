"""`LocalBackend`: sandboxes from the kernel of this machine."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.errors import (
    OTHER_BACKEND,
    IsolationUnavailable,
    SandboxImageError,
)
from verifiers.sandboxes.local.machine import Assignment, LocalMachine, RestrictedMachine, describe
from verifiers.sandboxes.local.zygote_process import ZygoteKind, ZygoteProcess, unsupported_reason
from verifiers.sandboxes.sandbox import Capability, SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec, is_at_least

CORES_PER_ZYGOTE = 8
_RESERVED_NAMES = frozenset(
    [
        "bin",
        "box",
        "dev",
        "etc",
        "home",
        "lib",
        "lib32",
        "lib64",
        "proc",
        "run",
        "rw",
        "sbin",
        "sys",
        "tmp",
        "usr",
        "var",
    ]
)
"""Names at the top of a sandbox's file system that are in use."""
_FIRST_HOST_UID = 0x7000_0000
"""First user id of sandboxes under root: above all ids that container tools assign (systemd's list ends here)."""
_HOST_UIDS = 0x0FFF_FFFF


class LocalConfig(BaseModel):
    """Options of the local back end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Literal["container", "restricted"] = "container"
    """"restricted" uses no namespaces even where the machine allows them: only Landlock, a system call filter, and
    limits.
    """
    use_cgroups: bool = True
    """Limit memory, processes and CPU by control groups where this is possible, otherwise by weaker means."""
    run_as: int | None = Field(default=None, ge=1)
    """As root only: switch to this user id before anything else. This user must be able to read the interpreter."""
    zygotes: int | None = Field(default=None, ge=1)
    """Number of processes that make sandboxes, per kind of sandbox. None: one for every 8 cores."""


class LocalBackend(GuestBackend):
    """See `SandboxBackend`. Isolation level "container": namespaces, a system call filter, no privileges, limits."""

    name = "local"
    capabilities: frozenset[Capability] = frozenset(
        (
            "snapshot",
            "fork_python",
            "per_command_limits",
            "file_count_limit",
            "network_proxy",
            "network_full",
        )
    )

    def __init__(self, config: LocalConfig | None = None) -> None:
        super().__init__()
        self.config = config or LocalConfig()
        self._zygotes: dict[ZygoteKind, list[ZygoteProcess]] = {}
        cores = os.cpu_count() or 1
        self._zygotes_of_a_kind = self.config.zygotes or max(1, cores // CORES_PER_ZYGOTE)
        self._starting: dict[ZygoteKind, asyncio.Task[ZygoteProcess]] = {}
        self._numbers = itertools.count(1)
        self._rotation = itertools.count()
        self._uid_offset = random.SystemRandom().randrange(_HOST_UIDS)
        self._loop: asyncio.AbstractEventLoop | None = None

    def _machine(self, spec: SandboxSpec) -> LocalMachine | RestrictedMachine:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError(
                "A back end belongs to the first event loop that used it; make another one for this loop."
            )
        self._loop = loop
        number = next(self._numbers)
        kind = self._kind(spec)
        assignment = Assignment(
            self.name,
            number,
            self.host_uid(number),
            kind.python,
            kind.with_packages,
            lambda: self.zygote_for(spec),
        )
        if self.config.level == "restricted":
            return RestrictedMachine(spec, assignment, None)
        if spec.isolation_min == "container":
            return LocalMachine(spec, assignment)
        return RestrictedMachine(spec, assignment, LocalMachine(spec, assignment))

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        return SandboxInfo(self.name, self.config.level, spec.workdir)

    async def probe(self, spec: SandboxSpec | None = None) -> SandboxInfo:
        """Return what sandboxes enforce on this machine. Raises IsolationUnavailable with the cause and remedies."""
        spec = spec or SandboxSpec()
        self._check(spec)
        zygote = await self.zygote_for(spec)
        return describe(self.name, spec, zygote.facts)

    def _check(self, spec: SandboxSpec) -> None:
        if not is_at_least(self.config.level, spec.isolation_min):
            raise IsolationUnavailable(
                f"This local back end isolates at level {self.config.level!r}; isolation_min={spec.isolation_min!r} "
                "needs another one, such as gVisor, a virtual machine or a remote back end."
            )
        if (reason := unsupported_reason()) is not None:
            raise IsolationUnavailable(reason)
        if spec.image != "host":
            raise SandboxImageError(
                f"The local back end cannot use the image {spec.image!r}; it has image 'host' only. {OTHER_BACKEND}"
            )
        if not any(spec.workdir == w or spec.workdir.startswith(w + "/") for w in ("/box", "/tmp")):
            raise SandboxImageError(
                f"workdir must be /box, /tmp or a directory below, got {spec.workdir!r}."
            )
        for folder in spec.folders:
            if folder.split("/")[1] in _RESERVED_NAMES:
                raise SandboxImageError(
                    f"folders={folder!r} hides a folder of the system. Choose one outside "
                    f"{', '.join(f'/{name}' for name in sorted(_RESERVED_NAMES))}."
                )

    # --- zygotes

    def _kind(self, spec: SandboxSpec) -> ZygoteKind:
        python = spec.python
        if spec.packages == "host":
            python = python or sys.executable
        elif spec.packages is not None:
            python = str(Path(spec.packages) / "bin" / "python")
        elif python is None:
            python = _base_interpreter()
        with_packages = spec.packages is not None
        config = self.config
        return ZygoteKind(
            python,
            with_packages,
            spec.preload,
            config.run_as,
            config.use_cgroups,
            trial_uid=self.host_uid(0),
            folders=spec.folders,
            host_names=spec.host_names,
        )

    async def zygote_for(self, spec: SandboxSpec) -> ZygoteProcess:
        """Return a running zygote for such sandboxes; start one if needed."""
        kind = self._kind(spec)
        running = self._zygotes.setdefault(kind, [])
        if len(running) < self._zygotes_of_a_kind:
            starting = self._starting.get(kind)
            if starting is None:
                starting = asyncio.get_running_loop().create_task(self._start_zygote(kind))
                self._starting[kind] = starting
                starting.add_done_callback(lambda _: self._starting.pop(kind, None))
                starting.add_done_callback(lambda t: t.cancelled() or t.exception())
            if not running:
                # Shielded: when one waiting call is cancelled, the others must still get the zygote.
                return await asyncio.shield(starting)
        return running[next(self._rotation) % len(running)]

    async def _start_zygote(self, kind: ZygoteKind) -> ZygoteProcess:
        zygote = ZygoteProcess(kind, self._on_zygote_death)
        try:
            await zygote.start()
        except BaseException:
            await asyncio.shield(zygote.aclose())
            raise
        self._zygotes[kind].append(zygote)
        return zygote

    def _on_zygote_death(self, zygote: ZygoteProcess) -> None:
        running = self._zygotes.get(zygote.kind, [])
        if zygote in running:
            running.remove(zygote)
            self._clean_up_in_background(zygote.aclose(), name="clean up zygote")

    def host_uid(self, number: int) -> int:
        """Return a sandbox's user id on this machine. Each sandbox has a different one."""
        return _FIRST_HOST_UID + (self._uid_offset + number) % _HOST_UIDS

    # --- end

    async def _close(self) -> None:
        for starting in list(self._starting.values()):
            starting.cancel()
            await asyncio.wait([starting])
        zygotes = [zygote for running in self._zygotes.values() for zygote in running]
        await asyncio.gather(*(zygote.aclose() for zygote in zygotes))
        await self._cleaned_up()


@cache
def _base_interpreter() -> str:
    """Return the interpreter outside any virtual environment, which has only the standard library."""
    base: str = getattr(sys, "_base_executable", sys.executable)  # documented only in PEP 587
    return os.path.realpath(base)
