"""`SandboxEnv`: each rollout has its own sandbox, and the model has a `bash` tool in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from verifiers.decorators import cleanup, teardown
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import CommandTimeoutError, SandboxClient, timeout_errors
from verifiers.envs.sandbox_mixin import SandboxMixin, SandboxMonitorRubric, SandboxNotReadyError
from verifiers.envs.sandbox_request import AdvancedConfigs, CreateSandboxRequest
from verifiers.envs.scoring_sandbox import ScoreIn
from verifiers.envs.tool_env import StatefulToolEnv
from verifiers.errors import Error, InfraError, SandboxError, ToolCallError
from verifiers.sandboxes import SandboxBackend, SandboxCreationError, SandboxDead, SandboxSpec
from verifiers.sandboxes.open import BackendName
from verifiers.state import State
from verifiers.types import Messages, ToolCall, ToolMessage


class SandboxState(TypedDict):
    """The sandbox part of a rollout's state, stored under `sandbox_state`."""

    ready: bool
    ready_wait_time: float
    """Seconds that the first command waited for the sandbox. 0 if the sandbox started while the model was answering."""
    command_execution_times: list[float]
    """Duration of each command, in seconds."""


class SandboxEnv(SandboxMixin, StatefulToolEnv):
    """Gives each rollout a sandbox, which starts while the model writes its first response.

    The sandbox ends with the rollout. `CreateSandboxRequest` shows how v0's arguments become the specification of the
    sandbox. Settings that v0 does not have, such as `network` or `packages`, go into `sandbox_spec`: a `SandboxSpec` or
    its fields as a dict.

    `backend` is the name of a back end, or a back end object, which the caller closes. `warm_pool_size` sandboxes are
    kept ready from the first rollout on; use it for back ends that start slowly. `score_in` selects the sandbox of
    `post_rollout` and of reward functions ("snapshot", "own" or "live": see `verifiers.envs.scoring_sandbox`), and
    `score_env` holds the environment variables of their commands.

    Authors override `get_sandbox_request`, `setup_state` and `post_rollout`, add tools, and use `sandbox_client` with
    `state["sandbox_id"]`.
    """

    def __init__(
        self,
        sandbox_name: str = "sandbox-env",
        docker_image: str = "python:3.11-slim",
        start_command: str = "tail -f /dev/null",
        cpu_cores: float = 1,
        memory_gb: float = 2,
        disk_size_gb: float = 5,
        gpu_count: int = 0,
        timeout_minutes: float = 60,
        timeout_per_command_seconds: float = 30,
        environment_vars: dict[str, str] | None = None,
        team_id: str | None = None,
        advanced_configs: AdvancedConfigs | None = None,
        labels: list[str] | None = None,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 0.001,
        stop_errors: Sequence[type[Exception]] | None = None,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 100,
        sandbox_client_max_keepalive_connections: int = 50,
        *,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        keep_sandbox_for_scoring: bool = False,
        warm_pool_size: int = 0,
        score_in: ScoreIn | None = None,
        score_env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # The three sandbox_client_… sizes apply to the connections of a remote provider and are ignored.
        super().__init__(
            stop_errors=[SandboxError] if stop_errors is None else stop_errors, **kwargs
        )
        self.timeout_per_command_seconds = timeout_per_command_seconds
        self.keep_sandbox_for_scoring = keep_sandbox_for_scoring
        template = SandboxSpec.model_validate(sandbox_spec or {}).model_copy(
            update={"command_timeout_s": float(timeout_per_command_seconds)}
        )
        self.init_sandbox_client(
            max_retries,
            base_delay,
            backoff_factor,
            max_backoff_seconds,
            jitter,
            backend=backend,
            sandbox_spec=template,
            score_in=score_in,
            score_env=score_env,
        )
        self.sandbox_request = CreateSandboxRequest(
            name=sandbox_name,
            docker_image=docker_image,
            start_command=start_command,
            cpu_cores=cpu_cores,
            memory_gb=memory_gb,
            disk_size_gb=disk_size_gb,
            gpu_count=gpu_count,
            timeout_minutes=timeout_minutes,
            environment_vars=environment_vars,
            team_id=team_id,
            advanced_configs=advanced_configs,
            labels=labels or [],
        )
        if warm_pool_size:
            self.sandbox_client.keep_warm(self.sandbox_request, warm_pool_size)
        self.add_rubric(
            SandboxMonitorRubric(
                metrics=("sandbox_ready_wait_time", "sandbox_command_execution_time")
            )
        )
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "sandbox_state", "working_dir"])

    # ------------------------------------------------------------------------------------ what authors override

    def get_sandbox_request(self, state: State) -> CreateSandboxRequest:
        """Return the request for this rollout's sandbox: a copy that may be changed."""
        return self.sandbox_request.model_copy(deep=True)

    async def post_rollout(self, state: State) -> None:
        """Hook for authors: runs after the rollout, while its sandbox still exists, to store data for scoring in the
        state.

        An exception makes the rollout fail.
        """

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Start to create a sandbox. Commands wait until it is ready."""
        await self._create(state, self.get_sandbox_request(state))
        state["sandbox_state"] = SandboxState(
            ready=False, ready_wait_time=0.0, command_execution_times=[]
        )
        return await super().setup_state(state) or state

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Add the sandbox of the rollout to the arguments of `bash`."""
        if tool_name == "bash":
            return {
                **tool_args,
                "sandbox_id": state["sandbox_id"],
                "sandbox_state": state["sandbox_state"],
                "working_dir": state.get("working_dir"),
            }
        return tool_args

    # -------------------------------------------------------------------------------------------------- tools

    async def bash(
        self,
        command: str,
        sandbox_id: str,
        sandbox_state: SandboxState,
        working_dir: str | None = None,
    ) -> str:
        """Execute `command` inside persistent sandbox container."""
        limit_s = self.timeout_per_command_seconds
        await self._ensure_ready(sandbox_state, sandbox_id)
        started = time.perf_counter()
        try:
            result = await self.sandbox_client.execute_command(
                sandbox_id, command, working_dir=working_dir, timeout=limit_s
            )
        except timeout_errors():
            sandbox_state["command_execution_times"].append(limit_s)
            self.logger.warning("Command timed out after %gs in sandbox %s", limit_s, sandbox_id)
            return f"Error: Command timed out after {limit_s:g}s"
        except SandboxDead as error:
            return await self._after_death(error, sandbox_id, sandbox_state)
        except (Error, ValueError):
            # Our errors, and commands that cannot run, such as an empty one. The model receives the message.
            raise
        except Exception as error:
            raise SandboxError(f"The command failed in sandbox {sandbox_id}: {error!r}") from error
        sandbox_state["command_execution_times"].append(time.perf_counter() - started)
        parts = [(result.stdout or "").strip()]
        if errors := (result.stderr or "").strip():
            parts.append(f"stderr:\n{errors}")
        return "\n".join(filter(None, parts)) or "(no output)"

    async def _after_death(
        self, error: SandboxDead, sandbox_id: str, sandbox_state: SandboxState
    ) -> str:
        """Replace the sandbox by an empty one if a command of the model has ended it; otherwise raise the error."""
        if not error.by_program:
            raise error
        await self.sandbox_client.replace(sandbox_id)
        sandbox_state["ready"] = False
        how = "ran out of memory" if error.reason == "oom" else "was ended by a command"
        return f"Error: The sandbox {how} and was replaced by a new one; its files are gone."

    async def _answer(self, tool_call: ToolCall, messages: Messages, state: State) -> ToolMessage:
        try:
            return await super()._answer(tool_call, messages, state)
        except ToolCallError as error:
            if isinstance(error.__cause__, InfraError):
                raise error.__cause__ from None  # the sandbox failed, not the tool
            raise

    # ----------------------------------------------------------------------------------------------- readiness

    async def _ensure_ready(self, sandbox_state: SandboxState, sandbox_id: str) -> None:
        if not sandbox_state["ready"]:
            await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)

    async def _wait_for_sandbox_ready(self, sandbox_state: SandboxState, sandbox_id: str) -> None:
        """Wait until commands can run, and record the waiting time."""
        started = time.perf_counter()
        wait = self.with_retry(self.sandbox_client.wait_for_creation)
        await self._wait_until_ready(wait, sandbox_id)
        sandbox_state["ready_wait_time"] += time.perf_counter() - started
        sandbox_state["ready"] = True

    # ----------------------------------------------------------------------------------------------------- end

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """Run `post_rollout`, then delete the sandbox, unless a reward function uses it."""
        await self._finish(state, self.post_rollout)

    async def bulk_delete_sandboxes(  # pyright: ignore[reportIncompatibleMethodOverride]  # v0's name of the parameter
        self, global_ids: Sequence[str]
    ) -> None:
        """Delete several sandboxes at once; see `SandboxMixin.bulk_delete_sandboxes`."""
        await super().bulk_delete_sandboxes(global_ids)

    @teardown(priority=10)
    async def teardown_sandboxes(self) -> None:
        """Delete all sandboxes that are left."""
        if self.active_sandboxes:
            await self.bulk_delete_sandboxes(sorted(self.active_sandboxes))

    @teardown
    async def teardown_sandbox_client(self) -> None:
        """Close the client and everything that it has started."""
        if isinstance(self.sandbox_client, SandboxClient):
            await self.sandbox_client.aclose()
        elif self.sandbox_client is not None:
            await call_hook(self.sandbox_client.teardown)


__all__ = [
    "AdvancedConfigs",
    "CommandTimeoutError",
    "CreateSandboxRequest",
    "SandboxCreationError",
    "SandboxEnv",
    "SandboxMonitorRubric",
    "SandboxNotReadyError",
    "SandboxState",
]
