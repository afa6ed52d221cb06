"""SQLite through aiosqlite with one hop to its thread for a statement instead of four.

The adapter of SQLAlchemy makes a cursor, executes, fetches and closes in separate hops; a publish has
some twenty statements, and the hops were two thirds of its processor time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection
from sqlalchemy.util import await_

Row = tuple[Any, ...]


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

        def run() -> None:
            connection = self._adapter.driver_connection._conn
            cursor = connection.execute(operation, parameters if parameters is not None else ())
            self._take(cursor, cursor.fetchall() if cursor.description else ())

        self._call(run)

    def executemany(self, operation: str, parameters: Sequence[Any]) -> None:
        """Run one statement for each set of parameters."""

        def run() -> None:
            connection = self._adapter.driver_connection._conn
            self._take(connection.executemany(operation, parameters), ())

        self._call(run)

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
