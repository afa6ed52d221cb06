"""Steps before and after every request: time, size and rate limits, safe headers, counting and one log line.

Plain ASGI, the outermost layer.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from hub_server.database import iso, utc_now
from hub_server.errors import HubFailure, TooManyRequests
from hub_server.hub import Hub
from hub_server.index.sending import Application, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

_FLUSH_S = 0.5
_MAX_LINES = 500
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none';"
        b" base-uri 'none'",
    ),
)


class _Answered(Exception):
    """The edge has answered. The application's further messages are dropped."""


class Edge:
    """Wraps the application of a hub."""

    def __init__(self, application: Application, hub: Hub, log: Callable[[bytes], None]) -> None:
        self._application = application
        self._hub = hub
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request = _Request(self._hub, scope, receive, send)
        try:
            try:
                request.check_rate()
                await request.check_length()
                await self._application(scope, request.receive, request.send)
            except HubFailure as error:
                await request.answer(error.status, error.detail, error.headers)
        except _Answered:
            pass
        except Exception:  # the last place that can answer after an error of ours
            logger.exception("request %s failed", request.id)
            await request.answer(
                500, f"Internal error. The operator finds it in the log as {request.id}.", {}
            )
        finally:
            self._finish(scope, request)

    def _finish(self, scope: Scope, request: "_Request") -> None:
        seconds = time.perf_counter() - request.began_s
        route = scope.get("route_name") or getattr(scope.get("route"), "path", "other")
        self._hub.metrics.observe(route, request.status, seconds)
        self._log(
            orjson.dumps(
                {
                    "at": iso(utc_now()),
                    "id": request.id,
                    "method": scope["method"][:16],
                    "path": _without_secrets(scope["path"]),
                    "status": request.status,
                    "ms": round(seconds * 1000, 2),
                    "client": request.address,
                }
            )
        )


class _Request:
    def __init__(self, hub: Hub, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub = hub
        self._scope = scope
        self._receive = receive
        self._send = send
        self.began_s = time.perf_counter()
        self.id = f"{time.time_ns():x}"
        self.status = 0
        self.address = (scope.get("client") or ("-", 0))[0]
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._limit_bytes = _body_limit(hub, scope["path"])
        self._received_bytes = 0
        self._body_is_complete = False
        self._answered = False
        self._left = 0

    def check_rate(self) -> None:
        """Count the request against the caller's rate limit."""
        header = self._headers.get(b"authorization", b"").decode("latin-1")
        try:
            self._left = self._hub.limits.take(header, self.address)
        except TooManyRequests:
            if not self._scope["path"].startswith(("/health", "/ready", "/metrics")):
                raise

    async def check_length(self) -> None:
        """Refuse a compressed body, and a body whose Content-Length is too large, before reading any of it."""
        packing = self._headers.get(b"content-encoding", b"identity").strip().lower()
        if packing not in (b"identity", b""):
            text = "Send the body without Content-Encoding; this hub does not decompress request bodies."
            await self.answer(415, text, {"Connection": "close"})
            raise _Answered
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit_bytes:
            await self._too_large()

    async def receive(self) -> Message:
        """Return the next message. A body that is too large or too slow ends the request."""
        if self._body_is_complete:
            return await self._receive()
        settings = self._hub.settings
        try:
            async with asyncio.timeout(settings.body_idle_timeout_s):
                message = await self._receive()
        except TimeoutError as error:
            await self.answer(408, "The request body stopped arriving.", {"Connection": "close"})
            raise _Answered from error
        if message["type"] != "http.request":
            return message
        self._received_bytes += len(message.get("body", b""))
        self._body_is_complete = not message.get("more_body", False)
        if self._received_bytes > self._limit_bytes:
            await self._too_large()
        elapsed_s = time.perf_counter() - self.began_s
        slow = self._received_bytes < elapsed_s * settings.body_min_bytes_per_s
        if slow and elapsed_s > settings.body_idle_timeout_s and not self._body_is_complete:
            await self.answer(408, "The request body arrives too slowly.", {"Connection": "close"})
            raise _Answered
        return message

    async def _too_large(self) -> None:
        text = f"The request body is larger than the maximum of {self._limit_bytes} bytes."
        await self.answer(413, text, {"Connection": "close"})
        raise _Answered

    async def send(self, message: Message) -> None:
        """Send a message with the headers that every answer has."""
        if self._answered:
            raise _Answered
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            present = {name.lower() for name, _ in headers}
            headers += [header for header in _HEADERS if header[0] not in present]
            headers.append((b"ratelimit-remaining", str(self._left).encode()))
            headers.append((b"x-request-id", self.id.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def answer(self, status: int, detail: str, headers: dict[str, str]) -> None:
        """Answer in place of the application, unless the application has begun to answer."""
        if self.status:
            return
        body = orjson.dumps({"detail": detail})
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        pairs += [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        pairs.append((b"content-length", str(len(body)).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})
        self._answered = True


def _body_limit(hub: Hub, path: str) -> int:
    settings = hub.settings
    if path.startswith("/upload/"):
        return max(settings.max_wheel_bytes, settings.max_source_bytes)
    if path.rstrip("/").endswith("/legacy") or path.rstrip("/") == "/legacy":
        return max(settings.max_wheel_bytes, settings.max_source_bytes) + settings.max_json_bytes
    if path.startswith("/api/v1/evaluations/") and path.endswith("/samples"):
        return settings.max_batch_bytes
    if path == "/api/v1/traces":
        return settings.max_batch_bytes
    return settings.max_json_bytes


def _without_secrets(path: str) -> str:
    """Return the path for the log. The last part of an upload address is a secret and is removed."""
    if path.startswith("/upload/"):
        return "/".join(path.split("/")[:3]) + "/…"
    return path[:500]


class LineLog:
    """Writes log lines in batches, twice per second: one write per request would cost as much as a page."""

    def __init__(self, write: Callable[[str], Any] = sys.stderr.write) -> None:
        self._write = write
        self._lines: list[bytes] = []
        self._scheduled = False

    def __call__(self, line: bytes) -> None:
        """Add one line."""
        self._lines.append(line)
        if len(self._lines) >= _MAX_LINES:
            self.flush()
        elif not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(_FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write the waiting lines."""
        self._scheduled = False
        lines, self._lines = self._lines, []
        if lines:
            self._write("".join(line.decode() + "\n" for line in lines))
