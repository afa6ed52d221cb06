"""Commands as streams: the gateway's Connect service `command_session.CommandSession`.

A command with a `session_uuid` outlives its client's connection: its output waits, and `Connect` attaches to it
again. A command without one is killed when its client goes away.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from verifiers.sandbox_server import connect
from verifiers.sandbox_server.connect import CommandSpec, ConnectError, MalformedMessage, Selector
from verifiers.sandbox_server.gateway import KILLED, find_for_gateway
from verifiers.sandbox_server.inventory import HostedSandbox, Inventory
from verifiers.sandbox_server.requests import RequestRefused, Transfer
from verifiers.sandboxes.errors import SandboxError
from verifiers.sandboxes.sandbox import ExecResult, Process, StreamName

MAX_SESSIONS = 256
"""Of one sandbox; the oldest that have ended make room."""
MAX_KEPT_UUIDS = 1024
_Message = TypeVar("_Message")


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


class CommandService:
    """Handlers of the Connect service."""

    def __init__(self, inventory: Inventory, transfer: Transfer) -> None:
        self._inventory = inventory
        self._transfer = transfer
        self._config = transfer.config

    def routes(self) -> list[web.RouteDef]:
        """What is served, below the gateway's prefix."""
        service = "/gateway/{user_ns}/{job_id}/" + connect.SERVICE
        return [
            web.post(service + "/Start", self.start),
            web.post(service + "/Connect", self.connect),
            web.post(service + "/SendInput", self.send_input),
            web.post(service + "/SendSignal", self.send_signal),
            web.post(service + "/List", self.list),
        ]

    def _sessions(self, request: web.Request) -> tuple[HostedSandbox, CommandSessions]:
        hosted = find_for_gateway(self._inventory, request)
        if hosted.sessions is None:
            hosted.sessions = CommandSessions()
        return hosted, hosted.sessions

    # --- streams

    async def start(self, request: web.Request) -> web.StreamResponse:
        """Start: run a command and stream what it prints; or attach, if its session_uuid is known."""
        hosted, sessions = self._sessions(request)
        wanted = _parsed(connect.parse_start, await self._stream_message(request))
        timeout_s = _deadline_s(request)
        session = None
        if wanted.session_uuid is not None:
            session = sessions.find(Selector(None, wanted.session_uuid))
        if session is None:
            session = sessions.add(wanted.command, wanted.session_uuid)
            try:
                await self._launch(hosted, session, has_stdin=wanted.has_stdin)
            except BaseException:
                sessions.drop(session.number)
                raise
        if session.uuid is not None:
            return await self._stream(request, session, timeout_s)
        try:
            return await self._stream(request, session, timeout_s)
        finally:
            if session.result is None and session.process is not None:
                self._inventory.start_task(hosted, session.process.kill(), "kill a command of")
            sessions.drop(session.number)

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Connect: listen to a command that runs."""
        _, sessions = self._sessions(request)
        selector = _parsed(connect.parse_connect, await self._stream_message(request))
        return await self._stream(request, _found(sessions, selector), _deadline_s(request))

    async def _launch(
        self, hosted: HostedSandbox, session: CommandSession, *, has_stdin: bool
    ) -> None:
        launched: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session.running = self._inventory.start_task(
            hosted, self._run(hosted, session, has_stdin, launched), "run a command of"
        )
        await launched

    async def _run(
        self,
        hosted: HostedSandbox,
        session: CommandSession,
        has_stdin: bool,
        launched: asyncio.Future[None],
    ) -> None:
        command = session.command
        try:
            async with self._inventory.in_use(hosted) as sandbox:
                session.process = await sandbox.spawn(
                    command.argv,
                    cwd=command.cwd,
                    env=command.env,
                    user=command.user,
                    stdin=has_stdin,
                )
                session.process.output()  # from now on its output waits for a listener
                if launched.cancelled():
                    await session.process.kill()
                else:
                    launched.set_result(None)
                session.result = await session.process.wait()
                self._inventory.count_command(hosted, session.result)
        except (SandboxError, RequestRefused, ValueError, asyncio.CancelledError) as error:
            session.failure = error
            if not launched.done():
                launched.set_exception(_as_connect_error(error))

    async def _stream(
        self, request: web.Request, session: CommandSession, timeout_s: float | None
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": connect.STREAM_TYPE})
        displaced = session.attach()
        await response.prepare(request)
        error = None
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(response, connect.started(session.number))
                await self._pump(response, session, displaced)
        except TimeoutError:
            error = ConnectError(
                "deadline_exceeded", f"The command still ran after {timeout_s or 0:g} s."
            )
        except ConnectError as failure:
            error = failure
        await self._send(response, connect.end_of_stream(error))
        await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, data: bytes) -> None:
        await self._transfer.write(response, data)

    async def _pump(
        self, response: web.StreamResponse, session: CommandSession, displaced: asyncio.Event
    ) -> None:
        while True:
            piece = await session.next_piece(displaced, self._config.keepalive_s)
            if isinstance(piece, TimeoutError):
                await self._send(response, connect.keepalive())
            elif piece is None:
                break
            else:
                await self._send(response, connect.output(*piece))
                self._transfer.metrics.add("bytes_total", len(piece[1]), direction="out")
        assert session.running is not None
        await asyncio.wait([session.running])
        result = session.result
        if result is None:
            raise _as_connect_error(session.failure)
        code = KILLED if result.exit_code is None else result.exit_code
        error = "out of memory" if result.oom else None
        await self._send(response, connect.ended(code, f"exit status {code}", error))

    # --- single calls

    async def send_input(self, request: web.Request) -> web.Response:
        """SendInput: bytes for stdin; answers when the command's pipe has taken them."""
        _, sessions = self._sessions(request)
        selector, data, uuid = _parsed(
            connect.parse_input, await self._unary_message(request, self._config.max_stdin_bytes)
        )
        session = _found(sessions, selector)
        process = session.process
        assert process is not None
        was_running = session.result is None
        try:
            await session.once(uuid, lambda: process.write(data))
        except BrokenPipeError as error:
            # A command may take its input and end at once: as with any pipe, that is no failure of the writer.
            if not was_running:
                raise ConnectError("failed_precondition", str(error)) from error
        except SandboxError as error:
            raise _as_connect_error(error) from error
        self._transfer.metrics.add("bytes_total", len(data), direction="in")
        return _unary(b"")

    async def send_signal(self, request: web.Request) -> web.Response:
        """SendSignal: to the command and its process group; SIGKILL to all it has started."""
        _, sessions = self._sessions(request)
        message = await self._unary_message(request, self._config.max_json_bytes)
        selector, number, uuid = _parsed(connect.parse_signal, message)
        session = _found(sessions, selector)
        process = session.process
        assert process is not None
        # Not in the order of the inputs: a signal must reach a command that no longer reads.
        if uuid is None or uuid not in session.signals:
            if uuid is not None and len(session.signals) < MAX_KEPT_UUIDS:
                session.signals.add(uuid)
            await (process.kill() if number == 9 else process.signal(number))
        return _unary(b"")

    async def list(self, request: web.Request) -> web.Response:
        """List: the commands that run."""
        _, sessions = self._sessions(request)
        running = [(each.command, each.number, each.uuid or "") for each in sessions.living()]
        return _unary(connect.session_list(running))

    # --- messages

    async def _stream_message(self, request: web.Request) -> bytes:
        if request.content_type != connect.STREAM_TYPE:
            raise RequestRefused(415, f"Content-Type must be {connect.STREAM_TYPE}.")
        most = self._config.max_json_bytes
        body = await self._transfer.body(request, most + connect.HEADER_BYTES)
        if len(body) < connect.HEADER_BYTES:
            raise ConnectError("invalid_argument", "The message is cut off.")
        flags, length = connect.parse_header(body[: connect.HEADER_BYTES])
        message = body[connect.HEADER_BYTES : connect.HEADER_BYTES + length]
        if len(message) < length:
            raise ConnectError("invalid_argument", "The message is cut off.")
        return connect.decompressed(message, most) if flags & connect.COMPRESSED else message

    async def _unary_message(self, request: web.Request, most: int) -> bytes:
        if request.content_type != connect.UNARY_TYPE:
            raise RequestRefused(415, f"Content-Type must be {connect.UNARY_TYPE}.")
        body = await self._transfer.body(request, most)
        # aiohttp has undone a Content-Encoding already, limits included.
        return body


def _parsed(parse: Callable[[bytes], _Message], data: bytes) -> _Message:
    try:
        return parse(data)
    except MalformedMessage as error:
        raise ConnectError("invalid_argument", f"The message is malformed: {error}.") from None


def _found(sessions: CommandSessions, selector: Selector) -> CommandSession:
    session = sessions.find(selector)
    if session is None or session.process is None:
        raise ConnectError("not_found", "There is no such command; it may have ended long ago.")
    return session


def _deadline_s(request: web.Request) -> float | None:
    text = request.headers.get("Connect-Timeout-Ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) == 0:
        raise ConnectError("invalid_argument", f"Connect-Timeout-Ms {text[:40]!r} is no number.")
    return int(text) / 1000


def _as_connect_error(error: BaseException | None) -> ConnectError:
    if isinstance(error, ConnectError):
        return error
    if isinstance(error, RequestRefused):
        code = "resource_exhausted" if error.status == 429 else "failed_precondition"
        return ConnectError(code, error.detail)
    if isinstance(error, ValueError):
        return ConnectError("invalid_argument", str(error))
    return ConnectError("not_found", f"The sandbox is gone: {error or 'it was ended'}")


def _unary(message: bytes) -> web.Response:
    return web.Response(body=message, content_type=connect.UNARY_TYPE)
