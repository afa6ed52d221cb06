"""The gateway: routes that run commands in one sandbox and move its files. Every sandbox has a token of its own."""

from __future__ import annotations

import hmac
import shlex
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

from aiohttp import BodyPartReader, web

from verifiers.sandbox_server.control import answer
from verifiers.sandbox_server.inventory import HostedSandbox, Inventory
from verifiers.sandbox_server.requests import RequestRefused, Transfer
from verifiers.sandboxes.sandbox import ExecResult, Process

NOT_FOUND, NOT_A_FILE, NOT_READABLE = 44, 45, 46
KILLED = 137
"""What clients are told of a command that the sandbox itself stopped."""
COPY_TIMEOUT_S = 3600.0

# A planted fifo would hang `cat`: only regular files are copied. The file appears whole or not at all.
_PUT = (
    'if [ -e "$1" ] && [ ! -f "$1" ]; then echo "not a regular file" >&2; exit 45; fi; '
    'mkdir -p -- "$(dirname -- "$1")" && cat > "$1.part-$$" && mv -f -- "$1.part-$$" "$1"'
)
_CHECK = f'[ -e "$1" ] || exit {NOT_FOUND}; [ -f "$1" ] || exit {NOT_A_FILE}; [ -r "$1" ] || exit {NOT_READABLE}; '
_GET = _CHECK + 'exec cat -- "$1"'
_SIZE = _CHECK + 'exec stat -L -c %s -- "$1"'
_PART = _CHECK + 'tail -c +"$2" -- "$1" | head -c "$3"'


class SandboxGone(Exception):
    """The sandbox of this address does not run: it was never there, or has ended."""

    def __init__(self, kind: Literal["sandbox_not_found", "sandbox_terminated"], detail: str):
        super().__init__(detail)
        self.kind: Literal["sandbox_not_found", "sandbox_terminated"] = kind
        self.detail = detail


def find_for_gateway(inventory: Inventory, request: web.Request) -> HostedSandbox:
    """The running sandbox of the address, if the request carries its token. Raises RequestRefused, SandboxGone."""
    hosted = inventory.find(request.match_info["job_id"])
    token = bearer_token(request)
    if hosted is None or hosted.account.name != request.match_info["user_ns"]:
        raise SandboxGone("sandbox_not_found", "There is no such sandbox.")
    if not hmac.compare_digest(token.encode(), hosted.gateway_token.encode()):
        raise RequestRefused(401, "The gateway token is not the one of this sandbox.")
    if hosted.status == "PENDING":
        raise RequestRefused(409, "The sandbox is not up yet.")
    if hosted.status != "RUNNING":
        reason = hosted.error_message or "It was ended."
        raise SandboxGone("sandbox_terminated", f"The sandbox is {hosted.status}: {reason}")
    return hosted


def bearer_token(request: web.Request) -> str:
    """The token of a request, empty if there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Gateway:
    """Handlers for commands that are answered in one piece, and for files."""

    def __init__(self, inventory: Inventory, transfer: Transfer) -> None:
        self._inventory = inventory
        self._transfer = transfer
        self._config = transfer.config

    def routes(self) -> list[web.RouteDef]:
        """What is served, below the gateway's prefix."""
        each = "/gateway/{user_ns}/{job_id}"
        return [
            web.post(each + "/exec", self.exec),
            web.post(each + "/upload", self.upload),
            web.get(each + "/download", self.download, allow_head=False),
            web.get(each + "/read-file", self.read_file, allow_head=False),
        ]

    async def exec(self, request: web.Request) -> web.Response:
        """POST exec: a shell line to its end. If the client goes away, the command is killed."""
        hosted = find_for_gateway(self._inventory, request)
        body = await self._transfer.json_body(request)
        if not isinstance(body, dict):
            raise RequestRefused(422, "The body must be a JSON object.")
        command, env = body.get("command"), body.get("env") or {}
        if not isinstance(command, str):
            raise RequestRefused(422, "command must be a text.")
        if not isinstance(env, dict) or not all(
            isinstance(each, str) for pair in env.items() for each in pair
        ):
            raise RequestRefused(422, "env must be an object of texts.")
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
        """POST upload?path=…: one file as multipart, passed on as it comes."""
        hosted = find_for_gateway(self._inventory, request)
        path = _path(request)
        if not request.content_type.startswith("multipart/"):
            raise RequestRefused(415, "The body must be multipart/form-data with one part `file`.")
        most = self._config.max_upload_bytes
        if (request.content_length or 0) > most + (64 << 10):
            raise RequestRefused(413, f"A file may have {most} bytes.")
        async with (
            self._inventory.in_use(hosted) as sandbox,
            await sandbox.spawn(
                ["sh", "-c", _PUT, "sh", path], stdin=True, timeout_s=COPY_TIMEOUT_S
            ) as process,
        ):
            size = await self._feed(request, process, most)
            complaint, code = await _end_of(process)
        if code != 0:
            raise RequestRefused(400, f"{path!r} cannot be written: {complaint or code}")
        self._count("in", size)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return answer({"success": True, "path": path, "size": size, "timestamp": stamp})

    async def _feed(self, request: web.Request, process: Process, most: int) -> int:
        size = 0
        try:
            async for piece in self._file_part(request):
                size += len(piece)
                if size > most:
                    raise RequestRefused(413, f"A file may have {most} bytes.")
                await process.write(piece)
        except BrokenPipeError:
            pass  # its end says why
        await process.close_stdin()
        return size

    async def _file_part(self, request: web.Request) -> AsyncIterator[bytes]:
        try:
            reader = await request.multipart()
            while True:
                async with self._transfer.patience("sends too slowly"):
                    part = await reader.next()
                if part is None:
                    raise RequestRefused(422, "The body has no part `file`.")
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
        """GET download?path=…: the bytes of a regular file, as they are read."""
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
                request.transport.abort()  # cut off, so that nobody takes half a file for the whole
                return response
            raise _file_trouble(path, result.exit_code)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def read_file(self, request: web.Request) -> web.Response:
        """GET read-file?path=…[&offset][&length]: text; a negative offset counts from the end."""
        hosted = find_for_gateway(self._inventory, request)
        path = _path(request)
        offset, length = _whole(request, "offset"), _whole(request, "length")
        if length is not None and length < 0:
            raise RequestRefused(422, f"length must not be negative, got {length}.")
        most = self._config.max_read_bytes
        async with self._inventory.in_use(hosted) as sandbox:
            sized = await sandbox.exec(["sh", "-c", _SIZE, "sh", path])
            if sized.exit_code != 0:
                raise _file_trouble(path, sized.exit_code)
            total = int(sized.stdout or 0)
            first = max(0, total + offset) if offset is not None and offset < 0 else offset or 0
            wanted = max(0, total - first) if length is None else length
            if wanted > most and length is None and offset is None:
                raise RequestRefused(
                    413, f"{path!r} has {total} bytes, at most {most} at once; give offset, length."
                )
            wanted = min(wanted, most)
            part = await sandbox.exec(
                ["sh", "-c", _PART, "sh", path, str(first + 1), str(wanted)],
                max_output_bytes=most,
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


async def _end_of(process: Process) -> tuple[str, int | None]:
    complaint = b"".join([data async for _, data in process.output()])[-2000:]
    result = await process.wait()
    return complaint.decode("utf-8", "replace").strip(), result.exit_code


def _remark(result: ExecResult) -> str:
    if result.output_limit_hit:
        return "\n[killed: too much output]\n"
    return "\n[killed: out of memory]\n" if result.oom else ""


def _file_trouble(path: str, code: int | None) -> RequestRefused:
    if code == NOT_FOUND:
        return RequestRefused(404, f"There is no file {path!r}.")
    if code == NOT_A_FILE:
        return RequestRefused(400, f"{path!r} is not a regular file.")
    if code == NOT_READABLE:
        return RequestRefused(403, f"{path!r} may not be read.")
    return RequestRefused(400, f"{path!r} could not be read (code {code}).")


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path or "\0" in path or len(path) > 4096:
        raise RequestRefused(422, f"path {shlex.quote(path[:80])} is no path.")
    return path if path.startswith("/") else f"./{path}"


def _whole(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise RequestRefused(422, f"{name} must be a whole number, got {text[:40]!r}.")
    return int(text)


def _optional_text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestRefused(422, f"{name} must be a text.")
    return value or None


def _timeout(value: object) -> float | None:
    if value is None:
        return None  # its lifetime limits it
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise RequestRefused(422, f"timeout must be a number of seconds above 0, got {value!r}.")
    return float(value)
