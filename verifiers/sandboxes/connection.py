"""The host's end of one sandbox's byte stream. Everything that arrives is treated as hostile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol, cast

from verifiers.sandboxes.errors import SandboxCreationError, SandboxDead
from verifiers.sandboxes.guest import frames


class JobSink(Protocol):
    """Whoever started a job, as the connection sees it. Methods are called from the event loop and must not raise."""

    def on_output(self, kind: int, data: bytes) -> None:
        """Bytes of STDOUT, STDERR, STDOUT_TAIL or STDERR_TAIL."""

    def on_stdin_taken(self, count: int) -> None:
        """So many bytes of stdin have been taken; STDIN_CLOSED when nobody reads it."""

    def on_control(self, data: bytes) -> None:
        """Bytes of a session's control stream."""

    def on_exit(self, report: JobReport) -> None:
        """The job has ended; nothing follows."""

    def on_lost(self, error: Exception) -> None:
        """The sandbox is gone; nothing follows."""


class JobReport:
    """The content of an EXIT frame, checked: values of a wrong type become the harmless default."""

    __slots__ = ("dropped_bytes", "exit_code", "oom", "overflowed", "run_s", "timed_out")

    def __init__(self, payload: bytes) -> None:
        try:
            fields = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise frames.ProtocolViolation("an EXIT frame that is not JSON") from error
        if not isinstance(fields, dict):
            raise frames.ProtocolViolation("an EXIT frame that is no object")
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


class AgentConnection(asyncio.Protocol):
    """Frames in and out. `on_closed(error)` is called once, when the stream has ended for whatever reason."""

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
        # By its methods, not by its class: transports of uvloop do not derive from those of asyncio. What this method
        # raised would reach only the event loop's log, and `ready` would never be done.
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
        """Start a job; returns its channel. Raises SandboxDead."""
        if self._death is not None:
            raise self._death
        channel = self._next_channel
        self._next_channel += 1
        self._sinks[channel] = sink
        self.send(frames.START, channel, start)
        return channel

    def send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        """Send a frame; after the end of the stream it goes nowhere."""
        if self._transport is not None and self._death is None and not self._is_lost:
            self._transport.write(frames.encode(kind, channel, payload))

    async def drained(self) -> None:
        """Wait until the stream takes more."""
        await self._can_write.wait()

    def forget(self, channel: int) -> None:
        """Ignore whatever still comes on a channel."""
        self._sinks.pop(channel, None)

    def fail(self, error: Exception) -> None:
        """End the connection and tell everybody who waits. Only the first call counts."""
        if self._death is not None:
            return
        if self._on_closed is not None:
            on_closed, self._on_closed = self._on_closed, None
            # First: it may know why, and end this connection with that reason, which all who wait then get.
            on_closed(error)
            if self._death is not None:
                return
        self._death = error
        if self._transport is not None:
            self._transport.abort()
        self._can_write.set()
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # it may be that nobody waits any more
        sinks, self._sinks = list(self._sinks.values()), {}
        for sink in sinks:
            sink.on_lost(error)

    def _lose(self, error: Exception) -> None:
        """The stream has ended by itself. After READY, the owner first finds out why, and then calls `fail`."""
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
                    self._lose(SandboxDead(f"The sandbox's agent failed: {reason}", "crashed"))
                else:
                    self.fail(SandboxCreationError(f"The sandbox could not be set up: {reason}"))
            return
        sink = self._sinks.get(channel)
        if sink is None:
            return  # late or invented: nobody waits for it
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
