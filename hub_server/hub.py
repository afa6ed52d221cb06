"""One running hub: what every request can reach."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from hub_server.accounts import service as accounts
from hub_server.accounts.authorisation import ANONYMOUS, Principal
from hub_server.accounts.credentials import token_from_header
from hub_server.changes.service import Watcher, open_watcher
from hub_server.database import Database, utc_now
from hub_server.environments import service as environments
from hub_server.errors import HubError, Unauthorized
from hub_server.index.cache import PageCache
from hub_server.index.pinned import PinnedWheels
from hub_server.limits import RateLimiter
from hub_server.operations.metrics import Metrics
from hub_server.publishing.service import Publisher
from hub_server.secrets.cipher import open_cipher
from hub_server.settings import Settings
from hub_server.storage.service import open_store
from hub_server.storage.store import BlobStore

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 10.0


@dataclass
class Usage:
    """Counts that are written together every few seconds; a crash loses only those."""

    downloads: Counter[str] = field(default_factory=Counter)
    """Environment id → downloads."""
    tokens: dict[str, datetime] = field(default_factory=dict)
    """Token id → last use."""


class Hub:
    """The parts of a hub in one process; use it as `async with Hub(settings) as hub`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.sqlalchemy_url)
        self.store: BlobStore = open_store(settings)
        self.watcher: Watcher = open_watcher(self.database)
        self.pages = PageCache(self.watcher)
        self.limiter = RateLimiter(settings.rate_limit_per_minute)
        self.logins = RateLimiter(settings.login_limit_per_minute)
        self.metrics = Metrics()
        self.cipher = open_cipher(settings.data_dir)
        self.publisher = Publisher(settings, self.database, self.store)
        self.pinned = PinnedWheels(settings, self.store)
        self.usage = Usage()
        self._flusher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Hub":
        """Open what needs opening."""
        await self.store.check()
        await self.watcher.start()
        self._flusher = asyncio.create_task(self._flush_regularly())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Write the last counts and close everything."""
        if self._flusher is not None:
            self._flusher.cancel()
            with suppress(asyncio.CancelledError):
                await self._flusher
        await self._flush()
        await self.watcher.aclose()
        await self.database.aclose()

    async def _flush_regularly(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        downloads, self.usage.downloads = self.usage.downloads, Counter()
        used, self.usage.tokens = self.usage.tokens, {}
        if not downloads and not used:
            return
        try:
            async with self.database.write() as session:
                await environments.note_downloads(session, dict(downloads))
                await accounts.note_use(session, used)
        except HubError as error:
            logger.warning("usage counts were lost: %s", error)


async def hub_of(request: Request) -> Hub:
    """The hub that serves the request. A coroutine, because FastAPI runs functions in a thread."""
    return request.app.state.hub


HubDep = Annotated[Hub, Depends(hub_of)]


async def caller_of(request: Request, hub: HubDep) -> Principal:
    """Who is asking. Raises Unauthorized for credentials that are not valid."""
    token = token_from_header(request.headers.get("authorization"))
    if token is None:
        if not hub.settings.anonymous_read:
            return Principal(sees_public=False)
        return ANONYMOUS
    async with hub.database.look_up() as session:
        caller = await accounts.authenticate(session, token)
    if caller.token_id is not None:
        hub.usage.tokens[caller.token_id] = utc_now()
    return caller


Caller = Annotated[Principal, Depends(caller_of)]


async def known_caller(caller: Caller) -> Principal:
    """The caller, who must have shown a token."""
    if not caller.is_known:
        raise Unauthorized("Log in first: this needs an API token.")
    return caller


KnownCaller = Annotated[Principal, Depends(known_caller)]


def base_url_of(request: Request, hub: Hub) -> str:
    """The hub's public address, without a slash at the end."""
    if hub.settings.base_url:
        return hub.settings.base_url.rstrip("/")
    return str(request.base_url).rstrip("/")
