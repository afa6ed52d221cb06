"""One container with an agent in it: a foreground process whose stdin and stdout are the agent's.

Docker, Podman and runsc differ in the command that makes the container and in what has to be cleaned up after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Protocol, TypedDict

from verifiers.sandboxes.agent_sandbox import Started
from verifiers.sandboxes.connection import AgentConnection
from verifiers.sandboxes.errors import SandboxCreationError, SandboxDead, SandboxImageError
from verifiers.sandboxes.results import SandboxInfo

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
    """What differs from engine to engine. All of it is called in threads, and may block."""

    def prepared_command(self) -> list[str]:
        """Prepare what the container needs; the program that then makes and becomes it. Raises SandboxCreationError."""
        ...

    def remove_command(self) -> list[str]:
        """The program that kills and removes it, whatever state it is in. Called at any time after preparation."""
        ...

    def process_options(self) -> ProcessOptions:
        """For both programs."""
        ...

    def was_out_of_memory(self) -> bool:
        """Whether the kernel has killed something of it for want of memory. Quick, from any thread."""
        ...

    def clean_up(self) -> None:
        """All its processes are gone, or it never had any."""
        ...


class ContainerMachine:
    """The `Machine` of one container: a foreground process whose stdin and stdout are the agent's."""

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
        self._complaints: IO[bytes] | None = None
        self._complaint = "It said nothing."
        self._executing: asyncio.Future[None] | None = None
        self._is_killed = False
        self._has_hung_up = False
        self._going: asyncio.Task[None] | None = None

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        async with self._slots:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            ours, theirs = socket.socketpair()
            # Making a process blocks; cancelled meanwhile, `gone` cleans up what came of it. No task: those are
            # cancelled when a loop ends, and the process would be forgotten.
            self._executing = asyncio.get_running_loop().run_in_executor(
                None, self._execute, theirs
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
        return Started(connection, self._info())

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
            command = self._container.prepared_command()
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_wait`
            try:
                self._process = subprocess.Popen(
                    command,
                    **self._container.process_options(),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._complaints,
                    start_new_session=True,  # Ctrl-C is for this program, which then ends it in order
                )
            except OSError as error:
                raise SandboxCreationError(
                    f"{command[0]} could not be executed: {error.strerror}."
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
                    self._container.remove_command(),
                    **self._container.process_options(),
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
                subprocess.run(
                    self._container.remove_command(),
                    **self._container.process_options(),
                    capture_output=True,
                    timeout=END_TIMEOUT_S,
                )
        if self._complaints is not None:
            self._complaints.seek(0)
            said = self._complaints.read()[-2000:].decode("utf-8", "replace").strip()
            self._complaint = said or self._complaint
            self._complaints.close()
        self._container.clean_up()

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        if isinstance(error, SandboxDead) and self._container.was_out_of_memory():
            return SandboxDead("The sandbox was killed for using too much memory.", "oom")
        return error
