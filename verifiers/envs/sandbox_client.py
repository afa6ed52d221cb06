"""`SandboxClient`: sandboxes by id, over any back end, with the method names of v0's `sandbox_client`."""

from __future__ import annotations

import asyncio
import sys
import uuid
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.envs.sandbox_request import (
    CreateSandboxRequest,
    spec_of,
)
from verifiers.envs.scoring_sandbox import (
    ScoreIn,
    copied_sandbox,
    default_score_in,
    prepare_scoring,
    scoring_sandbox,
)
from verifiers.errors import ConfigError, Error, SandboxError
from verifiers.sandboxes import (
    Process,
    PythonSession,
    Sandbox,
    SandboxBackend,
    SandboxCreationError,
    SandboxDead,
    SandboxPool,
    SandboxSpec,
)
from verifiers.sandboxes.guest.frames import joined
from verifiers.sandboxes.open import BackendName, LoopBackends

MAX_OUTPUT_BYTES = 1 << 20
"""Maximum stored output of each stream: the first and the last half."""


class JobResult(NamedTuple):
    """The result of a command."""

    exit_code: int
    """137 if the sandbox ended the command."""
    stdout: str
    stderr: str
    oom: bool
    """Whether a process was killed for lack of memory while the command ran."""


class _Kept:
    """The beginning and the end of one stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        """Store the data that fits. For the middle, store its length only."""
        half = MAX_OUTPUT_BYTES // 2
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if (surplus := len(self._tail) - half) > 0:
            del self._tail[:surplus]
            self._dropped_bytes += surplus

    def text(self) -> str:
        """Return the stored text; a line in the middle states how many bytes are missing."""
        whole = joined(bytes(self._head), bytes(self._tail), self._dropped_bytes)
        return whole.decode("utf-8", "replace")


class RunningJob:
    """Collects the output of one command. Cancelling `run` kills the command and its child processes."""

    def __init__(self) -> None:
        self._stdout = _Kept()
        self._stderr = _Kept()

    @property
    def stdout(self) -> str:
        """The stdout so far."""
        return self._stdout.text()

    @property
    def stderr(self) -> str:
        """The stderr so far."""
        return self._stderr.text()

    async def run(
        self,
        sandbox: Sandbox,
        command: str,
        working_dir: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
    ) -> JobResult:
        """Run the command to its end, without a time limit."""
        process = await sandbox.spawn(command, cwd=working_dir, env=env, user=user)
        is_over = False
        try:
            await self._read(process)
            result = await process.wait()
            is_over = True
        finally:
            if not is_over:
                with suppress(Exception):  # the sandbox may be gone
                    await asyncio.gather(process.kill(), self._read(process))
        exit_code = 137 if result.exit_code is None else result.exit_code
        return JobResult(exit_code, self.stdout, self.stderr, result.oom)

    async def _read(self, process: Process) -> None:
        async for stream, data in process.output():
            (self._stdout if stream == "stdout" else self._stderr).add(data)


class CommandTimeoutError(Error, RuntimeError):
    """A command exceeded its time limit and was killed with its child processes. The sandbox is still usable."""

    def __init__(self, sandbox_id: str, command: str, timeout: float) -> None:
        super().__init__(sandbox_id, command, timeout)
        self.sandbox_id, self.command, self.timeout = sandbox_id, command, timeout

    def __str__(self) -> str:
        return f"Command {self.command[:200]!r} timed out after {self.timeout:g}s in sandbox {self.sandbox_id}."


class CommandResponse(NamedTuple):
    """The result of a command."""

    stdout: str
    stderr: str
    exit_code: int


class CreatedSandbox(NamedTuple):
    """Return value of `create`."""

    id: str
    name: str
    status: str


class FileText(NamedTuple):
    """Return value of `read_file`."""

    content: str


class BackgroundJob(NamedTuple):
    """A command that runs while the rollout continues."""

    job_id: str
    sandbox_id: str


class BackgroundJobStatus(NamedTuple):
    """Status of a background job, with exit code and output once it is `completed`."""

    job_id: str
    completed: bool
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    oom: bool = False
    """Not in v0: whether a process was killed for lack of memory while the job ran."""


@dataclass(eq=False)
class _Entry:
    """One sandbox with its tasks and jobs."""

    request: CreateSandboxRequest
    spec: SandboxSpec
    sandbox: Sandbox
    loop: asyncio.AbstractEventLoop
    start: asyncio.Task[None] | None = None
    """Runs the start command, if there is one."""
    session: asyncio.Task[PythonSession] | None = None
    is_for_scoring: bool = False
    jobs: dict[str, tuple[RunningJob, asyncio.Task[JobResult]]] = field(default_factory=dict)


class _WarmPool(NamedTuple):
    """The pool of ready sandboxes of one event loop."""

    backend: SandboxBackend
    spec: SandboxSpec
    pool: SandboxPool


class SandboxClient:
    """Creates, uses and deletes sandboxes. Closing the client or its event loop deletes those that are left."""

    def __init__(
        self,
        backend: SandboxBackend | BackendName | None = None,
        template: SandboxSpec | None = None,
    ) -> None:
        self.backends = LoopBackends(backend)
        self.template = template or SandboxSpec()
        self._entries: dict[str, _Entry] = {}
        self._warm: tuple[CreateSandboxRequest, int] | None = None
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _WarmPool] = (
            weakref.WeakKeyDictionary()
        )
        weakref.finalize(self, _kill_all, self._entries)

    # ----------------------------------------------------------------------------------------------- life

    async def create(self, request: CreateSandboxRequest) -> CreatedSandbox:
        """Return a sandbox immediately; it starts in the background. Raises ConfigError or SandboxCreationError."""
        spec = spec_of(request, self.template, self.backends.name)
        pool = await self._pool_of(spec)
        sandbox = await (self.backends.here().create(spec) if pool is None else pool.acquire())
        sandbox_id = f"sandbox-{uuid.uuid4().hex[:12]}"
        self._entries[sandbox_id] = _Entry(request, spec, sandbox, asyncio.get_running_loop())
        return CreatedSandbox(sandbox_id, request.name, "PENDING")

    def request_of(self, sandbox_id: str) -> CreateSandboxRequest:
        """Not in v0: return the request from which a sandbox was created."""
        return self._entry(sandbox_id).request

    def keep_warm(self, request: CreateSandboxRequest, size: int) -> None:
        """Keep `size` sandboxes for this exact request ready, from the first `create` on.

        Raises ConfigError if `size` is less than 1.
        """
        if size < 1:
            raise ConfigError(
                f"A warm pool needs at least 1 sandbox; got {size}. Omit the pool to have no sandbox ready."
            )
        self._warm = (request, size)

    async def _pool_of(self, spec: SandboxSpec) -> SandboxPool | None:
        """Return the pool of the running event loop if it has sandboxes of this specification."""
        if self._warm is None:
            return None
        request, size = self._warm
        warm = self._pools.get(asyncio.get_running_loop())
        if warm is None or warm.backend is not self.backends.here():
            backend = self.backends.here()
            warm_spec = spec_of(request, self.template, self.backends.name)
            warm = _WarmPool(backend, warm_spec, SandboxPool(backend, warm_spec, size=size))
            self._pools[asyncio.get_running_loop()] = warm
            await warm.pool.__aenter__()
        return warm.pool if warm.spec == spec else None

    async def wait_for_creation(self, sandbox_id: str, *_: Any, **__: Any) -> None:
        """Wait until commands can run. A sandbox that failed to start is created once more."""
        entry = self._entry(sandbox_id)
        try:
            await self._wait_until_started(entry)
        except SandboxCreationError:
            await entry.sandbox.terminate()
            entry.sandbox = await self.backends.here().create(entry.spec)
            entry.start = None
            await self._wait_until_started(entry)

    async def replace(self, sandbox_id: str) -> None:
        """Replace a dead sandbox by a new, empty one."""
        entry = self._entry(sandbox_id)
        await _end_entry(entry)
        entry.sandbox = await self.backends.here().create(entry.spec)
        entry.start = entry.session = None

    async def begin_scoring(
        self,
        sandbox_id: str,
        score_in: ScoreIn | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Not in v0: from this call on, the id refers to the sandbox in which the rollout is scored.

        `verifiers.envs.scoring_sandbox` describes that sandbox. A start command runs again before the next command, as
        it does when a container is restarted. A second call cleans the sandbox again. Raises SandboxError if the
        sandbox is gone.
        """
        entry = self._entry(sandbox_id)
        await entry.sandbox.ready()
        if score_in == "live":
            return
        for _, task in entry.jobs.values():
            await _end_job(task)
        if entry.session is not None:
            entry.session.cancel()
            await asyncio.wait([entry.session])
        if entry.is_for_scoring:
            score_in = "own"
        own = entry.sandbox
        entry.sandbox = await scoring_sandbox(own, self.backends.here(), score_in, variables)
        entry.start = entry.session = None
        entry.is_for_scoring = True
        if entry.sandbox is not own:
            await own.terminate()

    @asynccontextmanager
    async def scoring_copy(
        self,
        sandbox_id: str,
        score_in: ScoreIn | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> AsyncIterator[str]:
        """Not in v0: the id of a copy of a sandbox to score in, while the sandbox itself stays in use.

        Where files cannot be copied, it is the sandbox itself, without its processes. With "live" it is the sandbox as
        it is.
        """
        entry = self._entry(sandbox_id)
        if score_in == "live":
            yield sandbox_id
            return
        backend = self.backends.here()
        score_in = score_in or default_score_in(entry.sandbox, backend)
        copy = await copied_sandbox(entry.sandbox, backend) if score_in == "snapshot" else None
        if copy is None:
            await scoring_sandbox(entry.sandbox, backend, "own", variables)
            try:
                yield sandbox_id
            finally:
                entry.sandbox.set_variables({})
            return
        copy_id = f"sandbox-{uuid.uuid4().hex[:12]}"
        self._entries[copy_id] = _Entry(entry.request, copy.spec, copy, entry.loop)
        try:
            await prepare_scoring(copy, variables)
            yield copy_id
        finally:
            await self.delete(copy_id)

    async def delete(self, sandbox_id: str) -> dict[str, Any]:
        """Delete a sandbox. An unknown or already deleted id is accepted."""
        entry = self._entries.pop(sandbox_id, None)
        if entry is not None:
            if entry.loop is asyncio.get_running_loop():
                await _end_entry(entry)
            else:
                entry.sandbox.kill_sync()
        return {"sandbox_id": sandbox_id, "deleted": entry is not None}

    async def bulk_delete(self, sandbox_ids: Sequence[str], **_: Any) -> None:
        """Delete several sandboxes at once."""
        await asyncio.gather(*(self.delete(sandbox_id) for sandbox_id in list(sandbox_ids)))

    async def aclose(self) -> None:
        """Delete all sandboxes and close the back ends."""
        warm = self._pools.pop(asyncio.get_running_loop(), None)
        if warm is not None:
            await warm.pool.__aexit__(None, None, None)
        await self.bulk_delete(list(self._entries))
        await self.backends.aclose()

    def teardown(self, wait: bool = True) -> None:
        """Kill all sandboxes at once, without an event loop."""
        _kill_all(self._entries)

    # ------------------------------------------------------------------------------------------------ use

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox itself, with its full interface. Raises SandboxDead for an unknown or deleted id."""
        return self._entry(sandbox_id).sandbox

    def has(self, sandbox_id: object) -> bool:
        """Return whether a sandbox with this id exists."""
        return sandbox_id in self._entries

    async def execute_command(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> CommandResponse:
        """Run a shell command and wait for it. Raises CommandTimeoutError, and SandboxError if the sandbox fails."""
        entry = self._entry(sandbox_id)
        await self._wait_until_started(entry)
        limit_s = entry.spec.command_timeout_s if timeout is None else timeout
        result = await entry.sandbox.exec(
            command,
            cwd=working_dir,
            env=env,
            timeout_s=limit_s,
            user=None if user in (None, "root") else user,
        )
        if result.timed_out:
            raise command_timeout(sandbox_id, command, limit_s)
        exit_code = 137 if result.exit_code is None else result.exit_code
        return CommandResponse(result.text, result.error_text, exit_code)

    async def run_background_job(
        self,
        sandbox_id: str,
        command: str,
        timeout: float = 900,
        working_dir: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        **_: Any,
    ) -> BackgroundJobStatus:
        """Run a long command and wait for it, without polling."""
        done = await self.execute_command(sandbox_id, command, working_dir, env, timeout, user)
        return BackgroundJobStatus("", True, done.exit_code, done.stdout, done.stderr)

    async def start_background_job(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> BackgroundJob:
        """Start a command that runs while the rollout continues, at most as long as the sandbox exists."""
        entry = self._entry(sandbox_id)
        await self._wait_until_started(entry)
        job_id = uuid.uuid4().hex[:12]
        job = RunningJob()
        user = None if user == "root" else user
        work = job.run(entry.sandbox, command, working_dir, env, user)
        entry.jobs[job_id] = job, _start_task(work, f"background job {job_id}")
        return BackgroundJob(job_id, sandbox_id)

    async def get_background_job(
        self, sandbox_id: str, job: BackgroundJob, *_: Any, **__: Any
    ) -> BackgroundJobStatus:
        """Return the status of a background job. Raises KeyError for an unknown job."""
        running, task = self._entry(sandbox_id).jobs[job.job_id]
        if not task.done():
            return BackgroundJobStatus(job.job_id, False)
        if task.cancelled():  # ended by `end_background_job` or by the end of the sandbox
            return BackgroundJobStatus(job.job_id, True, 137, running.stdout, running.stderr)
        return BackgroundJobStatus(job.job_id, True, *task.result())

    async def wait_for_background_job(
        self, sandbox_id: str, job: BackgroundJob
    ) -> BackgroundJobStatus:
        """Not in v0: wait for the end of a job instead of polling."""
        _, task = self._entry(sandbox_id).jobs[job.job_id]
        return BackgroundJobStatus(job.job_id, True, *await asyncio.shield(task))

    async def end_background_job(self, sandbox_id: str, job: BackgroundJob) -> BackgroundJobStatus:
        """Not in v0: kill a job with its child processes, unless it has ended. Return its status and output."""
        running, task = self._entry(sandbox_id).jobs[job.job_id]
        await _end_job(task)
        if task.cancelled() or task.exception() is not None:
            return BackgroundJobStatus(job.job_id, False, None, running.stdout, running.stderr)
        return BackgroundJobStatus(job.job_id, True, *task.result())

    async def upload_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, *_: Any, **__: Any
    ) -> None:
        """Upload a file of this machine to `file_path` in the sandbox."""
        await self.sandbox(sandbox_id).upload(local_file_path, file_path)

    async def upload_bytes(
        self,
        sandbox_id: str,
        file_path: str,
        file_bytes: bytes,
        filename: str = "",
        *_: Any,
        **__: Any,
    ) -> None:
        """Write a file in the sandbox."""
        await self.sandbox(sandbox_id).write(file_path, file_bytes)

    async def download_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, *_: Any, **__: Any
    ) -> None:
        """Download a file of the sandbox to this machine."""
        await self.sandbox(sandbox_id).download(file_path, local_file_path)

    async def read_file(self, sandbox_id: str, file_path: str, *_: Any, **__: Any) -> FileText:
        """Return the text of a file in the sandbox. Bytes that are not UTF-8 become U+FFFD."""
        data = await self.sandbox(sandbox_id).read(file_path)
        return FileText(data.decode("utf-8", "replace"))

    # -------------------------------------------------------------------------------------------- sessions

    def begin_python(self, sandbox_id: str) -> None:
        """Start an interpreter session in the background."""
        entry = self._entry(sandbox_id)
        if entry.session is None:
            entry.session = _start_task(
                self._open_session(entry), f"open Python session in {sandbox_id}"
            )

    async def python(self, sandbox_id: str) -> PythonSession:
        """Return the interpreter session of a sandbox; start it on first use."""
        self.begin_python(sandbox_id)
        session = self._entry(sandbox_id).session
        assert session is not None
        return await asyncio.shield(session)

    async def _open_session(self, entry: _Entry) -> PythonSession:
        await self._wait_until_started(entry)
        return await entry.sandbox.python()

    # ---------------------------------------------------------------------------------------------- inside

    def _entry(self, sandbox_id: str) -> _Entry:
        entry = self._entries.get(sandbox_id)
        if entry is None:
            raise SandboxDead(
                f"There is no sandbox {sandbox_id!r}: it was deleted, or belongs to another client.",
                "terminated",
            )
        return entry

    async def _wait_until_started(self, entry: _Entry) -> None:
        """Wait until the sandbox is ready and its start command has been started."""
        command = entry.request.background_command
        if command is None:
            await entry.sandbox.ready()
            return
        if entry.start is None:
            entry.start = _start_task(
                _run_start_command(entry.sandbox, command), "run start command"
            )
        await asyncio.shield(entry.start)


async def _end_job(task: asyncio.Task[JobResult]) -> None:
    """Kill a background job, unless it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


async def _run_start_command(sandbox: Sandbox, command: str) -> None:
    await sandbox.spawn(command, discard_output=True)


def _start_task(work: Any, name: str) -> asyncio.Task[Any]:
    """Start a task. Its failure is raised where its result is awaited and is not logged otherwise."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _end_entry(entry: _Entry) -> None:
    jobs = (task for _, task in entry.jobs.values())
    tasks = [task for task in (entry.start, entry.session, *jobs) if task is not None]
    try:
        await entry.sandbox.terminate()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _kill_all(entries: dict[str, _Entry]) -> None:
    for entry in list(entries.values()):
        entry.sandbox.kill_sync()
    entries.clear()


def command_timeout(sandbox_id: str, command: str, limit_s: float) -> CommandTimeoutError:
    """Return the error for a command that timed out.

    If `prime_sandboxes` has been imported, the error is also an instance of that package's class, which v0's authors
    catch.
    """
    classes = timeout_errors()
    if len(classes) == 1:
        return CommandTimeoutError(sandbox_id, command, limit_s)
    both: type[CommandTimeoutError] = type("CommandTimeoutError", classes, {})  # type: ignore[assignment]
    return both(sandbox_id, command, limit_s)


def timeout_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes that mean that a command timed out."""
    theirs = getattr(sys.modules.get("prime_sandboxes"), "CommandTimeoutError", None)
    return (CommandTimeoutError,) if theirs is None else (CommandTimeoutError, theirs)


__all__ = [
    "BackgroundJob",
    "BackgroundJobStatus",
    "CommandResponse",
    "CommandTimeoutError",
    "CreatedSandbox",
    "SandboxClient",
    "SandboxError",
    "command_timeout",
    "timeout_errors",
]
