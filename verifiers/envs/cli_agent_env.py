"""`CliAgentEnv`: an agent program runs in a sandbox, and this environment answers its model calls.

    state ── sandbox ── agent ── POST /v1/chat/completions ─► doorway ─► interception server
                          ▲                                                     │  get_prompt_messages
                          └────────────── answer ◄── get_model_response ◄───────┘

Each request of the agent is one turn of the rollout: the prompt is the content of the request, in any of the
supported APIs, and the completion is the response of the model. The rollout ends when the program ends.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar

from verifiers.decorators import cleanup, stop, teardown
from verifiers.envs.hooks import call_hook
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.sandbox_client import SandboxClient
from verifiers.envs.sandbox_mixin import (
    SandboxMixin,
    SandboxMonitorRubric,
    SandboxTimeouts,
    note_death,
)
from verifiers.envs.sandbox_request import AdvancedConfigs, CreateSandboxRequest
from verifiers.envs.scoring_sandbox import ScoreIn
from verifiers.errors import InfraError, TunnelError
from verifiers.interception.answers import empty_response
from verifiers.interception.doorway import Doorway, port_inside
from verifiers.interception.server import (
    Intercept,
    InterceptionServer,
    LoopServers,
    deliver_response,
    synthesize_stream,
)
from verifiers.messages import normalize_messages
from verifiers.rollouts.scope import scope_of
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxBackend, SandboxSpec
from verifiers.sandboxes.open import BackendName
from verifiers.state import State
from verifiers.tools.functions import normalize_tool
from verifiers.types import Messages, Response, Tool

_MESSAGE_CHARACTERS = 2000
"""Maximum length of the agent's output in the error that reports its failure."""
_API_TIMEOUT_S = "3600"


class AgentError(InfraError):
    """The process of the agent failed."""


class CliAgentMonitorRubric(Rubric):
    """Metrics about the end of the agent, with weight 0."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.agent_timeout)
        self.add_metric(self.agent_error)

    async def agent_timeout(self, state: State) -> float:
        """Return 1 if the time limit of the rollout ended the agent."""
        return float(bool(state.get("timed_out")))

    async def agent_error(self, state: State) -> float:
        """Return 1 if the agent ended with an exit code other than 0."""
        return float(state.get("agent_exit_code") not in (None, 0))


class CliAgentEnv(SandboxMixin, MultiTurnEnv):
    """Runs `run_command` in a sandbox for each rollout and answers its model calls.

    The agent finds the API in `OPENAI_BASE_URL` and `OPENAI_API_KEY` (or `ANTHROPIC_…`) and the name of the model
    in `OPENAI_MODEL`. The sampling arguments of the run apply; those in the agent's requests are ignored. The
    sandbox needs no network: a port on its loopback interface (`interception_port`, by default 8765) is connected
    to this program only. If you set `interception_url`, a URL that leads to `interception_port` of this machine,
    the agent uses that URL instead.

    Authors override `build_env_vars`, `get_docker_image`, `get_sandbox_resources`, `post_sandbox_setup` (to upload
    the agent) and `post_rollout` (to store data for scoring). `backend`, `sandbox_spec`, `score_in` and `score_env`
    have the same meaning as in `SandboxEnv`.
    """

    PROTECTED_ENV_VARS: ClassVar[frozenset[str]] = frozenset(
        [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_BASE_URL",
            "HTTPX_TIMEOUT",
            "OPENAI_API_KEY",
            "OPENAI_BASE_URL",
            "OPENAI_MODEL",
            "OPENAI_REQUEST_TIMEOUT",
            "OPENAI_TIMEOUT",
        ]
    )
    """Variables that `environment_vars` cannot set."""

    def __init__(
        self,
        run_command: str,
        interception_port: int | None = None,
        interception_url: str | None = None,
        max_turns: int = -1,
        poll_interval: float = 5.0,
        docker_image: str = "python:3.11-slim",
        start_command: str = "tail -f /dev/null",
        cpu_cores: float = 1,
        memory_gb: float = 2,
        disk_size_gb: float = 5,
        gpu_count: int = 0,
        environment_vars: dict[str, str] | None = None,
        team_id: str | None = None,
        advanced_configs: AdvancedConfigs | None = None,
        labels: list[str] | None = None,
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
        timeouts: SandboxTimeouts = SandboxTimeouts(),  # noqa: B008 - frozen
        keep_sandbox_for_scoring: bool = False,
        *,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        score_in: ScoreIn | None = None,
        score_env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_turns=max_turns, **kwargs)
        self.init_sandbox_client(
            max_retries,
            base_delay,
            backoff_factor,
            max_backoff_seconds,
            jitter,
            sandbox_wait_for_creation_max_attempts=sandbox_wait_for_creation_max_attempts,
            timeouts=timeouts,
            backend=backend,
            sandbox_spec=sandbox_spec,
            score_in=score_in,
            score_env=score_env,
        )
        self.run_command = run_command
        self.poll_interval = poll_interval
        self.keep_sandbox_for_scoring = keep_sandbox_for_scoring
        self.docker_image = docker_image
        self.start_command = start_command
        self.cpu_cores = cpu_cores
        self.memory_gb = memory_gb
        self.disk_size_gb = disk_size_gb
        self.gpu_count = gpu_count
        self.environment_vars = environment_vars
        self.team_id = team_id
        self.advanced_configs = advanced_configs
        self.labels = labels
        self.init_interception(interception_port, interception_url)
        self.add_rubric(SandboxMonitorRubric(metrics=("sandbox_oom", "sandbox_timeout")))
        self.add_rubric(CliAgentMonitorRubric())

    def init_interception(
        self, interception_port: int | None = None, interception_url: str | None = None
    ) -> None:
        """Configure how agents reach the interception server. Nothing is started."""
        self.interception_port = interception_port
        self.interception_url = interception_url
        self._servers = LoopServers(interception_port or 0)

    def _require_interception_server(self) -> InterceptionServer:
        """Return the interception server of the running event loop, or the one that a caller has set."""
        return self._servers.here() if self._own_server is None else self._own_server

    _own_server: Any = None

    @property
    def _interception_server(self) -> InterceptionServer | LoopServers:
        """v0's name of the server of the running event loop. Without a loop: the servers of all loops. Both have
        `intercepts`. A caller may set an object that has only `intercepts`.
        """
        if self._own_server is not None:
            return self._own_server
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._servers
        return self._servers.here()

    @_interception_server.setter
    def _interception_server(self, server: Any) -> None:
        self._own_server = server

    # ------------------------------------------------------------------------------------ what authors override

    async def get_docker_image(self, state: State) -> str:
        """Return the image of this rollout's sandbox."""
        return self.docker_image

    def get_sandbox_resources(self, state: State) -> dict[str, Any]:
        """Return the size of this rollout's sandbox."""
        return {
            "cpu_cores": self.cpu_cores,
            "memory_gb": self.memory_gb,
            "disk_size_gb": self.disk_size_gb,
            "gpu_count": self.gpu_count,
            "gpu_type": None,
            "vm": False,
            "timeout_minutes": self.compute_sandbox_timeout_minutes(),
        }

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Return the environment variables of all commands in the sandbox. Call `super` and add to them."""
        base_url = state["interception_base_url"]
        env = {
            **(self.environment_vars or {}),
            "OPENAI_BASE_URL": base_url,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "OPENAI_API_KEY": self._servers.secret,
            "ANTHROPIC_API_KEY": self._servers.secret,
            "OPENAI_TIMEOUT": _API_TIMEOUT_S,
            "OPENAI_REQUEST_TIMEOUT": _API_TIMEOUT_S,
            "HTTPX_TIMEOUT": _API_TIMEOUT_S,
        }
        if model := state.get("model"):
            env["OPENAI_MODEL"] = model
        return env

    def normalize_intercepted_tools(self, intercept_tools: object) -> list[Tool] | None:
        """Return the tools of a request, given in OpenAI's chat format. Raises TypeError for anything but a list of
        tools.
        """
        if not isinstance(intercept_tools, list):
            raise TypeError(f"Intercepted tools must be a list, not {intercept_tools!r:.100}.")
        for tool in intercept_tools:
            if not isinstance(tool, Mapping):
                raise TypeError(
                    f"An intercepted tool must be a vf.Tool or a dict, not {tool!r:.100}."
                )
        return [normalize_tool(tool) for tool in intercept_tools]

    async def normalize_intercepted_messages(self, intercepted_messages: object) -> Messages:
        """Return the messages of a request, given in OpenAI's chat format."""
        return normalize_messages(intercepted_messages, field_name="intercepted messages")

    async def normalize_response(self, response: Response) -> Response:
        """Return the response as it is stored in the trajectory. The agent receives the original."""
        return response

    async def post_rollout(self, state: State) -> None:
        """Hook for authors: runs after the agent, while its sandbox still exists, to store data for scoring in the
        state.

        An exception makes the rollout fail.
        """

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return no messages: the next prompt comes from the agent."""
        return []

    # ------------------------------------------------------------------------------------------------- beginning

    async def get_tunnel_url(self) -> str:
        """Return the URL at which sandboxes reach the interception server, if they do not use the doorway.

        An override is called for each rollout, while the server listens on `interception_port`.
        """
        if self.interception_url is None:
            raise TunnelError(
                "There is no tunnel, and none is needed: agents reach this program through their sandbox. "
                "To use your own tunnel, pass its URL as interception_url."
            )
        return self.interception_url

    async def setup_state(self, state: State) -> State:
        """Connect the agent with the interception server, create its sandbox and start it."""
        server = self._require_interception_server()
        rollout_id = f"rollout_{uuid.uuid4().hex[:16]}"
        state["rollout_id"] = rollout_id
        state["agent_completed"] = False
        if self._uses_doorway:
            origin = f"http://127.0.0.1:{self._port_inside()}"
        else:
            await server.start()
            self.interception_port = server.port
            origin = (await call_hook(self.get_tunnel_url)).rstrip("/")
        state["interception_base_url"] = f"{origin}/rollout/{rollout_id}/v1"
        state["request_id_queue"] = server.register_rollout(rollout_id, state)
        scope_of(state).on_exit(server.unregister_rollout, rollout_id)
        request = CreateSandboxRequest(
            name=rollout_id,
            docker_image=await call_hook(self.get_docker_image, state),
            start_command=self.start_command,
            environment_vars=await call_hook(self.build_env_vars, state),
            team_id=self.team_id,
            advanced_configs=self.advanced_configs,
            labels=self.labels or [],
            **self.get_sandbox_resources(state),
        )
        await self.create_sandbox(state, request)
        await call_hook(self.start_agent, state)
        return await super().setup_state(state) or state

    @property
    def _uses_doorway(self) -> bool:
        is_asked = type(self).get_tunnel_url is not CliAgentEnv.get_tunnel_url
        is_ours = isinstance(self.sandbox_client, SandboxClient)
        return self.interception_url is None and not is_asked and is_ours

    def _port_inside(self) -> int:
        return self.interception_port or port_inside(self.sandbox_client.backends.name)

    async def _before_sandbox_setup(self, state: State) -> None:
        if not self._uses_doorway or "interception_base_url" not in state:
            return  # a sandbox that an author created without an agent
        connect = self._require_interception_server().open_connection
        port = int(state["interception_base_url"].split(":")[2].split("/")[0])
        doorway = Doorway(self.sandbox_client.sandbox(state["sandbox_id"]), connect, port)
        scope_of(state).on_exit(doorway.aclose)
        await doorway.open()

    async def start_agent(self, state: State) -> None:
        """Start `run_command`. Its end ends the rollout."""
        sandbox_id = state["sandbox_id"]
        job = await self._launch_agent(state)
        state["agent_start_time"] = time.time()
        state["background_job"] = job
        waiting = asyncio.get_running_loop().create_task(
            self.wait_for_completion(state), name=f"wait for the agent in {sandbox_id}"
        )
        state["completion_wait_task"] = waiting
        scope_of(state).on_exit(_end_task, waiting)

    async def _launch_agent(self, state: State) -> Any:
        return await self.sandbox_client.start_background_job(state["sandbox_id"], self.run_command)

    # ------------------------------------------------------------------------------------------------- its end

    async def wait_for_completion(self, state: State) -> None:
        """Wait until the agent has ended. Its failure becomes the `error` of the state."""
        try:
            await self.poll_job_completion(state, state["sandbox_id"], state["background_job"])
        except Exception as error:  # noqa: BLE001 - the rollout hears of it from its state
            note_death(state, error)
            if state.get("error") is None:
                state["error"] = error
        finally:
            state["agent_completed"] = True

    async def poll_job_completion(self, state: State, sandbox_id: str, background_job: Any) -> None:
        """Wait until the command of the agent has ended. Store its exit code and output in the state."""
        client = self.sandbox_client
        if isinstance(client, SandboxClient):
            status: Any = await client.wait_for_background_job(sandbox_id, background_job)
        else:
            limit_s = self.timeouts.poll
            status = await client.get_background_job(sandbox_id, background_job, timeout=limit_s)
            while not status.completed:
                await asyncio.sleep(self.poll_interval)
                status = await client.get_background_job(
                    sandbox_id, background_job, timeout=limit_s
                )
        keep_job(state, status)
        if getattr(status, "oom", False):
            state["sandbox_oom"] = True
        if status.exit_code:
            turns = len(state.get("trajectory") or [])
            when = f"after {turns} turn(s)" if turns else "before any LLM call"
            last_words = (status.stderr or status.stdout or "").strip()[-_MESSAGE_CHARACTERS:]
            raise make_agent_error(
                state, f"Agent crashed {when} (exit_code={status.exit_code}): {last_words}"
            )

    async def check_agent_completed(self, state: State) -> bool:
        """Return whether the agent has ended."""
        return bool(state.get("agent_completed"))

    @stop
    async def agent_completed(self, state: State) -> bool:
        """Stop when the agent has ended."""
        return await self.check_agent_completed(state)

    # --------------------------------------------------------------------------------------------------- turns

    async def _poll_next_request(self, state: State) -> str | None:
        """Return the id of the agent's next request, or None when the agent has ended."""
        queue: asyncio.Queue[str] = state["request_id_queue"]
        waiting: asyncio.Task[None] = state["completion_wait_task"]
        request = asyncio.ensure_future(queue.get())
        try:
            await asyncio.wait([request, waiting], return_when="FIRST_COMPLETED")
            return request.result() if request.done() else None
        finally:
            request.cancel()

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the messages of the agent's next request, or an empty list when the agent has ended."""
        while (request_id := await self._poll_next_request(state)) is not None:
            intercept = self._require_interception_server().intercepts.get(request_id)
            if intercept is None or is_gone(intercept):
                continue
            if self._takes_aside(state, request_id, intercept):
                continue
            state["current_request_id"] = request_id
            try:
                return await call_hook(self.normalize_intercepted_messages, intercept["messages"])
            except Exception as error:
                await self._answer(intercept, None, error)
                raise
        return []

    def _takes_aside(self, state: State, request_id: str, intercept: Intercept) -> bool:
        """Hook of subclasses in this library: return whether a request is answered beside the rollout."""
        return False

    async def get_model_response(self, *args: Any, **kwargs: Any) -> Any:
        """Get the response of the model and send it to the agent.

        The headers of the agent's request, with lower-case names, are stored as `_last_request_headers` in the state.
        """
        state = args[0] if args else kwargs.get("state")
        if not isinstance(state, MutableMapping):
            return await super().get_model_response(*args, **kwargs)
        request_id = state.get("current_request_id")
        if request_id is None:
            prompt = args[1] if len(args) > 1 else kwargs.get("prompt")
            if not prompt:
                return empty_response(state.get("model") or "")
            return await super().get_model_response(*args, **kwargs)
        intercept = self._interception_server.intercepts.get(request_id)
        state["_last_request_headers"] = dict((intercept or {}).get("headers") or {})
        state["current_request_id"] = None
        try:
            if intercept is not None and len(args) < 5 and "tool_defs" not in kwargs:
                tools = self.normalize_intercepted_tools(intercept.get("tools") or []) or []
                state["tool_defs"] = tools or state.get("tool_defs")
                kwargs["tool_defs"] = tools
            response = await super().get_model_response(*args, **kwargs)
        except Exception as error:
            await self._answer(intercept, None, error)
            raise
        await self._answer(intercept, response, None)
        return await call_hook(self.normalize_response, response)

    async def _answer(
        self, intercept: Intercept | None, response: Response | None, error: Exception | None
    ) -> None:
        if intercept is None:
            return  # the agent closed the connection
        if intercept["stream"]:
            await synthesize_stream(intercept, response, error)
        else:
            deliver_response(intercept, response, error)

    async def add_model_response(
        self, state: State, prompt_messages: Messages, response: Response
    ) -> None:
        """Store the turn. The first prompt of the agent becomes the prompt of the rollout, because the model saw it."""
        if not prompt_messages:
            return
        if not state["trajectory"]:
            state["prompt"] = prompt_messages
        await super().add_model_response(state, prompt_messages, response)

    # --------------------------------------------------------------------------------------------------- end

    async def _before_scoring(self, state: State) -> None:
        await self.cleanup_interception_context(state)

    @cleanup(priority=2)
    async def cleanup_interception_context(self, state: State) -> None:
        """Stop the agent and its access to the model, so that it cannot change the sandbox while the rollout is
        scored.
        """
        waiting = state.pop("completion_wait_task", None)
        if waiting is not None:
            await _end_task(waiting)
        job = state.pop("background_job", None)
        sandbox_id = state.get("sandbox_id")
        client = self.sandbox_client
        if job is not None and isinstance(client, SandboxClient) and client.has(sandbox_id):
            status = await client.end_background_job(sandbox_id, job)
            if "agent_exit_code" not in state:
                keep_job(state, status)
        state.pop("request_id_queue", None)
        state.pop("current_request_id", None)
        if "rollout_id" in state:
            self._require_interception_server().unregister_rollout(state["rollout_id"])

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """Run `post_rollout`, then delete the sandbox, unless a reward function uses it."""
        if state.get("sandbox_id") is not None:
            await self._finish(state, self.post_rollout)

    @teardown
    async def teardown_resources(self) -> None:
        """Close the interception server."""
        if hasattr(self, "_servers"):  # the constructor may have failed
            await self._servers.aclose()


def is_gone(intercept: Intercept) -> bool:
    """Return whether the agent has closed the connection of a request."""
    future = intercept.get("response_future")
    return isinstance(future, asyncio.Future) and future.done()


async def _end_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def keep_job(state: State, status: Any) -> None:
    """Store the exit code and the output of an agent in the state."""
    state["agent_exit_code"] = status.exit_code
    state["agent_stdout"] = status.stdout
    state["agent_stderr"] = status.stderr


def make_agent_error(state: State, message: str) -> AgentError:
    """Return an AgentError whose message names the sandbox and the task."""
    facts = {name: state.get(name) for name in ("sandbox_id", "rollout_id", "example_id")}
    info = state["input"].get("info")
    if isinstance(info, Mapping) and info.get("instance_id") is not None:
        facts["instance_id"] = info["instance_id"]
    return AgentError(f"{message} ({', '.join(f'{key}={value}' for key, value in facts.items())})")


__all__ = ["AgentError", "CliAgentEnv", "CliAgentMonitorRubric", "make_agent_error"]
