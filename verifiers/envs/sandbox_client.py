"""`SandboxClient`: sandboxes by their ids, with the method names that v0's `sandbox_client` has, over any back end."""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from verifiers.envs.scoring_sandbox import ScoreIn, scoring_sandbox
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
"""Kept of each stream: the first and the last half."""


class JobResult(NamedTuple):
    """How a command ended."""

    exit_code: int
    """137 if the sandbox itself ended it."""
    stdout: str
    stderr: str
    oom: bool
    """Something was killed for want of memory while it ran."""


class _Kept:
    """The beginning and the end of one stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        """Keep what fits; of the middle, only its length."""
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
        """What was kept; a line in the middle says how much is missing."""
        whole = joined(bytes(self._head), bytes(self._tail), self._dropped_bytes)
        return whole.decode("utf-8", "replace")


class RunningJob:
    """Collects the output of one command. Whoever cancels `run` has the command killed, with all it has started."""

    def __init__(self) -> None:
        self._stdout = _Kept()
        self._stderr = _Kept()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._stdout.text()

    @property
    def stderr(self) -> str:
        """What it has complained of so far."""
        return self._stderr.text()

    async def run(
        self,
        sandbox: Sandbox,
        command: str,
        working_dir: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
    ) -> JobResult:
        """Run it to its end, without a time limit of its own."""
        process = await sandbox.spawn(command, cwd=working_dir, env=env, user=user)
        is_over = False
        try:
            await self._read(process)
            result = await process.wait()
            is_over = True
        finally:
            if not is_over:
                with suppress(Exception):  # the sandbox may be gone, and the command with it
                    await asyncio.gather(process.kill(), self._read(process))
        exit_code = 137 if result.exit_code is None else result.exit_code
        return JobResult(exit_code, self.stdout, self.stderr, result.oom)

    async def _read(self, process: Process) -> None:
        async for stream, data in process.output():
            (self._stdout if stream == "stdout" else self._stderr).add(data)


IMAGELESS_BACKENDS = frozenset({"local", "unsafe-local", "gvisor"})
"""Back ends that run on the files of this machine."""
_PYTHON_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?python(?::[\w.-]+)?(?:@sha256:\w+)?")
_IDLE_COMMANDS = frozenset({"", "tail -f /dev/null", "sleep infinity"})
"""Start commands that only keep a container alive."""


class AdvancedConfigs(BaseModel):
    """Options of a provider, by whatever name; kept for providers that know them."""

    model_config = ConfigDict(extra="allow")


class CreateSandboxRequest(BaseModel):
    """The sandbox that a rollout asks for, in v0's words. May be changed in `get_sandbox_request`."""

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    name: str = "sandbox-env"
    docker_image: str | None = "python:3.11-slim"
    start_command: str | None = "tail -f /dev/null"
    cpu_cores: float | None = Field(default=1, gt=0)
    memory_gb: float | None = Field(default=2, gt=0)
    """GiB."""
    disk_size_gb: float | None = Field(default=5, gt=0)
    """GiB."""
    gpu_count: int = Field(default=0, ge=0)
    timeout_minutes: float | None = Field(default=60, gt=0)
    """Longest life of the sandbox."""
    environment_vars: dict[str, str] | None = None
    team_id: str | None = None
    advanced_configs: Any = None
    """An `AdvancedConfigs`, or that of a provider's own package."""
    labels: list[str] = Field(default_factory=list)
    files: dict[str, bytes] = Field(default_factory=dict)
    """Ours, not v0's: files written before the sandbox counts as ready, path → content."""

    @property
    def background_command(self) -> str | None:
        """The start command, if it does anything."""
        command = (self.start_command or "").strip()
        return None if command in _IDLE_COMMANDS else command


def spec_of(request: Any, template: SandboxSpec, backend_name: str) -> SandboxSpec:
    """The specification for a request; what the request does not say (None) comes from `template`.

    Raises ConfigError for what no back end offers.
    """
    if request.gpu_count:
        raise ConfigError(
            f"Sandboxes of the back end {backend_name!r} have no GPU, and gpu_count={request.gpu_count} was asked for."
        )
    changes: dict[str, Any] = {"env": {**template.env, **(request.environment_vars or {})}}
    if files := getattr(request, "files", None):  # a provider's own request class has none
        changes["files"] = {**template.files, **files}
    if (image := _image(request.docker_image, backend_name)) is not None:
        changes["image"] = image
    if request.cpu_cores is not None:
        changes["cpu_cores"] = float(request.cpu_cores)
    if request.memory_gb is not None:
        changes["memory_mb"] = max(32, round(request.memory_gb * 1024))
    if request.disk_size_gb is not None:
        changes["disk_mb"] = max(1, round(request.disk_size_gb * 1024))
    if request.timeout_minutes is not None:
        changes["ttl_s"] = request.timeout_minutes * 60.0
    return SandboxSpec.model_validate({**dict(template), **changes})


def _image(docker_image: str | None, backend_name: str) -> str | None:
    if docker_image is None:
        return None
    if backend_name in IMAGELESS_BACKENDS and _PYTHON_IMAGE.fullmatch(docker_image):
        return "host"
    return docker_image


class CommandTimeoutError(Error, RuntimeError):
    """A command ran into its time limit and was killed, with everything it had started; the sandbox lives on."""

    def __init__(self, sandbox_id: str, command: str, timeout: float) -> None:
        super().__init__(sandbox_id, command, timeout)
        self.sandbox_id, self.command, self.timeout = sandbox_id, command, timeout

    def __str__(self) -> str:
        return f"Command {self.command[:200]!r} timed out after {self.timeout:g}s in sandbox {self.sandbox_id}."


class CommandResponse(NamedTuple):
    """How a command ended."""

    stdout: str
    stderr: str
    exit_code: int


class CreatedSandbox(NamedTuple):
    """What `create` answers."""

    id: str
    name: str
    status: str


class FileText(NamedTuple):
    """What `read_file` answers."""

    content: str


class BackgroundJob(NamedTuple):
    """A command that runs while the rollout goes on."""

    job_id: str
    sandbox_id: str


class BackgroundJobStatus(NamedTuple):
    """What is known of a background job; `exit_code` and output once it is `completed`."""

    job_id: str
    completed: bool
    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    oom: bool = False
    """Ours, not v0's: something was killed for want of memory while it ran."""


@dataclass(eq=False)
class _Box:
    """One sandbox and what hangs on it."""

    request: CreateSandboxRequest
    spec: SandboxSpec
    sandbox: Sandbox
    loop: asyncio.AbstractEventLoop
    beginning: asyncio.Task[None] | None = None
    """Runs the start command, if there is one."""
    session: asyncio.Task[PythonSession] | None = None
    is_for_scoring: bool = False
    jobs: dict[str, tuple[RunningJob, asyncio.Task[JobResult]]] = field(default_factory=dict)


class _WarmPool(NamedTuple):
    """The sandboxes that wait in one event loop."""

    backend: SandboxBackend
    spec: SandboxSpec
    pool: SandboxPool


class SandboxClient:
    """Creates, uses and deletes sandboxes. What was not deleted is when the client or its event loop closes."""

    def __init__(
        self,
        backend: SandboxBackend | BackendName | None = None,
        template: SandboxSpec | None = None,
    ) -> None:
        self.backends = LoopBackends(backend)
        self.template = template or SandboxSpec()
        self._boxes: dict[str, _Box] = {}
        self._warm: tuple[CreateSandboxRequest, int] | None = None
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _WarmPool] = (
            weakref.WeakKeyDictionary()
        )
        weakref.finalize(self, _kill_all, self._boxes)

    # ----------------------------------------------------------------------------------------------- life

    async def create(self, request: CreateSandboxRequest) -> CreatedSandbox:
        """A sandbox, at once; it comes up meanwhile. Raises ConfigError or SandboxCreationError."""
        spec = spec_of(request, self.template, self.backends.name)
        pool = await self._pool_of(spec)
        sandbox = await (self.backends.here().create(spec) if pool is None else pool.acquire())
        sandbox_id = f"sandbox-{uuid.uuid4().hex[:12]}"
        self._boxes[sandbox_id] = _Box(request, spec, sandbox, asyncio.get_running_loop())
        return CreatedSandbox(sandbox_id, request.name, "PENDING")

    async def create_like(self, sandbox_id: str) -> CreatedSandbox:
        """Ours, not v0's: another sandbox from the same request, without the files that were made in the first."""
        return await self.create(self._box(sandbox_id).request)

    def keep_warm(self, request: CreateSandboxRequest, size: int) -> None:
        """From the first `create` on, have `size` sandboxes for exactly this request ready before anybody asks.

        Raises ConfigError for a size below 1.
        """
        if size < 1:
            raise ConfigError(f"A warm pool has at least 1 sandbox, not {size}; 0 means none.")
        self._warm = (request, size)

    async def _pool_of(self, spec: SandboxSpec) -> SandboxPool | None:
        """The pool of the running loop, if it is for such sandboxes."""
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
        """Wait until commands can run. One that failed to come up is created again first."""
        box = self._box(sandbox_id)
        try:
            await self._begun(box)
        except SandboxCreationError:
            await box.sandbox.terminate()
            box.sandbox = await self.backends.here().create(box.spec)
            box.beginning = None
            await self._begun(box)

    async def replace(self, sandbox_id: str) -> None:
        """A fresh sandbox in the place of one that is dead; its files are gone."""
        box = self._box(sandbox_id)
        await _end(box)
        box.sandbox = await self.backends.here().create(box.spec)
        box.beginning = box.session = None

    async def begin_scoring(
        self,
        sandbox_id: str,
        score_in: ScoreIn | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Ours, not v0's: from now on the id means the sandbox in which the rollout is scored.

        `verifiers.envs.scoring_sandbox` says which that is. A start command runs again at the next command, as it does
        when a container is started again. Raises SandboxError when the sandbox is gone. Done twice, it cleans again.
        """
        box = self._box(sandbox_id)
        await box.sandbox.ready()
        if score_in == "live":
            return
        for _, task in box.jobs.values():
            await _end_job(task)
        if box.session is not None:
            box.session.cancel()
            await asyncio.wait([box.session])
        if box.is_for_scoring:
            score_in = "own"
        own = box.sandbox
        box.sandbox = await scoring_sandbox(own, self.backends.here(), score_in, variables)
        box.beginning = box.session = None
        box.is_for_scoring = True
        if box.sandbox is not own:
            await own.terminate()

    async def delete(self, sandbox_id: str) -> dict[str, Any]:
        """End a sandbox. One that is unknown or deleted already is no error."""
        box = self._boxes.pop(sandbox_id, None)
        if box is not None:
            if box.loop is asyncio.get_running_loop():
                await _end(box)
            else:
                box.sandbox.kill_sync()
        return {"sandbox_id": sandbox_id, "deleted": box is not None}

    async def bulk_delete(self, sandbox_ids: Sequence[str], **_: Any) -> None:
        """End several sandboxes at once."""
        await asyncio.gather(*(self.delete(sandbox_id) for sandbox_id in list(sandbox_ids)))

    async def aclose(self) -> None:
        """End everything."""
        warm = self._pools.pop(asyncio.get_running_loop(), None)
        if warm is not None:
            await warm.pool.__aexit__(None, None, None)
        await self.bulk_delete(list(self._boxes))
        await self.backends.aclose()

    def teardown(self, wait: bool = True) -> None:
        """Kill everything at once, without an event loop."""
        _kill_all(self._boxes)

    # ------------------------------------------------------------------------------------------------ use

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """The sandbox itself, with everything it can do. Raises SandboxDead when it was deleted or never was."""
        return self._box(sandbox_id).sandbox

    def knows(self, sandbox_id: object) -> bool:
        """Whether there is such a sandbox."""
        return sandbox_id in self._boxes

    async def execute_command(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,
        user: str | None = None,
    ) -> CommandResponse:
        """Run a shell line to its end. Raises CommandTimeoutError, and SandboxError for trouble of the machinery."""
        box = self._box(sandbox_id)
        await self._begun(box)
        limit_s = box.spec.command_timeout_s if timeout is None else timeout
        result = await box.sandbox.exec(
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
        **_: Any,
    ) -> BackgroundJobStatus:
        """Run a long command to its end; nothing is polled."""
        done = await self.execute_command(sandbox_id, command, working_dir, env, timeout)
        return BackgroundJobStatus("", True, done.exit_code, done.stdout, done.stderr)

    async def start_background_job(
        self,
        sandbox_id: str,
        command: str,
        working_dir: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
    ) -> BackgroundJob:
        """Start a command that runs while the rollout goes on, as long as the sandbox lives."""
        box = self._box(sandbox_id)
        await self._begun(box)
        job_id = uuid.uuid4().hex[:12]
        job = RunningJob()
        user = None if user == "root" else user
        work = job.run(box.sandbox, command, working_dir, env, user)
        box.jobs[job_id] = job, _in_background(work, f"background job {job_id}")
        return BackgroundJob(job_id, sandbox_id)

    async def get_background_job(
        self, sandbox_id: str, job: BackgroundJob, *_: Any, **__: Any
    ) -> BackgroundJobStatus:
        """How a background job is doing. Raises KeyError for an unknown one."""
        running, task = self._box(sandbox_id).jobs[job.job_id]
        if not task.done():
            return BackgroundJobStatus(job.job_id, False)
        if task.cancelled():  # ended by us
            return BackgroundJobStatus(job.job_id, True, 137, running.stdout, running.stderr)
        return BackgroundJobStatus(job.job_id, True, *task.result())

    async def wait_for_background_job(
        self, sandbox_id: str, job: BackgroundJob
    ) -> BackgroundJobStatus:
        """Ours, not v0's: wait for its end instead of asking again and again."""
        _, task = self._box(sandbox_id).jobs[job.job_id]
        return BackgroundJobStatus(job.job_id, True, *await asyncio.shield(task))

    async def end_background_job(self, sandbox_id: str, job: BackgroundJob) -> BackgroundJobStatus:
        """Ours, not v0's: kill it with all it has started, unless it has ended; the answer has what it printed."""
        running, task = self._box(sandbox_id).jobs[job.job_id]
        await _end_job(task)
        if task.cancelled() or task.exception() is not None:
            return BackgroundJobStatus(job.job_id, False, None, running.stdout, running.stderr)
        return BackgroundJobStatus(job.job_id, True, *task.result())

    async def upload_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, *_: Any, **__: Any
    ) -> None:
        """Copy a file of this machine to `file_path` inside."""
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
        """Write a file inside."""
        await self.sandbox(sandbox_id).write(file_path, file_bytes)

    async def download_file(
        self, sandbox_id: str, file_path: str, local_file_path: str | Path, *_: Any, **__: Any
    ) -> None:
        """Copy a file from inside to this machine."""
        await self.sandbox(sandbox_id).download(file_path, local_file_path)

    async def read_file(self, sandbox_id: str, file_path: str, *_: Any, **__: Any) -> FileText:
        """Text of a file inside; bytes that are not UTF-8 become U+FFFD."""
        data = await self.sandbox(sandbox_id).read(file_path)
        return FileText(data.decode("utf-8", "replace"))

    # -------------------------------------------------------------------------------------------- sessions

    def begin_python(self, sandbox_id: str) -> None:
        """Have an interpreter session started while others work."""
        box = self._box(sandbox_id)
        if box.session is None:
            box.session = _in_background(
                self._open_session(box), f"open Python session in {sandbox_id}"
            )

    async def python(self, sandbox_id: str) -> PythonSession:
        """The interpreter session of a sandbox, started on first use."""
        self.begin_python(sandbox_id)
        session = self._box(sandbox_id).session
        assert session is not None
        return await asyncio.shield(session)

    async def _open_session(self, box: _Box) -> PythonSession:
        await self._begun(box)
        return await box.sandbox.python()

    # ---------------------------------------------------------------------------------------------- inside

    def _box(self, sandbox_id: str) -> _Box:
        box = self._boxes.get(sandbox_id)
        if box is None:
            raise SandboxDead(
                f"There is no sandbox {sandbox_id!r}: it was deleted, or belongs to another client.",
                "terminated",
            )
        return box

    async def _begun(self, box: _Box) -> None:
        """Wait until the sandbox is up and its start command has been started."""
        command = box.request.background_command
        if command is None:
            await box.sandbox.ready()
            return
        if box.beginning is None:
            box.beginning = _in_background(_begin(box.sandbox, command), "run start command")
        await asyncio.shield(box.beginning)


async def _end_job(task: asyncio.Task[JobResult]) -> None:
    """Have a background job killed, unless it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])


async def _begin(sandbox: Sandbox, command: str) -> None:
    await sandbox.spawn(command, discard_output=True)


def _in_background(work: Any, name: str) -> asyncio.Task[Any]:
    """A task whose failure is told to whoever asks for its result, and to nobody otherwise."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _end(box: _Box) -> None:
    jobs = (task for _, task in box.jobs.values())
    tasks = [task for task in (box.beginning, box.session, *jobs) if task is not None]
    try:
        await box.sandbox.terminate()
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _kill_all(boxes: dict[str, _Box]) -> None:
    for box in list(boxes.values()):
        box.sandbox.kill_sync()
    boxes.clear()


def command_timeout(sandbox_id: str, command: str, limit_s: float) -> CommandTimeoutError:
    """The error for a command that ran out of time; also of the class that `prime_sandboxes` has, once imported,
    since v0's authors catch that one.
    """
    known = timeout_errors()
    if len(known) == 1:
        return CommandTimeoutError(sandbox_id, command, limit_s)
    both: type[CommandTimeoutError] = type("CommandTimeoutError", known, {})  # type: ignore[assignment]
    return both(sandbox_id, command, limit_s)


def timeout_errors() -> tuple[type[Exception], ...]:
    """The classes by which clients say that a command ran out of time."""
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
