"""SQLite below SQLAlchemy without the hops between threads that aiosqlite makes for each statement.

The adapter of SQLAlchemy makes a cursor, executes, fetches and closes in four hops. A publish has some thirty
statements of a few microseconds each; the hops were most of its processor time, and on a busy machine each
waits for two turns on a core. Here a read is one hop, and the statements of a writing transaction and of
look-ups run in the event loop's own thread. What waits for a disk or for a lock does not: a commit is a hop,
large statements are, and the lock of another process is waited for asleep.
"""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.util import await_

Row = tuple[Any, ...]

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process's transaction."""
LARGE_CHARACTERS = 100_000
"""Parameters above this size go to the thread: writing them takes longer than the hop."""
MANY_ROWS = 20

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.02


class OneHopCursor:
    """A cursor that has all its rows when `execute` returns."""

    server_side = False

    def __init__(self, connection: "OneHopConnection") -> None:
        self._adapter = connection
        self._rows: deque[Row] = deque()
        self.description: Any = None  # the DBAPI's own, which has no type
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
            # aiosqlite's way to its thread; it has no public one for a function of the caller's.
            await_(self._adapter.driver_connection._execute(run))
        except Exception as error:  # noqa: BLE001 — the adapter sorts the errors of all drivers
            self._adapter._handle_exception(error)

    def fetchone(self) -> Row | None:
        """The next row."""
        return self._rows.popleft() if self._rows else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """Some rows."""
        count = min(size or self.arraysize, len(self._rows))
        return [self._rows.popleft() for _ in range(count)]

    def fetchall(self) -> list[Row]:
        """All rows."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def __iter__(self) -> Iterator[Row]:
        while self._rows:
            yield self._rows.popleft()

    def setinputsizes(self, *sizes: Any) -> None:
        """SQLite has no use for them."""

    def close(self) -> None:
        """The driver's cursor is closed already."""
        self._rows.clear()

    async def _async_soft_close(self) -> None:
        """SQLAlchemy asks for this between running a statement and reading its rows."""


class InlineCursor(OneHopCursor):
    """A cursor that runs small statements where it is called."""

    def execute(self, operation: str, parameters: Any = None) -> None:
        """Run one statement; one that takes the write lock waits for it without blocking anybody."""
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
    """SQLAlchemy's adapter of a connection, with cursors of ours."""

    __slots__ = ()

    def cursor(self, server_side: bool = False) -> Any:  # a cursor of ours is no subclass of theirs
        """A cursor; rows are always read at once."""
        return OneHopCursor(self)

    @property
    def driver_connection(self) -> Any:
        """The connection of aiosqlite."""
        return self._connection


class InlineConnection(OneHopConnection):
    """The same with cursors that run where they are called; only `commit` is a hop."""

    __slots__ = ()

    def cursor(self, server_side: bool = False) -> Any:
        """A cursor; rows are always read at once."""
        return InlineCursor(self)

    def rollback(self) -> None:
        """Undo; this writes nothing to the disk."""
        if self._connection._connection:
            self._connection._conn.rollback()

    def commit(self) -> None:
        """Write to the disk, in the connection's thread, when there is something to write."""
        if self._connection._connection and self._connection._conn.in_transaction:
            super().commit()
