"""Bytes between clients and sandboxes, within limits: bodies that come in, answers that go out."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator

from aiohttp import web

from verifiers.sandbox_server.config import ServerConfig
from verifiers.sandbox_server.metrics import Metrics
from verifiers.sandbox_server.requests import RequestRefused


class Transfer:
    """Reads requests and writes answers; whoever is slower than allowed is cut off."""

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        self.config = config
        self.metrics = metrics

    async def body(self, request: web.Request, max_bytes: int) -> bytes:
        """The whole body. Raises RequestRefused if it is larger than allowed or does not come."""
        parts = [part async for part in self.pieces(request, max_bytes)]
        return b"".join(parts)

    async def pieces(self, request: web.Request, max_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes. Raises RequestRefused."""
        if (request.content_length or 0) > max_bytes:
            raise RequestRefused(413, f"The body may have {max_bytes} bytes.")
        left = max_bytes
        while True:
            async with self.patience("sends too slowly"):
                piece = await request.content.readany()
            if not piece:
                return
            left -= len(piece)
            if left < 0:
                raise RequestRefused(413, f"The body may have {max_bytes} bytes.")
            yield piece

    async def json_body(self, request: web.Request) -> object:
        """The value of a JSON body. Raises RequestRefused."""
        data = await self.body(request, self.config.max_json_bytes)
        try:
            return json.loads(data or b"{}", parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            raise RequestRefused(
                400, "The body is not valid JSON, or it has a number that is not finite."
            ) from None

    def patience(self, what: str) -> Patience:
        """Allows the client `client_timeout_s` for what happens in the block."""
        return Patience(self.config.client_timeout_s, what, self.metrics)

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Send a piece of a streamed answer. Raises ClientTooSlow if the client does not take it."""
        async with self.patience("reads too slowly"):
            await response.write(data)


def _finite(text: str) -> float:
    """The number. Raises ValueError for `Infinity`, `NaN` and what is as large, such as `1e999`."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


class ClientTooSlow(RequestRefused):
    """The client does not keep up; its connection is closed."""


class Patience:
    """See `Transfer.patience`."""

    def __init__(self, limit_s: float, what: str, metrics: Metrics) -> None:
        self._timeout = asyncio.timeout(limit_s)
        self._limit_s = limit_s
        self._what = what
        self._metrics = metrics

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._timeout.__aexit__(*exc)  # pyright: ignore[reportArgumentType] - the three of any block
        except TimeoutError:
            self._metrics.add("clients_cut_off_total", cause=self._what.replace(" ", "_"))
            raise ClientTooSlow(
                408, f"The client {self._what}: nothing for {self._limit_s:g} s."
            ) from None
