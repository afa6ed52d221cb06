"""SQLite below SQLAlchemy: statements without hops between threads, and commits shared by several requests.

The adapter of SQLAlchemy makes a cursor, executes, fetches and closes in four hops to aiosqlite's thread. A publish has
some thirty statements of a few microseconds each; the hops took most of its processor time, and on a busy machine each
hop waits for two turns on a core. Here a read is one hop, and the statements of a writing transaction and of look-ups
run in the event loop's own thread. Work that waits for a disk or a lock does not: a commit and a large statement are
hops, and a writer sleeps while another process holds the lock.

Requests that write at the same time share one transaction, because a commit waits for the disk. Blocks take turns in
the order of their requests. Each block runs under its own savepoint, so a block that fails undoes only its own work.
The group is committed when no block waits for a turn, or when the group is large or old. A block ends, and its request
is answered, only after the commit. While one group is being synced, the next one gathers: eight publishers cost two or
three syncs of the disk instead of eight.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.util import await_

Row = tuple[Any, ...]

BUSY_TIMEOUT_S = 30.0
"""Seconds for which a writer waits for the transaction of another process."""
LARGE_CHARACTERS = 100_000
"""Larger parameters are written in the thread: that takes longer than the hop."""
MANY_ROWS = 20

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02


class OneHopCursor:
    """A cursor that has all its rows when `execute` returns."""

    server_side = False

    def __init__(self, connection: "OneHopConnection") -> None:
        self._adapter = connection
        self._rows: deque[Row] = deque()
        self.description: Any = None  # the DBAPI does not type it
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    def execute(self, operation: str, parameters: Any = None) -> None:
        """Run one statement."""
        given = parameters if parameters is not None else ()
        self._call(lambda: self._run(operation, given))

    def executemany(self, operation: str, parameters: Sequence[Any]) -> None:
        """Run one statement for each set of parameters."""
        self._call(lambda: self._run_many(operation, parameters))

    def _run(self, operation: str, parameters: Any) -> None:
        cursor = self._connection.execute(operation, parameters)
        self._take(cursor, cursor.fetchall() if cursor.description else ())

    def _run_many(self, operation: str, parameters: Sequence[Any]) -> None:
        self._take(self._connection.executemany(operation, parameters), ())

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._adapter.driver_connection._conn

    def _take(self, cursor: Any, rows: Sequence[Row]) -> None:
        self.description, self.rowcount = cursor.description, cursor.rowcount
        self.lastrowid = cursor.lastrowid
        self._rows = deque(rows)
        cursor.close()

    def _call(self, run: Callable[[], None]) -> None:
        try:
            # aiosqlite has no public way to run a function in its thread.
            await_(self._adapter.driver_connection._execute(run))
        except Exception as error:  # noqa: BLE001 — the adapter sorts the errors of all drivers
            self._adapter._handle_exception(error)

    def fetchone(self) -> Row | None:
        """Return the next row."""
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """Return some rows."""
        count = min(size or self.arraysize, len(self._rows))
        return [self._rows.popleft() for _ in range(count)]

    def fetchall(self) -> list[Row]:
        """Return all rows."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def __iter__(self) -> Iterator[Row]:
        while self._rows:
            yield self._rows.popleft()

    def setinputsizes(self, *sizes: Any) -> None:
        """Do nothing: SQLite does not use input sizes."""

    def close(self) -> None:
        """Drop the rows. The driver's cursor is already closed."""
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        """Do nothing. SQLAlchemy calls this between running a statement and reading its rows."""


class InlineCursor(OneHopCursor):
    """A cursor that runs small statements in the calling thread."""

    def execute(self, operation: str, parameters: Any = None) -> None:
        """Run one statement. A statement that takes the write lock waits for it without blocking other work."""
        if operation == "BEGIN IMMEDIATE":
            self._begin_immediate(operation)
        elif parameters is not None and _is_large(parameters):
            super().execute(operation, parameters)
        else:
            try:
                self._run(operation, parameters if parameters is not None else ())
            except Exception as error:  # noqa: BLE001 — as in `_call`
                self._adapter._handle_exception(error)

    def executemany(self, operation: str, parameters: Sequence[Any]) -> None:
        """Run one statement for each set of parameters."""
        if len(parameters) > MANY_ROWS or any(_is_large(row) for row in parameters):
            super().executemany(operation, parameters)
            return
        try:
            self._run_many(operation, parameters)
        except Exception as error:  # noqa: BLE001 — as in `_call`
            self._adapter._handle_exception(error)

    def _begin_immediate(self, operation: str) -> None:
        deadline_s, pause_s = time.monotonic() + BUSY_TIMEOUT_S, _FIRST_PAUSE_S
        while True:
            try:
                self._connection.execute("PRAGMA busy_timeout=0")
                try:
                    self._run(operation, ())
                finally:
                    self._connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
                return
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline_s:
                    self._adapter._handle_exception(error)
            await_(asyncio.sleep(pause_s))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _is_large(parameters: Any) -> bool:
    values = parameters.values() if isinstance(parameters, dict) else parameters
    return sum(len(v) for v in values if isinstance(v, str | bytes)) > LARGE_CHARACTERS


class OneHopConnection(AsyncAdapt_aiosqlite_connection):
    """SQLAlchemy's adapter of a connection, with our cursors."""

    __slots__ = ()

    def cursor(
        self, server_side: bool = False
    ) -> Any:  # our cursors are not subclasses of SQLAlchemy's
        """Return a cursor; rows are always read at once."""
        return OneHopCursor(self)

    @property
    def driver_connection(self) -> Any:
        """The connection of aiosqlite."""
        return self._connection


class InlineConnection(OneHopConnection):
    """The same, with cursors that run in the calling thread; only `commit` is a hop."""

    __slots__ = ()

    def cursor(self, server_side: bool = False) -> Any:
        """Return a cursor; rows are always read at once."""
        return InlineCursor(self)

    def rollback(self) -> None:
        """Roll back; this writes nothing to the disk."""
        if self._connection._connection:
            self._connection._conn.rollback()

    def commit(self) -> None:
        """Commit in the connection's thread, if there is something to write."""
        if self._connection._connection and self._connection._conn.in_transaction:
            super().commit()


# --- commits in groups --------------------------------------------------------------------------

MAX_BLOCKS = 64
MAX_AGE_S = 0.1
"""An older group accepts no further block, so that its first block need not wait for a slow last one."""


class _CommitGroup:
    """Blocks that are committed together."""

    def __init__(self, connection: AsyncConnection) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.committed: asyncio.Future[None] = loop.create_future()
        # Retrieve the exception even if every waiting block was cancelled.
        self.committed.add_done_callback(lambda done: done.exception())
        self.blocks = 0
        self.began_s = loop.time()

    @property
    def has_room(self) -> bool:
        age_s = asyncio.get_running_loop().time() - self.began_s
        return self.blocks < MAX_BLOCKS and age_s < MAX_AGE_S


class GroupWriter:
    """Writing transactions on an engine whose `begin` takes the write lock."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._group: _CommitGroup | None = None
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """Yield a session that is committed with its group after the block has ended.

        Raises the error of the commit in every block of the group if the commit fails.
        """
        await self._take_turn()
        try:
            group = self._group or await self._open()
            group.blocks += 1
            async with (
                AsyncSession(
                    group.connection,
                    join_transaction_mode="create_savepoint",
                    expire_on_commit=False,
                ) as session,
                session.begin(),
            ):
                await session.connection()
                yield session
        finally:
            self._end_turn()
        await asyncio.shield(group.committed)

    async def aclose(self) -> None:
        """Wait for the group that is being committed."""
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _take_turn(self) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end_turn()  # the turn came at the moment of the cancellation
            raise

    def _end_turn(self) -> None:
        if self._group is None:
            self._give_turn()
        elif not (self._group.has_room and self._has_waiting()):
            self._closing = asyncio.create_task(self._close(self._group))
        else:
            self._give_turn()

    def _has_waiting(self) -> bool:
        while self._waiting and self._waiting[0].done():  # cancelled
            self._waiting.popleft()
        return bool(self._waiting)

    def _give_turn(self) -> None:
        if self._has_waiting():
            self._waiting.popleft().set_result(None)
        else:
            self._is_taken = False

    async def _open(self) -> _CommitGroup:
        connection = await self._engine.connect()
        try:
            await connection.begin()
        except BaseException:
            await connection.close()
            raise
        self._group = _CommitGroup(connection)
        return self._group

    async def _close(self, group: _CommitGroup) -> None:
        """Commit the group. No block has the turn meanwhile."""
        try:
            # On a full or failing disk SQLite ends the transaction by itself; later statements are outside of it.
            if not await _is_whole(group.connection):
                raise OperationalError("COMMIT", None, Exception("the transaction was rolled back"))
            await group.connection.commit()
        except Exception as error:  # noqa: BLE001 — it goes to every block of the group
            # Some errors leave the transaction and its lock open. A closed connection holds neither.
            await group.connection.invalidate()
            group.committed.set_exception(error)
        else:
            group.committed.set_result(None)
        finally:
            self._group = None
            await group.connection.close()
            self._give_turn()


async def _is_whole(connection: AsyncConnection) -> bool:
    raw = await connection.get_raw_connection()
    return raw.driver_connection._conn.in_transaction  # type: ignore[union-attr]  # aiosqlite's, which has no types
