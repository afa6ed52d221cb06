"""What a sandbox answers: results of commands and cells, what is really enforced."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from verifiers.sandboxes.spec import IsolationLevel

StreamName = Literal["stdout", "stderr"]
SNAPSHOT_MEMORY_BYTES = 8 << 20
"""Of a snapshot, before it goes to a file."""


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
