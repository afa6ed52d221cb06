"""A model endpoint on the loopback interface that says exactly what a test scripts, byte by byte if need be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple


class Request(NamedTuple):
    """One request as it came over the wire; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Answer(NamedTuple):
    """What to say. `raw` replaces everything; None for `raw` and `body` closes the connection without a word."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = {}
    raw: bytes | None = None
    is_silent: bool = False
    """Never answer, keep the connection open."""

    def encoded(self) -> bytes | None:
        if self.raw is not None:
            return self.raw
        if self.body is None:
            return None
        is_text = isinstance(self.body, str)
        content = self.body.encode() if is_text else json.dumps(self.body).encode()
        kind = "text/html" if is_text else "application/json"
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), **self.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} X\r\n{head}\r\n".encode() + content


DROP = Answer()
SILENCE = Answer(is_silent=True)


class LoopbackEndpoint:
    """Serves scripted answers in order, the last one again and again; keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.respond: Callable[[Request], Answer] | None = None
        """Instead of the script: an answer for each request."""
        self.most_in_flight = 0
        self.connections = 0
        self._in_flight = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.asked = asyncio.Event()
        """Set when a request has arrived."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *answers: Answer | Iterable[Answer]) -> None:
        self.answers = [*answers]
        self.requests.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().strip().split("\r\n")
                method, path, _ = first.split(" ", 2)
                headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(method, path, headers, json.loads(content) if content else None)
                self.requests.append(request)
                self.asked.set()
                self._in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self._in_flight)
                await asyncio.sleep(0)
                answer = self._next(request)
                if answer.is_silent:
                    await reader.read()  # until the client gives up
                self._in_flight -= 1
                encoded = answer.encoded()
                if encoded is None or answer.is_silent:
                    return
                writer.write(encoded)
                await writer.drain()
                if answer.raw is not None:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed its side
        finally:
            self._writers.discard(writer)
            writer.close()

    def _next(self, request: Request) -> Answer:
        if self.respond is not None:
            return self.respond(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@asynccontextmanager
async def loopback_endpoint():
    """A running endpoint; its connections are closed at the end."""
    endpoint = LoopbackEndpoint()
    server = await asyncio.start_server(endpoint._serve, "127.0.0.1", 0, backlog=4096)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()
        for writer in [*endpoint._writers]:
            writer.close()
        await server.wait_closed()
        await asyncio.sleep(0)
