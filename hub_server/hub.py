"""One running hub: the parts that every request can use."""

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Request

from hub_server.accounts import service as accounts
from hub_server.changes.service import Watcher, open_watcher
from hub_server.database import Database
from hub_server.environments import service as environments
from hub_server.errors import HubFailure
from hub_server.evaluations.samples import BatchTurns, purge
from hub_server.index.cache import PageCache
from hub_server.index.pinned import PinnedWheels
from hub_server.limits import CallerLimits, LoginLimits
from hub_server.operations.service import RequestMetrics
from hub_server.publishing.service import Publisher
from hub_server.secrets.cipher import open_cipher
from hub_server.settings import Settings
from hub_server.storage.service import open_store
from hub_server.storage.store import BlobStore

logger = logging.getLogger(__name__)

FLUSH_INTERVAL_S = 10.0


@dataclass
class UsageCounts:
    """Counts that are written together every few seconds. A crash loses only these counts."""

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
        self.limits = CallerLimits(settings.rate_limit_per_minute)
        self.logins = LoginLimits(settings.login_limit_per_minute)
        self.metrics = RequestMetrics()
        self.cipher = open_cipher(settings.data_dir)
        self.publisher = Publisher(settings, self.database, self.store)
        self.pinned = PinnedWheels(settings, self.store)
        self.batches = BatchTurns()
        self.unpacking = asyncio.Semaphore(2)
        """Number of source archives that are searched for a file at the same time: each search may unpack gigabytes."""
        self.usage = UsageCounts()
        self._flusher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Hub":
        """Open the storage and start the background tasks."""
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
            try:
                await purge(self.database)
            except HubFailure as error:
                logger.warning("rows of deleted evaluations remain for now: %s", error)

    async def _flush(self) -> None:
        downloads, self.usage.downloads = self.usage.downloads, Counter()
        used, self.usage.tokens = self.usage.tokens, {}
        if not downloads and not used:
            return
        try:
            async with self.database.write() as session:
                await environments.note_downloads(session, dict(downloads))
                await accounts.note_use(session, used)
        except HubFailure as error:
            logger.warning("usage counts were lost: %s", error)


async def hub_of(request: Request) -> Hub:
    """Return the hub that serves the request. This is a coroutine, because FastAPI runs functions in a thread."""
    return request.app.state.hub


HubDep = Annotated[Hub, Depends(hub_of)]


def base_url_of(request: Request, hub: Hub) -> str:
    """Return the hub's public address without a trailing slash."""
    if hub.settings.base_url:
        return hub.settings.base_url.rstrip("/")
    return str(request.base_url).rstrip("/")
