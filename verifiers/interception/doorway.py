"""`Doorway`: a port inside a sandbox that leads to one server of this program, and to nothing else.

    doorway = Doorway(sandbox, server.open_connection, port=8765)
    await doorway.open()          # http://127.0.0.1:8765 inside is that server now
    ...
    await doorway.aclose()

The sandbox needs its loopback device only, and the host opens no port: the bytes pass through stdin and stdout of a
program inside, so this works with every back end. All data from the sandbox is treated as hostile.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from verifiers.errors import TunnelError
from verifiers.interception.inside import ABORT, CHUNK_BYTES, DATA, END, KINDS, OPEN, READY
from verifiers.sandboxes import Process, Sandbox
from verifiers.sandboxes.guest import frames

logger = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
PORT = 8765
"""The port in sandboxes that have their own loopback interface."""
MAX_CONNECTIONS = 64
"""Maximum number of concurrent connections; further ones are closed."""
OPEN_TIMEOUT_S = 60.0
"""An interpreter starts in milliseconds, except on a machine that swaps."""
_COMPLAINT_BYTES = 2000
_PROGRAM = Path(__file__).with_name("inside.py")


def port_inside(backend_name: str) -> int:
    """Return a port that is free inside a new sandbox of a back end."""
    if backend_name != "unsafe-local":
        return PORT
    with socket.socket() as probe:  # these sandboxes share the ports of this machine
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Doorway:
    """See the module. `port` 0 selects a free port."""

    def __init__(self, sandbox: Sandbox, connect: Connect, port: int = 0) -> None:
        self._sandbox = sandbox
        self._connect = connect
        self._port = port
        self._process: Process | None = None
        self._forwarding: asyncio.Task[None] | None = None
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._turn = asyncio.Lock()
        self._complaint = b""

    async def open(self) -> int:
        """Start the program and return the port once it accepts connections. Raise TunnelError or SandboxError."""
        self._process = await self._sandbox.spawn_python(
            _PROGRAM.read_text(),
            argv=[str(self._port)],
            cwd="/",  # no file of the work directory replaces a module that the program imports
            stdin=True,
        )
        listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forwarding = asyncio.get_running_loop().create_task(
            self._forward(self._process, listening), name=f"doorway of {self._sandbox.id}"
        )
        self._forwarding.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.wait([self._forwarding, listening], return_when="FIRST_COMPLETED")
            if not listening.cancelled():
                return listening.result()
            await self._forwarding  # raises the sandbox's own error, if any
            complaint = self._complaint.decode("utf-8", "replace").strip()
            raise TunnelError(
                f"The port for model calls could not be opened in sandbox {self._sandbox.id}: "
                f"{complaint or 'python3 ended without a message'}"
            )
        except TimeoutError:
            await self.aclose()
            raise TunnelError(
                f"The port for model calls in sandbox {self._sandbox.id} did not open within {OPEN_TIMEOUT_S:g} s."
            ) from None
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close every connection and end the program. A second call has no effect."""
        tasks = [*self._answering.values()]
        if self._forwarding is not None:
            tasks.append(self._forwarding)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for writer in self._writers.values():
            writer.transport.abort()
        self._answering.clear()
        self._writers.clear()
        process, self._process = self._process, None
        if process is not None:
            with suppress(Exception):  # the program ended with its sandbox
                await process.signal(signal.SIGKILL)

    # ------------------------------------------------------------------------------------------ from inside

    async def _forward(self, process: Process, listening: asyncio.Future[int]) -> None:
        reader = frames.FrameReader(KINDS)
        try:
            async for stream, data in process.output():
                if stream == "stderr":
                    self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]
                    continue
                for frame in reader.feed(data):
                    if frame.kind == READY and not listening.done():
                        listening.set_result(int(frame.payload[:5]))
                    await self._take(frame)
        except ValueError as error:  # ProtocolViolation too
            logger.warning("The doorway of %s was closed: %s", self._sandbox.id, error)
        finally:
            if not listening.done():
                listening.cancel()
            for writer in self._writers.values():
                writer.transport.abort()

    async def _take(self, frame: frames.Frame) -> None:
        channel = frame.channel
        if frame.kind == OPEN:
            await self._open(channel)
            return
        writer = self._writers.get(channel)
        if writer is None:
            return
        try:
            if frame.kind == DATA:
                writer.write(frame.payload)
                await writer.drain()
            elif frame.kind == END:
                if writer.can_write_eof():
                    writer.write_eof()
            elif frame.kind == ABORT:
                writer.transport.abort()
        except OSError:
            writer.transport.abort()  # the server closed the connection; its task informs the program inside

    async def _open(self, channel: int) -> None:
        if channel in self._writers or len(self._writers) >= MAX_CONNECTIONS:
            await self._send(ABORT, channel)
            return
        reader, writer = await self._connect()
        self._writers[channel] = writer
        answering = asyncio.get_running_loop().create_task(self._answer(channel, reader, writer))
        self._answering[channel] = answering

    # ------------------------------------------------------------------------------------------- to the inside

    async def _answer(
        self, channel: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._send(DATA, channel, data)
            await self._send(END, channel)
        except OSError:
            with suppress(OSError):
                await self._send(ABORT, channel)
        finally:
            # The server sends nothing after it has closed its side: HTTP without a reader is over.
            writer.transport.abort()
            self._writers.pop(channel, None)
            self._answering.pop(channel, None)

    async def _send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        process = self._process
        if process is None:
            return
        async with self._turn:
            await process.write(frames.encode(kind, channel, payload))
