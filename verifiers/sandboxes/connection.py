"""The host's end of one sandbox's byte stream, and the jobs that use it. Incoming bytes are treated as hostile."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

from verifiers.sandboxes.errors import SandboxCreationError, SandboxDead
from verifiers.sandboxes.guest import frames
from verifiers.sandboxes.sandbox import ExecResult, StreamName

ANSWER_GRACE_S = 20.0
"""Grace period beyond a command's time limit. After it, the sandbox counts as hung."""
_STDOUT_KINDS = (frames.STDOUT, frames.STDOUT_TAIL)


class JobSink(Protocol):
    """The receiver of a job's frames. The event loop calls its methods, which must not raise."""

    def on_output(self, kind: int, data: bytes) -> None:
        """Bytes of STDOUT, STDERR, STDOUT_TAIL or STDERR_TAIL."""

    def on_stdin_taken(self, count: int) -> None:
        """`count` bytes of stdin have been accepted; STDIN_CLOSED if the command has closed its stdin."""

    def on_control(self, data: bytes) -> None:
        """Bytes of a session's control stream."""

    def on_exit(self, report: JobReport) -> None:
        """The job has ended; nothing follows."""

    def on_lost(self, error: Exception) -> None:
        """The sandbox is gone; nothing follows."""


class JobReport:
    """The checked content of an EXIT frame. Values of a wrong type become a harmless default."""

    __slots__ = ("dropped_bytes", "exit_code", "oom", "overflowed", "run_s", "timed_out")

    def __init__(self, payload: bytes) -> None:
        try:
            fields = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise frames.ProtocolViolation("an EXIT frame that is not JSON") from error
        if not isinstance(fields, dict):
            raise frames.ProtocolViolation("an EXIT frame that is not an object")
        code, run_s, dropped = (fields.get(key) for key in ("exit_code", "run_s", "dropped"))
        self.exit_code = code if isinstance(code, int) else None
        self.run_s = float(run_s) if isinstance(run_s, int | float) else 0.0
        self.timed_out = fields.get("timed_out") is True
        self.overflowed = fields.get("overflowed") is True
        self.oom = fields.get("oom") is True
        self.dropped_bytes = (0, 0)
        if isinstance(dropped, list) and len(dropped) == 2:
            first, second = (count if isinstance(count, int) else 0 for count in dropped)
            self.dropped_bytes = (max(0, first), max(0, second))


class GuestConnection(asyncio.Protocol):
    """Sends and receives frames. `on_closed(error)` is called once, when the stream has ended for any reason."""

    def __init__(self, on_closed: Callable[[Exception], None]) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = frames.FrameReader(frames.AGENT_KINDS)
        self._sinks: dict[int, JobSink] = {}
        self._next_channel = 1
        self._transport: asyncio.WriteTransport | None = None
        self._on_closed: Callable[[Exception], None] | None = on_closed
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._death: Exception | None = None
        self._is_lost = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        # Recognised by its methods, not by its class: transports of uvloop do not derive from those of asyncio. An
        # exception raised here would reach only the log of the event loop, and `ready` would never be done.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        try:
            for frame in self._reader.feed(data):
                self._dispatch(frame)
        except frames.ProtocolViolation as error:
            self._lose(SandboxDead(f"The sandbox broke the protocol: {error}", "protocol"))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._lose(SandboxDead("The sandbox hung up", "crashed"))

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._can_write.set()

    # --- for the sandbox

    def open(self, start: bytes, sink: JobSink) -> int:
        """Start a job and return its channel. Raises SandboxDead."""
        if self._death is not None:
            raise self._death
        channel = self._next_channel
        self._next_channel += 1
        self._sinks[channel] = sink
        self.send(frames.START, channel, start)
        return channel

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame. After the end of the stream, the frame is dropped."""
        if self._transport is not None and self._death is None and not self._is_lost:
            self._transport.write(frames.encode(kind, channel, payload))

    async def drained(self) -> None:
        """Wait until the stream accepts more data."""
        await self._can_write.wait()

    def forget(self, channel: int) -> None:
        """Ignore later frames of a channel."""
        self._sinks.pop(channel, None)

    def fail(self, error: Exception) -> None:
        """End the connection and pass the error to all waiters. Only the first call counts."""
        if self._death is not None:
            return
        if self._on_closed is not None:
            on_closed, self._on_closed = self._on_closed, None
            # Call the owner first: it can find the cause and end this connection with it, which all waiters then
            # receive.
            on_closed(error)
            if self._death is not None:
                return
        self._death = error
        if self._transport is not None:
            self._transport.abort()
        self._can_write.set()
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # all waiters may have gone
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.on_lost(error)

    def _lose(self, error: Exception) -> None:
        """Handle the end of the stream. After READY, the owner finds the cause first and then calls `fail`."""
        if self._is_lost or self._death is not None:
            return
        if self._on_closed is None or not self.ready.done() or self.ready.exception() is not None:
            self.fail(error)
            return
        self._is_lost = True
        self._can_write.set()
        if self._transport is not None:
            self._transport.abort()
        on_closed, self._on_closed = self._on_closed, None
        on_closed(error)

    def _dispatch(self, frame: frames.Frame) -> None:
        kind, channel, payload = frame
        if channel == 0:
            if kind == frames.READY and not self.ready.done():
                self.ready.set_result(None)
            elif kind == frames.FAILED:
                reason = payload[:4000].decode("utf-8", "replace")
                if self.ready.done():
                    self._lose(SandboxDead(f"The sandbox's guest failed: {reason}", "crashed"))
                else:
                    self.fail(SandboxCreationError(f"The sandbox could not be set up: {reason}"))
            return
        sink = self._sinks.get(channel)
        if sink is None:
            return  # late or invented: no job waits for it
        if kind in (frames.STDOUT, frames.STDERR, frames.STDOUT_TAIL, frames.STDERR_TAIL):
            sink.on_output(kind, payload)
        elif kind == frames.STDIN_TAKEN:
            sink.on_stdin_taken(frames.count_of(payload))
        elif kind == frames.CONTROL_OUT:
            sink.on_control(payload)
        elif kind == frames.EXIT:
            report = JobReport(payload)
            del self._sinks[channel]
            sink.on_exit(report)


class JobEnd:
    """Base class of all jobs: waits for the end, and feeds stdin."""

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
            self.ended.exception()  # a cancelled caller does not retrieve it

    async def feed(self, connection: GuestConnection, data: bytes) -> None:
        """Send stdin in pieces, each after the previous one was accepted. Raises BrokenPipeError."""
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
        self, connection: GuestConnection, data: bytes | AsyncIterator[bytes]
    ) -> None:
        """Send the whole stdin and close it. A command that does not read its stdin is not an error."""
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
        # The guest applies the limit. A guest under hostile control is limited here.
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
        """Return the result of the job."""
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
        """Return the result of a command whose sandbox was ended by code inside: killed, with the output until then."""
        note = f"sandbox: {death}\n".encode("utf-8", "replace")
        return ExecResult(
            exit_code=137,
            stdout=bytes(self._heads[0]),
            stderr=bytes(self._heads[1]) + note,
            oom=death.reason == "oom",
            queued_s=queued_s,
            run_s=time.monotonic() - self._started_s,
        )


class GuestProcess(JobEnd):
    """A live command over a guest connection: `verifiers.sandboxes.Process`."""

    def __init__(self, connection: GuestConnection, *, has_stdin: bool) -> None:
        super().__init__()
        self._connection = connection
        self._chunks: deque[tuple[StreamName, bytes]] = deque()
        self._news = asyncio.Event()
        self._is_discarding = False
        self._has_output_reader = False
        self._is_being_read = False
        self._requested_s = time.monotonic()
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
        self._has_output_reader = True
        return _OutputReader(self)

    async def next_output(self) -> tuple[StreamName, bytes]:
        """Return the next piece of output. Raises StopAsyncIteration after the last."""
        if self._is_being_read:
            raise RuntimeError("The output of this process already has a reader.")
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
            raise ValueError(f"{number} is not a signal.")
        self._connection.send(frames.SIGNAL, self.channel, bytes([number]))

    def kill_soon(self) -> None:
        """Kill the command without waiting."""
        self._connection.send(frames.SIGNAL, self.channel, bytes([frames.KILL_TREE]))

    async def kill(self) -> None:
        """See Process."""
        self.kill_soon()
        await self.wait()

    async def wait(self) -> ExecResult:
        """See Process."""
        if not self._has_output_reader:
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

    async def __aenter__(self) -> GuestProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.kill_soon()
        if not self.ended.done():
            await self.wait()


class _OutputReader:
    def __init__(self, process: GuestProcess) -> None:
        self._process = process

    def __aiter__(self) -> _OutputReader:
        return self

    async def __anext__(self) -> tuple[StreamName, bytes]:
        return await self._process.next_output()
