"""`PrimeBackend`: sandboxes of Prime, or of any server with the same protocol, such as our own `vf-sandboxes serve`.

Needs `pip install 'prime-sandboxes>=0.5'`. One guest runs in each sandbox on one live process: a command
is a frame on an open stream, and nothing is polled.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.connection import GuestConnection
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
    SandboxRateLimited,
)
from verifiers.sandboxes.guest_sandbox import Started
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import IsolationLevel, SandboxSpec, is_at_least

MAX_STARTING = 16
READY_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 60.0
WRITE_HIGH_BYTES, WRITE_LOW_BYTES, WRITE_PIECE_BYTES = 1 << 20, 256 << 10, 512 << 10


class PrimeConfig(BaseModel):
    """The service, and requests beyond the specification.

    The package reads the address and the key from its own configuration (`prime login`) or from PRIME_API_BASE_URL
    and PRIME_API_KEY.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    api_key: str | None = Field(default=None, repr=False)
    """None: the package's own configuration."""
    image: str = "python:3.11-slim"
    """For specifications with image "host"."""
    python: str = "python3"
    """Interpreter in the image, 3.9 or newer, for the guest and for Python sessions."""
    isolation: IsolationLevel = "container"
    """Isolation of the service. The service does not report it: set "vm" if you know that it provides virtual
    machines.
    """
    lifetime_minutes: int = Field(default=120, ge=1)
    """Maximum lifetime of a sandbox without `ttl_s`. No sandbox outlives it, even if this program crashes."""
    gb_step: float = Field(default=1.0, gt=0)
    """Memory and disk are rounded up to multiples of this number, in GB."""
    labels: tuple[str, ...] = ("verifiers",)
    """Labels of every sandbox, to find and end them together."""
    team_id: str | None = None


class PrimeBackend(GuestBackend):
    """See `SandboxBackend`."""

    name = "prime"

    def __init__(self, config: PrimeConfig | None = None) -> None:
        # The cores of this machine do not limit commands on another one.
        super().__init__(admission=Admission(slots=256))
        self.config = config or PrimeConfig()
        self._client: Any = None  # the package has types, but may not be installed
        self._starting = asyncio.Semaphore(MAX_STARTING)

    def _check(self, spec: SandboxSpec) -> None:
        if not is_at_least(self.config.isolation, spec.isolation_min):
            raise IsolationUnavailable(
                f"isolation_min={spec.isolation_min!r} is stronger than {self.config.isolation!r}, which this back end "
                "is configured for. If the service provides more, set PrimeConfig(isolation=…)."
            )
        if spec.packages is not None:
            raise SandboxImageError(
                f"packages={spec.packages!r} of this machine are not visible in a remote sandbox. Use an image "
                "that has them."
            )

    def _machine(self, spec: SandboxSpec) -> PrimeMachine:
        if self._client is None:
            self._client = _sdk().AsyncSandboxClient(api_key=self.config.api_key)
        return PrimeMachine(spec, self.config, self._client, self._starting)

    def _info(self, spec: SandboxSpec) -> SandboxInfo:
        return _info(self.config, spec)

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class PrimeMachine:
    """The `Machine` of one Prime sandbox."""

    def __init__(
        self, spec: SandboxSpec, config: PrimeConfig, client: Any, starting: asyncio.Semaphore
    ) -> None:
        self._spec = spec
        self._config = config
        self._client = client
        self._starting = starting
        self._creating: asyncio.Task[str] | None = None
        self._deleting: asyncio.Task[None] | None = None
        self._stream: ProcessStream | None = None
        self._is_killed = False

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        async with self._starting:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            # Continues if cancelled, because only a sandbox with a known id can be deleted.
            self._creating = asyncio.get_running_loop().create_task(self._create())
            sandbox_id = await asyncio.shield(self._creating)
            try:
                command = carried_guest.command(self._config.python)
                process = await self._client.open_process(
                    sandbox_id, " ".join(map(_quoted, command))
                )
            except Exception as error:
                raise _translated(error) from error
            connection = GuestConnection(on_closed)
            self._stream = ProcessStream(process, connection)
            parcel = carried_guest.parcel(
                self._spec,
                workdir=self._spec.workdir,
                limit_memory=False,
                limit_processes=True,
                filter_system_calls=False,
            )
            self._stream.write(parcel)
            try:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    await connection.ready
            except TimeoutError:
                error = SandboxCreationError(
                    f"The guest did not respond within {READY_TIMEOUT_S:g} s in {sandbox_id}."
                )
                connection.fail(error)
                raise error from None
            except SandboxDead as error:
                raise SandboxCreationError(
                    f"The guest did not start in {sandbox_id}: {self._stream.stderr_text or error}"
                ) from error
            except BaseException:
                connection.fail(EOFError())
                raise
        return Started(connection, _info(self._config, self._spec))

    async def _create(self) -> str:
        sdk, spec, config = _sdk(), self._spec, self._config
        seconds = config.lifetime_minutes * 60 if spec.ttl_s is None else spec.ttl_s
        network = spec.network
        request = sdk.CreateSandboxRequest(
            name=f"verifiers-{secrets.token_hex(4)}",
            docker_image=config.image if spec.image == "host" else spec.image,
            cpu_cores=spec.cpu_cores or 1,
            memory_gb=_stepped(spec.memory_mb, config.gb_step),
            disk_size_gb=_stepped(spec.disk_mb, config.gb_step),
            timeout_minutes=max(1, math.ceil(seconds / 60)),
            network_allowlist=None
            if network == "full"
            else []
            if network == "none"
            else list(network.allow),
            labels=list(config.labels),
            team_id=config.team_id,
            idempotency_key=secrets.token_hex(16),
        )
        try:
            sandbox = await self._client.create(request)
            if sandbox.status != "RUNNING":
                await self._client.wait_for_creation(sandbox.id)
        except Exception as error:
            raise _translated(error) from error
        sandbox_id: str = sandbox.id
        return sandbox_id

    def kill_now(self) -> None:
        """See Machine."""
        self._is_killed = True
        if self._creating is None or self._deleting is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if self._creating.done() and not self._creating.cancelled():
                # The loop may not run again, so a synchronous client deletes the sandbox.
                threading.Thread(target=self._delete_sync, name="delete a sandbox").start()
            return
        self._deleting = loop.create_task(self._delete())
        self._deleting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _delete(self) -> None:
        assert self._creating is not None
        await asyncio.wait([self._creating])
        if self._stream is not None:
            await self._stream.closed()
        if self._creating.exception() is not None:
            return
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._client.delete(self._creating.result())
        except Exception as error:
            if _status_of(error) != 404:
                raise SandboxDead(
                    f"Sandbox {self._creating.result()} could not be deleted and ends with its lifetime: {error}",
                    "terminated",
                ) from error

    def _delete_sync(self) -> None:
        assert self._creating is not None
        if self._creating.exception() is None:
            sdk = _sdk()
            sdk.SandboxClient(sdk.APIClient(api_key=self._config.api_key)).delete(
                self._creating.result()
            )

    async def gone(self) -> None:
        """See Machine."""
        self.kill_now()
        if self._deleting is not None:
            await self._deleting

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        return error


class ProcessStream(asyncio.WriteTransport):
    """A live process of the package, as the transport of a connection."""

    def __init__(self, process: Any, connection: GuestConnection) -> None:
        super().__init__()
        self._process = process
        self._connection = connection
        self._pending = bytearray()
        self._news = asyncio.Event()
        self._is_paused = False
        self._is_aborted = False
        self.stderr_text = ""
        """Last part of the guest's stderr."""
        connection.connection_made(self)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(work, name="stream of a sandbox")
            for work in (self._read(), self._read_stderr(), self._send())
        ]
        self._closing: asyncio.Task[None] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """See asyncio.WriteTransport."""
        self._pending += data
        self._news.set()
        if len(self._pending) > WRITE_HIGH_BYTES and not self._is_paused:
            self._is_paused = True
            self._connection.pause_writing()

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        if not self._is_aborted:
            self._is_aborted = True
            self._closing = asyncio.get_running_loop().create_task(self._close())

    def close(self) -> None:
        """See asyncio.BaseTransport."""
        self.abort()

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return self._is_aborted

    async def closed(self) -> None:
        """Wait until the package has released the process."""
        self.abort()
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _close(self) -> None:
        self._connection.connection_lost(None)  # wakes all waiters
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        await asyncio.wait(self._tasks)
        try:
            async with asyncio.timeout(DELETE_TIMEOUT_S):
                await self._process.aclose()
        except Exception:  # noqa: BLE001 - the sandbox is deleted next in any case
            return

    async def _read(self) -> None:
        error = None
        try:
            pieces: AsyncIterator[bytes] = self._process.stdout
            async for piece in pieces:
                if self._is_aborted:
                    break
                self._connection.data_received(piece)
        except Exception as failure:  # noqa: BLE001 - after any exception, the stream has ended
            error = failure
        self._connection.connection_lost(error)

    async def _read_stderr(self) -> None:
        try:
            async for piece in self._process.stderr:
                self.stderr_text = (self.stderr_text + piece.decode("utf-8", "replace"))[-2000:]
                if self._is_aborted:
                    break
        except Exception:  # noqa: BLE001 - as above; `_read` reports it
            return

    async def _send(self) -> None:
        try:
            # Not `while True`: the package loses a cancellation that arrives together with a response (a fault of
            # `asyncio.wait_for` in Python 3.11).
            while not self._is_aborted:
                while not self._pending:
                    self._news.clear()
                    await self._news.wait()
                piece = bytes(self._pending[:WRITE_PIECE_BYTES])
                del self._pending[: len(piece)]
                if self._is_paused and len(self._pending) < WRITE_LOW_BYTES:
                    self._is_paused = False
                    self._connection.resume_writing()
                await self._process.write_stdin(piece)
        except Exception as failure:  # noqa: BLE001 - as above
            self._connection.connection_lost(failure)


def _sdk() -> Any:
    try:
        import prime_sandboxes
    except ImportError as error:
        raise SandboxCreationError(
            "The back end 'prime' needs the package prime-sandboxes. Run: pip install 'prime-sandboxes>=0.5'."
        ) from error
    if not hasattr(prime_sandboxes, "AsyncSandboxProcess"):
        raise SandboxCreationError(
            "The back end 'prime' needs prime-sandboxes 0.5 or newer, which has live processes. Run: "
            "pip install -U 'prime-sandboxes>=0.5'."
        )
    return prime_sandboxes


def _status_of(error: Exception) -> int | None:
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status
    text = str(error)
    return next((code for code in (401, 402, 404, 422, 429) if f"HTTP {code}" in text), None)


def _translated(error: Exception) -> Exception:
    if isinstance(error, SandboxCreationError):
        return error
    status = _status_of(error)
    if status in (402, 429):
        return SandboxRateLimited(f"The service refused for now: {error}")
    if status == 422:
        return SandboxImageError(f"The service cannot create such a sandbox: {error}")
    return SandboxCreationError(f"The service could not create a sandbox: {error}")


def _stepped(mb: int, step_gb: float) -> float:
    return math.ceil(mb / 1024 / step_gb) * step_gb


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _info(config: PrimeConfig, spec: SandboxSpec) -> SandboxInfo:
    limits = {
        "memory": f"{_stepped(spec.memory_mb, config.gb_step):g} GB requested from the service",
        "processes": f"{spec.max_processes} (RLIMIT_NPROC, unless the image runs as root)",
        "cpu": f"{spec.cpu_cores or 1:g} cores requested from the service",
        "disk": f"{_stepped(spec.disk_mb, config.gb_step):g} GB requested from the service, files not counted",
    }
    notes = ("A remote service: this program cannot check the limits that the service enforces.",)
    return SandboxInfo(PrimeBackend.name, config.isolation, spec.workdir, limits, notes)
