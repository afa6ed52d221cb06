"""The connection to SQLite or PostgreSQL, and what the tables have in common.

One request is one transaction: `async with database.write() as session` commits at its end or rolls
back; nobody calls `commit`. On SQLite there is one writer at a time, which takes the lock at once
(BEGIN IMMEDIATE), so a transaction never fails half way because another one was quicker; requests that
write at the same time are committed together (`group_commit`).
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
    """A moment in UTC; SQLite forgets the zone, so it is put back on reading."""

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
    """Root of all tables."""

    type_annotation_map = {
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
        list[dict[str, Any]]: JSON,
    }


def new_id() -> str:
    """25 characters, `c` and 24 of [a-z0-9]: the only form that all clients take for a team id."""
    number, digits = secrets.randbits(128), []
    for _ in range(24):
        number, digit = divmod(number, 36)
        digits.append(_ALPHABET[digit])
    return "c" + "".join(digits)


def inserter(session: AsyncSession) -> "Callable[[Any], sqlite.Insert | postgresql.Insert]":
    """The `insert` of the session's dialect, which knows ON CONFLICT."""
    if session.get_bind().dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_sqlite

        return insert_sqlite
    # Only here: 4 MiB that a hub on SQLite does not need.
    from sqlalchemy.dialects.postgresql import insert as insert_postgresql

    return insert_postgresql


async def insert_rows(session: AsyncSession, rows: Sequence[Base]) -> None:
    """Insert rows that nothing will read from this session.

    Without the unit of work of `session.add`, which costs several times as much for a single row.
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
"""Made once for each table, so that they are compiled once."""


class Database:
    """Three ways in: `read` and `look_up` see a consistent state, `write` commits at its end."""

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
        """The engine that writes; for migrations and maintenance."""
        return self._writers

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """A session whose changes are not kept."""
        async with _reachable(), AsyncSession(self._readers, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def look_up(self) -> AsyncIterator[AsyncSession]:
        """As `read`, for a few rows found by a key: on SQLite they are read on the spot.

        The block must wait for nothing else, because there is one such session at a time.
        """
        async with _reachable(), AsyncSession(self._lookers_up, expire_on_commit=False) as session:
            yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """A session that commits at the end of the block and rolls back when it raises."""
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
    """Turn a lost or overloaded database into an answer that says so."""
    try:
        yield
    except (PoolTimeout, ConnectionRefusedError) as error:
        raise Unavailable("The database does not answer; try again.") from error
    except OperationalError as error:
        raise Unavailable("The database is busy or away; try again.") from error
    except OverflowError as error:
        raise BadRequest("A number is too large to be stored.") from error
    except DBAPIError as error:
        # SQLSTATE class 22: the data cannot be represented, such as a NUL character in a text.
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
        # Used by one thread at a time, but not always the same one.
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
    def _configure(connection: Any, _record: Any) -> None:  # the adapter's own connection type
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        # FULL: a commit that was acknowledged survives a power cut, not only a crash.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine
