"""Commands that outlive a request: the sessions of the gateway's Connect service.

A command with a `session_uuid` outlives its client's connection: its output waits, and `Connect` attaches to it
again. A command without one is killed when its client goes away.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable

from verifiers.sandbox_server.connect import CommandSpec, ConnectError, Selector
from verifiers.sandboxes.errors import SandboxError
from verifiers.sandboxes.sandbox import ExecResult, Process, StreamName

MAX_SESSIONS = 256
"""Of one sandbox; the oldest that have ended make room."""
MAX_KEPT_UUIDS = 1024


class CommandSession:
    """One command and whoever listens to it."""

    def __init__(self, command: CommandSpec, number: int, uuid: str | None) -> None:
        self.command = command
        self.number = number
        """What clients are told as its pid; unique in its sandbox, and no process id inside."""
        self.uuid = uuid
        self.process: Process | None = None
        self.running: asyncio.Task[None] | None = None
        self.result: ExecResult | None = None
        self.failure: BaseException | None = None
        self.displaced = asyncio.Event()
        """Set when another listener has taken over."""
        self.signals: set[str] = set()
        """Identifiers of signals sent, so that a repeated request sends none twice."""
        self._next_piece: asyncio.Task[tuple[StreamName, bytes] | None] | None = None
        self._inputs = asyncio.Lock()
        self._done: OrderedDict[str, asyncio.Task[None]] = OrderedDict()

    def attach(self) -> asyncio.Event:
        """Become the listener; the event is set when somebody else does."""
        self.displaced.set()
        self.displaced = asyncio.Event()
        return self.displaced

    async def next_piece(
        self, displaced: asyncio.Event, wait_s: float
    ) -> tuple[StreamName, bytes] | TimeoutError | None:
        """The next output; None after the last; a TimeoutError object if there was none. Nothing is lost if cancelled.

        Raises ConnectError when another listener has taken over.
        """
        if self._next_piece is None:
            self._next_piece = asyncio.get_running_loop().create_task(self._read())
        waiting = asyncio.get_running_loop().create_task(displaced.wait())
        try:
            done, _ = await asyncio.wait(
                [self._next_piece, waiting], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        if displaced.is_set():
            raise ConnectError("failed_precondition", "Another client listens to this command now.")
        if self._next_piece not in done:
            return TimeoutError()
        piece, self._next_piece = self._next_piece.result(), None
        return piece

    async def _read(self) -> tuple[StreamName, bytes] | None:
        assert self.process is not None
        try:
            return await anext(self.process.output())
        except (StopAsyncIteration, SandboxError):
            return None  # the end of the command says why

    async def once(self, uuid: str | None, act: Callable[[], object]) -> None:
        """Do something, in the order asked; a repetition with the same uuid waits for the first."""
        task = self._done.get(uuid) if uuid else None
        if task is None:
            task = asyncio.get_running_loop().create_task(self._in_order(act))
            if uuid:
                self._done[uuid] = task
                while len(self._done) > MAX_KEPT_UUIDS:
                    self._done.popitem(last=False)
        await asyncio.shield(task)

    async def _in_order(self, act: Callable[[], object]) -> None:
        async with self._inputs:
            doing = act()
            assert asyncio.iscoroutine(doing)
            await doing

    def forget(self) -> None:
        """Stop reading."""
        if self._next_piece is not None:
            self._next_piece.cancel()


class CommandSessions:
    """The sessions of one sandbox."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._all: OrderedDict[int, CommandSession] = OrderedDict()

    def living(self) -> list[CommandSession]:
        """Those whose command runs."""
        return [session for session in self._all.values() if session.result is None]

    def find(self, selector: Selector) -> CommandSession | None:
        """By number or uuid."""
        if selector.pid is not None:
            return self._all.get(selector.pid)
        for session in self._all.values():
            if session.uuid == selector.session_uuid:
                return session
        return None

    def add(self, command: CommandSpec, uuid: str | None) -> CommandSession:
        """A new one. Raises ConnectError if there are too many."""
        for number, session in list(self._all.items()):
            if len(self._all) < MAX_SESSIONS:
                break
            if session.running is not None and session.running.done():
                self.drop(number)
        if len(self._all) >= MAX_SESSIONS:
            raise ConnectError("resource_exhausted", f"{MAX_SESSIONS} commands run already.")
        session = CommandSession(command, next(self._numbers), uuid)
        self._all[session.number] = session
        return session

    def drop(self, number: int) -> None:
        """Forget one."""
        session = self._all.pop(number, None)
        if session is not None:
            session.forget()
