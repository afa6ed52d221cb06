"""Recording changes, and noticing them in every worker.

A worker keeps rendered index pages in memory. Before it serves a page, it asks its watcher which owners changed since
the last time. On SQLite this is one pragma (2 µs) while nothing changes; PostgreSQL sends notifications.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Principal
from hub_server.changes.models import AuditEntry, Change
from hub_server.database import CHANGED_OWNERS, Database, insert_rows

logger = logging.getLogger(__name__)

CHANNEL = "vf_hub_changes"
_ORDER_LOCK = 0x7666_6876
_BLOB_LOCK = 0x7666_6877
RECONNECT_DELAY_S = 1.0


async def record_change(
    session: AsyncSession,
    kind: str,
    *,
    environment_id: str,
    owner: str,
    name: str,
    version: str | None = None,
) -> None:
    """Add a change to the feed. This is the last step of a transaction.

    On PostgreSQL a lock that is held until the commit makes serials visible in their order.
    """
    session.info.setdefault(CHANGED_OWNERS, set()).add(owner)
    if session.get_bind().dialect.name == "postgresql":
        await session.execute(text(f"SELECT pg_advisory_xact_lock({_ORDER_LOCK})"))
        await session.execute(
            text("SELECT pg_notify(:channel, :owner)"), {"channel": CHANNEL, "owner": owner}
        )
    change = Change(
        kind=kind, environment_id=environment_id, owner=owner, name=name, version=version
    )
    await insert_rows(session, [change])


async def hold_blobs(session: AsyncSession, *, to_delete: bool = False) -> None:
    """Keep blobs from being deleted until the transaction ends. With `to_delete`, keep publishers out instead.

    A publisher that claims a blob and a collector that deletes it thus see each other's work. SQLite has only one
    writing transaction at a time anyway.
    """
    if session.get_bind().dialect.name == "postgresql":
        shared = "" if to_delete else "_shared"
        await session.execute(text(f"SELECT pg_advisory_xact_lock{shared}({_BLOB_LOCK})"))


def record_audit(
    session: AsyncSession, caller: Principal, action: str, subject: str, **detail: Any
) -> None:
    """Add an entry to the audit log, in the transaction of the action."""
    session.add(audit_entry(caller, action, subject, **detail))


def audit_entry(caller: Principal, action: str, subject: str, **detail: Any) -> AuditEntry:
    """Return a row of the audit log."""
    return AuditEntry(
        actor_id=caller.user_id,
        token_id=caller.token_id,
        action=action,
        subject=subject[:300],
        detail=detail,
    )


async def changes_since(session: AsyncSession, serial: int, limit: int) -> list[Change]:
    """Return the feed after the serial, oldest first."""
    query = select(Change).where(Change.serial > serial).order_by(Change.serial).limit(limit)
    return list(await session.scalars(query))


async def last_serial(session: AsyncSession) -> int:
    """Return the newest serial; 0 on an empty hub."""
    return await session.scalar(select(func.max(Change.serial))) or 0


async def audit_entries(
    session: AsyncSession, after_id: int, limit: int, actor_id: str | None
) -> list[AuditEntry]:
    """Return the audit log after an id, oldest first: of one actor, or of all actors for None."""
    query = select(AuditEntry).where(AuditEntry.id > after_id).order_by(AuditEntry.id).limit(limit)
    if actor_id is not None:
        query = query.where(AuditEntry.actor_id == actor_id)
    return list(await session.scalars(query))


class Watcher(Protocol):
    """Reports to a worker which owners' pages have changed."""

    @property
    def is_reliable(self) -> bool:
        """Whether an empty answer means that nothing changed."""
        ...

    def changed_owners(self) -> set[str]:
        """Owners with changes since the last call. Must take microseconds."""
        ...

    async def start(self) -> None:
        """Start to watch."""
        ...

    async def aclose(self) -> None:
        """Stop watching."""
        ...


class SqliteWatcher:
    """Watches the database file through a separate connection."""

    is_reliable = True

    def __init__(self, url: str) -> None:
        self._path = make_url(url).database or ":memory:"
        self._connection: sqlite3.Connection | None = None
        self._data_version = -1
        self._serial = 0

    async def start(self) -> None:
        """Open the connection and skip earlier changes."""
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        self.changed_owners()

    def changed_owners(self) -> set[str]:
        """Return the owners that changed: two look-ups after a write, otherwise one pragma."""
        assert self._connection is not None, "start() comes first"
        (data_version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if data_version == self._data_version:
            return set()
        self._data_version = data_version
        rows = self._connection.execute(
            "SELECT serial, owner FROM changes WHERE serial > ? ORDER BY serial", (self._serial,)
        ).fetchall()
        if rows:
            self._serial = rows[-1][0]
        return {owner for _, owner in rows}

    async def aclose(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()


class PostgresWatcher:
    """Listens on a separate connection. While the connection is lost, no page is served from memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.is_reliable = False
        # A notification arrives after the answer to the client, but this worker's own changes must show at once.
        database.on_commit = self._owners.update

    async def start(self) -> None:
        """Start to listen. A lost connection is opened again."""
        listening = asyncio.Event()
        self._task = asyncio.create_task(self._listen(listening.set))
        with suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await listening.wait()

    def changed_owners(self) -> set[str]:
        """Return the owners that were reported since the last call, or `*` after a lost connection."""
        owners = set(self._owners)
        self._owners.clear()
        return owners

    async def _listen(self, ready: Callable[[], None]) -> None:
        while True:
            try:
                async with self._database.engine.connect() as connection:
                    raw = await connection.get_raw_connection()
                    driver: Any = raw.driver_connection  # asyncpg's, which SQLAlchemy hides
                    lost = asyncio.Event()
                    driver.add_termination_listener(lambda _c, event=lost: event.set())
                    await driver.add_listener(CHANNEL, lambda _c, _p, _ch, o: self._owners.add(o))
                    self._owners.add("*")
                    self.is_reliable = True
                    ready()
                    await lost.wait()
            except Exception as error:  # noqa: BLE001 — listening must continue after any error
                logger.warning("listening for changes failed: %s", type(error).__name__)
            finally:
                self.is_reliable = False
            await asyncio.sleep(RECONNECT_DELAY_S)

    async def aclose(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


def open_watcher(database: Database) -> Watcher:
    """Return the watcher that fits the database."""
    return SqliteWatcher(database.url) if database.is_sqlite else PostgresWatcher(database)
