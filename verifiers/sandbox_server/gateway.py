"""The gateway: routes that run commands in one sandbox and transfer its files. Each sandbox has a separate token."""

from __future__ import annotations

import asyncio
import hmac
import shlex
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, TypeVar

from aiohttp import BodyPartReader, web

from verifiers.sandbox_server import connect
from verifiers.sandbox_server.command_sessions import (
    MAX_KEPT_UUIDS,
    CommandSession,
    CommandSessions,
)
from verifiers.sandbox_server.connect import ConnectError, MalformedMessage, Selector
from verifiers.sandbox_server.control import answer
from verifiers.sandbox_server.inventory import HostedSandbox, Inventory
from verifiers.sandbox_server.requests import RequestRefused, Transfer
from verifiers.sandboxes.errors import SandboxError
from verifiers.sandboxes.sandbox import ExecResult, Process

NOT_FOUND, NOT_A_FILE, NOT_READABLE = 44, 45, 46
KILLED = 137
"""Exit code that clients receive for a command that the sandbox stopped."""
COPY_TIMEOUT_S = 3600.0
_Message = TypeVar("_Message")

# `cat` would hang on a FIFO that a program has created, so only regular files are copied. A file appears complete
# or not at all.
_PUT = (
    'if [ -e "$1" ] && [ ! -f "$1" ]; then echo "not a regular file" >&2; exit 45; fi; '
    'mkdir -p -- "$(dirname -- "$1")" && cat > "$1.part-$$" && mv -f -- "$1.part-$$" "$1"'
)
_CHECK = f'[ -e "$1" ] || exit {NOT_FOUND}; [ -f "$1" ] || exit {NOT_A_FILE}; [ -r "$1" ] || exit {NOT_READABLE}; '
_GET = _CHECK + 'exec cat -- "$1"'
_SIZE = _CHECK + 'exec stat -L -c %s -- "$1"'
_PART = _CHECK + 'tail -c +"$2" -- "$1" | head -c "$3"'


class SandboxGone(Exception):
    """The sandbox of this address does not run: it never existed, or it has ended."""

    def __init__(self, kind: Literal["sandbox_not_found", "sandbox_terminated"], detail: str):
        super().__init__(detail)
        self.kind: Literal["sandbox_not_found", "sandbox_terminated"] = kind
        self.detail = detail


def find_for_gateway(inventory: Inventory, request: web.Request) -> HostedSandbox:
    """Return the running sandbox of the address. Raises RequestRefused if the token is wrong, and SandboxGone."""
    hosted = inventory.find(request.match_info["job_id"])
    token = bearer_token(request)
    if hosted is None or hosted.account.name != request.match_info["user_ns"]:
        raise SandboxGone("sandbox_not_found", "There is no such sandbox.")
    if not hmac.compare_digest(token.encode(), hosted.gateway_token.encode()):
        raise RequestRefused(401, "The gateway token does not belong to this sandbox.")
    if hosted.status == "PENDING":
        raise RequestRefused(409, "The sandbox is not up yet.")
    if hosted.status != "RUNNING":
        reason = hosted.error_message or "It was terminated."
        raise SandboxGone("sandbox_terminated", f"The sandbox is {hosted.status}: {reason}")
    return hosted


def bearer_token(request: web.Request) -> str:
    """Return the token of a request, or an empty string."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Gateway:
    """Handlers for commands whose output is one response, and for files."""

    def __init__(self, inventory: Inventory, transfer: Transfer) -> None:
        self._inventory = inventory
        self._transfer = transfer
        self._config = transfer.config

    def routes(self) -> list[web.RouteDef]:
        """Return the routes, below the gateway's prefix."""
        each = "/gateway/{user_ns}/{job_id}"
        return [
            web.post(each + "/exec", self.exec),
            web.post(each + "/upload", self.upload),
            web.get(each + "/download", self.download, allow_head=False),
            web.get(each + "/read-file", self.read_file, allow_head=False),
        ]

    async def exec(self, request: web.Request) -> web.Response:
        """POST exec: runs a shell command to its end. The command is killed if the client disconnects."""
        hosted = find_for_gateway(self._inventory, request)
        body = await self._transfer.json_body(request)
        if not isinstance(body, dict):
            raise RequestRefused(422, "The body must be a JSON object.")
        command, env = body.get("command"), body.get("env") or {}
        if not isinstance(command, str):
            raise RequestRefused(422, "command must be a string.")
        if not isinstance(env, dict) or not all(
            isinstance(each, str) for pair in env.items() for each in pair
        ):
            raise RequestRefused(422, "env must be an object whose values are strings.")
        timeout_s = _timeout(body.get("timeout"))
        cwd, user = _optional_text(body, "working_dir"), _optional_text(body, "user")
        async with self._inventory.in_use(hosted) as sandbox:
            try:
                result = await sandbox.exec(
                    command,
                    cwd=cwd,
                    env=env,
                    user=user,
                    timeout_s=timeout_s,
                    max_output_bytes=self._config.max_output_bytes,
                )
            except ValueError as error:
                raise RequestRefused(400, str(error)) from error
        self._inventory.count_command(hosted, result)
        self._count("out", len(result.stdout) + len(result.stderr))
        if result.timed_out:
            raise RequestRefused(
                408, f"The command was killed after its timeout of {timeout_s:g} s."
            )
        return answer(
            {
                "stdout": result.text,
                "stderr": result.error_text + _remark(result),
                "exit_code": KILLED if result.exit_code is None else result.exit_code,
            }
        )

    def _count(self, direction: str, count: int) -> None:
        self._transfer.metrics.add("bytes_total", count, direction=direction)

    # --- files

    async def upload(self, request: web.Request) -> web.Response:
        """POST upload?path=…: writes one file, streamed from a multipart body."""
        hosted = find_for_gateway(self._inventory, request)
        path = _path(request)
        if not request.content_type.startswith("multipart/"):
            raise RequestRefused(415, "The body must be multipart/form-data with one part `file`.")
        max_bytes = self._config.max_upload_bytes
        if (request.content_length or 0) > max_bytes + (64 << 10):
            raise RequestRefused(413, f"The maximum size of a file is {max_bytes} bytes.")
        async with (
            self._inventory.in_use(hosted) as sandbox,
            await sandbox.spawn(
                ["sh", "-c", _PUT, "sh", path], stdin=True, timeout_s=COPY_TIMEOUT_S
            ) as process,
        ):
            size = await self._feed(request, process, max_bytes)
            error_text, code = await _end_of(process)
        if code != 0:
            raise RequestRefused(400, f"{path!r} cannot be written: {error_text or code}")
        self._count("in", size)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return answer({"success": True, "path": path, "size": size, "timestamp": stamp})

    async def _feed(self, request: web.Request, process: Process, max_bytes: int) -> int:
        size = 0
        try:
            async for piece in self._file_part(request):
                size += len(piece)
                if size > max_bytes:
                    raise RequestRefused(413, f"The maximum size of a file is {max_bytes} bytes.")
                await process.write(piece)
        except BrokenPipeError:
            pass  # the exit code gives the reason
        await process.close_stdin()
        return size

    async def _file_part(self, request: web.Request) -> AsyncIterator[bytes]:
        try:
            reader = await request.multipart()
            while True:
                async with self._transfer.patience("sends too slowly"):
                    part = await reader.next()
                if part is None:
                    raise RequestRefused(422, "The body does not contain a part `file`.")
                if isinstance(part, BodyPartReader) and part.name == "file":
                    break
            while True:
                async with self._transfer.patience("sends too slowly"):
                    piece = await part.read_chunk(64 << 10)
                if not piece:
                    return
                yield bytes(piece)
        except ValueError as error:
            raise RequestRefused(400, f"The multipart body is malformed: {error}") from error

    async def download(self, request: web.Request) -> web.StreamResponse:
        """GET download?path=…: streams the bytes of a regular file."""
        hosted = find_for_gateway(self._inventory, request)
        path = _path(request)
        async with (
            self._inventory.in_use(hosted) as sandbox,
            await sandbox.spawn(
                ["sh", "-c", _GET, "sh", path], timeout_s=COPY_TIMEOUT_S
            ) as process,
        ):
            response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            async for stream, data in process.output():
                if stream == "stdout":
                    if not response.prepared:
                        await response.prepare(request)
                    await self._transfer.write(response, data)
                    self._count("out", len(data))
            result = await process.wait()
        if result.exit_code != 0:
            if response.prepared and request.transport is not None:
                request.transport.abort()  # without an end, a client does not accept the partial file as complete
                return response
            raise _file_trouble(path, result.exit_code)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def read_file(self, request: web.Request) -> web.Response:
        """GET read-file?path=…[&offset][&length]: text. A negative offset counts from the end."""
        hosted = find_for_gateway(self._inventory, request)
        path = _path(request)
        offset, length = _whole(request, "offset"), _whole(request, "length")
        if length is not None and length < 0:
            raise RequestRefused(422, f"length must not be negative, got {length}.")
        max_bytes = self._config.max_read_bytes
        async with self._inventory.in_use(hosted) as sandbox:
            sized = await sandbox.exec(["sh", "-c", _SIZE, "sh", path])
            if sized.exit_code != 0:
                raise _file_trouble(path, sized.exit_code)
            total = int(sized.stdout or 0)
            first = max(0, total + offset) if offset is not None and offset < 0 else offset or 0
            count = max(0, total - first) if length is None else length
            if count > max_bytes and length is None and offset is None:
                raise RequestRefused(
                    413,
                    f"{path!r} has {total} bytes; the maximum per request is {max_bytes}. Pass offset and length.",
                )
            count = min(count, max_bytes)
            part = await sandbox.exec(
                ["sh", "-c", _PART, "sh", path, str(first + 1), str(count)],
                max_output_bytes=max_bytes,
            )
        if part.exit_code != 0:
            raise _file_trouble(path, part.exit_code)
        self._count("out", len(part.stdout))
        return answer(
            {
                "content": part.text,
                "size": len(part.stdout),
                "total_size": total,
                "offset": first,
                "truncated": first + len(part.stdout) < total,
            }
        )


class CommandService:
    """Handlers of the Connect service."""

    def __init__(self, inventory: Inventory, transfer: Transfer) -> None:
        self._inventory = inventory
        self._transfer = transfer
        self._config = transfer.config

    def routes(self) -> list[web.RouteDef]:
        """Return the routes, below the gateway's prefix."""
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
        """Start: runs a command and streams its output, or attaches to the command with this session_uuid."""
        hosted, sessions = self._sessions(request)
        start = _parsed(connect.parse_start, await self._stream_message(request))
        timeout_s = _deadline_s(request)
        session = None
        if start.session_uuid is not None:
            session = sessions.find(Selector(None, start.session_uuid))
        if session is None:
            session = sessions.add(start.command, start.session_uuid)
            try:
                await self._launch(hosted, session, has_stdin=start.has_stdin)
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
        """Connect: streams the output of a running command."""
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
                session.process.output()  # from here on, output waits for a listener
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
        """SendInput: writes bytes to stdin, and responds when the command's pipe has accepted them."""
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
            # A command may read its input and exit at once. As with any pipe, this is not an error of the writer.
            if not was_running:
                raise ConnectError("failed_precondition", str(error)) from error
        except SandboxError as error:
            raise _as_connect_error(error) from error
        self._transfer.metrics.add("bytes_total", len(data), direction="in")
        return _unary(b"")

    async def send_signal(self, request: web.Request) -> web.Response:
        """SendSignal: signals the process group of a command. SIGKILL also ends detached processes of the command."""
        _, sessions = self._sessions(request)
        message = await self._unary_message(request, self._config.max_json_bytes)
        selector, number, uuid = _parsed(connect.parse_signal, message)
        session = _found(sessions, selector)
        process = session.process
        assert process is not None
        # Signals do not wait for inputs: they must reach a command that no longer reads.
        if uuid is None or uuid not in session.signals:
            if uuid is not None and len(session.signals) < MAX_KEPT_UUIDS:
                session.signals.add(uuid)
            await (process.kill() if number == 9 else process.signal(number))
        return _unary(b"")

    async def list(self, request: web.Request) -> web.Response:
        """List: the running commands."""
        _, sessions = self._sessions(request)
        running = [(each.command, each.number, each.uuid or "") for each in sessions.living()]
        return _unary(connect.session_list(running))

    # --- messages

    async def _stream_message(self, request: web.Request) -> bytes:
        if request.content_type != connect.STREAM_TYPE:
            raise RequestRefused(415, f"Content-Type must be {connect.STREAM_TYPE}.")
        max_bytes = self._config.max_json_bytes
        body = await self._transfer.body(request, max_bytes + connect.HEADER_BYTES)
        if len(body) < connect.HEADER_BYTES:
            raise ConnectError("invalid_argument", "The message is truncated.")
        flags, length = connect.parse_header(body[: connect.HEADER_BYTES])
        message = body[connect.HEADER_BYTES : connect.HEADER_BYTES + length]
        if len(message) < length:
            raise ConnectError("invalid_argument", "The message is truncated.")
        return connect.decompressed(message, max_bytes) if flags & connect.COMPRESSED else message

    async def _unary_message(self, request: web.Request, max_bytes: int) -> bytes:
        if request.content_type != connect.UNARY_TYPE:
            raise RequestRefused(415, f"Content-Type must be {connect.UNARY_TYPE}.")
        body = await self._transfer.body(request, max_bytes)
        # aiohttp has already decoded a Content-Encoding and applied the limit.
        return body


async def _end_of(process: Process) -> tuple[str, int | None]:
    error_text = b"".join([data async for _, data in process.output()])[-2000:]
    result = await process.wait()
    return error_text.decode("utf-8", "replace").strip(), result.exit_code


def _remark(result: ExecResult) -> str:
    if result.output_limit_hit:
        return "\n[killed: too much output]\n"
    return "\n[killed: out of memory]\n" if result.oom else ""


def _file_trouble(path: str, code: int | None) -> RequestRefused:
    if code == NOT_FOUND:
        return RequestRefused(404, f"The file {path!r} does not exist.")
    if code == NOT_A_FILE:
        return RequestRefused(400, f"{path!r} is not a regular file.")
    if code == NOT_READABLE:
        return RequestRefused(403, f"Permission denied for {path!r}.")
    return RequestRefused(400, f"{path!r} could not be read (code {code}).")


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path or "\0" in path or len(path) > 4096:
        raise RequestRefused(422, f"path {shlex.quote(path[:80])} is not a valid path.")
    return path if path.startswith("/") else f"./{path}"


def _whole(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise RequestRefused(422, f"{name} must be an integer, got {text[:40]!r}.")
    return int(text)


def _optional_text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestRefused(422, f"{name} must be a string.")
    return value or None


def _timeout(value: object) -> float | None:
    if value is None:
        return None  # the lifetime of the sandbox limits the command
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise RequestRefused(422, f"timeout must be a number of seconds above 0, got {value!r}.")
    return float(value)


def _parsed(parse: Callable[[bytes], _Message], data: bytes) -> _Message:
    try:
        return parse(data)
    except MalformedMessage as error:
        raise ConnectError("invalid_argument", f"The message is malformed: {error}.") from None


def _found(sessions: CommandSessions, selector: Selector) -> CommandSession:
    session = sessions.find(selector)
    if session is None or session.process is None:
        raise ConnectError(
            "not_found",
            "There is no such command. Records of ended commands are removed after a while.",
        )
    return session


def _deadline_s(request: web.Request) -> float | None:
    text = request.headers.get("Connect-Timeout-Ms")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) == 0:
        raise ConnectError("invalid_argument", f"Connect-Timeout-Ms {text[:40]!r} is not a number.")
    return int(text) / 1000


def _as_connect_error(error: BaseException | None) -> ConnectError:
    if isinstance(error, ConnectError):
        return error
    if isinstance(error, RequestRefused):
        code = "resource_exhausted" if error.status == 429 else "failed_precondition"
        return ConnectError(code, error.detail)
    if isinstance(error, ValueError):
        return ConnectError("invalid_argument", str(error))
    return ConnectError("not_found", f"The sandbox is gone: {error or 'it was terminated'}")


def _unary(message: bytes) -> web.Response:
    return web.Response(body=message, content_type=connect.UNARY_TYPE)
