"""`GVisorBackend`: sandboxes of `runsc`, each with its own kernel in user space."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import sys
import threading

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.containers import ContainerMachine
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxImageError,
)
from verifiers.sandboxes.gvisor import container
from verifiers.sandboxes.gvisor.container import RunscContainer
from verifiers.sandboxes.gvisor.runsc import GVisorConfig, RunscHost
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec, is_at_least


class GVisorBackend(GuestBackend):
    """See `SandboxBackend`. Isolation level "gvisor": code inside cannot call the kernel of this machine."""

    name = "gvisor"

    def __init__(self, config: GVisorConfig | None = None) -> None:
        super().__init__()
        self.config = config or GVisorConfig()
        starting = self.config.max_starting or 2 * (os.cpu_count() or 1)
        self._starting = asyncio.Semaphore(starting)
        self._numbers = itertools.count(1)
        self._run = secrets.token_hex(4)
        self._opening = threading.Lock()
        self._host: RunscHost | None = None

    def _machine(self, spec: SandboxSpec) -> ContainerMachine:
        name = f"vf-{os.getpid()}-{self._run}-{next(self._numbers)}"
        parcel = carried_guest.parcel(
            spec, workdir=spec.workdir, limit_memory=True, limit_processes=False, owns_kernel=True
        )
        return ContainerMachine(
            RunscContainer(name, spec, self._open_host),
            parcel,
            lambda: self._info(spec),
            self._starting,
            self.config.start_timeout_s,
        )

    async def probe(self, spec: SandboxSpec | None = None) -> SandboxInfo:
        """Make a sandbox and return what it enforces. Raises SandboxCreationError with the reason."""
        async with await self.create(spec or SandboxSpec()) as sandbox:
            await sandbox.ready()
            return sandbox.info

    def _check(self, spec: SandboxSpec) -> None:
        if not sys.platform.startswith("linux"):
            raise IsolationUnavailable(f"gVisor needs Linux, this is {sys.platform}.")
        if not is_at_least("gvisor", spec.isolation_min):
            raise IsolationUnavailable(
                f"gVisor isolates at level 'gvisor', not {spec.isolation_min!r}. Use a virtual machine: Docker with "
                "runtime 'kata', or a remote service."
            )
        if spec.network != "none":
            raise SandboxCapabilityMissing(
                f"The gvisor back end has network='none' only, got {spec.network!r}. Use the local back end, or Docker "
                "with ContainerConfig(runtime='runsc') and network='full'."
            )
        if spec.image != "host" and spec.packages is not None:
            raise SandboxImageError(
                f"packages={spec.packages!r} of this machine are not available in an image; use an image that has them."
            )

    def _open_host(self) -> RunscHost:
        with self._opening:
            if self._host is None:
                self._host = RunscHost(self.config)
            return self._host

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        groups = self._host.groups.describe() if self._host is not None else {}
        sizes = container.sizes_of(spec)
        notes = [
            "The sandbox has its own kernel in user space; system calls cost 2 to 20 times as much."
        ]
        if "memory" not in groups:
            notes.append(
                "No control groups: the memory of gVisor itself is not limited, and cpu_cores is not enforced."
            )
        cores = "fair share" if spec.cpu_cores is None else f"{spec.cpu_cores:g} cores"
        limits = {
            "memory": f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog"
            + (f", from outside by {groups['memory']}" if "memory" in groups else ""),
            "processes": f"{spec.max_processes} (RLIMIT_NPROC)",
            "cpu": f"{cores} ({groups['cpu']})" if "cpu" in groups else "not enforced",
            "disk": f"{sizes.workdir} MiB in the work directory, {sizes.other} MiB each in /tmp, /dev/shm and further "
            "folders (tmpfs), files not counted",
        }
        return SandboxInfo(self.name, "gvisor", spec.workdir, limits, tuple(notes))

    async def _close(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await asyncio.to_thread(host.close)
