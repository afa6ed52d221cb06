"""`ContainerBackend`: Docker and Podman through their command line programs, with one agent in each container.

There is never an `exec` per command: `docker run -i` starts the agent, and everything goes over its stdin and stdout.
When this program dies, whatever the way, that stream ends, with it the agent, and with the agent the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes import carried_agent
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
from verifiers.sandboxes.results import SandboxInfo, Snapshot
from verifiers.sandboxes.sandbox import Capability
from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec, is_at_least

MAX_STARTING = 8
"""Containers that start at once: engines slow down badly beyond."""
END_TIMEOUT_S = 30.0
USER_ID = 1000
RUNTIME_ISOLATION: dict[str, IsolationLevel] = {
    "runsc": "gvisor",
    "kata": "vm",
    "kata-runtime": "vm",
    "io.containerd.kata.v2": "vm",
}
"""What runtimes other than the engine's own are known to give."""
_IMAGE_WORDS = ("No such image", "manifest unknown", "pull access denied", "not found: manifest")


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


class ContainerBackend:
    """See `SandboxBackend`. Isolation level "container", or what the runtime gives."""

    capabilities: frozenset[Capability] = frozenset(
        ("snapshot", "fork_python", "per_command_limits")
    )

    def __init__(self, config: ContainerConfig | None = None) -> None:
        self.config = config or ContainerConfig()
        self.name: str = self.config.engine
        self._starting = asyncio.Semaphore(MAX_STARTING)
        self._sandboxes: set[AgentSandbox] = set()
        self._reaping: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._admission = Admission()
        self._run = secrets.token_hex(4)
        self._is_closed = False

    @property
    def isolation(self) -> IsolationLevel:
        """What its containers give."""
        return RUNTIME_ISOLATION.get(self.config.runtime or "", "container")

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> AgentSandbox:
        """See SandboxBackend."""
        if self._is_closed:
            raise SandboxCreationError("This back end has been closed.")
        self._check(spec)
        program = self.config.program or shutil.which(self.config.engine)
        if program is None:
            raise SandboxCreationError(
                f"There is no program {self.config.engine!r} in PATH. Install it, or name it in "
                "ContainerConfig(program=…)."
            )
        number = next(self._numbers)
        name = f"vf-{os.getpid()}-{self._run}-{number}"
        command = [program, *run_arguments(name, spec, self.config)]
        machine = ContainerMachine(
            command,
            [program, "rm", "--force", "--volumes", name],
            carried_agent.parcel(
                spec, workdir=spec.workdir, limit_memory=False, limit_processes=False
            ),
            _info(self.name, self.isolation, spec),
            self._starting,
            self.config.start_timeout_s,
        )
        sandbox = AgentSandbox(
            f"{self.name}-{os.getpid()}-{number}",
            spec,
            machine,
            _info(self.name, self.isolation, spec),
            self._admission,
            lambda sandbox: self._reap(sandbox, machine),
        )
        self._sandboxes.add(sandbox)
        return sandbox.begin(snapshot)

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

    def _reap(self, sandbox: AgentSandbox, machine: ContainerMachine) -> None:
        self._sandboxes.discard(sandbox)
        reaping = asyncio.get_running_loop().create_task(machine.gone(), name="reap a container")
        self._reaping.add(reaping)
        reaping.add_done_callback(self._reaping.discard)

    async def aclose(self) -> None:
        """See SandboxBackend."""
        self._is_closed = True
        await asyncio.gather(*(sandbox.terminate() for sandbox in list(self._sandboxes)))
        await asyncio.gather(*self._reaping)

    async def __aenter__(self) -> ContainerBackend:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.aclose())


def run_arguments(name: str, spec: SandboxSpec, config: ContainerConfig) -> list[str]:
    """What `docker` or `podman` is called with. The same for both."""
    owner = f"uid={USER_ID},gid={USER_ID}"
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
        f"--user={USER_ID}:{USER_ID}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={spec.max_processes}",
        f"--memory={spec.memory_mb}m",
        f"--memory-swap={spec.memory_mb}m",  # the same number: no swap
        f"--network={'none' if spec.network == 'none' else 'bridge'}",
        f"--workdir={spec.workdir}",
        "--log-driver=none",  # the stream is ours; the engine need not keep a copy on disk
    ]
    if spec.cpu_cores is not None:
        arguments.append(f"--cpus={spec.cpu_cores:g}")
    if config.runtime is not None:
        arguments.append(f"--runtime={config.runtime}")
    image = config.image if spec.image == "host" else spec.image
    return [*arguments, *config.extra_arguments, image, *carried_agent.command(config.python)]


class ContainerMachine:
    """The `Machine` of one container: a foreground process whose stdin and stdout are the agent's."""

    def __init__(
        self,
        command: list[str],
        remove_command: list[str],
        parcel: bytes,
        info: SandboxInfo,
        starting: asyncio.Semaphore,
        start_timeout_s: float,
    ) -> None:
        self._command = command
        self._remove_command = remove_command
        self._parcel = parcel
        self._info = info
        self._slots = starting
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._removal: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._complaint = "It said nothing."
        self._executing: asyncio.Task[None] | None = None
        self._is_killed = False
        self._has_hung_up = False
        self._going: asyncio.Task[None] | None = None

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        async with self._slots:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            ours, theirs = socket.socketpair()
            # Making a process blocks; cancelled meanwhile, `gone` cleans up what came of it.
            self._executing = asyncio.get_running_loop().create_task(
                asyncio.to_thread(self._execute, theirs)
            )
            try:
                await asyncio.shield(self._executing)
                if self._is_killed:
                    raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
                ours.setblocking(False)
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: AgentConnection(lambda error: self._on_hang_up(error, on_closed)),
                    sock=ours.dup(),
                )
                transport.write(self._parcel)
                await self._until_ready(connection)
            finally:
                ours.close()
        return Started(connection, self._info)

    def _on_hang_up(self, error: Exception, on_closed: Callable[[Exception], None]) -> None:
        self._has_hung_up = not self._is_killed
        on_closed(error)

    async def _until_ready(self, connection: AgentConnection) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await connection.ready
        except TimeoutError:
            error = SandboxCreationError(
                f"The container's agent did not answer within {self._start_timeout_s:g} s."
            )
            connection.fail(error)
            raise error from None
        except SandboxDead as error:
            if not self._has_hung_up:
                raise
            await self.gone()
            raise self._why_not_started() from error
        except BaseException:
            connection.fail(EOFError())
            raise

    def _execute(self, theirs: socket.socket) -> None:
        with theirs:
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_wait`
            try:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._complaints,
                    start_new_session=True,  # Ctrl-C is for this program, which then ends it in order
                )
            except OSError as error:
                raise SandboxCreationError(
                    f"{self._command[0]} could not be executed: {error.strerror}."
                ) from error

    def _why_not_started(self) -> SandboxCreationError:
        if any(words in self._complaint for words in _IMAGE_WORDS):
            return SandboxImageError(f"The image cannot be used: {self._complaint}")
        return SandboxCreationError(f"The container did not start: {self._complaint}")

    def kill_now(self) -> None:
        """See Machine. The removal by name also hits a container that the engine is still making."""
        self._is_killed = True
        if self._process is not None and self._removal is None:
            with contextlib.suppress(OSError):
                self._removal = subprocess.Popen(
                    self._remove_command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    async def gone(self) -> None:
        """See Machine."""
        if self._going is None:
            self._going = asyncio.get_running_loop().create_task(self._go())
        await asyncio.shield(self._going)

    async def _go(self) -> None:
        if self._executing is not None:
            await asyncio.wait([self._executing])
        self.kill_now()
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        for process in (self._removal, self._process):
            if process is not None:
                try:
                    process.wait(END_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        # The engine may have made it only after the first removal found nothing.
        if self._process is not None and not self._has_hung_up:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self._remove_command, capture_output=True, timeout=END_TIMEOUT_S)
        if self._complaints is not None:
            self._complaints.seek(0)
            said = self._complaints.read()[-2000:].decode("utf-8", "replace").strip()
            self._complaint = said or self._complaint
            self._complaints.close()

    def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        return error


def _info(name: str, isolation: IsolationLevel, spec: SandboxSpec) -> SandboxInfo:
    limits = {
        "memory": f"{spec.memory_mb} MiB together (engine)",
        "processes": f"{spec.max_processes} (engine)",
        "cpu": "fair share" if spec.cpu_cores is None else f"{spec.cpu_cores:g} cores (engine)",
        "disk": f"{spec.disk_mb} MiB each in the work directory and /tmp (tmpfs), files not counted",
    }
    notes = (
        "The engine's own user namespace and system call settings apply; see its documentation.",
    )
    return SandboxInfo(name, isolation, spec.workdir, limits, notes)
