"""`ContainerBackend`: Docker and Podman through their command line programs, with one guest in each container.

There is never an `exec` per command: `docker run -i` starts the guest, whose stdin and stdout carry everything.
When this program dies, the stream ends, then the guest ends, and then the container. `ContainerMachine` also serves
gVisor: engines differ in the commands that make and remove a container, and in what has to be cleaned up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any, Literal, Protocol, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.connection import GuestConnection
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
)
from verifiers.sandboxes.guest_sandbox import Started
from verifiers.sandboxes.owned_folders import make_folder, remove_folder
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec, is_at_least

MAIN_SERVICE = "main"
MAX_STARTING = 8
"""Maximum number of containers that start at once. Engines become much slower beyond it."""
USER_ID = 1000
OPEN_FILES = 1024
IMAGE_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
"""Capabilities of root in a writable image: what package managers need, and none that reaches the machine."""
RUNTIME_ISOLATION: dict[str, IsolationLevel] = {
    "runsc": "gvisor",
    "kata": "vm",
    "kata-runtime": "vm",
    "io.containerd.kata.v2": "vm",
}
"""Isolation of runtimes other than the engine's default."""

END_TIMEOUT_S = 30.0
_IMAGE_WORDS = (
    "No such image",
    "manifest unknown",
    "pull access denied",
    "not found: manifest",
    # Podman's
    "image not known",
    "initializing source docker://",
    'Error: short-name "',
)


class ProcessOptions(TypedDict, total=False):
    """Some arguments of `subprocess.Popen`."""

    cwd: str
    env: Mapping[str, str]
    user: int
    group: int
    extra_groups: list[int]


class Container(Protocol):
    """The differences between engines. All methods run in threads, and may block."""

    def prepared_command(self) -> list[str]:
        """Prepare the container. Return the command that becomes it. Raises SandboxCreationError."""
        ...

    def remove_command(self) -> list[str]:
        """Return the command that kills and removes the container in any state. Called after preparation."""
        ...

    def process_options(self) -> ProcessOptions:
        """Return options for both commands."""
        ...

    def was_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the container because of lack of memory. Fast, from any thread."""
        ...

    def clean_up(self) -> None:
        """Clean up. All processes of the container have ended, or there were none."""
        ...


class ContainerMachine:
    """The `Machine` of one container: a foreground process whose stdin and stdout belong to the guest."""

    def __init__(
        self,
        container: Container,
        parcel: bytes,
        info: Callable[[], SandboxInfo],
        starting: asyncio.Semaphore,
        start_timeout_s: float,
    ) -> None:
        self._container = container
        self._parcel = parcel
        self._info = info
        self._slots = starting
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._removal: subprocess.Popen[bytes] | None = None
        self._stderr_file: IO[bytes] | None = None
        self._stderr_text = "It printed no message."
        self._executing: asyncio.Future[None] | None = None
        self._is_killed = False
        self._has_hung_up = False
        self._removing: asyncio.Task[None] | None = None

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        async with self._slots:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            host_end, guest_end = socket.socketpair()
            # Creating a process blocks. If cancelled meanwhile, `gone` cleans up. It is not a task, because tasks are
            # cancelled when a loop ends, and the process would then be lost.
            self._executing = asyncio.get_running_loop().run_in_executor(
                None, self._execute, guest_end
            )
            try:
                await asyncio.shield(self._executing)
                if self._is_killed:
                    raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
                host_end.setblocking(False)
                transport, connection = await asyncio.get_running_loop().create_connection(
                    lambda: GuestConnection(lambda error: self._on_hang_up(error, on_closed)),
                    sock=host_end.dup(),
                )
                transport.write(self._parcel)
                await self._until_ready(connection)
            finally:
                host_end.close()
        return Started(connection, self._info())

    def _on_hang_up(self, error: Exception, on_closed: Callable[[Exception], None]) -> None:
        self._has_hung_up = not self._is_killed
        on_closed(error)

    async def _until_ready(self, connection: GuestConnection) -> None:
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await connection.ready
        except TimeoutError:
            error = SandboxCreationError(
                f"The guest in the container did not respond within {self._start_timeout_s:g} s."
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

    def _execute(self, guest_end: socket.socket) -> None:
        with guest_end:
            command = self._container.prepared_command()
            self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_wait`
            try:
                self._process = subprocess.Popen(
                    command,
                    **self._container.process_options(),
                    stdin=guest_end.fileno(),
                    stdout=guest_end.fileno(),
                    stderr=self._stderr_file,
                    start_new_session=True,  # Ctrl-C is meant for this program, which then ends the container in order
                )
            except OSError as error:
                raise SandboxCreationError(
                    f"{command[0]} could not be executed: {error.strerror}."
                ) from error

    def _why_not_started(self) -> SandboxCreationError:
        if any(words in self._stderr_text for words in _IMAGE_WORDS):
            return SandboxImageError(f"The image cannot be used: {self._stderr_text}")
        return SandboxCreationError(f"The container did not start: {self._stderr_text}")

    def kill_now(self) -> None:
        """See Machine. The removal by name also hits a container that the engine is still making."""
        self._is_killed = True
        if self._process is not None and self._removal is None:
            with contextlib.suppress(OSError):
                self._removal = subprocess.Popen(
                    self._container.remove_command(),
                    **self._container.process_options(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    async def gone(self) -> None:
        """See Machine."""
        if self._removing is None:
            self._removing = asyncio.get_running_loop().create_task(self._remove_and_wait())
        await asyncio.shield(self._removing)

    async def _remove_and_wait(self) -> None:
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
        # The engine may have created the container after the first removal failed to find it.
        if self._process is not None and not self._has_hung_up:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    self._container.remove_command(),
                    **self._container.process_options(),
                    capture_output=True,
                    timeout=END_TIMEOUT_S,
                )
        if self._stderr_file is not None:
            self._stderr_file.seek(0)
            text = self._stderr_file.read()[-2000:].decode("utf-8", "replace").strip()
            self._stderr_text = text or self._stderr_text
            self._stderr_file.close()
        self._container.clean_up()

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        if isinstance(error, SandboxDead) and self._container.was_out_of_memory():
            return SandboxDead("The sandbox was killed for using too much memory.", "oom")
        return error


class ContainerConfig(BaseModel):
    """The engine, and options for its containers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["docker", "podman"] = "docker"
    program: str | None = None
    """The command line program. None: the engine's name, looked up in PATH."""
    image: str = "python:3.11-slim"
    """For specifications with image "host". Any image with Python 3.9 or newer and `sh` works."""
    python: str = "python3"
    """Interpreter in the image."""
    runtime: str | None = None
    """Passed as `--runtime`, such as "runsc" for gVisor."""
    pull: Literal["missing", "never", "always"] = "missing"
    start_timeout_s: float = Field(default=120.0, gt=0)
    """Time until the guest responds, including the pull of the image."""
    extra_arguments: tuple[str, ...] = ()
    """Inserted before the image, such as `("--gpus", "all")`. They can disable the isolation."""


class ContainerBackend(GuestBackend):
    """See `SandboxBackend`. Isolation level "container", or the level of the runtime."""

    has_images = True

    def __init__(self, config: ContainerConfig | None = None) -> None:
        super().__init__()
        self.config = config or ContainerConfig()
        self.name: str = self.config.engine
        self._starting = asyncio.Semaphore(MAX_STARTING)
        self._numbers = itertools.count(1)
        self._run = secrets.token_hex(4)

    @property
    def isolation(self) -> IsolationLevel:
        """Isolation of the containers."""
        return RUNTIME_ISOLATION.get(self.config.runtime or "", "container")

    def _machine(self, spec: SandboxSpec) -> ContainerMachine:
        program = self.config.program or shutil.which(self.config.engine)
        if program is None:
            raise SandboxCreationError(
                f"The program {self.config.engine!r} is not in PATH. Install it, or set its path in "
                "ContainerConfig(program=…)."
            )
        number = next(self._numbers)
        name = f"vf-{os.getpid()}-{self._run}-{number}"
        kind = EngineContainer if spec.compose is None else ComposeContainer
        start_timeout_s = self.config.start_timeout_s
        if spec.compose is not None:
            start_timeout_s += spec.compose.start_timeout_s
        return ContainerMachine(
            kind(program, name, spec, self.config),
            carried_guest.parcel(
                spec,
                workdir=spec.workdir,
                limit_memory=False,
                limit_processes=False,
                filter_system_calls=not spec.writable_image,
            ),
            lambda: self._info(spec),
            self._starting,
            start_timeout_s,
        )

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        return _info(self.name, self.isolation, spec)

    def _check(self, spec: SandboxSpec) -> None:
        if not is_at_least(self.isolation, spec.isolation_min):
            raise IsolationUnavailable(
                f"{self.name} with runtime {self.config.runtime or 'its own'!r} isolates at level {self.isolation!r}, "
                f"not {spec.isolation_min!r}. Use the runtime runsc (gvisor) or kata (vm)."
            )
        if spec.packages is not None:
            raise SandboxImageError(
                f"packages={spec.packages!r} of this machine are not in an image. Use an image that has them."
            )
        if not isinstance(spec.network, str):
            raise SandboxCapabilityMissing(
                f"{self.name} cannot limit the network to domains. Use 'none' or 'full', or the local back end."
            )


class EngineContainer:
    """The `Container` of an engine."""

    def __init__(self, program: str, name: str, spec: SandboxSpec, config: ContainerConfig) -> None:
        # The process may run in another directory. A bare name is looked up in PATH.
        self._program = os.path.abspath(program) if os.sep in program else program
        self._name = name
        self._spec = spec
        self._config = config
        self._folder: str | None = None
        self._compose: list[str] = []

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
        # If a container runs out of memory, Podman's conmon writes a file `oom` in its current directory.
        return {} if self._folder is None else {"cwd": self._folder}

    def was_out_of_memory(self) -> bool:
        """See Container."""
        return (
            False  # the guest reports each command; the engine reports nothing about the container
        )

    def clean_up(self) -> None:
        """See Container."""
        if self._folder is not None:
            remove_folder(self._folder)
            self._folder = None


class ComposeContainer(EngineContainer):
    """The `Container` of the service `main` of a Compose file. Its other services start before it and end with it."""

    def prepared_command(self) -> list[str]:
        """See Container. Starts the other services and waits for them."""
        project = self._spec.compose
        assert project is not None
        self._folder = make_folder()
        before, after = compose_layers(self._spec)
        files = [os.path.join(self._folder, "before.json"), project.file]
        files.append(os.path.join(self._folder, "after.json"))
        for path, layer in ((files[0], before), (files[2], after)):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(layer, file)
        self._compose = [self._program, "compose", f"--project-name={self._name}"]
        self._compose += [f"--project-directory={os.path.dirname(os.path.abspath(project.file))}"]
        self._compose += [f"--file={os.path.abspath(file)}" for file in files]
        services = self._output("config", "--services", timeout_s=END_TIMEOUT_S).split()
        if MAIN_SERVICE not in services:
            raise SandboxImageError(
                f"{project.file} has no service {MAIN_SERVICE!r}, in which the agent works. It has: "
                f"{', '.join(services)}."
            )
        limit_s = project.start_timeout_s
        self._output("build", timeout_s=limit_s)
        if others := [name for name in services if name != MAIN_SERVICE]:
            wait = ("--wait", f"--wait-timeout={int(limit_s)}")
            self._output("up", "--detach", *wait, *others, timeout_s=limit_s)
        program, *rest = carried_guest.command(self._config.python)
        options = ("--rm", "--no-TTY", "--use-aliases", "--no-deps", f"--name={self._name}")
        entry = f"--entrypoint={program}"
        return [*self._compose, "run", *options, entry, MAIN_SERVICE, *rest]

    def remove_command(self) -> list[str]:
        """See Container. Removes the services and their volumes, too."""
        remove = super().remove_command()
        if not self._compose:
            return remove
        end = [*self._compose, "down", "--volumes", "--remove-orphans", "--timeout=1"]
        return ["/bin/sh", "-c", f"{shlex.join(remove)}; {shlex.join(end)}"]

    def process_options(self) -> ProcessOptions:
        """See Container. The variables of the file are those of the process."""
        project = self._spec.compose
        assert project is not None
        options = super().process_options()
        return {**options, "env": {**os.environ, **dict(project.variables)}}

    def _output(self, *arguments: str, timeout_s: float) -> str:
        try:
            done = subprocess.run(
                [*self._compose, *arguments],
                **self.process_options(),
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
            )
        except OSError as error:
            raise SandboxCreationError(
                f"{self._program} could not be executed: {error.strerror}."
            ) from error
        except subprocess.TimeoutExpired as error:
            raise SandboxCreationError(
                f"`compose {arguments[0]}` took longer than {timeout_s:g} s."
            ) from error
        if done.returncode != 0:
            text = done.stderr.decode("utf-8", "replace").strip()[-2000:]
            raise SandboxImageError(
                f"`{self._program} compose {arguments[0]}` failed with exit code {done.returncode}: {text}"
            )
        return done.stdout.decode("utf-8", "replace")


def compose_layers(spec: SandboxSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return Compose files to put before and after that of a task: defaults, and the limits of `main`."""
    project = spec.compose
    assert project is not None
    source: dict[str, Any] = {} if spec.image == "host" else {"image": spec.image}
    if project.build_main is not None:
        source["build"] = {"context": project.build_main}
    before: dict[str, Any] = {
        "services": {MAIN_SERVICE: source},
        "volumes": {name: {} for name in project.volumes},
    }
    main: dict[str, Any] = {
        "cap_drop": ["ALL"],
        "cap_add": list(IMAGE_CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        "environment": dict(spec.env),
        "extra_hosts": [f"{name}:127.0.0.1" for name in spec.host_names],
        "restart": "no",
    }
    limits: dict[str, Any] = {"memory": f"{spec.memory_mb}M", "pids": spec.max_processes}
    if spec.cpu_cores is not None:
        limits["cpus"] = f"{spec.cpu_cores:g}"
    # Not `mem_limit` and its kin: Compose refuses them beside the `deploy` section that tasks have.
    main["deploy"] = {"resources": {"limits": limits}}
    after: dict[str, Any] = {"services": {MAIN_SERVICE: main}}
    if spec.network == "none":  # services reach each other, and nothing else
        after["networks"] = {"default": {"internal": True}}
    return before, after


def run_arguments(name: str, spec: SandboxSpec, config: ContainerConfig) -> list[str]:
    """Return the arguments for `docker` or `podman`."""
    is_podman = config.engine == "podman"
    # Podman does not support uid=…; its option U gives a tmpfs to the user of the container.
    owner = "U" if is_podman else f"uid={USER_ID},gid={USER_ID}"
    arguments = [
        "run",
        "--interactive",
        "--rm",
        f"--name={name}",
        f"--label=verifiers.pid={os.getpid()}",
        f"--pull={config.pull}",
        *(_of_the_image() if spec.writable_image else _read_only(spec, owner)),
        f"--shm-size={spec.disk_mb}m",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--pids-limit={spec.max_processes}",
        # Not nproc: without user namespaces, it counts the processes of all containers together.
        f"--ulimit=nofile={OPEN_FILES}:{OPEN_FILES}",
        f"--ulimit=fsize={spec.disk_mb << 20}:{spec.disk_mb << 20}",
        "--ulimit=core=0:0",
        f"--memory={spec.memory_mb}m",
        f"--memory-swap={spec.memory_mb}m",  # the same number: no swap
        f"--network={'none' if spec.network == 'none' else 'bridge'}",
        *(() if spec.writable_image else (f"--workdir={spec.workdir}",)),
        *(f"--add-host={name}:127.0.0.1" for name in spec.host_names),
        "--log-driver=none",  # the engine need not store a copy of the stream on disk
    ]
    if is_podman and not spec.writable_image:
        arguments.append(
            "--read-only-tmpfs=false"
        )  # Podman's default makes /run and /var/tmp writable
    if spec.cpu_cores is not None:
        arguments.append(f"--cpus={spec.cpu_cores:g}")
    if config.runtime is not None:
        arguments.append(f"--runtime={config.runtime}")
    image = config.image if spec.image == "host" else spec.image
    program, *rest = carried_guest.command(config.python)
    if spec.writable_image:  # whose ENTRYPOINT would receive the command
        return [*arguments, *config.extra_arguments, f"--entrypoint={program}", image, *rest]
    return [*arguments, *config.extra_arguments, image, program, *rest]


def _read_only(spec: SandboxSpec, owner: str) -> list[str]:
    options = f"rw,exec,nosuid,nodev,size={spec.disk_mb}m,mode=0755,{owner}"
    return [
        "--read-only",
        *(f"--tmpfs={folder}:{options}" for folder in (spec.workdir, *spec.folders)),
        f"--tmpfs=/tmp:rw,exec,nosuid,nodev,size={spec.disk_mb}m,mode=1777",
        f"--user={USER_ID}:{USER_ID}",
    ]


def _of_the_image() -> list[str]:
    return [f"--cap-add={name}" for name in IMAGE_CAPABILITIES]


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
