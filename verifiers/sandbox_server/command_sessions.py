"""Commands that outlive a request: the sessions of the gateway's Connect service.

A command with a `session_uuid` outlives its client's connection: its output waits until `Connect` attaches to the
command again. A command without a `session_uuid` is killed when its client disconnects.
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
"""Maximum number of sessions per sandbox. New sessions replace the oldest ended ones."""
MAX_KEPT_UUIDS = 1024


class CommandSession:
    """One command and its listener."""

    def __init__(self, command: CommandSpec, number: int, uuid: str | None) -> None:
        self.command = command
        self.number = number
        """The pid that clients receive: unique in the sandbox, and not a process id inside."""
        self.uuid = uuid
        self.process: Process | None = None
        self.running: asyncio.Task[None] | None = None
        self.result: ExecResult | None = None
        self.failure: BaseException | None = None
        self.displaced = asyncio.Event()
        """Set when another listener takes over."""
        self.signals: set[str] = set()
        """Identifiers of the signals sent. A repeated request does not send its signal again."""
        self._next_piece: asyncio.Task[tuple[StreamName, bytes] | None] | None = None
        self._inputs = asyncio.Lock()
        self._done: OrderedDict[str, asyncio.Task[None]] = OrderedDict()

    def attach(self) -> asyncio.Event:
        """Become the listener. Return an event that is set when another listener takes over."""
        self.displaced.set()
        self.displaced = asyncio.Event()
        return self.displaced

    async def next_piece(
        self, displaced: asyncio.Event, wait_s: float
    ) -> tuple[StreamName, bytes] | TimeoutError | None:
        """The next output, None after the last, or a TimeoutError object after `wait_s`. Nothing is lost if cancelled.

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
            raise ConnectError("failed_precondition", "Another client now listens to this command.")
        if self._next_piece not in done:
            return TimeoutError()
        piece, self._next_piece = self._next_piece.result(), None
        return piece

    async def _read(self) -> tuple[StreamName, bytes] | None:
        assert self.process is not None
        try:
            return await anext(self.process.output())
        except (StopAsyncIteration, SandboxError):
            return None  # the result of the command gives the reason

    async def once(self, uuid: str | None, act: Callable[[], object]) -> None:
        """Perform an action after the earlier ones. A repetition with the same uuid waits for the first action."""
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
        """Stop reading output."""
        if self._next_piece is not None:
            self._next_piece.cancel()


class CommandSessions:
    """The sessions of one sandbox."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._all: OrderedDict[int, CommandSession] = OrderedDict()

    def living(self) -> list[CommandSession]:
        """Return the sessions whose command still runs."""
        return [session for session in self._all.values() if session.result is None]

    def find(self, selector: Selector) -> CommandSession | None:
        """Return the session with this number or uuid, or None."""
        if selector.pid is not None:
            return self._all.get(selector.pid)
        for session in self._all.values():
            if session.uuid == selector.session_uuid:
                return session
        return None

    def add(self, command: CommandSpec, uuid: str | None) -> CommandSession:
        """Create a session. Raises ConnectError if the sandbox has too many."""
        for number, session in list(self._all.items()):
            if len(self._all) < MAX_SESSIONS:
                break
            if session.running is not None and session.running.done():
                self.drop(number)
        if len(self._all) >= MAX_SESSIONS:
            raise ConnectError(
                "resource_exhausted",
                f"{MAX_SESSIONS} commands are running, the maximum for a sandbox.",
            )
        session = CommandSession(command, next(self._numbers), uuid)
        self._all[session.number] = session
        return session

    def drop(self, number: int) -> None:
        """Remove a session."""
        session = self._all.pop(number, None)
        if session is not None:
            session.forget()
