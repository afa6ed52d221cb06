"""HTTP for model calls: one aiohttp session per event loop, POST in, status and bytes out.

This module does not depend on models, retries or keys. It guarantees three things: thousands of requests can start at
once (at most `MOST_DIALS` connections are being opened at a time); a failure shows whether the endpoint may have
processed the request (`AnswerLost`) or not (`ConnectFailed`); sessions end with their event loop.
"""

from __future__ import annotations

import asyncio
import os
import resource
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from verifiers.clients.failures import SHOWN_CHARACTERS, shown
from verifiers.concurrency import PerLoop
from verifiers.errors import EndpointUnavailable, InvalidModelResponseError

MOST_DIALS = 512
"""Maximum number of connections being opened at the same time. A listening socket's backlog is finite (uvicorn 2048,
nginx 511), and a SYN that it drops costs a second.
"""

KEEPALIVE_S = 4.0
"""Seconds after which an idle connection is closed: below the 5 s after which uvicorn closes its side, so that a
request is not sent into a closing connection.
"""

MOST_RESPONSE_BYTES = 256 * 1024 * 1024
"""Maximum size of a response. No completion is that long, and an endless response would fill the memory."""

SPARE_FILES = 256
"""File descriptors reserved for the rest of the process when `ulimit -n` limits the connections."""

_SKIPPED_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class ConnectFailed(EndpointUnavailable):
    """No connection was made, so the endpoint cannot have received the request."""


class AnswerLost(EndpointUnavailable):
    """The request was sent, but no complete response arrived: the endpoint may have processed it."""


class HttpReply(NamedTuple):
    """One complete HTTP response."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Slots:
    """A semaphore of one event loop whose release has constant cost. asyncio's semaphore examines every waiter that
    is already woken, which with thousands of waiters takes a tenth of a request's cost.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self.free > 0:
            self.free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._release()  # the slot was assigned to this waiter already
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the slot passes on without becoming free in between
                return
        self.free += 1


class _Connector(aiohttp.TCPConnector):
    """Opens at most `MOST_DIALS` connections at a time, regardless of the number of requests that start at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._dials = Slots(MOST_DIALS)

    async def _create_connection(self, *args: Any, **options: Any) -> Any:
        async with self._dials:  # waiting here is not part of the connection's own time limit
            return await super()._create_connection(*args, **options)


class Transport:
    """POST requests over keep-alive connections, in the caller's event loop."""

    def __init__(
        self,
        *,
        timeout_s: float | None = 3600.0,
        connect_timeout_s: float | None = 60.0,
        max_connections: int = 28000,
        keeps_connections: bool = True,
    ) -> None:
        self._keeps_connections = keeps_connections
        # One object for all requests: aiohttp only reads it.
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s)
        self._max_connections = max_connections
        self._sessions: PerLoop[aiohttp.ClientSession] = PerLoop(
            self._new_session, self._close_session
        )
        self._latest: tuple[asyncio.AbstractEventLoop | None, aiohttp.ClientSession | None] = (
            None,
            None,
        )

    async def post(
        self,
        url: URL,
        body: bytes,
        headers: Mapping[str, str],
        *,
        proxy: URL | None = None,
        timeout_s: float | None = None,
    ) -> HttpReply:
        """Send one request and read its response, of any status. `timeout_s` replaces the transport's own limit.

        Raise ConnectFailed, AnswerLost, or InvalidModelResponseError for a response above `MOST_RESPONSE_BYTES`.
        """
        loop, session = self._latest
        if session is None or session.closed or loop is not asyncio.get_running_loop():
            session = self._sessions.here()
            self._latest = (asyncio.get_running_loop(), session)
        timeout = self._timeout if timeout_s is None else self._timeout_of(timeout_s)
        try:
            async with session.post(
                url, data=body, headers=headers, proxy=proxy, allow_redirects=False, timeout=timeout
            ) as response:
                return HttpReply(response.status, await _read(response, url), response.headers)
        except aiohttp.ConnectionTimeoutError as error:
            raise ConnectFailed(
                f"No connection to {address(url)} within {self._timeout.sock_connect} s"
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            # Its `os_error` is not set in aiohttp before 3.11.
            raise ConnectFailed(
                f"Cannot connect to {address(url)}: {error.certificate_error}"
            ) from error
        except aiohttp.ClientConnectorError as error:  # refused, unknown host, TLS, proxy
            raise ConnectFailed(f"Cannot connect to {address(url)}: {error.os_error}") from error
        except (aiohttp.ClientHttpProxyError, aiohttp.InvalidURL) as error:
            raise ConnectFailed(f"Cannot connect to {address(url)}: {error}") from error
        except TimeoutError as error:
            raise AnswerLost(f"{address(url)} did not answer within {timeout.total} s") from error
        except (aiohttp.ClientError, OSError) as error:
            what = shown(str(error)) or type(error).__name__
            raise AnswerLost(
                f"{address(url)} closed the connection before its response was complete: {what}"
            ) from error

    def _timeout_of(self, timeout_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._timeout.sock_connect)

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next request opens new ones."""
        await self._sessions.aclose_here()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=_Connector(
                limit=connection_limit(self._max_connections),
                keepalive_timeout=KEEPALIVE_S if self._keeps_connections else None,
                force_close=not self._keeps_connections,
                resolver=aiohttp.ThreadedResolver(),
                ttl_dns_cache=60,
                ssl=_tls_context(),
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            skip_auto_headers=_SKIPPED_HEADERS,
        )

    async def _close_session(self, session: aiohttp.ClientSession) -> None:
        if self._latest[1] is session:
            self._latest = (None, None)
        await session.close()
        await asyncio.sleep(0)  # transports close their sockets in the next step of the loop


async def _read(response: aiohttp.ClientResponse, url: URL) -> bytes:
    length = response.content_length
    if length is not None and length <= MOST_RESPONSE_BYTES:
        return await response.read()
    chunks: list[bytes] = []
    size = length or 0
    if size <= MOST_RESPONSE_BYTES:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            if size > MOST_RESPONSE_BYTES:
                break
    if size > MOST_RESPONSE_BYTES:
        response.close()  # the rest is not worth reading, and the connection not worth keeping
        raise InvalidModelResponseError(
            f"{address(url)} answered with more than {MOST_RESPONSE_BYTES} bytes; the response was refused."
        )
    return b"".join(chunks)


def connection_limit(wanted: int) -> int:
    """Return `wanted`, limited by the number of files that the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, max(soft - SPARE_FILES, soft // 2)))


def address(url: URL) -> str:
    """Return a URL without user, password and query, which may contain secrets."""
    return str(url.with_user(None).with_query(None).with_fragment(None))


_tls: ssl.SSLContext | None = None


def _tls_context() -> ssl.SSLContext:
    """Return the system's certificates, or certifi's on systems without any (slim containers)."""
    global _tls  # Loading certificates takes 20 ms, so they are loaded once per process.
    if _tls is None:
        paths = ssl.get_default_verify_paths()
        has_own = paths.cafile is not None or (
            paths.capath is not None and any(os.scandir(paths.capath))
        )
        if has_own:
            _tls = ssl.create_default_context()
        else:
            import certifi

            _tls = ssl.create_default_context(cafile=certifi.where())
    return _tls


__all__ = [
    "MOST_RESPONSE_BYTES",
    "SHOWN_CHARACTERS",
    "AnswerLost",
    "ConnectFailed",
    "HttpReply",
    "Transport",
    "address",
    "connection_limit",
]
