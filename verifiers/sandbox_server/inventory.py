"""The sandboxes of the server: their owners, quotas, lifetimes and ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from verifiers.sandbox_server.command_sessions import CommandSessions
from verifiers.sandbox_server.config import ServerConfig, TokenConfig
from verifiers.sandbox_server.metrics import ServerMetrics
from verifiers.sandbox_server.requests import CreateRequest, RequestRefused, specification
from verifiers.sandboxes.errors import SandboxDead, SandboxError
from verifiers.sandboxes.sandbox import ExecResult, Sandbox, SandboxBackend

logger = logging.getLogger(__name__)

Status = Literal["PENDING", "RUNNING", "ERROR", "TERMINATED", "TIMEOUT"]
KEPT_LOG_BYTES = 256 << 10
RECORD_LOG_BYTES = 4 << 10
"""Log kept of an ended sandbox."""
RETRY_AFTER_S = 10


class Account:
    """One token and its current usage."""

    def __init__(self, token: TokenConfig) -> None:
        self.name = token.name
        self.quota = token.quota
        self.sandboxes = 0
        self.memory_mb = 0
        self.commands = 0

    @contextmanager
    def one_command(self) -> Generator[None, None, None]:
        """Count a command or transfer while it runs. Raises RequestRefused if the token runs too many."""
        if self.commands >= self.quota.max_commands:
            raise RequestRefused(
                429,
                f"{self.commands} commands of this token are running, the maximum. Wait until one ends.",
            )
        self.commands += 1
        try:
            yield
        finally:
            self.commands -= 1


class HostedSandbox:
    """One sandbox of a client, from the request until its record is dropped."""

    def __init__(
        self, account: Account, request: CreateRequest, sandbox: Sandbox, lifetime_s: float
    ) -> None:
        self.id = f"sbx{secrets.token_hex(10)}"
        self.account = account
        self.request = request
        self.fingerprint = request.fingerprint
        """Hash of the whole request, for its idempotency key."""
        self.sandbox: Sandbox | None = sandbox
        """None after the end, because a record is small."""
        self.spec = sandbox.spec
        self.gateway_token = secrets.token_urlsafe(32)
        self.created_at = datetime.now(UTC)
        self.expires_at = self.created_at + timedelta(seconds=lifetime_s)
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.status: Status = "PENDING"
        self.error_type: str | None = None
        self.error_message: str | None = None
        self.settled = asyncio.Event()
        """Set when the status is no longer PENDING."""
        self.logs = bytearray()
        self.sessions: CommandSessions | None = None
        self.last_used_s = time.monotonic()
        self.commands = 0
        self.timers: list[asyncio.TimerHandle] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.ending: asyncio.Task[None] | None = None

    def become_record(self) -> None:
        """Keep only the description of an ended sandbox, since thousands of records are kept."""
        self.sandbox = self.sessions = None
        self.request = self.request.without_content()
        self.spec = self.spec.model_copy(update={"env": {}, "files": {}, "network": "none"})
        del self.logs[:-RECORD_LOG_BYTES]
        self.logs = bytearray(self.logs)

    @property
    def is_alive(self) -> bool:
        """Whether the sandbox runs or is starting."""
        return self.status in ("PENDING", "RUNNING")


class Inventory:
    """Creates sandboxes within quotas, finds them for their owners, and ends them in time."""

    def __init__(
        self, config: ServerConfig, backend: SandboxBackend, metrics: ServerMetrics
    ) -> None:
        self._config = config
        self._backend = backend
        self._metrics = metrics
        self._all: OrderedDict[str, HostedSandbox] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._by_key: dict[tuple[str, str], HostedSandbox] = {}
        self.accounts = {token.name: Account(token) for token in config.tokens}
        self._is_closed = False

    # --- finding

    def of(self, account: Account) -> list[HostedSandbox]:
        """Return all sandboxes of an account, ended ones included, newest first."""
        return [each for each in reversed(self._all.values()) if each.account is account]

    def get(self, account: Account, sandbox_id: str) -> HostedSandbox:
        """Return a sandbox of the account. Raises RequestRefused, also for a sandbox of another account."""
        hosted = self._all.get(sandbox_id)
        if hosted is None or hosted.account is not account:
            raise RequestRefused(404, f"This token has no sandbox {sandbox_id[:64]!r}.")
        return hosted

    def find(self, sandbox_id: str) -> HostedSandbox | None:
        """Return a sandbox of any account, for callers that check the sandbox's token."""
        return self._all.get(sandbox_id)

    # --- creating

    async def create(self, account: Account, request: CreateRequest) -> HostedSandbox:
        """Return a starting sandbox, or the earlier one with the same idempotency key. Raises RequestRefused."""
        key = (account.name, request.idempotency_key or "")
        if key[1] and (earlier := self._by_key.get(key)) is not None:
            if earlier.fingerprint != request.fingerprint:
                raise RequestRefused(
                    409, "This idempotency_key belongs to an earlier, different request."
                )
            return earlier
        if self._is_closed:
            raise RequestRefused(503, "The server is shutting down.")
        spec = specification(request, self._config, account.quota)
        self._check_room(account, spec.memory_mb)
        account.sandboxes += 1
        account.memory_mb += spec.memory_mb
        try:
            # The contract says that `create` returns at once, so no other request runs between the check and the entry.
            sandbox = await self._backend.create(spec)
        except BaseException as error:
            account.sandboxes -= 1
            account.memory_mb -= spec.memory_mb
            if isinstance(error, SandboxError):
                raise RequestRefused(503, f"The sandbox could not be created: {error}") from error
            raise
        lifetime_s = request.timeout_minutes * 60
        hosted = HostedSandbox(account, request, sandbox, lifetime_s)
        self._all[hosted.id] = hosted
        if key[1]:
            self._by_key[key] = hosted
        loop = asyncio.get_running_loop()
        hosted.timers.append(loop.call_later(lifetime_s, self._die_of_age, hosted))
        self.start_task(hosted, self._bring_up(hosted), "bring up")
        self._metrics.add("sandboxes_created_total", token=account.name)
        return hosted

    def _check_room(self, account: Account, memory_mb: int) -> None:
        quota = account.quota
        if account.sandboxes >= quota.max_sandboxes:
            raise RequestRefused(
                429,
                f"This token has {account.sandboxes} sandboxes, the maximum. End one first.",
            )
        if account.memory_mb + memory_mb > quota.max_memory_mb:
            raise RequestRefused(
                429,
                f"{memory_mb} MiB more would exceed the {quota.max_memory_mb} MiB of this token, of which "
                f"{account.memory_mb} are in use. End a sandbox first, or request a smaller one.",
            )
        if sum(each.sandboxes for each in self.accounts.values()) >= self._config.max_sandboxes:
            raise RequestRefused(
                429,
                f"The server has {self._config.max_sandboxes} sandboxes, the maximum. Try again later.",
            )

    def start_task(
        self, hosted: HostedSandbox, work: Coroutine[Any, Any, None], what: str
    ) -> asyncio.Task[None]:
        """Run a task that ends with the sandbox at the latest."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(
            work, name=f"{what} {hosted.id}"
        )
        hosted.tasks.add(task)
        task.add_done_callback(hosted.tasks.discard)
        return task

    async def _bring_up(self, hosted: HostedSandbox) -> None:
        started_s = time.monotonic()
        sandbox = hosted.sandbox
        assert sandbox is not None
        try:
            await sandbox.ready()
        except SandboxError as error:
            self._fail(hosted, "CREATION_FAILED", str(error))
            return
        self._metrics.create_seconds.observe(time.monotonic() - started_s)
        hosted.status = "RUNNING"
        hosted.started_at = datetime.now(UTC)
        hosted.settled.set()
        if hosted.request.idle_timeout_minutes is not None:
            self._watch_idleness(hosted, hosted.request.idle_timeout_minutes * 60)
        await self._run_start_command(hosted, sandbox)

    async def _run_start_command(self, hosted: HostedSandbox, sandbox: Sandbox) -> None:
        command = hosted.request.start_command
        if not command or (isinstance(command, str) and not command.strip()):
            return
        line = command if isinstance(command, str) else [command.executable, *command.args]
        try:
            process = await sandbox.spawn(line)
            async for _, data in process.output():
                hosted.logs += data
                del hosted.logs[:-KEPT_LOG_BYTES]
            result = await process.wait()
            hosted.logs += b"[start_command ended with code %d]\n" % (result.exit_code or 0)
        except (SandboxError, ValueError) as error:
            hosted.logs += f"[start_command could not run: {error}]\n".encode()

    def _watch_idleness(self, hosted: HostedSandbox, limit_s: float) -> None:
        idle_s = 0.0 if hosted.commands else time.monotonic() - hosted.last_used_s
        if idle_s >= limit_s:
            self.end(hosted, "TIMEOUT", "TIMEOUT", "It was idle for idle_timeout_minutes.")
            return
        # One timer, for the earliest time at which the sandbox can have been idle long enough.
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit_s - idle_s, self._watch_idleness, hosted, limit_s)
        hosted.timers[1:] = [timer]

    # --- using

    @asynccontextmanager
    async def in_use(self, hosted: HostedSandbox) -> AsyncGenerator[Sandbox, None]:
        """Return the sandbox for one counted command or transfer. Records the death of a sandbox found dead."""
        with hosted.account.one_command():
            hosted.commands += 1
            try:
                if hosted.sandbox is None:
                    raise SandboxDead(f"Sandbox {hosted.id} has ended.", "terminated")
                yield hosted.sandbox
            except SandboxDead as error:
                self.note_death(hosted, error)
                raise
            finally:
                hosted.commands -= 1
                hosted.last_used_s = time.monotonic()

    def count_command(self, hosted: HostedSandbox, result: ExecResult) -> None:
        """Count a command in the metrics."""
        how = "timed_out" if result.timed_out else "oom" if result.oom else "ended"
        self._metrics.add("commands_total", token=hosted.account.name, how=how)
        self._metrics.command_seconds.observe(result.run_s)

    async def refresh(self, hosted: HostedSandbox) -> None:
        """Check whether the sandbox is still alive. Runs nothing inside."""
        if hosted.status == "RUNNING" and hosted.sandbox is not None:
            try:
                await hosted.sandbox.ready()
            except SandboxDead as error:
                self.note_death(hosted, error)

    async def settle(self, hosted: HostedSandbox, wait_s: float) -> None:
        """Wait until the sandbox is up or has failed, or until the time is over."""
        try:
            async with asyncio.timeout(wait_s):
                await hosted.settled.wait()
        except TimeoutError:
            pass

    # --- ending

    def _die_of_age(self, hosted: HostedSandbox) -> None:
        minutes = hosted.request.timeout_minutes
        self.end(hosted, "TIMEOUT", "TIMEOUT", f"Its timeout_minutes={minutes:g} have passed.")

    def _fail(self, hosted: HostedSandbox, error_type: str, message: str) -> None:
        logger.warning("sandbox %s failed: %s", hosted.id, message)
        self.end(hosted, "ERROR", error_type, message)

    def note_death(self, hosted: HostedSandbox, error: SandboxDead) -> None:
        """Record why a sandbox was found dead."""
        if error.reason == "ttl":
            self._die_of_age(hosted)
        elif error.reason == "oom":
            self._fail(hosted, "OOM_KILLED", str(error))
        else:
            self._fail(hosted, "SANDBOX_DIED", str(error))

    def end(
        self,
        hosted: HostedSandbox,
        status: Status = "TERMINATED",
        error_type: str | None = None,
        message: str | None = None,
    ) -> asyncio.Task[None]:
        """End a sandbox; only the first reason counts. The task is done when the sandbox no longer uses its quota."""
        if hosted.ending is None:
            hosted.status, hosted.error_type, hosted.error_message = status, error_type, message
            hosted.ended_at = datetime.now(UTC)
            hosted.settled.set()
            for timer in hosted.timers:
                timer.cancel()
            self._metrics.add("sandboxes_ended_total", how=(error_type or status).lower())
            hosted.ending = asyncio.get_running_loop().create_task(
                self._take_away(hosted), name=f"end {hosted.id}"
            )
            hosted.ending.add_done_callback(_log_failure)
        return hosted.ending

    async def _take_away(self, hosted: HostedSandbox) -> None:
        try:
            if hosted.sandbox is not None:
                await hosted.sandbox.terminate()
        finally:
            hosted.account.sandboxes -= 1
            hosted.account.memory_mb -= hosted.spec.memory_mb
            for task in list(hosted.tasks):
                task.cancel()
            hosted.become_record()
            self._ended[hosted.id] = None
            while len(self._ended) > self._config.kept_records:
                self._forget(self._ended.popitem(last=False)[0])

    def _forget(self, sandbox_id: str) -> None:
        hosted = self._all.pop(sandbox_id)
        self._by_key.pop((hosted.account.name, hosted.request.idempotency_key or ""), None)

    async def aclose(self) -> None:
        """End every sandbox."""
        self._is_closed = True
        endings = [self.end(hosted) for hosted in list(self._all.values())]
        await asyncio.gather(*endings, return_exceptions=True)

    def measure(self) -> None:
        """Update the gauges."""
        for account in self.accounts.values():
            self._metrics.put("sandboxes", account.sandboxes, token=account.name)
            self._metrics.put("memory_limit_bytes", account.memory_mb << 20, token=account.name)
            self._metrics.put("commands_running", account.commands, token=account.name)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s failed: %s", task.get_name(), error)
