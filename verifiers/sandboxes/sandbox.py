"""The one interface of all sandboxes. These docstrings are the contract; `tests/conformance/sandbox` checks it.

    spec = SandboxSpec(memory_mb=256)
    async with LocalBackend() as backend:
        sandbox = await backend.create(spec)        # returns at once; the sandbox comes up meanwhile
        result = await sandbox.exec("python3 solve.py", stdin=b"3 4", timeout_s=5)
        await sandbox.terminate()

Every operation waits for readiness by itself. Every coroutine here may be cancelled at any point: what it had
started inside is killed, and the sandbox stays usable. Paths are paths *inside* the sandbox; relative ones begin
at `info.workdir`.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec

StreamName = Literal["stdout", "stderr"]
SNAPSHOT_MEMORY_BYTES = 8 << 20
"""Of a snapshot, before it goes to a file."""


Command = str | Sequence[str]
"""A shell line (run by `bash -c`, else `sh -c`; never a login shell) or an argument vector (run as it is)."""
Overflow = Literal["truncate_middle", "kill"]
Capability = Literal[
    "snapshot",
    "fork_python",
    "per_command_limits",
    "file_count_limit",
    "network_proxy",
    "network_full",
]
DEFAULT_MAX_OUTPUT_BYTES = 1 << 20
DEFAULT_MAX_FILE_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How one command ended. A time limit or an overflow is a result, not an exception."""

    exit_code: int | None
    """What the command returned; 128 + signal number if a signal ended it, as in a shell; 126 if it could not be
    started, 127 if there is no such program. None when the sandbox itself stopped it (time limit, output limit)."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """The time limit passed and everything that the command had started was killed."""
    oom: bool = False
    """Something was killed for want of memory while the command ran."""
    stdout_dropped_bytes: int = 0
    """Bytes missing from the middle of `stdout`, where a line `[... N bytes dropped ...]` stands."""
    stderr_dropped_bytes: int = 0
    output_limit_hit: bool = False
    """Killed for producing more than it may (`on_overflow="kill"`, or beyond the hard limit)."""
    queued_s: float = 0.0
    """From the call until the command was started: waiting for the sandbox and for a free slot."""
    run_s: float = 0.0
    """From the start of the command until its end."""

    @property
    def ok(self) -> bool:
        """Whether the command ended by itself with code 0."""
        return self.exit_code == 0

    @property
    def truncated(self) -> bool:
        """Whether output is missing."""
        return bool(self.stdout_dropped_bytes or self.stderr_dropped_bytes or self.output_limit_hit)

    @property
    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class CellError:
    """The exception that ended a cell."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class CellResult:
    """How one cell of a `PythonSession` ended."""

    stdout: bytes = b""
    stderr: bytes = b""
    value: str | None = None
    """`repr` of the last expression, None if the cell ends in a statement or with None."""
    error: CellError | None = None
    timed_out: bool = False
    restarted: bool = False
    """The interpreter had to be replaced (it ignored the interrupt, exited or died): all variables are gone."""
    oom: bool = False
    dropped_bytes: int = 0
    """Bytes missing from the middle of `stdout` and `stderr` together."""
    output_limit_hit: bool = False
    """The cell was stopped for producing more output than the hard limit."""
    queued_s: float = 0.0
    run_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the cell ran to its end without an exception."""
        return self.error is None and not (
            self.timed_out or self.restarted or self.output_limit_hit
        )

    @property
    def text(self) -> str:
        """stdout as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What this sandbox really is, to be stored beside the results it produced."""

    backend: str
    isolation: IsolationLevel
    workdir: str
    limits: dict[str, str] = field(default_factory=dict)
    """Limit → how it is enforced: `{"memory": "512 MiB (cgroup v1)", "cpu": "not enforced"}`."""
    notes: tuple[str, ...] = ()
    """What is weaker here than it could be, one sentence each."""


class Snapshot:
    """The files of a sandbox, to start other ones from: those below the work directory, `/tmp` and `spec.folders`.

    More than 8 MiB lie in an unnamed temporary file, which goes with the last reference.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        """What was copied: "workdir", "tmp", or the path of a folder."""
        self._starts: list[int] = []
        self._kept = bytearray()
        self._size = 0
        self._file: int | None = None

    @property
    def size_bytes(self) -> int:
        """Length of all archives together. Zeros in large files do not count."""
        return self._size

    def begin(self, place: str) -> None:
        """Let the archive of another place follow."""
        self.places.append(place)
        self._starts.append(self._size)

    def add(self, data: bytes) -> None:
        """Append to the archive of the last place. Blocks once there is a file."""
        self._size += len(data)
        if self._file is None and self._size > SNAPSHOT_MEMORY_BYTES:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
            weakref.finalize(self, os.close, self._file)
            data = bytes(self._kept) + data
            self._kept.clear()
        if self._file is None:
            self._kept += data
            return
        view = memoryview(data)
        while len(view):
            view = view[os.write(self._file, view) :]

    def chunks(self, place: str, chunk_bytes: int) -> Iterator[bytes]:
        """The archive of a place, in the format of `verifiers.sandboxes.guest.archive`. Blocks if there is a file."""
        number = self.places.index(place)
        at = self._starts[number]
        end = [*self._starts, self._size][number + 1]
        while at < end:
            count = min(chunk_bytes, end - at)
            if self._file is None:
                data = bytes(self._kept[at : at + count])
            else:
                data = os.pread(self._file, count, at)
            at += len(data)
            yield data


class _FromSpec(Enum):
    TIMEOUT = "command_timeout_s of the specification"


TIMEOUT_FROM_SPEC: Final = _FromSpec.TIMEOUT
"""Default of every `timeout_s`: the specification's `command_timeout_s`. None means no limit."""

Timeout = float | None | Literal[_FromSpec.TIMEOUT]


@runtime_checkable
class Process(Protocol):
    """A command that runs while the caller goes on. Also an async context manager that kills it on exit."""

    async def write(self, data: bytes) -> None:
        """Give bytes to stdin; returns when the command's pipe has taken them.

        Raises BrokenPipeError if the command has ended or closed its stdin.
        """
        ...

    async def close_stdin(self) -> None:
        """End of input. Doing it twice is harmless."""
        ...

    def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """What it prints, as it comes, until it has ended. One reader at a time.

        A reader who stops reading stops the command after about 256 KiB, and never another command.
        """
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the command and its process group. Harmless after its end."""
        ...

    async def kill(self) -> None:
        """End it and everything it has started, also what has detached itself; returns when it has ended."""
        ...

    async def wait(self) -> ExecResult:
        """How it ended; the result's `stdout` and `stderr` are empty.

        If `output()` was never called, output is dropped meanwhile; otherwise it waits for its reader.
        """
        ...

    async def __aenter__(self) -> Process: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class PythonSession(Protocol):
    """An interpreter that keeps its variables from cell to cell. Also an async context manager that closes it."""

    async def run(
        self,
        code: str,
        *,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> CellResult:
        """Run one cell; cells of one session run one after another.

        At the time limit the cell gets KeyboardInterrupt and half a second; variables then survive. Code that
        ignores it costs the interpreter: it is replaced (`restarted=True`). The session always stays usable.
        """
        ...

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell; without one, nothing happens."""
        ...

    async def reset(self) -> None:
        """Start over with a fresh interpreter; a running cell ends with `restarted=True`."""
        ...

    async def close(self) -> None:
        """End the interpreter. Idempotent."""
        ...

    async def __aenter__(self) -> PythonSession: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine for untrusted code. Also an async context manager that terminates it.

    Any method may raise `SandboxCreationError` (it did not come up), `SandboxDead` (it is gone, `reason` says why)
    or `SandboxUnresponsive`. One case is a result instead: when the code inside ends the sandbox
    (`SandboxDead.by_program`), the commands and cells that run have an outcome, and only later calls raise.
    """

    id: str
    """Unique among all sandboxes of this process; made of letters, digits and `-`."""
    spec: SandboxSpec
    info: SandboxInfo
    """What is really enforced. Complete once ready."""

    async def ready(self) -> float:
        """Wait until commands can run. Returns the seconds that *this call* waited."""
        ...

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        on_overflow: Overflow = "truncate_middle",
        memory_mb: int | None = None,
        cpu_time_s: float | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        It sees the specification's variables plus `env`, and an empty stdin unless given. The result comes when the
        command itself has ended, even if a background child still holds its pipes; such children live on. At the
        time limit everything it started is killed, detached children included, and other running commands are not.

        Of each stream at most `max_output_bytes` are kept: the first and the last half, with a line between them that
        counts what was dropped; or with `on_overflow="kill"` the first part, and the command is stopped. More than
        256 MiB always stops it. `memory_mb` (address space of each process) and `cpu_time_s` limit this command further
        (capability "per_command_limits").

        A program or `cwd` that does not exist is a result with code 127 or 126 and the reason in `stderr`.
        Raises ValueError for an empty command, a zero byte, or a `user` that the sandbox does not have.
        """
        ...

    async def spawn(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: bool = False,
        discard_output: bool = False,
    ) -> Process:
        """Start a command and return while it runs. `stdin=False` gives it an empty one.

        `discard_output=True` suits background servers: what they print goes nowhere and never blocks them.
        """
        ...

    async def run_python(
        self,
        code: str,
        *,
        argv: Sequence[str] = (),
        stdin: bytes | None = None,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        on_overflow: Overflow = "truncate_middle",
        memory_mb: int | None = None,
        cpu_time_s: float | None = None,
    ) -> ExecResult:
        """Run a program in a fresh process of the prepared interpreter; like `exec(["python3", "-c", code])`.

        With capability "fork_python" it is a fork with the `preload` modules imported already: milliseconds.
        `memory_mb` then counts on top of what the prepared interpreter takes.
        """
        ...

    async def python(self) -> PythonSession:
        """Start an interpreter that keeps its variables between cells."""
        ...

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        """Content of a regular file. Raises `SandboxFileNotFound`, `SandboxFileTooLarge`, `SandboxFileError`."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a regular file, with missing parent directories. Raises `SandboxFileError`."""
        ...

    async def upload(self, local: Path | str, remote: str) -> None:
        """Copy a file or a directory of this machine to the path `remote` inside. Links are copied as links.

        Raises FileNotFoundError for a missing local path, `SandboxFileError` for trouble inside.
        """
        ...

    async def download(
        self, remote: str, local: Path | str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES
    ) -> None:
        """Copy a file or a directory from inside to the path `local`.

        Nothing is ever written outside `local`, whatever the sandbox sends; links that point outside the copied
        tree, devices, sockets and fifos are left out.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """The files below the work directory, the directory for temporary files and `spec.folders`, with their times,
        modes and links (capability "snapshot"); else `SandboxCapabilityMissing`.

        Devices, sockets, fifos, unreadable files and paths over 3,000 bytes are left out.
        Raises `SandboxFileTooLarge` above twice the specification's `disk_mb`.
        """
        ...

    async def end_processes(self) -> None:
        """Kill every process inside, also those that have detached themselves.

        Jobs and sessions of the caller end like killed ones. The sandbox and its files stay, and what is started
        afterwards meets none of those processes.
        """
        ...

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Set environment variables for every later command, program and session, on top of the specification's.

        They replace those of an earlier call.
        """
        ...

    async def terminate(self) -> None:
        """Kill everything and free what it used; returns when that is done. Idempotent, and goes on if cancelled."""
        ...

    def kill_sync(self) -> None:
        """Start killing everything at once, without an event loop: for atexit and signal handlers. Idempotent."""
        ...

    async def __aenter__(self) -> Sandbox: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class SandboxBackend(Protocol):
    """Makes sandboxes. Building one costs nothing and starts nothing; an async context manager that closes it."""

    name: str
    capabilities: frozenset[Capability]

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """A handle, at once; the sandbox comes up meanwhile and whoever awaits it gets the failure, if any.

        Raises `IsolationUnavailable` or `SandboxCapabilityMissing` at once where the specification alone decides.
        """
        ...

    async def aclose(self) -> None:
        """Terminate every sandbox it made and whatever helps to make them. Idempotent."""
        ...

    async def __aenter__(self) -> SandboxBackend: ...
    async def __aexit__(self, *exc: object) -> None: ...
