"""`LocalBackend`: sandboxes from this machine's kernel."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.agent_sandbox import AgentSandbox, Started
from verifiers.sandboxes.connection import AgentConnection
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
)
from verifiers.sandboxes.local import facts, refusal
from verifiers.sandboxes.local.zygote_process import ZygoteKind, ZygoteProcess
from verifiers.sandboxes.results import SandboxInfo, Snapshot
from verifiers.sandboxes.sandbox import Capability
from verifiers.sandboxes.spec import ProxyNetwork, SandboxSpec, is_at_least

CORES_PER_ZYGOTE = 8
GONE_TIMEOUT_S = 10.0
_FIRST_HOST_UID = 0x7000_0000
"""User ids of sandboxes under root: above everything that container tools hand out (systemd's list ends here)."""
_HOST_UIDS = 0x0FFF_FFFF


class LocalConfig(BaseModel):
    """How the local back end works on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use_cgroups: bool = True
    """Limit memory, processes and CPU by control groups where they can be had; otherwise by weaker means."""
    run_as: int | None = Field(default=None, ge=1)
    """As root only: give root up for this user id before anything is made. The interpreter must be readable for it."""
    zygotes: int | None = Field(default=None, ge=1)
    """Processes that make sandboxes, per kind of sandbox; None: one for every 8 cores."""


class LocalBackend:
    """See `SandboxBackend`. Isolation level "container": namespaces, a system call filter, no privileges, limits."""

    name = "local"
    capabilities: frozenset[Capability] = frozenset(
        ("snapshot", "fork_python", "per_command_limits", "network_proxy")
    )

    def __init__(self, config: LocalConfig | None = None) -> None:
        self.config = config or LocalConfig()
        self._zygotes: dict[ZygoteKind, list[ZygoteProcess]] = {}
        self._starting: dict[ZygoteKind, asyncio.Task[ZygoteProcess]] = {}
        self._reaping: set[asyncio.Task[None]] = set()
        self._sandboxes: set[AgentSandbox] = set()
        self._numbers = itertools.count(1)
        self._turn = itertools.count()
        self._uid_offset = random.SystemRandom().randrange(_HOST_UIDS)
        self._admission = Admission()
        self._is_closed = False

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> AgentSandbox:
        """See SandboxBackend."""
        if self._is_closed:
            raise SandboxCreationError("This back end has been closed.")
        self._check(spec)
        number = next(self._numbers)
        machine = LocalMachine(self, spec, number)
        info = SandboxInfo(self.name, "container", spec.workdir)
        sandbox = AgentSandbox(
            f"local-{os.getpid()}-{number}",
            spec,
            machine,
            info,
            self._admission,
            self._sandboxes.discard,
        )
        self._sandboxes.add(sandbox)
        return sandbox.begin(snapshot)

    async def probe(self, spec: SandboxSpec | None = None) -> SandboxInfo:
        """What sandboxes here would enforce. Raises IsolationUnavailable, cause and remedies included."""
        spec = spec or SandboxSpec()
        self._check(spec)
        zygote = await self.zygote_for(spec)
        return facts.describe(self.name, spec, zygote.facts)

    def _check(self, spec: SandboxSpec) -> None:
        if not is_at_least("container", spec.isolation_min):
            raise IsolationUnavailable(
                f"The local back end isolates at level 'container'; isolation_min={spec.isolation_min!r} needs "
                "gVisor, a virtual machine or a remote back end."
            )
        if (reason := refusal.unsupported_reason()) is not None:
            raise IsolationUnavailable(reason)
        if spec.image != "host":
            raise SandboxImageError(
                f"The local back end has image 'host' only, got {spec.image!r}. Use a Docker or Podman back end."
            )
        if spec.network == "full":
            raise SandboxCapabilityMissing(
                "The local back end cannot give network='full'. Use ProxyNetwork(allow=[…]) to reach named domains."
            )
        if not any(spec.workdir == w or spec.workdir.startswith(w + "/") for w in ("/box", "/tmp")):
            raise SandboxImageError(
                f"workdir must be /box, /tmp or a directory below, got {spec.workdir!r}."
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
        )

    async def zygote_for(self, spec: SandboxSpec) -> ZygoteProcess:
        """A running zygote for such sandboxes, started if need be."""
        kind = self._kind(spec)
        running = self._zygotes.setdefault(kind, [])
        wanted = self.config.zygotes or max(1, (os.cpu_count() or 1) // CORES_PER_ZYGOTE)
        if len(running) < wanted:
            starting = self._starting.get(kind)
            if starting is None:
                starting = asyncio.get_running_loop().create_task(self._start_zygote(kind))
                self._starting[kind] = starting
                starting.add_done_callback(lambda _: self._starting.pop(kind, None))
                starting.add_done_callback(lambda t: t.cancelled() or t.exception())
            if not running:
                # Shielded: the others who wait for it must not suffer when one is cancelled.
                return await asyncio.shield(starting)
        return running[next(self._turn) % len(running)]

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
            reaping = asyncio.get_running_loop().create_task(zygote.aclose(), name="reap zygote")
            self._reaping.add(reaping)
            reaping.add_done_callback(self._reaping.discard)

    def host_uid(self, number: int) -> int:
        """The user id on this machine of a sandbox, a different one for each."""
        return _FIRST_HOST_UID + (self._uid_offset + number) % _HOST_UIDS

    # --- end

    async def aclose(self) -> None:
        """See SandboxBackend."""
        self._is_closed = True
        await asyncio.gather(*(sandbox.terminate() for sandbox in list(self._sandboxes)))
        for starting in list(self._starting.values()):
            starting.cancel()
            await asyncio.wait([starting])
        zygotes = [zygote for running in self._zygotes.values() for zygote in running]
        await asyncio.gather(*(zygote.aclose() for zygote in zygotes))
        await asyncio.gather(*self._reaping)

    async def __aenter__(self) -> LocalBackend:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.aclose())


class LocalMachine:
    """One sandbox of a zygote: the `Machine` of its `AgentSandbox`."""

    def __init__(self, backend: LocalBackend, spec: SandboxSpec, number: int) -> None:
        self._backend = backend
        self._spec = spec
        self._number = number
        self._zygote: ZygoteProcess | None = None
        self._is_killed = False

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        zygote = await self._backend.zygote_for(self._spec)
        async with zygote.starting:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            ours, theirs = socket.socketpair()
            try:
                zygote.create(self._request(), [theirs])
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._zygote = zygote
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: AgentConnection(on_closed), sock=ours
            )
            await connection.ready
        return Started(connection, self._info(zygote))

    def _request(self) -> dict[str, object]:
        spec = self._spec
        return {
            "box": self._number,
            "host_uid": self._backend.host_uid(self._number),
            "memory_bytes": spec.memory_mb << 20,
            "disk_bytes": spec.disk_mb << 20,
            "max_files": spec.max_files,
            "max_processes": spec.max_processes,
            "cpu_cores": spec.cpu_cores,
            "env": spec.env,
            "workdir": spec.workdir,
            "proxy": isinstance(spec.network, ProxyNetwork),
        }

    def _info(self, zygote: ZygoteProcess) -> SandboxInfo:
        return facts.describe(self._backend.name, self._spec, zygote.facts)

    def kill_now(self) -> None:
        """See Machine."""
        self._is_killed = True
        if self._zygote is not None:
            self._zygote.kill(self._number)

    async def gone(self) -> None:
        """See Machine."""
        if self._zygote is None:
            return
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                await self._zygote.exited(self._number)
        except TimeoutError:
            raise SandboxDead(
                f"Sandbox {self._number} was killed, but did not end within {GONE_TIMEOUT_S:g} s.",
                "terminated",
            ) from None
        finally:
            self._zygote.forget(self._number)

    def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        exit_ = self._zygote.exit_of(self._number) if self._zygote is not None else None
        if exit_ is not None and exit_.oom and isinstance(error, SandboxDead):
            return SandboxDead(
                f"The sandbox was killed for using more than its {self._spec.memory_mb} MiB of memory.",
                "oom",
            )
        return error


def _base_interpreter() -> str:
    """The interpreter outside any virtual environment: with the standard library alone."""
    base: str = getattr(
        sys, "_base_executable", sys.executable
    )  # documented only in PEP 587's terms
    return os.path.realpath(base)
