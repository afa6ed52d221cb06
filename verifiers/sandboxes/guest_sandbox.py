"""`GuestSandbox`: the implementation of `Sandbox` for every back end that has a guest inside its sandboxes.

A back end supplies a `Machine`, which starts the guest and kills it. This class does the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import itertools
import json
import os
import posixpath
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from verifiers.errors import Error
from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.connection import (
    ANSWER_GRACE_S,
    Collected,
    GuestConnection,
    GuestProcess,
    JobEnd,
    JobReport,
)
from verifiers.sandboxes.errors import (
    SandboxCreationError,
    SandboxDead,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxUnresponsive,
)
from verifiers.sandboxes.guest import archive, frames
from verifiers.sandboxes.guest import jobs as wire
from verifiers.sandboxes.python_session import GuestPythonSession, Interpreter
from verifiers.sandboxes.sandbox import (
    DEFAULT_MAX_FILE_BYTES,
    DEFAULT_MAX_OUTPUT_BYTES,
    TIMEOUT_FROM_SPEC,
    Command,
    ExecResult,
    Overflow,
    SandboxInfo,
    Snapshot,
    Timeout,
)
from verifiers.sandboxes.spec import SandboxSpec

FILE_TIMEOUT_S = 120.0
MAX_COMMANDS_AT_ONCE = 48
"""Maximum number of commands at once in one sandbox; further commands wait. Spawned processes and sessions do not
count.
"""
_HEADER_BYTES = 256
_NO_LIMIT_BYTES = 1 << 50
_numbers = itertools.count(1)
"""Numbers for all sandboxes of this process, of every back end."""


class Started(NamedTuple):
    """A sandbox whose guest is ready."""

    connection: GuestConnection
    info: SandboxInfo


class Machine(Protocol):
    """The part of a sandbox that depends on the back end."""

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """Start the guest and wait for its READY frame. If cancelled or failing, it leaves nothing behind."""
        ...

    def kill_now(self) -> None:
        """Begin to end the machine, without waiting or an event loop. Idempotent, also before or during `start`."""
        ...

    async def gone(self) -> None:
        """Wait until nothing is left of the machine."""
        ...

    async def why_dead(self, error: Exception) -> Exception:
        """Return a more precise error than the connection's, if the cause of the end can be found. Waits seconds at
        most.

        One rule decides who caused the end of a sandbox that was ready: its code did (`SandboxDead.by_program`),
        unless this program ended the sandbox, or the infrastructure that holds it has failed as well.
        """
        ...


class GuestSandbox:
    """See `Sandbox`."""

    def __init__(
        self,
        kind: str,
        spec: SandboxSpec,
        machine: Machine,
        info: SandboxInfo,
        admission: Admission,
        on_gone: Callable[[GuestSandbox], None],
    ) -> None:
        self.id = f"{kind}-{os.getpid()}-{next(_numbers)}"
        self.spec = spec
        self.info = info
        self._machine = machine
        self._admission = admission
        self._on_gone = on_gone
        self._turns = asyncio.Semaphore(MAX_COMMANDS_AT_ONCE)
        self._connection: GuestConnection | None = None
        self._death: Exception | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._cleaning_up: asyncio.Task[None] | None = None
        self._ttl: asyncio.TimerHandle | None = None
        self._finding_cause: asyncio.Task[None] | None = None
        self._variables: dict[str, str] = {}

    def begin(self, snapshot: Snapshot | None) -> GuestSandbox:
        """Start in the background."""
        self._starting = asyncio.get_running_loop().create_task(
            self._start(snapshot), name=f"start sandbox {self.id}"
        )
        # Users of the sandbox receive the error. Without users, asyncio must not warn about it.
        self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self

    # --- life

    async def _start(self, snapshot: Snapshot | None) -> None:
        try:
            started = await self._machine.start(self._on_closed)
            self._connection, self.info = started
            if self._death is not None:
                raise self._death
            if self.spec.ttl_s is not None:
                loop = asyncio.get_running_loop()
                self._ttl = loop.call_later(self.spec.ttl_s, self._die_of_age)
            connection = started.connection
            if snapshot is not None:
                await self._restore(connection, snapshot)
            for path, data in self.spec.files.items():
                await self._copy(connection, "write", path, stdin=data, mode=0o644)
        except BaseException as error:
            problem: Exception = _terminated(self.id)
            try:
                if isinstance(error, Exception):
                    problem = await self._why_not_started(error)
            finally:
                self._end(problem)
            if isinstance(error, Exception):
                raise problem from error
            raise

    async def _why_not_started(self, error: Exception) -> Exception:
        if isinstance(error, SandboxFileError):
            return SandboxCreationError(f"The files could not be written: {error}")
        if isinstance(error, OSError) and not isinstance(error, Error):
            return SandboxCreationError(f"The sandbox could not be created: {_advice(error)}")
        return await self._machine.why_dead(error)

    def _on_closed(self, error: Exception) -> None:
        if self._death is None and self._finding_cause is None:
            self._finding_cause = asyncio.get_running_loop().create_task(
                self._find_cause(error), name=f"find the cause of the end of sandbox {self.id}"
            )

    async def _find_cause(self, error: Exception) -> None:
        try:
            error = await self._machine.why_dead(error)
        finally:
            self._end(error)

    def _die_of_age(self) -> None:
        message = f"Sandbox {self.id} was ended after its ttl_s={self.spec.ttl_s:g}."
        self._end(SandboxDead(message, "ttl"))

    def _end(self, error: Exception) -> None:
        """Mark the sandbox as dead and kill it. Only the first reason counts."""
        if self._death is not None:
            return
        self._death = error
        if self._ttl is not None:
            self._ttl.cancel()
        self._machine.kill_now()
        if self._connection is not None:
            self._connection.fail(error)
        self._on_gone(self)

    async def ready(self) -> float:
        """See Sandbox."""
        started_s = time.monotonic()
        await self._up()
        return time.monotonic() - started_s

    async def _up(self) -> GuestConnection:
        if self._starting is None:
            raise RuntimeError(
                "This sandbox was never started. Create sandboxes with create() of a back end."
            )
        if not self._starting.done():
            await asyncio.wait([self._starting])
        if self._starting.cancelled():
            raise self._death or _terminated(self.id)
        if (error := self._starting.exception()) is not None:
            raise error
        if self._death is not None:
            raise self._death
        assert self._connection is not None
        return self._connection

    async def terminate(self) -> None:
        """See Sandbox."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(
                self._terminate(), name=f"end sandbox {self.id}"
            )
        await asyncio.shield(self._ending)

    async def _terminate(self) -> None:
        self._end(_terminated(self.id))
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        await self.gone()

    async def gone(self) -> None:
        """Wait until nothing is left of a sandbox that has ended."""
        if self._cleaning_up is None:
            self._cleaning_up = asyncio.get_running_loop().create_task(
                self._clean_up(), name=f"clean up sandbox {self.id}"
            )
        await asyncio.shield(self._cleaning_up)

    async def _clean_up(self) -> None:
        if self._starting is not None:
            await asyncio.wait([self._starting])
        await self._machine.gone()

    def kill_sync(self) -> None:
        """See Sandbox."""
        self._machine.kill_now()

    async def __aenter__(self) -> GuestSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.terminate()

    # --- commands

    async def exec(
        self,
        command: Command,
        *,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        on_overflow: Overflow = "truncate_middle",
        memory_mb: int | None = None,
        cpu_time_s: float | None = None,
    ) -> ExecResult:
        """See Sandbox."""
        self._check_user(user)
        request = self._request(
            wire.COMMAND,
            argv=_argv(command),
            env=env,
            cwd=cwd,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            on_overflow=on_overflow,
            memory_mb=memory_mb,
            cpu_time_s=cpu_time_s,
        )
        return await self._run(request, stdin)

    async def run_python(
        self,
        code: str,
        *,
        argv: Sequence[str] = (),
        stdin: bytes | None = None,
        timeout_s: Timeout = TIMEOUT_FROM_SPEC,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        on_overflow: Overflow = "truncate_middle",
        memory_mb: int | None = None,
        cpu_time_s: float | None = None,
    ) -> ExecResult:
        """See Sandbox."""
        request = self._request(
            wire.PROGRAM,
            argv=_checked_argv(argv),
            code=code,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
            on_overflow=on_overflow,
            memory_mb=memory_mb,
            cpu_time_s=cpu_time_s,
        )
        return await self._run(request, stdin)

    async def spawn(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
        stdin: bool = False,
        discard_output: bool = False,
    ) -> GuestProcess:
        """See Sandbox."""
        self._check_user(user)
        request = self._request(
            wire.COMMAND,
            argv=_argv(command),
            env=env,
            cwd=cwd,
            timeout_s=timeout_s,
            stdin=stdin,
            output=wire.DISCARD if discard_output else wire.STREAM,
        )
        return await self._begin(request)

    async def spawn_python(
        self,
        code: str,
        *,
        argv: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> GuestProcess:
        """See Sandbox."""
        request = self._request(
            wire.PROGRAM,
            argv=_checked_argv(argv),
            code=code,
            env=env,
            cwd=cwd,
            stdin=stdin,
            output=wire.STREAM,
        )
        return await self._begin(request)

    async def _begin(self, request: wire.JobRequest) -> GuestProcess:
        """Start a job that runs on while its caller continues."""
        requested_s = time.monotonic()
        connection = await self._up()
        slot = await self._admission.enter()
        process = GuestProcess(connection, has_stdin=request.stdin)
        process.queued_s = time.monotonic() - requested_s
        process.ended.add_done_callback(lambda _: slot.release())
        process.channel = connection.open(request.encode(), process)
        return process

    async def python(self) -> GuestPythonSession:
        """See Sandbox."""
        return await GuestPythonSession(self._start_interpreter, self.spec.command_timeout_s).open()

    async def _start_interpreter(self) -> Interpreter:
        connection = await self._up()
        interpreter = Interpreter(connection)
        request = self._request(wire.SESSION, timeout_s=None, output=wire.STREAM)
        interpreter.channel = connection.open(request.encode(), interpreter)
        return interpreter

    def _check_user(self, user: str | None) -> None:
        if user not in (None, "sandbox"):
            raise ValueError(
                f"This sandbox has no user {user!r}: everything inside runs as 'sandbox'."
            )

    def _request(
        self,
        kind: str,
        *,
        argv: list[str] | None = None,
        code: str = "",
        operation: dict[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout_s: Timeout = None,
        stdin: bool = False,
        output: str = wire.CAPTURE,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        on_overflow: Overflow = "truncate_middle",
        memory_mb: int | None = None,
        cpu_time_s: float | None = None,
    ) -> wire.JobRequest:
        limit_s = self.spec.command_timeout_s if timeout_s is TIMEOUT_FROM_SPEC else timeout_s
        if limit_s is not None and not limit_s > 0:
            raise ValueError(f"timeout_s must be above 0 (or None for no limit), got {limit_s!r}.")
        if memory_mb is not None and not 0 < memory_mb < 1 << 40:
            raise ValueError(f"memory_mb must be at least 1 and below 2**40, got {memory_mb!r}.")
        if cpu_time_s is not None and not 0 < cpu_time_s < 1 << 40:
            raise ValueError(f"cpu_time_s must be above 0 and below 2**40, got {cpu_time_s!r}.")
        if max_output_bytes < 0:
            raise ValueError(f"max_output_bytes must not be negative, got {max_output_bytes}.")
        variables = {**self._variables, **(env or {})}
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"environment variable {name!r} cannot be set: empty, '=' or NUL.")
        if "\0" in (cwd or ""):
            raise ValueError("cwd contains a zero byte.")
        return wire.JobRequest(
            kind=kind,
            argv=argv or [],
            code=code,
            operation=operation or {},
            env=variables,
            cwd=cwd or "",
            timeout_s=limit_s,
            stdin=stdin,
            output=output,
            max_output_bytes=max_output_bytes,
            kill_on_overflow=on_overflow == "kill",
            memory_bytes=None if memory_mb is None else memory_mb << 20,
            cpu_time_s=cpu_time_s,
        )

    async def _run(self, request: wire.JobRequest, stdin: bytes | None) -> ExecResult:
        requested_s = time.monotonic()
        connection = await self._up()
        async with self._turns:
            slot = await self._admission.enter()
            queued_s = time.monotonic() - requested_s
            job = Collected(request.max_output_bytes)
            try:
                report = await self._finish(connection, job, request, stdin)
                return job.result(report, queued_s)
            except SandboxDead as error:
                if not error.by_program:
                    raise
                return job.last_result(error, queued_s)
            finally:
                slot.release()

    async def _finish(
        self,
        connection: GuestConnection,
        job: JobEnd,
        request: wire.JobRequest,
        stdin: bytes | AsyncIterator[bytes] | None,
    ) -> JobReport:
        """Run a job to its end. If cancelled, kill the job."""
        request = request._replace(stdin=stdin is not None)
        job.channel = connection.open(request.encode(), job)
        limit_s = request.timeout_s
        try:
            async with asyncio.timeout(None if limit_s is None else limit_s + ANSWER_GRACE_S):
                if isinstance(stdin, bytes) and len(stdin) <= frames.STDIN_CHUNK_BYTES:
                    if stdin:
                        connection.send(frames.STDIN, job.channel, stdin)
                    connection.send(frames.STDIN, job.channel)
                elif stdin is not None:
                    await job.feed_all(connection, stdin)
                await asyncio.wait([job.ended])
        except TimeoutError:
            error = SandboxUnresponsive(
                f"Sandbox {self.id} returned no result {ANSWER_GRACE_S:g} s after the time limit of "
                f"{limit_s or 0:g} s; it was killed."
            )
            self._end(error)
            raise error from None
        finally:
            if not job.ended.done():
                connection.send(frames.SIGNAL, job.channel, bytes([frames.KILL_TREE]))
                connection.forget(job.channel)
        return job.ended.result()

    # --- files

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES) -> bytes:
        """See Sandbox."""
        connection = await self._up()
        return await self._copy(connection, "read", path, max_answer_bytes=max_bytes)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See Sandbox."""
        connection = await self._up()
        await self._copy(connection, "write", path, stdin=bytes(data), mode=mode)

    async def upload(self, local: Path | str, remote: str) -> None:
        """See Sandbox."""
        if not await asyncio.to_thread(os.path.exists, local):
            raise FileNotFoundError(errno.ENOENT, "the path to upload does not exist", str(local))
        connection = await self._up()
        chunks = archive_chunks(str(local))
        await self._copy(connection, "unpack", remote, stdin=chunks)

    async def download(
        self, remote: str, local: Path | str, *, max_bytes: int = DEFAULT_MAX_FILE_BYTES
    ) -> None:
        """See Sandbox."""
        connection = await self._up()
        # headers can take as much space again as the smallest files
        room_bytes = 2 * max_bytes + (1 << 20)
        packed = await self._copy(connection, "pack", remote, max_answer_bytes=room_bytes)
        # writing many files blocks
        await asyncio.to_thread(unpack_download, packed, str(local), remote, max_bytes)

    async def snapshot(self) -> Snapshot:
        """See Sandbox."""
        connection = await self._up()
        snapshot = Snapshot()
        for name, path in self._places().items():
            snapshot.begin(name)
            await self._pack_into(snapshot, connection, path)
        return snapshot

    def _places(self) -> dict[str, str]:
        """Return the places of a snapshot: name → path in this sandbox."""
        above = posixpath.dirname(self.info.workdir)
        is_plain = self.info.isolation in ("none", "restricted")
        places = {"tmp": f"{above}/tmp" if is_plain and above != "/" else "/tmp"}
        places |= {"workdir": self.info.workdir, **{folder: folder for folder in self.spec.folders}}
        paths = set(places.values())
        by_path = {path: name for name, path in places.items()}
        outermost = [path for path in by_path if not any(is_below(path, other) for other in paths)]
        return {by_path[path]: path for path in outermost}

    async def _pack_into(self, snapshot: Snapshot, connection: GuestConnection, path: str) -> None:
        room_bytes = 2 * (self.spec.disk_mb << 20) + _HEADER_BYTES * self.spec.max_files + (1 << 20)
        operation: dict[str, object] = {"name": "pack", "path": path, "exact": True}
        operation["max_bytes"] = room_bytes
        request = self._request(
            wire.FILE, operation=operation, output=wire.STREAM, timeout_s=FILE_TIMEOUT_S
        )
        errors = b""
        async with self._turns, GuestProcess(connection, has_stdin=False) as process:
            process.channel = connection.open(request.encode(), process)
            async for stream, data in process.output():
                if stream == "stderr":
                    errors = (errors + data)[-4096:]
                    continue
                if snapshot.size_bytes + len(data) > room_bytes:
                    raise SandboxFileTooLarge(
                        errno.EFBIG, f"the snapshot has more than {room_bytes} bytes", path
                    )
                # writing to a file blocks briefly
                await asyncio.to_thread(snapshot.add, data)
            result = await process.wait()
        raise_copy_error(path, dataclasses.replace(result, stderr=errors))

    async def _restore(self, connection: GuestConnection, snapshot: Snapshot) -> None:
        places = self._places()
        for name in snapshot.places:
            if name in places:
                pieces = snapshot.chunks(name, frames.STDIN_CHUNK_BYTES)
                await self._copy(
                    connection,
                    "unpack",
                    places[name],
                    stdin=in_thread(pieces),
                    exact=True,
                )

    async def end_processes(self) -> None:
        """See Sandbox."""
        connection = await self._up()
        # Frames of later commands follow this frame, so there is nothing to wait for.
        connection.send(frames.SIGNAL, 0, bytes([frames.KILL_TREE]))

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """See Sandbox."""
        self._variables = dict(variables)

    async def _copy(
        self,
        connection: GuestConnection,
        name: str,
        path: str,
        *,
        stdin: bytes | AsyncIterator[bytes] | None = None,
        max_answer_bytes: int = 0,
        **options: object,
    ) -> bytes:
        if not path or "\0" in path:
            raise ValueError(f"{path!r} is not a valid path.")
        limit_bytes = max_answer_bytes if name in ("read", "pack") else _NO_LIMIT_BYTES
        operation = {"name": name, "path": path, "max_bytes": limit_bytes, **options}
        request = self._request(
            wire.FILE, operation=operation, output=wire.STREAM, timeout_s=FILE_TIMEOUT_S
        )
        job = Collected(max_answer_bytes, slack=0)
        async with self._turns:
            report = await self._finish(connection, job, request, stdin)
        result = job.result(report, 0.0)
        raise_copy_error(path, result)
        if len(result.stdout) > max_answer_bytes:
            raise SandboxFileTooLarge(
                errno.EFBIG, f"larger than the {max_answer_bytes} bytes allowed", path
            )
        return result.stdout


def _advice(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"{error.strerror}. This program can have {limit} descriptors open. A sandbox needs one, and up to "
            "256 more with a network. Raise the limit (`ulimit -n`), or use fewer sandboxes at once."
        )
    return str(error)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is below a folder."""
    return path.startswith(folder.rstrip("/") + "/")


def _terminated(sandbox_id: str) -> SandboxDead:
    return SandboxDead(f"Sandbox {sandbox_id} was terminated.", "terminated")


def _argv(command: Command) -> list[str]:
    if isinstance(command, str):
        if not command.strip():
            raise ValueError("The command is empty.")
        return [wire.SHELL, *_checked_argv([command])]
    if not command:
        raise ValueError("The command is empty.")
    return _checked_argv(command)


def _checked_argv(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str):
        raise TypeError("argv must be a sequence of strings, not one string.")
    for argument in argv:
        if "\0" in argument:
            raise ValueError(f"The argument {argument[:80]!r} contains a zero byte.")
    return list(argv)


async def archive_chunks(local: str) -> AsyncIterator[bytes]:
    """Return the archive of a local file or directory, read in a thread, in pieces suited for sending."""

    def joined() -> Iterator[bytes]:
        chunk = bytearray()
        for piece in archive.pack(local):
            chunk += piece
            if len(chunk) >= frames.STDIN_CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)

    async for chunk in in_thread(joined()):
        yield chunk


async def in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Return the same chunks, each produced in a thread."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def unpack_download(packed: bytes, local: str, remote: str, max_bytes: int) -> None:
    """Write a downloaded archive to `local`. Raises SandboxFileError if the archive is malformed."""
    parent = os.path.dirname(os.path.abspath(local))
    os.makedirs(parent, exist_ok=True)
    pieces = iter([packed])
    try:
        archive.unpack(local, lambda: next(pieces, b""), max_bytes=max_bytes)
    except archive.ArchiveTooLarge as error:
        raise SandboxFileTooLarge(errno.EFBIG, str(error), remote) from error
    except archive.BadArchive as error:
        raise SandboxFileError(
            errno.EINVAL, f"the sandbox sent a malformed archive: {error}", remote
        ) from error


def raise_copy_error(path: str, result: ExecResult) -> None:
    """Raise the error of a file copy that failed."""
    if result.ok:
        return
    try:
        report = json.loads(result.stderr.splitlines()[-1])
        number, reason = int(report["errno"]), str(report["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        number = errno.ETIMEDOUT if result.timed_out else errno.EIO
        reason = "the copy took too long" if result.timed_out else result.error_text[-500:]
    if number == errno.ENOENT:
        raise SandboxFileNotFound(number, reason, path)
    if number == errno.EFBIG:
        raise SandboxFileTooLarge(number, reason, path)
    raise SandboxFileError(number, reason or "the copy failed", path)
