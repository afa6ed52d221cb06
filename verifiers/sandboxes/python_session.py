"""`PythonSession` over a connection to the guest: an interpreter that keeps its variables."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable

from verifiers.sandboxes.connection import ANSWER_GRACE_S, GuestConnection, JobEnd, JobReport
from verifiers.sandboxes.errors import SandboxDead, SandboxUnresponsive
from verifiers.sandboxes.guest import frames, interpreter
from verifiers.sandboxes.sandbox import (
    DEFAULT_MAX_OUTPUT_BYTES,
    TIMEOUT_FROM_SPEC,
    CellError,
    CellResult,
    Timeout,
)

INTERRUPT_GRACE_S = 0.5
MAX_CONTROL_BYTES = 4 << 20
"""Maximum size of one cell's output on the control stream. A report takes less than 1 MiB, so the cell itself wrote
the rest.
"""


class Interpreter(JobEnd):
    """The host's side of one interpreter process."""

    def __init__(self, connection: GuestConnection) -> None:
        super().__init__()
        self.connection = connection
        self._reader = frames.FrameReader(interpreter.CELL_KINDS)
        self._cell_number = 0
        self._answer: asyncio.Future[dict[str, object]] | None = None
        self._kept = (frames.HeadTail(0), frames.HeadTail(0))
        self._heads = (bytearray(), bytearray())
        self.overflowed = False
        self._control_room_bytes = MAX_CONTROL_BYTES

    def begin(self, source: str, max_output_bytes: int) -> asyncio.Future[dict[str, object]]:
        """Send a cell. The future returns the interpreter's report, or fails when the interpreter ends."""
        self._cell_number += 1
        self._kept = (frames.HeadTail(max_output_bytes), frames.HeadTail(max_output_bytes))
        self._heads = (bytearray(), bytearray())
        self.overflowed = False
        self._control_room_bytes = MAX_CONTROL_BYTES
        self._answer = asyncio.get_running_loop().create_future()
        data = source.encode("utf-8", "surrogatepass")
        size = frames.MAX_PAYLOAD_BYTES
        # A piece of full size announces another one, which may be empty.
        nested = b"".join(
            frames.encode(interpreter.CELL, self._cell_number, data[start : start + size])
            for start in range(0, len(data) + 1, size)
        )
        for start in range(0, len(nested), size):
            self.connection.send(frames.CONTROL, self.channel, nested[start : start + size])
        return self._answer

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the running cell, if any."""
        if self._answer is not None and not self._answer.done():
            self.connection.send(frames.SIGNAL, self.channel, bytes([signal.SIGINT]))

    def kill(self) -> None:
        """Kill the interpreter and everything that it started."""
        self.connection.send(frames.SIGNAL, self.channel, bytes([frames.KILL_TREE]))

    def printed(self) -> tuple[bytes, bytes, int]:
        """Return (stdout, stderr, number of dropped bytes) of the cell."""
        texts = []
        for head, kept in zip(self._heads, self._kept, strict=True):
            texts.append(frames.joined(bytes(head), kept.tail(), kept.dropped_bytes))
        return texts[0], texts[1], sum(kept.dropped_bytes for kept in self._kept)

    def on_output(self, kind: int, data: bytes) -> None:
        """See JobSink."""
        stream = 0 if kind == frames.STDOUT else 1
        self._heads[stream].extend(self._kept[stream].feed(data))
        if self._kept[stream].seen_bytes > frames.HARD_LIMIT_BYTES and not self.overflowed:
            self.overflowed = True
            self.kill()

    def on_control(self, data: bytes) -> None:
        """See JobSink. The bytes come from the process that runs the cells, so they may be hostile."""
        self._control_room_bytes -= len(data)
        if self._control_room_bytes < 0:
            if self._control_room_bytes + len(data) >= 0:
                self.kill()
            return
        try:
            for frame in self._reader.feed(data):
                if frame.kind == interpreter.RESULT and frame.channel == self._cell_number:
                    self._set_answer(json.loads(frame.payload))
        except (ValueError, RecursionError):
            self.kill()

    def _set_answer(self, report: object) -> None:
        if self._answer is not None and not self._answer.done() and isinstance(report, dict):
            self._answer.set_result(report)

    def on_exit(self, report: JobReport) -> None:
        """See JobSink."""
        super().on_exit(report)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(EOFError())
            self._answer.exception()

    def on_lost(self, error: Exception) -> None:
        """See JobSink."""
        super().on_lost(error)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()


class GuestPythonSession:
    """See `PythonSession`. Cells run one after another, in the order of the calls."""

    def __init__(
        self, start: Callable[[], Awaitable[Interpreter]], default_timeout_s: float
    ) -> None:
        self._start = start
        self._default_timeout_s = default_timeout_s
        self._interpreter: Interpreter | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def open(self) -> GuestPythonSession:
        """Start the interpreter."""
        self._interpreter = await self._start()
        return self

    async def run(
        self,
        code: str,
        *,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> CellResult:
        """See PythonSession."""
        limit_s = self._default_timeout_s if timeout_s is TIMEOUT_FROM_SPEC else timeout_s
        called_s = time.monotonic()
        async with self._lock:
            if self._is_closed:
                raise RuntimeError("This Python session is closed.")
            if self._interpreter is None or self._interpreter.ended.done():
                self._interpreter = await self._start()
            interpreter = self._interpreter
            started_s = time.monotonic()
            try:
                return await self._run_in(
                    interpreter, code, limit_s, max_output_bytes, started_s - called_s
                )
            except asyncio.CancelledError:
                # No caller waits for this cell any more, and the next cell must find it ended.
                interpreter.kill()
                self._interpreter = None
                raise

    async def _run_in(
        self,
        interpreter: Interpreter,
        code: str,
        limit_s: float | None,
        max_output_bytes: int,
        queued_s: float,
    ) -> CellResult:
        answer = interpreter.begin(code, max_output_bytes)
        started_s = time.monotonic()
        timed_out = False
        await asyncio.wait([answer], timeout=limit_s)
        if not answer.done():
            timed_out = True
            interpreter.interrupt()
            await asyncio.wait([answer], timeout=INTERRUPT_GRACE_S)
        if not answer.done():
            interpreter.kill()
            await asyncio.wait([answer], timeout=ANSWER_GRACE_S)
        if not answer.done():
            raise SandboxUnresponsive(
                f"The interpreter was killed and did not end within {ANSWER_GRACE_S:g} s."
            )
        restarted = oom = False
        report: dict[str, object] = {}
        try:
            report = answer.result()
        except EOFError:
            restarted = True
            self._interpreter = None
        except SandboxDead as error:
            if not error.by_program:
                raise
            restarted, oom = True, error.reason == "oom"
            self._interpreter = None
        stdout, stderr, dropped_bytes = interpreter.printed()
        return CellResult(
            stdout=stdout,
            stderr=stderr,
            value=_text_or_none(report.get("value")),
            error=_error_of(report.get("error")),
            timed_out=timed_out,
            restarted=restarted,
            oom=oom or (restarted and _was_out_of_memory(interpreter)),
            dropped_bytes=dropped_bytes,
            output_limit_hit=interpreter.overflowed,
            queued_s=queued_s,
            run_s=time.monotonic() - started_s,
        )

    async def interrupt(self) -> None:
        """See PythonSession."""
        if self._interpreter is not None:
            self._interpreter.interrupt()

    async def reset(self) -> None:
        """See PythonSession."""
        if self._interpreter is not None:
            self._interpreter.kill()  # the running cell ends and releases the lock
        async with self._lock:
            if self._interpreter is not None:
                self._interpreter.kill()
            if not self._is_closed:
                self._interpreter = await self._start()

    async def close(self) -> None:
        """See PythonSession."""
        self._is_closed = True
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter = None

    async def __aenter__(self) -> GuestPythonSession:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _was_out_of_memory(interpreter: Interpreter) -> bool:
    ended = interpreter.ended
    return ended.done() and ended.exception() is None and ended.result().oom


def _text_or_none(value: object) -> str | None:
    return _valid(value) if isinstance(value, str) else None


def _valid(text: str) -> str:
    """Replace lone surrogates, which neither files nor requests can hold."""
    return text.encode("utf-8", "replace").decode()


def _error_of(fields: object) -> CellError | None:
    if not isinstance(fields, dict):
        return None
    texts = [_valid(str(fields.get(key, ""))) for key in ("type", "message", "traceback")]
    return CellError(*texts)
