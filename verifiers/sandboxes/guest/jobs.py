"""One job: a command, a forked program, an interpreter session or a file copy, with its pipes and limits."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, NamedTuple

from . import files, frames, interpreter, launch, processes

COMMAND, PROGRAM, SESSION, FILE = "command", "program", "session", "file"
SHELL = "\0shell"
"""First element of `argv`: the second one is a line for the sandbox's shell. Only the guest can see which shell
exists.
"""
CAPTURE, STREAM, DISCARD = "capture", "stream", "discard"


class JobRequest(NamedTuple):
    """The JSON of a START frame."""

    kind: str
    argv: list[str]
    """COMMAND: the command. PROGRAM: `sys.argv[1:]`."""
    code: str
    """PROGRAM: Python source."""
    operation: dict[str, Any]
    """FILE: see `files`."""
    env: dict[str, str]
    cwd: str
    timeout_s: float | None
    stdin: bool
    """Whether STDIN frames will follow; otherwise stdin is empty."""
    output: str
    """CAPTURE (up to `max_output_bytes`, then the rest is dropped or the job killed), STREAM (with credit) or DISCARD.
    """
    max_output_bytes: int
    kill_on_overflow: bool
    memory_bytes: int | None
    cpu_time_s: float | None

    @classmethod
    def parse(cls, payload: bytes) -> JobRequest:
        """Decode the payload of a START frame."""
        return cls(**json.loads(payload))

    def encode(self) -> bytes:
        """Encode as the payload of a START frame."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode("utf-8", "surrogateescape")


class GuestJob:
    """A started job. The loop owns it."""

    def __init__(self, channel: int, request: JobRequest) -> None:
        self.channel = channel
        self.request = request
        self.mark = channel
        self.pid = 0
        self.exit_code: int | None = None
        self.timed_out = False
        self.overflowed = False
        self.oom = False
        self.pipes: dict[int, int] = {}
        """Read end → 0 for stdout, 1 for stderr."""
        self.kept = (
            frames.HeadTail(request.max_output_bytes),
            frames.HeadTail(request.max_output_bytes),
        )
        self.window_bytes = frames.STREAM_WINDOW_BYTES
        self.stdin: int | None = None
        self.stdin_pending = bytearray()
        self.stdin_ends = False
        self.control: socket.socket | None = None
        self.is_control_over = False
        """Whether the session has closed its end of the control stream."""
        self.control_pending = bytearray()
        self.started_s = time.monotonic()
        self.deadline_s = (
            float("inf") if request.timeout_s is None else self.started_s + request.timeout_s
        )

    @property
    def is_flow_controlled(self) -> bool:
        """Whether the host grants credit for the job's output."""
        return self.request.output == STREAM and self.request.kind in (COMMAND, PROGRAM)

    @property
    def may_send(self) -> bool:
        """Whether the guest may read and pass on output now."""
        return not self.is_flow_controlled or self.window_bytes > 0

    def take_output(self, which: int, data: bytes) -> bytes:
        """Count output of a stream. Return the bytes to pass on now. Sets `overflowed` when the job must be killed."""
        kept = self.kept[which]
        if self.request.output == STREAM:
            self.window_bytes -= len(data)
            return data
        head = kept.feed(data)
        if kept.seen_bytes > frames.HARD_LIMIT_BYTES or (
            self.request.kill_on_overflow and kept.seen_bytes > self.request.max_output_bytes
        ):
            self.overflowed = True
        return head

    def start(self, base_env: dict[str, str], home: str, prepare: Any) -> None:
        """Start the process. `prepare` runs first in a fork. Raises CannotStart, OSError."""
        request = self.request
        extra_env = {**request.env, processes.JOB_VARIABLE: str(self.channel)}
        cwd = os.path.join(home, request.cwd)
        ends: list[int] = []
        control_child = None
        try:
            stdio = self._make_stdio(ends)
            if request.kind == COMMAND:
                argv = request.argv
                if argv[0] == SHELL:
                    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
                    argv = [shell, "-c", *argv[1:]]
                self.pid = launch.spawn_program(argv, {**base_env, **extra_env}, cwd, stdio)
                processes.set_mark(self.pid, self.mark)
                launch.limit_process(self.pid, request.memory_bytes, request.cpu_time_s)
            else:
                if request.kind == SESSION:
                    self.control, control_child = socket.socketpair()
                    self.control.setblocking(False)

                def prepare_marked() -> None:
                    processes.set_mark(0, self.mark)
                    prepare()

                self.pid = launch.fork_function(
                    self._function(), extra_env, cwd, stdio, _fileno(control_child), prepare_marked
                )
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in ends:
                os.close(descriptor)
            if control_child is not None:
                control_child.close()

    def _make_stdio(self, child_ends: list[int]) -> tuple[int, int, int]:
        """Make the child's standard streams. Appends the child's ends to `child_ends`; the job keeps the others."""
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        child_ends.append(null)
        stdio = [null, null, null]
        if self.request.stdin:
            read_end, self.stdin = os.pipe()
            child_ends.append(read_end)
            os.set_blocking(self.stdin, False)
            stdio[0] = read_end
        if self.request.output != DISCARD:
            for which in (0, 1):
                read_end, write_end = os.pipe()
                os.set_blocking(read_end, False)
                self.pipes[read_end] = which
                child_ends.append(write_end)
                stdio[which + 1] = write_end
        return stdio[0], stdio[1], stdio[2]

    def _function(self) -> Any:
        request = self.request
        if request.kind == PROGRAM:
            return lambda: interpreter.run_program(
                request.code, request.argv, request.memory_bytes, request.cpu_time_s
            )
        if request.kind == SESSION:
            return lambda: interpreter.serve_cells(3)
        if request.kind == FILE:
            return lambda: files.run(request.operation)
        raise launch.CannotStart(launch.CANNOT_START, f"unknown kind of job {request.kind!r}")

    def report(self) -> bytes:
        """Return the payload of the job's EXIT frame."""
        return json.dumps(
            {
                "exit_code": self.exit_code,
                "timed_out": self.timed_out,
                "overflowed": self.overflowed,
                "oom": self.oom,
                "dropped": [self.kept[0].dropped_bytes, self.kept[1].dropped_bytes],
                "run_s": round(time.monotonic() - self.started_s, 6),
            }
        ).encode()

    def close(self) -> None:
        """Close every descriptor that the guest holds for this job."""
        for descriptor in self.pipes:
            os.close(descriptor)
        self.pipes.clear()
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None
        if self.control is not None:
            self.control.close()
            self.control = None


def _fileno(connection: socket.socket | None) -> int | None:
    return None if connection is None else connection.fileno()
