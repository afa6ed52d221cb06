"""Many requests in one transaction: on SQLite a commit waits for the disk, and only one can run at a time.

Blocks take turns in the order of asking. Each runs under a savepoint of its own, so one that fails undoes its
own work alone. When nobody waits for a turn, or the group is large or old, it is committed; a block ends, and
its request is answered, only after that. While one group is being synced the next one gathers: eight
publishers cost two or three syncs of the disk instead of eight.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

MAX_BLOCKS = 64
MAX_AGE_S = 0.1
"""A group that is older takes no further block, so that the first one need not wait for a slow last one."""


class _Group:
    """Blocks that are committed together."""

    def __init__(self, connection: AsyncConnection) -> None:
        loop = asyncio.get_running_loop()
        self.connection = connection
        self.committed: asyncio.Future[None] = loop.create_future()
        # Looked at even when every block that waited was cancelled.
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
        self._group: _Group | None = None
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        """A session that is committed, with its group, when the block has ended.

        Raises what the commit raised, to every block of the group, when that fails.
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
                self._end_turn()  # it came in the same moment
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

    async def _open(self) -> _Group:
        connection = await self._engine.connect()
        try:
            await connection.begin()
        except BaseException:
            await connection.close()
            raise
        self._group = _Group(connection)
        return self._group

    async def _close(self, group: _Group) -> None:
        """Commit the group; nobody else has the turn meanwhile."""
        try:
            # On a full or failing disk SQLite ends the transaction by itself; what follows is outside of it.
            if not await _is_whole(group.connection):
                raise OperationalError("COMMIT", None, Exception("the transaction was rolled back"))
            await group.connection.commit()
        except Exception as error:  # noqa: BLE001 — it goes to every block of the group
            # Some errors leave the transaction open, with the lock; a connection that is closed has none.
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
