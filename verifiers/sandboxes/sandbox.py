"""The interface of all sandboxes. These docstrings are the contract; `tests/conformance/sandbox` checks it.

    spec = SandboxSpec(memory_mb=256)
    async with LocalBackend() as backend:
        sandbox = await backend.create(spec)        # returns at once; the sandbox starts in the background
        result = await sandbox.exec("python3 solve.py", stdin=b"3 4", timeout_s=5)
        await sandbox.terminate()

Every operation waits until the sandbox is ready. Every coroutine here may be cancelled at any point: the processes
that it started inside are killed, and the sandbox stays usable. Paths are paths *inside* the sandbox; relative paths
begin at `info.workdir`.
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

from verifiers.files import write_all
from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec

StreamName = Literal["stdout", "stderr"]
SNAPSHOT_MEMORY_BYTES = 8 << 20
"""Maximum size of a snapshot in memory. A larger snapshot is stored in a file."""


Command = str | Sequence[str]
"""A shell line (run by `bash -c`, else `sh -c`; never a login shell), or an argument vector (run without a shell)."""
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
    """The outcome of one command. A time limit or an overflow is a result, not an exception."""

    exit_code: int | None
    """The exit code of the command; 128 + signal number if a signal ended it, as in a shell; 126 if it could not be
    started, 127 if the program does not exist. None if the sandbox stopped the command (time limit, output limit).
    """
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """The time limit was exceeded, and every process that the command had started was killed."""
    oom: bool = False
    """A process was killed because of lack of memory while the command ran."""
    stdout_dropped_bytes: int = 0
    """Bytes missing from the middle of `stdout`, in the place of a line `[... N bytes dropped ...]`."""
    stderr_dropped_bytes: int = 0
    output_limit_hit: bool = False
    """Killed because of too much output (`on_overflow="kill"`, or beyond the hard limit)."""
    queued_s: float = 0.0
    """Time from the call until the start of the command: the wait for the sandbox and for a free slot."""
    run_s: float = 0.0
    """From the start of the command until its end."""

    @property
    def ok(self) -> bool:
        """Whether the command exited with code 0."""
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
    """The outcome of one cell of a `PythonSession`."""

    stdout: bytes = b""
    stderr: bytes = b""
    value: str | None = None
    """`repr` of the last expression. None if the cell ends in a statement or with None."""
    error: CellError | None = None
    timed_out: bool = False
    restarted: bool = False
    """The interpreter was replaced because it ignored the interrupt, exited or died. All variables are lost."""
    oom: bool = False
    dropped_bytes: int = 0
    """Bytes missing from the middle of `stdout` and `stderr` together."""
    output_limit_hit: bool = False
    """The cell was stopped because its output exceeded the hard limit."""
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
    """The actual properties of a sandbox, to be stored beside the results that it produced."""

    backend: str
    isolation: IsolationLevel
    workdir: str
    limits: dict[str, str] = field(default_factory=dict)
    """Limit → how it is enforced: `{"memory": "512 MiB (cgroup v1)", "cpu": "not enforced"}`."""
    notes: tuple[str, ...] = ()
    """The weaknesses of this sandbox, one sentence each."""


class Snapshot:
    """The files of a sandbox, from which other sandboxes can start: the work directory, `/tmp` and `spec.folders`.

    A snapshot above 8 MiB is stored in an unnamed temporary file, which is removed with the last reference.
    """

    def __init__(self) -> None:
        self.places: list[str] = []
        """The copied places: "workdir", "tmp", or the path of a folder."""
        self._starts: list[int] = []
        self._kept = bytearray()
        self._size = 0
        self._file: int | None = None

    @property
    def size_bytes(self) -> int:
        """Length of all archives together. Zeros in large files do not count."""
        return self._size

    def begin(self, place: str) -> None:
        """Begin the archive of another place."""
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
        write_all(self._file, data)

    def chunks(self, place: str, chunk_bytes: int) -> Iterator[bytes]:
        """Return the archive of a place, in the format of `verifiers.sandboxes.guest.archive`. Blocks if there is a
        file.
        """
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
    """A running command. Also an async context manager that kills the command on exit."""

    async def write(self, data: bytes) -> None:
        """Write bytes to stdin. Returns when the command's pipe has accepted them.

        Raises BrokenPipeError if the command has ended or closed its stdin.
        """
        ...

    async def close_stdin(self) -> None:
        """Close stdin. Idempotent."""
        ...

    def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Return an iterator over the output until the command has ended. Only one reader at a time.

        If the reader stops reading, the command blocks after about 256 KiB; other commands are not affected.
        """
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to the command and its process group. Has no effect after the end of the command."""
        ...

    async def kill(self) -> None:
        """Kill the command and every process that it has started, detached processes included. Returns after their
        end.
        """
        ...

    async def wait(self) -> ExecResult:
        """Return the outcome of the command. The `stdout` and `stderr` of the result are empty.

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
        """Run one cell. The cells of one session run one after another.

        At the time limit, the cell receives KeyboardInterrupt and has half a second to end; its variables are kept. If
        the cell ignores the interrupt, the interpreter is replaced (`restarted=True`). The session always stays
        usable.
        """
        ...

    async def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell. Without a running cell, nothing happens."""
        ...

    async def reset(self) -> None:
        """Replace the interpreter by a new one. A running cell ends with `restarted=True`."""
        ...

    async def close(self) -> None:
        """End the interpreter. Idempotent."""
        ...

    async def __aenter__(self) -> PythonSession: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine for untrusted code. Also an async context manager that terminates it.

    Any method may raise `SandboxCreationError` (the sandbox did not start), `SandboxDead` (it has ended, see `reason`)
    or `SandboxUnresponsive`. One case is a result instead: when the code inside ends the sandbox
    (`SandboxDead.by_program`), the running commands and cells have an outcome, and only later calls raise.
    """

    id: str
    """Unique among all sandboxes of this process; consists of letters, digits and `-`."""
    spec: SandboxSpec
    info: SandboxInfo
    """The actual properties and limits. Complete once the sandbox is ready."""

    async def ready(self) -> float:
        """Wait until commands can run. Return the seconds that *this call* waited."""
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

        The command receives the variables of the specification plus `env`, and an empty stdin unless `stdin` is given.
        The result is complete when the command itself has ended, even if a background child still holds its pipes;
        such children continue. At the time limit, the command and all its children are killed, detached children
        included; other commands continue.

        At most `max_output_bytes` of each stream are kept: the first and the last half, with a line between them that
        counts the dropped bytes. With `on_overflow="kill"` only the first part is kept, and the command is stopped.
        More than 256 MiB always stops the command. `memory_mb` (address space of each process) and `cpu_time_s` are
        further limits of this command (capability "per_command_limits").

        If the program or `cwd` does not exist, the result has code 127 or 126 and the reason in `stderr`.
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
        """Start a command and return while it runs. With `stdin=False`, its stdin is empty.

        `discard_output=True` is meant for background servers: their output is dropped and never blocks them.
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
        """Run a program in a new process of the prepared interpreter, like `exec(["python3", "-c", code])`.

        With capability "fork_python" the process is a fork that has already imported the `preload` modules: this takes
        milliseconds. `memory_mb` then counts on top of the memory of the prepared interpreter.
        """
        ...

    async def spawn_python(
        self,
        code: str,
        *,
        argv: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> Process:
        """Start a program as `run_python` does and return while it runs, as `spawn` does."""
        ...

    async def python(self) -> PythonSession:
        """Start an interpreter that keeps its variables between cells."""
        ...

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        """Return the content of a regular file. Raises `SandboxFileNotFound`, `SandboxFileTooLarge`,
        `SandboxFileError`.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a regular file, with missing parent directories. Raises `SandboxFileError`."""
        ...

    async def upload(self, local: Path | str, remote: str) -> None:
        """Copy a file or a directory of this machine to the path `remote` inside. Links are copied as links.

        Raises FileNotFoundError if the local path does not exist, and `SandboxFileError` for an error inside.
        """
        ...

    async def download(
        self, remote: str, local: Path | str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES
    ) -> None:
        """Copy a file or a directory from inside to the path `local`.

        Nothing is ever written outside `local`, even if the sandbox sends hostile data. Links that point outside the
        copied tree, devices, sockets and FIFOs are left out.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """Return the files below the work directory, the directory for temporary files and `spec.folders`, with their
        times, modes and links (capability "snapshot"). Other back ends raise `SandboxCapabilityMissing`.

        Devices, sockets, FIFOs, unreadable files and paths over 3,000 bytes are left out. Raises `SandboxFileTooLarge`
        above twice the specification's `disk_mb`.
        """
        ...

    async def end_processes(self) -> None:
        """Kill every process inside, detached processes included.

        Jobs and sessions of the caller end as if killed. The sandbox and its files remain; later commands do not meet
        any of those processes.
        """
        ...

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Set environment variables for every later command, program and session, on top of the specification's.

        They replace the variables of an earlier call.
        """
        ...

    async def terminate(self) -> None:
        """Kill every process and free all resources; returns when this is done. Idempotent. Continues if cancelled."""
        ...

    def kill_sync(self) -> None:
        """Start to kill every process without an event loop, for atexit and signal handlers. Idempotent."""
        ...

    async def __aenter__(self) -> Sandbox: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class SandboxBackend(Protocol):
    """Creates sandboxes. The constructor starts nothing. Also an async context manager that closes the back end."""

    name: str
    capabilities: frozenset[Capability]

    async def create(self, spec: SandboxSpec, *, snapshot: Snapshot | None = None) -> Sandbox:
        """Return a handle at once, while the sandbox starts. Methods of the sandbox raise the error if the start
        fails.

        Raises `IsolationUnavailable` or `SandboxCapabilityMissing` at once if the specification alone decides.
        """
        ...

    async def aclose(self) -> None:
        """Terminate all sandboxes of this back end and its helper processes. Idempotent."""
        ...

    async def __aenter__(self) -> SandboxBackend: ...
    async def __aexit__(self, *exc: object) -> None: ...
