"""The host's side of jobs: collecting a command's result, and `Process`, the live one."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from verifiers.sandboxes.connection import AgentConnection, JobReport
from verifiers.sandboxes.errors import SandboxDead
from verifiers.sandboxes.guest import frames
from verifiers.sandboxes.results import ExecResult, StreamName

ANSWER_GRACE_S = 20.0
"""Beyond a command's own limit: a sandbox that has not reported by then is taken for hung."""
_STDOUT_KINDS = (frames.STDOUT, frames.STDOUT_TAIL)


class JobEnd:
    """The parts of a sink that every job has: an end to wait for, and stdin to be fed."""

    def __init__(self) -> None:
        self.channel = 0
        self.ended: asyncio.Future[JobReport] = asyncio.get_running_loop().create_future()
        self._stdin_owed_bytes = 0
        self._stdin_taken = asyncio.Event()
        self.is_stdin_closed = False

    def on_output(self, kind: int, data: bytes) -> None:
        """See JobSink."""

    def on_control(self, data: bytes) -> None:
        """See JobSink."""

    def on_stdin_taken(self, count: int) -> None:
        """See JobSink."""
        if count == frames.STDIN_CLOSED:
            self.is_stdin_closed = True
        else:
            self._stdin_owed_bytes -= count
        if self._stdin_owed_bytes <= 0 or self.is_stdin_closed:
            self._stdin_taken.set()

    def on_exit(self, report: JobReport) -> None:
        """See JobSink."""
        self.is_stdin_closed = True
        self._stdin_taken.set()
        if not self.ended.done():
            self.ended.set_result(report)

    def on_lost(self, error: Exception) -> None:
        """See JobSink."""
        self.is_stdin_closed = True
        self._stdin_taken.set()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # a cancelled caller no longer looks at it

    async def feed(self, connection: AgentConnection, data: bytes) -> None:
        """Send stdin in pieces, each when the one before has been taken. Raises BrokenPipeError."""
        view = memoryview(data)
        while len(view):
            if self.is_stdin_closed:
                raise BrokenPipeError("The command has ended or closed its stdin.")
            piece, view = view[: frames.STDIN_CHUNK_BYTES], view[frames.STDIN_CHUNK_BYTES :]
            self._stdin_owed_bytes += len(piece)
            self._stdin_taken.clear()
            connection.send(frames.STDIN, self.channel, bytes(piece))
            await self._stdin_taken.wait()

    async def feed_all(
        self, connection: AgentConnection, data: bytes | AsyncIterator[bytes]
    ) -> None:
        """Send the whole stdin and end it; a command that does not want it is no error."""
        try:
            if isinstance(data, bytes):
                await self.feed(connection, data)
            else:
                async for piece in data:
                    await self.feed(connection, piece)
        except BrokenPipeError:
            return
        connection.send(frames.STDIN, self.channel)


class Collected(JobEnd):
    """A job whose output is kept until its end."""

    def __init__(self, max_bytes: int, *, slack: int | None = None) -> None:
        super().__init__()
        self._heads = (bytearray(), bytearray())
        self._tails = (bytearray(), bytearray())
        # The agent keeps to the limit; one that has been taken over is kept to it here.
        self._room_bytes = max_bytes + 4096 + (max_bytes if slack is None else slack)
        self._started_s = time.monotonic()

    def on_output(self, kind: int, data: bytes) -> None:
        """See JobSink."""
        self._room_bytes -= len(data)
        if self._room_bytes < 0:
            return
        kept = self._heads if kind in (frames.STDOUT, frames.STDERR) else self._tails
        kept[0 if kind in _STDOUT_KINDS else 1].extend(data)

    def result(self, report: JobReport, queued_s: float) -> ExecResult:
        """Everything together."""
        dropped = report.dropped_bytes
        if report.overflowed:
            self._tails = (bytearray(), bytearray())
            dropped = (0, 0)
        texts = [
            frames.joined(bytes(self._heads[i]), bytes(self._tails[i]), dropped[i]) for i in (0, 1)
        ]
        return ExecResult(
            exit_code=report.exit_code,
            stdout=texts[0],
            stderr=texts[1],
            timed_out=report.timed_out,
            oom=report.oom,
            stdout_dropped_bytes=dropped[0],
            stderr_dropped_bytes=dropped[1],
            output_limit_hit=report.overflowed,
            queued_s=queued_s,
            run_s=report.run_s,
        )

    def last_result(self, death: SandboxDead, queued_s: float) -> ExecResult:
        """Of a command whose sandbox ended by what ran inside: killed, with what was printed until then."""
        note = f"sandbox: {death}\n".encode("utf-8", "replace")
        return ExecResult(
            exit_code=137,
            stdout=bytes(self._heads[0]),
            stderr=bytes(self._heads[1]) + note,
            oom=death.reason == "oom",
            queued_s=queued_s,
            run_s=time.monotonic() - self._started_s,
        )


class AgentProcess(JobEnd):
    """A live command over an agent connection: `verifiers.sandboxes.Process`."""

    def __init__(self, connection: AgentConnection, *, has_stdin: bool) -> None:
        super().__init__()
        self._connection = connection
        self._chunks: deque[tuple[StreamName, bytes]] = deque()
        self._news = asyncio.Event()
        self._is_discarding = False
        self._was_asked_for_output = False
        self._is_being_read = False
        self._asked_s = time.monotonic()
        self.queued_s = 0.0
        self.is_stdin_closed = not has_stdin

    # --- sink

    def on_output(self, kind: int, data: bytes) -> None:
        """See JobSink."""
        if self._is_discarding:
            self._grant(len(data))
            return
        self._chunks.append(("stdout" if kind in _STDOUT_KINDS else "stderr", data))
        self._news.set()

    def on_exit(self, report: JobReport) -> None:
        """See JobSink."""
        super().on_exit(report)
        self._news.set()

    def on_lost(self, error: Exception) -> None:
        """See JobSink."""
        super().on_lost(error)
        self._news.set()

    def _grant(self, count: int) -> None:
        if not self.ended.done():
            payload = frames.encode_count(frames.CREDIT, self.channel, count)[9:]
            self._connection.send(frames.CREDIT, self.channel, payload)

    # --- Process

    async def write(self, data: bytes) -> None:
        """See Process."""
        await self.feed(self._connection, data)
        if self.ended.done():
            raise BrokenPipeError("The command has ended.")

    async def close_stdin(self) -> None:
        """See Process."""
        if not self.is_stdin_closed:
            self.is_stdin_closed = True
            self._connection.send(frames.STDIN, self.channel)

    def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """See Process."""
        self._was_asked_for_output = True
        return _OutputReader(self)

    async def next_output(self) -> tuple[StreamName, bytes]:
        """The next piece of output. Raises StopAsyncIteration after the last."""
        if self._is_being_read:
            raise RuntimeError("The output of this process is being read already.")
        self._is_being_read = True
        try:
            while not self._chunks:
                if self.ended.done():
                    self.ended.result()
                    raise StopAsyncIteration
                self._news.clear()
                await self._news.wait()
        finally:
            self._is_being_read = False
        stream, data = self._chunks.popleft()
        self._grant(len(data))
        return stream, data

    async def signal(self, number: int) -> None:
        """See Process."""
        if not 0 < number < 65:
            raise ValueError(f"There is no signal {number}.")
        self._connection.send(frames.SIGNAL, self.channel, bytes([number]))

    def kill_soon(self) -> None:
        """Have it killed, without waiting."""
        self._connection.send(frames.SIGNAL, self.channel, bytes([frames.KILL_TREE]))

    async def kill(self) -> None:
        """See Process."""
        self.kill_soon()
        await self.wait()

    async def wait(self) -> ExecResult:
        """See Process."""
        if not self._was_asked_for_output:
            self._is_discarding = True
            for _, data in self._chunks:
                self._grant(len(data))
            self._chunks.clear()
        report = await asyncio.shield(self.ended)
        return ExecResult(
            exit_code=report.exit_code,
            stdout=b"",
            stderr=b"",
            timed_out=report.timed_out,
            oom=report.oom,
            queued_s=self.queued_s,
            run_s=report.run_s,
        )

    async def __aenter__(self) -> AgentProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill_soon()
        if not self.ended.done():
            await self.wait()


class _OutputReader:
    def __init__(self, process: AgentProcess) -> None:
        self._process = process

    def __aiter__(self) -> _OutputReader:
        return self

    async def __anext__(self) -> tuple[StreamName, bytes]:
        return await self._process.next_output()
