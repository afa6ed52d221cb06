"""`SandboxMixin`: a mixin that gives each rollout of an environment a sandbox.

    class Mine(SandboxMixin, vf.MultiTurnEnv):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.init_sandbox_client()

        async def setup_state(self, state):
            await self.create_sandbox(state, CreateSandboxRequest(name="mine"))
            return await super().setup_state(state)

Each sandbox is deleted when its rollout ends, or when the rollout has been scored if a reward function uses the
sandbox. `SandboxEnv` and `CliAgentEnv` are built on this class.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import math
import posixpath
import random
import shlex
import sys
import tarfile
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from verifiers.decorators import cleanup, teardown
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.scoring_sandbox import ScoreIn, check_score_in
from verifiers.errors import AuthorError, ConfigError, Error, SandboxError, note_error
from verifiers.rollouts.scope import close_scope, scope_of
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.rubrics.sandbox_rubric import (
    ARGUMENT,
    ScoringSandbox,
    asks_for_sandbox,
    fail_rollout,
)
from verifiers.sandboxes import (
    IsolationUnavailable,
    SandboxBackend,
    SandboxCreationError,
    SandboxDead,
    SandboxFileError,
    SandboxImageError,
    SandboxRateLimited,
    SandboxSpec,
    SandboxUnresponsive,
)
from verifiers.sandboxes.open import BackendName
from verifiers.state import State
from verifiers.v0.call_forms import called_with_state

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_PERMANENT = (
    AuthorError,
    IsolationUnavailable,
    SandboxImageError,
    SandboxDead,
    SandboxFileError,
    *timeout_errors(),
)
"""Errors that no further attempt can cure."""


_PROVIDER_CLASSES = "verifiers.envs.experimental.sandbox_mixin"
"""Module with the classes `SandboxClient` and `APIClient` of the provider."""
_BATCH = 100
"""Number of sandboxes that one request of the provider's client deletes."""
FIRST = 1_000_000
"""Priority of the clean-up handler that runs before those of authors."""
_IDLE_HOOKS = (
    "Environment.",
    "MultiTurnEnv.",
    "SandboxEnv.",
    "SandboxMixin.",
    "CliAgentEnv.",
    "ComposableEnv.",
)
"""Clean-up handlers and `post_rollout` methods of these classes do not use the sandbox."""


_SDK_DEATHS = {"SandboxOOMError": "oom", "SandboxTimeoutError": "ttl"}
"""Class names of a provider's SDK errors → reason for the death of the sandbox."""
_TRANSIENT_TEXTS = ("HTTP 502", "HTTP 503", "ConnectError")


class SandboxNotReadyError(SandboxError):
    """A sandbox did not become ready."""


class SandboxSetupError(SandboxError):
    """The preparation of a sandbox before the rollout failed."""


@dataclass(frozen=True)
class SandboxTimeouts:
    """Time limits for single operations on a sandbox, in seconds. They do not limit the rollout."""

    read_file: int = 10
    extract: int = 60
    """For unpacking uploaded files."""
    poll: int = 60
    """For one status request about a background job. Only clients that have to be polled use it."""
    mkdir: int = 10


class ThreadedAsyncSandboxClient(SandboxClient):
    """v0's name of the sandbox client. No threads are needed; the three sizes are accepted and ignored."""

    def __init__(
        self,
        max_workers: int = 100,
        max_connections: int = 100,
        max_keepalive_connections: int = 50,
        *,
        backend: SandboxBackend | BackendName | None = None,
        template: SandboxSpec | None = None,
        **_: Any,
    ) -> None:
        super().__init__(backend, template)


class SandboxMonitorRubric(Rubric):
    """Metrics of sandboxes, with weight 0.

    `metrics` names the methods to report; None reports all of them. `SandboxEnv` reports the two times, and
    `CliAgentEnv` the two failures.
    """

    METRICS = (
        "sandbox_ready_wait_time",
        "sandbox_command_execution_time",
        "sandbox_oom",
        "sandbox_timeout",
    )

    def __init__(self, metrics: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in self.METRICS if metrics is None else metrics:
            self.add_metric(getattr(self, name))
        self.add_cleanup_handler(self.end_scoring)

    async def end_scoring(self, state: State) -> None:
        """Delete a sandbox that was kept for scoring."""
        await close_scope(state)

    async def sandbox_ready_wait_time(self, state: State) -> float:
        """Return how many seconds the rollout waited for its sandbox."""
        return float((state.get("sandbox_state") or {}).get("ready_wait_time", 0.0))

    async def sandbox_command_execution_time(self, state: State) -> float:
        """Return the mean duration of the commands, in seconds."""
        times = (state.get("sandbox_state") or {}).get("command_execution_times") or []
        return sum(times) / len(times) if times else 0.0

    async def sandbox_oom(self, state: State) -> float:
        """Return 1 if the sandbox ran out of memory."""
        return float(bool(state.get("sandbox_oom")))

    async def sandbox_timeout(self, state: State) -> float:
        """Return 1 if the sandbox exceeded its lifetime."""
        return float(bool(state.get("sandbox_timeout")))


class SandboxMixin:
    """Creates, fills, scores and deletes sandboxes. Call `init_sandbox_client` at the end of `__init__`."""

    SANDBOX_MAX_TIMEOUT_MINUTES = 1440
    SANDBOX_SCORING_BUFFER_MINUTES = 60
    scoring_arguments: ClassVar[frozenset[str]] = frozenset({ARGUMENT})
    """Arguments of reward functions that exist only while a rollout is scored."""
    sandbox_client: Any = None
    """None until `init_sandbox_client` has run."""
    active_sandboxes: set[str] = set()
    """Ids of sandboxes that have not been deleted yet."""
    sandbox_timeout_minutes: int | None = None
    """Maximum lifetime of a sandbox; None derives it from the time limit of the rollout."""
    keep_sandbox_for_scoring: bool = False
    score_in: ScoreIn | None = None
    """Where the rollout is scored: "snapshot", "own" or "live". None selects the first mode that the back end supports.
    """
    score_env: Mapping[str, str] | None = None
    """Environment variables of scoring commands. They take precedence over all others."""
    timeouts: SandboxTimeouts
    # Attributes of the environment that this class is mixed into.
    timeout_seconds: float | None
    logger: Logger
    rubric: Rubric
    score_rollouts: bool
    _cleanup_handlers: list[Callable[..., Any]]

    def init_sandbox_client(
        self,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 0.001,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 1000,
        sandbox_client_max_keepalive_connections: int = 200,
        sandbox_wait_for_creation_max_attempts: int = 120,
        sandbox_creations_per_minute: float | None = 128,
        timeouts: SandboxTimeouts = SandboxTimeouts(),
        *,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        score_in: ScoreIn | None = None,
        score_env: Mapping[str, str] | None = None,
    ) -> None:
        """Create `sandbox_client`. Nothing is started.

        The connection sizes, the number of attempts to wait and the creations per minute apply to a remote provider.
        They are accepted and ignored: this machine needs no such limits, and the back end of a provider has its own.
        `backend`, `sandbox_spec`, `score_in` and `score_env` have the same meaning as in `SandboxEnv`.
        """
        self._attempts = (max_retries, base_delay, backoff_factor, max_backoff_seconds, jitter)
        self.score_in = check_score_in(score_in) or self.score_in
        self.score_env = self.score_env if score_env is None else dict(score_env)
        self.active_sandboxes = set()
        self._offering: weakref.WeakSet[Rubric] = weakref.WeakSet()
        self.sandbox_wait_for_creation_max_attempts = sandbox_wait_for_creation_max_attempts
        self.timeouts = timeouts
        template = SandboxSpec.model_validate(sandbox_spec or {})
        self.sandbox_client = ThreadedAsyncSandboxClient(backend=backend, template=template)

    def compute_sandbox_timeout_minutes(self) -> int:
        """Return the maximum lifetime of a sandbox: `sandbox_timeout_minutes`, or the time limit of the rollout plus
        one hour for scoring.
        """
        if self.sandbox_timeout_minutes is not None:
            return self.sandbox_timeout_minutes
        if self.timeout_seconds is None:
            return self.SANDBOX_MAX_TIMEOUT_MINUTES
        minutes = math.ceil(self.timeout_seconds / 60) + self.SANDBOX_SCORING_BUFFER_MINUTES
        return min(minutes, self.SANDBOX_MAX_TIMEOUT_MINUTES)

    def with_retry(
        self, function: Callable[Arguments, Awaitable[Value]], *, first_counts: bool = True
    ) -> Callable[Arguments, Awaitable[Value]]:
        """Return the function with retries: at most `max_retries` calls while it raises errors that can pass.

        With `first_counts=False` the first call does not count: `max_retries=1` allows two calls.
        """
        max_retries, base_delay_s, factor, longest_s, jitter_s = self._attempts
        if not first_counts:
            max_retries += 1

        @functools.wraps(function)
        async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
            for attempt in range(max_retries - 1):
                try:
                    return await function(*args, **kwargs)
                except _PERMANENT:
                    raise
                except Exception as error:  # noqa: BLE001 - v0 repeats on every error of a provider's client
                    self.logger.debug("attempt %d failed: %r", attempt + 1, error)
                delay_s = min(longest_s, base_delay_s * factor**attempt)
                await asyncio.sleep(delay_s + random.uniform(0.0, jitter_s))
            return await function(*args, **kwargs)

        return call

    # ---------------------------------------------------------------------------------------------- life

    def register_sandbox(self, sandbox_id: str) -> None:
        """Register a sandbox that must be deleted when the environment closes, at the latest."""
        self.active_sandboxes.add(sandbox_id)

    def deregister_sandbox(self, sandbox_id: str) -> None:
        """Remove a sandbox from the registered ones. The caller then has to delete it."""
        self.active_sandboxes.discard(sandbox_id)

    async def create_sandbox(self, state: Any, request: Any) -> str:
        """Create a sandbox for this rollout, wait until it is ready and set it up. Return its id.

        The id is also stored in `state["sandbox_id"]`. Raises SandboxCreationError, SandboxNotReadyError or
        SandboxSetupError.
        """
        sandbox_id = await self._create(state, request, first_counts=False)
        attempts = self.sandbox_wait_for_creation_max_attempts
        await self._wait_until_ready(
            self.sandbox_client.wait_for_creation, sandbox_id, max_attempts=attempts
        )
        await self._before_sandbox_setup(state)
        try:
            await call_hook(self.post_sandbox_setup, state)
        except Error:
            raise
        except Exception as error:
            raise SandboxSetupError(f"Sandbox {sandbox_id} setup failed: {error}") from error
        return sandbox_id

    async def _create(self, state: Any, request: Any, *, first_counts: bool = True) -> str:
        """Create a sandbox and register it with the rollout. Return its id."""
        try:
            create = self.with_retry(self.sandbox_client.create, first_counts=first_counts)
            sandbox = await create(request)
        except Error:
            raise
        except Exception as error:
            raise SandboxCreationError(f"Failed to create sandbox: {error}") from error
        sandbox_id: str = sandbox.id
        self.register_sandbox(sandbox_id)
        state["sandbox_id"] = sandbox_id
        if isinstance(state, State):
            scope_of(state).on_exit(self._leave, state, sandbox_id)
        return sandbox_id

    async def _wait_until_ready(
        self, wait: Callable[..., Awaitable[object]], sandbox_id: str, **options: Any
    ) -> None:
        """Call the client's `wait_for_creation`. Unknown errors become SandboxNotReadyError."""
        try:
            await wait(sandbox_id, **options)
        except Error:
            raise
        except Exception as error:
            raise SandboxNotReadyError(
                f"Sandbox {sandbox_id} failed to become ready: {error}"
            ) from error

    async def _before_sandbox_setup(self, state: Any) -> None:
        """Hook of subclasses in this library; runs before `post_sandbox_setup`."""

    async def post_sandbox_setup(self, state: Any) -> None:
        """Hook for authors, to upload files and run commands. The sandbox is ready."""

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Delete a sandbox. A failure is logged, and deletion is tried again when the environment closes."""
        await self._delete(sandbox_id)

    # ----------------------------------------------------------------------------------------------- use

    async def run_background_job(
        self,
        state: Any,
        command: str,
        timeout: int,
        working_dir: str | None = None,
        poll_interval: int = 3,
    ) -> Any:
        """Run a long command and wait for it. Return an object with `exit_code`, `stdout` and `stderr`.

        Raises the client's CommandTimeoutError after `timeout` seconds. Sets `sandbox_oom` or `sandbox_timeout` in the
        state if the sandbox ran out of memory or exceeded its lifetime.
        """
        try:
            return await self.sandbox_client.run_background_job(
                sandbox_id=state["sandbox_id"],
                command=command,
                timeout=timeout,
                working_dir=working_dir,
                poll_interval=poll_interval,
            )
        except Exception as error:
            if note_death(state, error) and not isinstance(error, SandboxError):
                raise SandboxError(f"The sandbox was lost during a job: {error}") from error
            raise

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
        """Upload a file of this machine into the sandbox. `SandboxClient` accepts a directory, too."""
        await self.with_retry(self.sandbox_client.upload_file)(sandbox_id, remote_path, local_path)

    async def upload_content(self, sandbox_id: str, content: str, remote_path: str) -> None:
        """Write a text file in the sandbox."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "content"
            await asyncio.to_thread(path.write_text, content, "utf-8")
            await self.upload_file(sandbox_id, remote_path, str(path))

    async def read_file(
        self, sandbox_id: str, remote_path: str, timeout: int | None = None
    ) -> str | None:
        """Return the text of a file in the sandbox. Return None if the file cannot be read; the reason is logged."""
        limit_s = self.timeouts.read_file if timeout is None else timeout
        try:
            file = await self.sandbox_client.read_file(sandbox_id, remote_path, timeout=limit_s)
        except Exception as error:  # noqa: BLE001 - v0 returns None for every error
            self.logger.warning("Failed to read %s from %s: %r", remote_path, sandbox_id, error)
            return None
        return file.content

    async def upload_bundle(self, sandbox_id: str, file_map: dict[str, str], dest_dir: str) -> None:
        """Write several text files below a directory of the sandbox. `file_map` maps relative paths to contents."""
        with tempfile.TemporaryDirectory() as folder:
            await asyncio.to_thread(_write_files, Path(folder), file_map)
            if isinstance(self.sandbox_client, SandboxClient):
                await self.upload_file(sandbox_id, dest_dir, folder)
                return
            await self._upload_archive(sandbox_id, Path(folder), sorted(file_map), dest_dir)

    async def _upload_archive(
        self, sandbox_id: str, folder: Path, names: Sequence[str], dest_dir: str
    ) -> None:
        """Send files as one archive and unpack it there: the client of a provider uploads single files only."""
        remote = posixpath.join(dest_dir, "_bundle.tar.gz")
        with tempfile.NamedTemporaryFile(suffix=".tar.gz") as file:
            await asyncio.to_thread(_write_archive, file.name, folder, names)
            await self.upload_file(sandbox_id, remote, file.name)
        archive, target = shlex.quote(remote), shlex.quote(dest_dir)
        result = await self.sandbox_client.execute_command(
            sandbox_id,
            f"mkdir -p {target} && tar -xzf {archive} -C {target} && rm -f {archive}",
            timeout=self.timeouts.extract,
        )
        if result.exit_code != 0:
            raise SandboxError(
                f"The uploaded files could not be unpacked in sandbox {sandbox_id} "
                f"(exit code {result.exit_code}): {result.stderr or result.stdout}"
            )

    # ------------------------------------------------------------------------------------------- scoring

    @cleanup(priority=FIRST)
    async def begin_scoring(self, state: State) -> None:
        """Replace the sandbox of the rollout by the sandbox for scoring, which `post_rollout` and reward functions use.

        A sandbox that the model has ended, for example by an out-of-memory kill, is replaced by an empty one, as it is
        during the rollout.
        """
        await self._before_scoring(state)
        sandbox_id, client = state.get("sandbox_id"), self.sandbox_client
        if not isinstance(client, SandboxClient) or not client.has(sandbox_id):
            return
        if state.get("stop_condition") == "cancelled" or not self._is_looked_at_afterwards(state):
            return
        try:
            try:
                await client.begin_scoring(sandbox_id, self.score_in, self.score_env)
            except SandboxDead as error:
                if not error.by_program:
                    raise
                await client.replace(sandbox_id)
                await client.begin_scoring(sandbox_id, self.score_in, self.score_env)
        except SandboxError as error:
            note_error(state, error, self)

    async def _before_scoring(self, state: State) -> None:
        """Hook of subclasses in this library: stop the processes that they run in the sandbox."""

    def _is_looked_at_afterwards(self, state: State) -> bool:
        """Return whether a hook or a reward function may use the sandbox after the rollout."""
        hooks = [*self._cleanup_handlers, getattr(self, "post_rollout", None)]
        return self._is_kept_for_scoring(state) or any(
            hook is not None and not getattr(hook, "__qualname__", "").startswith(_IDLE_HOOKS)
            for hook in hooks
        )

    async def _leave(self, state: State, sandbox_id: str) -> None:
        """Delete the sandbox at the end of the rollout, unless hooks did so, or keep it until the rollout has been
        scored.
        """
        if sandbox_id not in self.active_sandboxes:
            return
        if not self._is_kept_for_scoring(state):
            await self._delete(sandbox_id)
            return
        for rubric in _rubrics_of(self.rubric):
            if any(map(asks_for_sandbox, rubric.reward_calls())):
                self._offer_sandbox(rubric)
        # A second scope, closed when the rollout has been scored. If the rollout is never scored, the state is
        # garbage-collected, and the sandbox is killed with it.
        scope = scope_of(state)
        scope.on_exit(self._delete, sandbox_id)
        if isinstance(self.sandbox_client, SandboxClient):
            weakref.finalize(scope, self.sandbox_client.sandbox(sandbox_id).kill_sync)

    def _is_kept_for_scoring(self, state: State) -> bool:
        if state.get("error") is not None or state.get("stop_condition") == "cancelled":
            return False
        return self.score_rollouts and (
            self.keep_sandbox_for_scoring or any(map(asks_for_sandbox, self.rubric.reward_calls()))
        )

    def _offer_sandbox(self, rubric: Rubric) -> None:
        if rubric not in self._offering:
            self._offering.add(rubric)
            rubric.add_score_object_provider(self._score_objects)

    def _score_objects(self, state: State) -> dict[str, Any]:
        sandbox_id = state.get("sandbox_id")
        if sandbox_id not in self.active_sandboxes:
            return {}  # a rollout of another environment, scored by the same rubric
        sandbox = self.sandbox_client.sandbox(sandbox_id)
        return {ARGUMENT: ScoringSandbox(sandbox, functools.partial(fail_rollout, state))}

    _score_objects.provides = frozenset({ARGUMENT})  # type: ignore[attr-defined]  # read by `early_stop`

    # ------------------------------------------------------------------------------------------------- end

    async def _finish(self, state: State, post_rollout: Callable[[State], object]) -> None:
        """Run `post_rollout`, then delete the sandbox, unless a reward function uses it."""
        sandbox_id = state.get("sandbox_id")
        try:
            await called_with_state(post_rollout, state)
        except Exception as error:  # noqa: BLE001 - what scoring needs is missing now: the rollout has failed
            note_error(state, error, self)
        if sandbox_id is not None and not self._is_kept_for_scoring(state):
            await self._delete(sandbox_id)

    async def _delete(self, sandbox_id: str) -> None:
        try:
            await self.with_retry(self.sandbox_client.delete)(sandbox_id)
        except Exception as error:  # noqa: BLE001 - the rollout's result stands; teardown tries again
            self.logger.warning("Sandbox %s could not be deleted: %r", sandbox_id, error)
            return
        self.active_sandboxes.discard(sandbox_id)

    async def bulk_delete_sandboxes(self, sandbox_ids: Sequence[str]) -> None:
        """Delete several sandboxes at once. A failure is logged, and deletion is tried again when the environment
        closes.
        """
        try:
            await self.with_retry(self.sandbox_client.bulk_delete)(list(sandbox_ids))
        except Exception as error:  # noqa: BLE001 - teardown tries again
            self.logger.error("Failed to bulk delete sandboxes %s: %r", sandbox_ids, error)
            return
        self.active_sandboxes.difference_update(sandbox_ids)
        self.logger.debug("Bulk deleted sandboxes: %s", sandbox_ids)

    def teardown_sandboxes(self) -> Any:
        """Delete all sandboxes that are left, immediately.

        Sandboxes of this library's client are killed. Those of a provider's client are deleted in batches by the
        provider's synchronous client. A batch that fails is logged and stays registered.
        """
        client = self.sandbox_client
        if isinstance(client, SandboxClient):
            for sandbox_id in list(filter(client.has, self.active_sandboxes)):
                client.sandbox(sandbox_id).kill_sync()
                self.deregister_sandbox(sandbox_id)
        left = sorted(self.active_sandboxes)
        if not left:
            return
        # By name: callers replace the two classes in that module, and nothing else needs it.
        classes = importlib.import_module(_PROVIDER_CLASSES)
        try:
            provider = classes.SandboxClient(classes.APIClient())
        except Exception as error:  # noqa: BLE001 - no package or no key: the other handlers must still run
            self.logger.error("The sandboxes %s could not be deleted: %s", left, error)
            return
        for start in range(0, len(left), _BATCH):
            batch = left[start : start + _BATCH]
            try:
                provider.bulk_delete(sandbox_ids=batch)
            except Exception as error:  # noqa: BLE001 - the other batches must still be deleted
                self.logger.warning("Failed to bulk delete %d sandboxes: %r", len(batch), error)
            else:
                self.active_sandboxes.difference_update(batch)
                self.logger.debug("Bulk deleted %d sandboxes", len(batch))

    def teardown_sandbox_client(self) -> Any:
        """Close the client."""
        if self.sandbox_client is not None:
            self.sandbox_client.teardown()

    @teardown(priority=-10)
    async def teardown_mixin_sandboxes(self) -> None:
        """Delete all sandboxes that are left, unless `teardown_sandboxes` is itself a handler."""
        if hasattr(self.teardown_sandboxes, "teardown"):
            return
        if not isinstance(self.sandbox_client, SandboxClient) and self.active_sandboxes:
            await self.bulk_delete_sandboxes(sorted(self.active_sandboxes))
        await call_hook(self.teardown_sandboxes)

    @teardown(priority=-20)
    async def teardown_mixin_sandbox_client(self) -> None:
        """Close the client and everything that it has started, unless `teardown_sandbox_client` is itself a handler."""
        if hasattr(self.teardown_sandbox_client, "teardown"):
            return
        await call_hook(self.teardown_sandbox_client)
        if isinstance(self.sandbox_client, SandboxClient):
            await self.sandbox_client.aclose()


def _write_files(folder: Path, file_map: Mapping[str, str]) -> None:
    for name, content in file_map.items():
        path = folder / name
        if Path(name).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"The paths of a bundle must be relative and stay inside the bundle; got {name!r}."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")


def _write_archive(path: str, folder: Path, names: Sequence[str]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            archive.add(folder / name, arcname=name)


def _rubrics_of(rubric: Rubric) -> list[Rubric]:
    if not isinstance(rubric, RubricGroup):
        return [rubric]
    return [inner for one in rubric.rubrics for inner in _rubrics_of(one)]


def note_death(state: Any, error: BaseException) -> bool:
    """Record in the state that a sandbox ran out of memory or exceeded its lifetime. Return whether the error means
    either of them.
    """
    reason = (
        error.reason if isinstance(error, SandboxDead) else _SDK_DEATHS.get(type(error).__name__)
    )
    if reason not in ("oom", "ttl"):
        return False
    state["sandbox_oom" if reason == "oom" else "sandbox_timeout"] = True
    return True


def is_retryable_sandbox_api_error(exception: BaseException) -> bool:
    """Return whether the error of a provider's API is temporary, so that a retry can help."""
    if isinstance(exception, SandboxRateLimited):
        return True
    sdk_error = getattr(sys.modules.get("prime_sandboxes"), "APIError", None)
    if sdk_error is None or not isinstance(exception, sdk_error):
        return False
    return any(text in str(exception) for text in _TRANSIENT_TEXTS)


def is_retryable_sandbox_read_error(exception: BaseException) -> bool:
    """Return whether a failed file operation or command may succeed on a retry: it timed out, or the provider was
    not reachable.
    """
    if isinstance(exception, (SandboxUnresponsive, *timeout_errors())):
        return True
    sdk, http = sys.modules.get("prime_sandboxes"), sys.modules.get("httpx")
    names = ("UploadTimeoutError", "DownloadTimeoutError")
    classes = [getattr(sdk, name, None) for name in names] + [getattr(http, "ReadTimeout", None)]
    if any(each is not None and isinstance(exception, each) for each in classes):
        return True
    return is_retryable_sandbox_api_error(exception)


__all__ = [
    "SandboxCreationError",
    "SandboxMixin",
    "SandboxMonitorRubric",
    "SandboxNotReadyError",
    "SandboxSetupError",
    "SandboxTimeouts",
    "ThreadedAsyncSandboxClient",
    "is_retryable_sandbox_api_error",
    "is_retryable_sandbox_read_error",
    "note_death",
]
