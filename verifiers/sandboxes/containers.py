"""`ContainerBackend`: Docker and Podman through their command line programs, with one agent in each container.

There is never an `exec` per command: `docker run -i` starts the agent, and everything goes over its stdin and stdout.
When this program dies, whatever the way, that stream ends, with it the agent, and with the agent the container.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import shutil
import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.container_machine import ContainerMachine, ProcessOptions
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxImageError,
)
from verifiers.sandboxes.owned_folders import make_folder, remove_folder
from verifiers.sandboxes.results import SandboxInfo
from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec, is_at_least

MAX_STARTING = 8
"""Containers that start at once: engines slow down badly beyond."""
USER_ID = 1000
OPEN_FILES = 1024
RUNTIME_ISOLATION: dict[str, IsolationLevel] = {
    "runsc": "gvisor",
    "kata": "vm",
    "kata-runtime": "vm",
    "io.containerd.kata.v2": "vm",
}
"""What runtimes other than the engine's own are known to give."""


class ContainerConfig(BaseModel):
    """Which engine, and how its containers are made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["docker", "podman"] = "docker"
    program: str | None = None
    """The command line program; None: the engine's name, looked up in PATH."""
    image: str = "python:3.11-slim"
    """For specifications with image "host". Any image with Python 3.9 or newer and `sh` will do."""
    python: str = "python3"
    """Interpreter in the image."""
    runtime: str | None = None
    """Passed on as `--runtime`, such as "runsc" for gVisor."""
    pull: Literal["missing", "never", "always"] = "missing"
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Until the agent answers, pulling the image included."""
    extra_arguments: tuple[str, ...] = ()
    """Put before the image, such as `("--gpus", "all")`. They can undo the isolation."""


class ContainerBackend(GuestBackend):
    """See `SandboxBackend`. Isolation level "container", or what the runtime gives."""

    def __init__(self, config: ContainerConfig | None = None) -> None:
        super().__init__()
        self.config = config or ContainerConfig()
        self.name: str = self.config.engine
        self._starting = asyncio.Semaphore(MAX_STARTING)
        self._numbers = itertools.count(1)
        self._run = secrets.token_hex(4)

    @property
    def isolation(self) -> IsolationLevel:
        """What its containers give."""
        return RUNTIME_ISOLATION.get(self.config.runtime or "", "container")

    def _machine(self, spec: SandboxSpec) -> ContainerMachine:
        program = self.config.program or shutil.which(self.config.engine)
        if program is None:
            raise SandboxCreationError(
                f"There is no program {self.config.engine!r} in PATH. Install it, or name it in "
                "ContainerConfig(program=…)."
            )
        number = next(self._numbers)
        name = f"vf-{os.getpid()}-{self._run}-{number}"
        return ContainerMachine(
            EngineContainer(program, name, spec, self.config),
            carried_guest.parcel(
                spec, workdir=spec.workdir, limit_memory=False, limit_processes=False
            ),
            lambda: self._info(spec),
            self._starting,
            self.config.start_timeout_s,
        )

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        return _info(self.name, self.isolation, spec)

    def _check(self, spec: SandboxSpec) -> None:
        if not is_at_least(self.isolation, spec.isolation_min):
            raise IsolationUnavailable(
                f"{self.name} with runtime {self.config.runtime or 'its own'!r} isolates at level {self.isolation!r}, "
                f"not {spec.isolation_min!r}. Runtimes that do: runsc (gvisor), kata (vm)."
            )
        if spec.packages is not None:
            raise SandboxImageError(
                f"packages={spec.packages!r} of this machine are not in an image; use an image that has them."
            )
        if not isinstance(spec.network, str):
            raise SandboxCapabilityMissing(
                f"{self.name} cannot limit the network to domains; use 'none' or 'full', or the local back end."
            )


class EngineContainer:
    """The `Container` of an engine."""

    def __init__(self, program: str, name: str, spec: SandboxSpec, config: ContainerConfig) -> None:
        # It may run in a directory of its own; a bare name is looked up in PATH.
        self._program = os.path.abspath(program) if os.sep in program else program
        self._name = name
        self._spec = spec
        self._config = config
        self._folder: str | None = None

    def prepared_command(self) -> list[str]:
        """See Container."""
        if self._config.engine == "podman" and sys.platform == "linux":
            self._folder = make_folder()
        return [self._program, *run_arguments(self._name, self._spec, self._config)]

    def remove_command(self) -> list[str]:
        """See Container."""
        return [self._program, "rm", "--force", "--volumes", self._name]

    def process_options(self) -> ProcessOptions:
        """See Container."""
        # Podman's conmon leaves a file `oom` where it was started when a container has run out of memory.
        return {} if self._folder is None else {"cwd": self._folder}

    def was_out_of_memory(self) -> bool:
        """See Container."""
        return False  # the agent tells of each command, and nobody of the container

    def clean_up(self) -> None:
        """See Container."""
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None


def run_arguments(name: str, spec: SandboxSpec, config: ContainerConfig) -> list[str]:
    """What `docker` or `podman` is called with."""
    is_podman = config.engine == "podman"
    # Podman knows no uid=…: its U gives a tmpfs to the user of the container.
    owner = "U" if is_podman else f"uid={USER_ID},gid={USER_ID}"
    arguments = [
        "run",
        "--interactive",
        "--rm",
        f"--name={name}",
        f"--label=verifiers.pid={os.getpid()}",
        f"--pull={config.pull}",
        "--read-only",
        f"--tmpfs={spec.workdir}:rw,exec,nosuid,nodev,size={spec.disk_mb}m,mode=0755,{owner}",
        *(
            f"--tmpfs={folder}:rw,exec,nosuid,nodev,size={spec.disk_mb}m,mode=0755,{owner}"
            for folder in spec.folders
        ),
        f"--tmpfs=/tmp:rw,exec,nosuid,nodev,size={spec.disk_mb}m,mode=1777",
        f"--shm-size={spec.disk_mb}m",
        f"--user={USER_ID}:{USER_ID}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={spec.max_processes}",
        # Not nproc: without user namespaces it counts the processes of all containers together.
        f"--ulimit=nofile={OPEN_FILES}:{OPEN_FILES}",
        f"--ulimit=fsize={spec.disk_mb << 20}:{spec.disk_mb << 20}",
        "--ulimit=core=0:0",
        f"--memory={spec.memory_mb}m",
        f"--memory-swap={spec.memory_mb}m",  # the same number: no swap
        f"--network={'none' if spec.network == 'none' else 'bridge'}",
        f"--workdir={spec.workdir}",
        "--log-driver=none",  # the stream is ours; the engine need not keep a copy on disk
    ]
    if is_podman:
        arguments.append("--read-only-tmpfs=false")  # it would make /run and /var/tmp writable
    if spec.cpu_cores is not None:
        arguments.append(f"--cpus={spec.cpu_cores:g}")
    if config.runtime is not None:
        arguments.append(f"--runtime={config.runtime}")
    image = config.image if spec.image == "host" else spec.image
    return [*arguments, *config.extra_arguments, image, *carried_guest.command(config.python)]


def _info(name: str, isolation: IsolationLevel, spec: SandboxSpec) -> SandboxInfo:
    limits = {
        "memory": f"{spec.memory_mb} MiB together (engine)",
        "processes": f"{spec.max_processes} (engine)",
        "cpu": "fair share" if spec.cpu_cores is None else f"{spec.cpu_cores:g} cores (engine)",
        "disk": f"{spec.disk_mb} MiB each in the work directory, /tmp, /dev/shm and further folders (tmpfs), files not "
        "counted",
    }
    notes = (
        "The engine's own user namespace and system call settings apply; see its documentation.",
    )
    return SandboxInfo(name, isolation, spec.workdir, limits, notes)
