"""A real server on a free port, with two tokens, and a client for the wire."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from verifiers.sandbox_server import Quota, SandboxServer, ServerConfig, TokenConfig

TOKEN, OTHER_TOKEN = "a-token-for-the-tests", "another-token-for-them"


class Wire(NamedTuple):
    """A server and a session that presents its first token."""

    server: SandboxServer
    session: aiohttp.ClientSession

    async def ask(
        self, method: str, path: str, body: Any = None, token: str = TOKEN, **options: Any
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        url = self.server.base_url + "/api/v1" + path
        async with self.session.request(
            method, url, json=body, headers=headers, **options
        ) as answer:
            return answer.status, await answer.json()

    async def create(self, token: str = TOKEN, **fields: Any) -> dict[str, Any]:
        fields = {"name": "test", "docker_image": "host", "memory_gb": 0.125, **fields}
        status, sandbox = await self.ask("POST", "/sandbox", fields, token)
        assert status == 200, sandbox
        return sandbox


@asynccontextmanager
async def _serving(*, quota: Quota | None = None, **options: Any) -> AsyncIterator[Wire]:
    tokens = (
        TokenConfig.of("first", TOKEN, quota),
        TokenConfig.of("second", OTHER_TOKEN, quota),
    )
    config = ServerConfig(tokens=tokens, port=0, **options)
    async with SandboxServer(config) as server, aiohttp.ClientSession() as session:
        yield Wire(server, session)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire() -> AsyncIterator[Wire]:
    async with _serving() as wire:
        yield wire


@pytest.fixture
def serving() -> Callable[..., AbstractAsyncContextManager[Wire]]:
    """Opens a server with options of `ServerConfig` and a quota for both tokens."""
    return _serving
