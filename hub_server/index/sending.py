"""Sending pages and files: the shortest way from bytes in memory to the client.

Plain ASGI, because a framework would do most of the work of sending a ready page.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from hub_server.index.cache import CachedFile, CachedPage, Entry, PageCache
from hub_server.index.pages import (
    ByteRange,
    Page,
    RangeNotSatisfiable,
    choose_encoding,
    matches_etag,
    negotiate,
    parse_range,
)
from hub_server.storage.store import BlobMissing

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

INLINE_BYTES = 1 << 20
"""Files up to this size are read at once and without a thread, which would cost more than the read."""
PIECE_BYTES = 1 << 18

_NEGOTIATED: dict[tuple[str, str], str | None] = {}
_MAX_NEGOTIATED = 1_000


class ReadyFirst:
    """Answers from the cache if possible, and otherwise calls the application."""

    def __init__(
        self, application: Application, pages: PageCache, count: Callable[[str], None]
    ) -> None:
        self._application = application
        self._pages = pages
        self._count_download = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            entry = self._pages.get(scope["path"])
            if entry is not None and (isinstance(entry, CachedPage) or _is_ready(entry)):
                headers = dict(scope["headers"])
                if isinstance(entry, CachedPage):
                    scope["route_name"] = "index"
                    await send_page(scope, headers, send, entry.page, is_public=True)
                else:
                    scope["route_name"] = "file"
                    if entry.is_download and scope["method"] == "GET":
                        self._count_download(entry.environment_id)
                    await send_file(scope, headers, send, entry, None, is_public=True)
                return
        await self._application(scope, receive, send)


def _is_ready(entry: Entry) -> bool:
    return isinstance(entry, CachedFile) and (entry.path is not None or entry.content is not None)


async def send_page(
    scope: Scope, headers: dict[bytes, bytes], send: Send, page: Page, *, is_public: bool
) -> None:
    """Send the page in the form that the client accepts; 304 if the client has it, 406 if no form fits."""
    accept = headers.get(b"accept", b"").decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    form = _negotiated(accept, query)
    vary = b"accept, accept-encoding" if is_public else b"accept, accept-encoding, authorization"
    caching = b"no-cache" if is_public else b"private, no-cache"
    common = [(b"cache-control", caching), (b"vary", vary), *SAFE_HEADERS]
    if form is None:
        await _send(scope, send, 406, common, b'{"detail":"Offered are v1+json, v1+html, html."}')
        return
    rendered = getattr(page, form)
    encoding = choose_encoding(headers.get(b"accept-encoding", b"").decode("latin-1"))
    body = getattr(rendered, encoding)
    if body is None:
        encoding, body = "identity", rendered.identity
    etag = rendered.etag if encoding == "identity" else f"{rendered.etag}-{encoding}"
    common.append((b"etag", f'"{etag}"'.encode()))
    common.append((b"x-pypi-last-serial", str(page.serial).encode()))
    known = headers.get(b"if-none-match")
    if known is not None and matches_etag(known.decode("latin-1"), etag):
        await _send(scope, send, 304, common, None)
        return
    common.append((b"content-type", rendered.content_type.encode()))
    if encoding != "identity":
        common.append((b"content-encoding", encoding.encode()))
    await _send(scope, send, 200, common, body)


def _negotiated(accept: str, query: str) -> str | None:
    key = (accept, query)
    if key not in _NEGOTIATED:
        requested = ""
        for part in query.split("&"):
            name, _, value = part.partition("=")
            if name == "format":
                requested = value.replace("%2B", "+").replace("%2b", "+").replace("%2F", "/")
        if len(_NEGOTIATED) >= _MAX_NEGOTIATED:
            _NEGOTIATED.clear()
        _NEGOTIATED[key] = negotiate(accept, requested)
    return _NEGOTIATED[key]


SAFE_HEADERS = ((b"x-content-type-options", b"nosniff"),)


async def send_file(
    scope: Scope,
    headers: dict[bytes, bytes],
    send: Send,
    file: CachedFile,
    pieces: Callable[[int, int], AsyncIterator[bytes]] | None,
    *,
    is_public: bool,
) -> None:
    """Send a file or a range of it. `pieces` reads a file that is neither in memory nor on this machine."""
    etag = file.sha256
    who = b"public" if is_public else b"private"
    common = [
        (b"cache-control", who + b", max-age=31536000, immutable"),
        (b"etag", f'"{etag}"'.encode()),
        (b"accept-ranges", b"bytes"),
        *SAFE_HEADERS,
    ]
    if not is_public:
        common.append((b"vary", b"authorization"))
    known = headers.get(b"if-none-match")
    if known is not None and matches_etag(known.decode("latin-1"), etag):
        await _send(scope, send, 304, common, None)
        return
    requested, status = ByteRange(0, file.size_bytes), 200
    range_header, if_range = headers.get(b"range"), headers.get(b"if-range")
    unchanged = if_range is None or if_range.decode("latin-1").strip().strip('"') == etag
    if range_header is not None and unchanged:
        try:
            part = parse_range(range_header.decode("latin-1"), file.size_bytes)
        except RangeNotSatisfiable:
            common.append((b"content-range", f"bytes */{file.size_bytes}".encode()))
            await _send(scope, send, 416, common, b"")
            return
        if part is not None:
            requested, status = part, 206
            span = f"bytes {part.start}-{part.end - 1}/{file.size_bytes}"
            common.append((b"content-range", span.encode()))
    common.append((b"content-type", b"application/octet-stream"))
    common.append((b"content-disposition", b"attachment"))
    length = requested.end - requested.start
    if scope["method"] == "HEAD" or file.content is not None or file.path is None:
        if scope["method"] == "HEAD" or file.content is not None or pieces is None:
            body = (file.content or b"")[requested.start : requested.end]
            await _send(scope, send, status, common, body, length=length)
        else:
            await _stream(send, status, common, length, pieces(requested.start, requested.end))
        return
    try:
        descriptor = os.open(file.path, os.O_RDONLY)
    except FileNotFoundError as error:
        raise BlobMissing("The file is missing in the storage; tell the operator.") from error
    try:
        if length <= INLINE_BYTES:
            body = os.pread(descriptor, length, requested.start)
            await _send(scope, send, status, common, body, length=length)
        else:
            await _stream(send, status, common, length, _read_pieces(descriptor, requested))
    finally:
        os.close(descriptor)


async def _read_pieces(descriptor: int, requested: ByteRange) -> AsyncIterator[bytes]:
    position = requested.start
    while position < requested.end:
        count = min(PIECE_BYTES, requested.end - position)
        piece = await asyncio.to_thread(os.pread, descriptor, count, position)
        if not piece:
            raise OSError(f"the blob ends at {position} of {requested.end} bytes")
        position += len(piece)
        yield piece


async def _stream(
    send: Send,
    status: int,
    headers: list[tuple[bytes, bytes]],
    length: int,
    pieces: AsyncIterator[bytes],
) -> None:
    headers.append((b"content-length", str(length).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    async for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _send(
    scope: Scope,
    send: Send,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes | None,
    *,
    length: int | None = None,
) -> None:
    if body is not None:
        size = len(body) if length is None else length
        headers.append((b"content-length", str(size).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if scope["method"] == "HEAD" or body is None:
        body = b""
    await send({"type": "http.response.body", "body": body})
