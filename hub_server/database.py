"""The connection to SQLite or PostgreSQL, and types that all tables share.

One request is one transaction: `async with database.write() as session` commits at its end or rolls back, and no code
calls `commit`. SQLite has one writer at a time. A writer takes the lock at once (BEGIN IMMEDIATE), so a transaction
never fails halfway because another one was quicker. Requests that write at the same time are committed together
(`sqlite`).
"""

import secrets
import string
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, DateTime, Dialect, Insert, Table, event, insert, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator

from hub_server.errors import BadRequest, Unavailable
from hub_server.private_files import touch
from hub_server.process import iso as iso
from hub_server.process import utc_now as utc_now
from hub_server.sqlite import BUSY_TIMEOUT_S, GroupWriter, InlineConnection, OneHopConnection

CHANGED_OWNERS = "changed_owners"
"""Key of a session's `info`: the owners whose pages its transaction changes."""


if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

_ALPHABET = string.ascii_lowercase + string.digits


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite does not store the zone, so reading adds it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Store UTC."""
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base class of all tables."""

    type_annotation_map = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
        list[dict[str, Any]]: JSON,
    }


def new_id() -> str:
    """Return 25 characters, `c` and 24 of [a-z0-9]: the only form of a team id that all clients accept."""
    number, digits = secrets.randbits(128), []
    for _ in range(24):
        number, digit = divmod(number, 36)
        digits.append(_ALPHABET[digit])
    return "c" + "".join(digits)


def inserter(session: AsyncSession) -> "Callable[[Any], sqlite.Insert | postgresql.Insert]":
    """Return the `insert` of the session's dialect, which supports ON CONFLICT."""
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_sqlite

        return insert_sqlite
    # Imported only here: it takes 4 MiB, and a hub on SQLite does not need it.
    from sqlalchemy.dialects.postgresql import insert as insert_postgresql

    return insert_postgresql


async def insert_rows(session: AsyncSession, rows: Sequence[Base]) -> None:
    """Insert rows that this session does not read again.

    This avoids the unit of work of `session.add`, which costs several times as much for a single row.
    """
    for row in rows:
        mapped = inspect(type(row))
        statement = _INSERTS.get(type(row))
        if statement is None:
            assert isinstance(mapped.local_table, Table), "every row of ours is of one table"
            statement = _INSERTS[type(row)] = insert(mapped.local_table)
        values = row.__dict__
        given = {
            column.key: values[name]
            for name, column in mapped.columns.items()
            if values.get(name) is not None
        }
        await session.execute(statement, given)


_INSERTS: dict[type[Base], Insert] = {}
"""One statement per table, so that each is compiled once."""


class Database:
    """Connections of a hub: `read` and `look_up` see a consistent state, `write` commits at its end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.on_commit: Callable[[set[str]], None] = lambda _owners: None
        """Called after a commit with the owners whose pages it changed."""
        self.is_sqlite = url.startswith("sqlite")
        self._group_writer: GroupWriter | None = None
        if self.is_sqlite:
            self._readers = _sqlite_engine(url, OneHopConnection, begin="BEGIN", pool_size=4)
            self._lookers_up = _sqlite_engine(url, InlineConnection, begin="BEGIN", pool_size=1)
            self._writers = _sqlite_engine(
                url, InlineConnection, begin="BEGIN IMMEDIATE", pool_size=1
            )
            self._group_writer = GroupWriter(self._writers)
        else:
            self._readers = self._lookers_up = self._writers = create_async_engine(
                url, pool_size=8, max_overflow=8, pool_pre_ping=True, pool_timeout=BUSY_TIMEOUT_S
            )

    @property
    def engine(self) -> AsyncEngine:
        """The engine that writes, for migrations and maintenance."""
        return self._writers

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """Yield a session whose changes are not kept."""
        async with _reachable(), AsyncSession(self._readers, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def look_up(self) -> AsyncIterator[AsyncSession]:
        """Yield a session like `read`, for a few rows found by a key: SQLite reads them in this thread.

        The block must not wait for anything else, because there is only one such session at a time.
        """
        async with _reachable(), AsyncSession(self._lookers_up, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that commits at the end of the block and rolls back when it raises."""
        async with _reachable(), self._transaction() as session:
            yield session
        if changed := session.info.get(CHANGED_OWNERS):
            self.on_commit(changed)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        if self._group_writer is not None:
            async with self._group_writer.transaction() as session:
                yield session
            return
        async with AsyncSession(self._writers, expire_on_commit=False) as session, session.begin():
            yield session

    async def aclose(self) -> None:
        """Close all connections."""
        if self._group_writer is not None:
            await self._group_writer.aclose()
        for engine in {self._readers, self._lookers_up, self._writers}:
            await engine.dispose()


@asynccontextmanager
async def _reachable() -> AsyncIterator[None]:
    """Turn a lost or overloaded database into an error that names it."""
    try:
        yield
    except (PoolTimeout, ConnectionRefusedError) as error:
        raise Unavailable("The database does not answer; try again.") from error
    except OperationalError as error:
        raise Unavailable("The database is busy or unreachable; try again.") from error
    except OverflowError as error:
        raise BadRequest("A number is too large to be stored.") from error
    except DBAPIError as error:
        # SQLSTATE class 22: the value cannot be stored, for example because a text has a NUL character.
        if str(getattr(error.orig, "sqlstate", "")).startswith("22"):
            raise BadRequest("A value contains characters that cannot be stored.") from error
        if error.connection_invalidated:
            raise Unavailable("The database was restarted; try again.") from error
        raise


def _sqlite_engine(
    url: str, connection_type: type[OneHopConnection], *, begin: str, pool_size: int
) -> AsyncEngine:
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=BUSY_TIMEOUT_S,
        # Used by one thread at a time, but not always the same thread.
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )

    path = make_url(url).database

    @event.listens_for(engine.sync_engine, "do_connect")
    def _connect(dialect: Any, _record: Any, arguments: Any, options: Any) -> OneHopConnection:
        if path and path != ":memory:" and Path(path).parent.is_dir():
            touch(Path(path))
        adapted = dialect.connect(*arguments, **options)
        return connection_type(adapted.dbapi, adapted._connection)

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(
        connection: Any, _record: Any
    ) -> None:  # the adapter has its own connection type
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        # FULL: an acknowledged commit survives a power cut, not only a crash.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine
