"""`RLMEnv`: the model sees only a question; it reads the data, which are files, with code in a REPL.

    question ── model ── call_python_repl(code) ─► worker in a sandbox ── files, variables
                  ▲                                   │ llm_batch([...]) ─► fresh models, on this side
                  └──── output, until answer["ready"] ┘ root tools       ─► functions, on this side

The answer is not the last message but a variable that the code sets; it is stored in `state["final_answer"]`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifiers.decorators import cleanup, teardown
from verifiers.envs.hooks import call_hook
from verifiers.envs.rlm.conversation import ConversationEnv
from verifiers.envs.rlm.executor import RLMExecutor
from verifiers.envs.rlm.files import fill_folder
from verifiers.envs.rlm.metrics import RLMMonitorRubric, count_execution, prepare_counts
from verifiers.envs.rlm.old_names import with_old_names
from verifiers.envs.rlm.prompts import ReplLanguage, RLMPromptBuilder, Verbosity, check_choice
from verifiers.envs.rlm.session import RLMCodeExecutionTimeout, RLMWorkerRecoveryError
from verifiers.envs.rlm.sub_calls import without_repetitions
from verifiers.envs.sandbox_mixin import is_retryable_sandbox_read_error
from verifiers.envs.sandbox_request import CreateSandboxRequest
from verifiers.errors import error_chain
from verifiers.interception.doorway import port_inside
from verifiers.interception.server import InterceptionServer, LoopServers
from verifiers.rollouts.retries import retry_wait_s
from verifiers.sandboxes import SandboxBackend, SandboxDead, SandboxSpec, SandboxUnresponsive
from verifiers.sandboxes.open import BackendName
from verifiers.state import State
from verifiers.types import Messages

CUT = "\n... [output cut after {limit} characters]"


class RLMEnv(ConversationEnv):
    """Gives each rollout a REPL in a sandbox, with its data as files, and ends it when the code has set the answer.

    `info["context_dir"]` (a folder of this machine) or `info["context"]` (text or JSON) of a row is its data. `tools`
    are called by the model, `root_tools` by its code, and `sub_tools` by the models that the code asks by `llm_batch`.
    All tools run in this process; the code runs in the sandbox.

    `backend` and `sandbox_spec` have the same meaning as in `SandboxEnv`. Authors override `setup_state`,
    `get_sandbox_request`, `on_sandbox_ready` and `customize_worker_script`.
    """

    abort_on_code_timeout: bool
    code_execution_timeout: float
    context_dir_key: str
    context_key: str
    max_output_length: int
    max_startup_wait_seconds: float
    pip_install_packages: str
    repl_language: ReplLanguage
    retain_filesystem_after_rollout: bool
    root_prompt_verbosity: Verbosity
    sandbox_cpu_cores: float
    sandbox_disk_size_gb: float
    sandbox_docker_image: str
    sandbox_environment_vars: dict[str, str] | None
    sandbox_gpu_count: int
    sandbox_labels: list[str] | None
    sandbox_memory_gb: float
    sandbox_timeout_minutes: float
    sandbox_transfer_max_retries: int
    sub_prompt_verbosity: Verbosity

    @with_old_names
    def __init__(
        self,
        max_turns: int = 50,
        tools: Sequence[Callable[..., Any]] | None = None,
        root_tools: Sequence[Callable[..., Any]] | None = None,
        sub_tools: Sequence[Callable[..., Any]] | None = None,
        sub_llm_max_turns: int = 5,
        sub_max_completion_tokens: int | None = None,
        root_max_completion_tokens: int | None = None,
        sub_model: str | None = None,
        sub_prompt_verbosity: Verbosity = "light",
        root_prompt_verbosity: Verbosity = "light",
        enable_sub_llms: bool = True,
        enable_summarization: bool = False,
        min_turns_in_context: int = 3,
        max_turns_in_context: int | None = None,
        max_output_length: int = 8192,
        max_sub_llm_parallelism: int = 5,
        system_prompt: str | None = None,
        repl_language: ReplLanguage = "bash",
        pip_install_packages: str = "",
        include_sub_llm_in_trajectory: bool = False,
        context_warning_threshold: float = 0.80,
        max_startup_wait_seconds: int = 120,
        code_execution_timeout: int = 120,
        abort_on_code_timeout: bool = False,
        retain_filesystem_after_rollout: bool = False,
        sandbox_docker_image: str = "python:3.11-slim",
        sandbox_cpu_cores: float = 1,
        sandbox_memory_gb: float = 2,
        sandbox_disk_size_gb: float = 5,
        sandbox_gpu_count: int = 0,
        sandbox_timeout_minutes: float = 60,
        sandbox_environment_vars: dict[str, str] | None = None,
        sandbox_labels: list[str] | None = None,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 100,
        sandbox_client_max_keepalive_connections: int = 50,
        sandbox_transfer_max_retries: int = 3,
        *,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        context_key: str = "context",
        context_dir_key: str = "context_dir",
        **kwargs: Any,
    ) -> None:
        options = {name: value for name, value in locals().items() if name in _ATTRIBUTES}
        check_choice("repl_language", repl_language, ("bash", "python"))
        vars(self).update(options)
        self.custom_system_prompt = system_prompt
        self.sub_llm_timeout = max(1, code_execution_timeout - 5)
        self.standard_tools = without_repetitions(tools or (), "tools")
        self._take_tools(root_tools, sub_tools)
        self.prompt_builder = RLMPromptBuilder(
            custom_system_prompt=system_prompt,
            root_tool_defs=self.root_tool_defs,
            sub_tool_defs=self.sub_tool_defs,
            **{name: options[name] for name in _PROMPT_OPTIONS},
        )
        super().__init__(tools=self.standard_tools, max_turns=max_turns, **kwargs)
        repl = self.call_bash_repl if repl_language == "bash" else self.call_python_repl
        added = [repl, *([self.summarize_turns] if enable_summarization else [])]
        for tool in added:
            self.add_tool(tool, args_to_skip=["state"])
        self.standard_tools = [*self.standard_tools, *added]
        self._warn_of_options_without_effect()
        self._servers = LoopServers()
        self._executor = RLMExecutor(self, backend, sandbox_spec)
        self.add_rubric(RLMMonitorRubric(root_tool_names=self.root_tool_names))

    def _warn_of_options_without_effect(self) -> None:
        if (limit := self.max_turns_in_context) is not None and 0 < self.max_turns < limit:
            self.logger.warning(
                "max_turns_in_context=%d has no effect: max_turns=%d ends a rollout earlier.",
                limit,
                self.max_turns,
            )
        if self.enable_sub_llms:
            return
        for name in ("sub_model", "sub_tools", "sub_max_completion_tokens"):
            if getattr(self, name):
                self.logger.warning("%s has no effect with enable_sub_llms=False.", name)

    @property
    def sandbox_client(self) -> Any:
        """The client of the sandboxes."""
        return self._executor.sandbox_client

    @sandbox_client.setter
    def sandbox_client(self, client: Any) -> None:
        self._executor.sandbox_client = client

    # ------------------------------------------------------------------------------------ what authors override

    def get_sandbox_request(self, state: Mapping[str, Any]) -> CreateSandboxRequest:
        """Return the request for this rollout's sandbox."""
        return CreateSandboxRequest(
            name=str(state.get("rollout_id") or "rlm"),
            docker_image=self.sandbox_docker_image,
            cpu_cores=self.sandbox_cpu_cores,
            memory_gb=self.sandbox_memory_gb,
            disk_size_gb=self.sandbox_disk_size_gb,
            gpu_count=self.sandbox_gpu_count,
            timeout_minutes=self.sandbox_timeout_minutes,
            environment_vars=dict(self.sandbox_environment_vars or {}),
            labels=list(self.sandbox_labels or []),
        )

    async def on_sandbox_ready(self, state: State, sandbox_id: str) -> None:
        """Hook for authors: runs after the creation of the sandbox, before the data and the worker are in it."""

    def customize_worker_script(self, script: str, state: State) -> str:
        """Return the Python program that executes the code. A line `extra_data = fs_root` sets what Python code finds
        in the variable `extra_data`.
        """
        return script

    def _build_worker_env_vars(self, state: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment variables of the code."""
        return {
            "RLM_INTERCEPTION_URL": state.get("interception_url") or "",
            "RLM_ROOT_TOOL_URL": state.get("root_tool_url") or "",
            "RLM_ROOT_TOOL_NAMES": json.dumps(self.root_tool_names),
            "RLM_SUB_LLM_TIMEOUT": str(self.sub_llm_timeout),
        }

    async def post_rollout(self, state: State) -> None:
        """Read the answer that the code has stored. Nothing calls this: it is for authors' own handlers."""
        await self._ensure_final_answer(state)

    # ------------------------------------------------------------------------------------------------- beginning

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Copy the data, connect the code with this program, and start sandbox and worker."""
        state = await super().setup_state(state, **kwargs) or state
        rollout_id = state["rollout_id"] = f"rlm_{uuid.uuid4().hex[:8]}"
        base = f"/tmp/rlm_{rollout_id}"
        state.setdefault("rlm_fs_root_remote", f"{base}/rlm_fs")
        state.setdefault("rlm_control_dir_remote", f"{base}/rlm_control")
        prepare_counts(state)
        state.update(
            retain_filesystem_after_rollout=self.retain_filesystem_after_rollout,
            context_warning_sent=False,
            rlm_worker_ready=False,
            rlm_root_tools=list(self.root_tool_names),
            rlm_sub_tools=list(self.sub_tool_names),
            rlm_system_prompt=self.prompt_builder.build_system_prompt(),
            sandbox_state={"ready": False, "command_execution_times": []},
            _exec_seq=0,
            _keep_from_assistant_index=0,
            _summary_text="",
        )
        state = await self._setup_interception_and_register(state, rollout_id) or state
        self._executor.create_rollout_dirs(state)
        await asyncio.to_thread(
            fill_folder,
            state,
            state["rlm_fs_root"],
            dir_key=self.context_dir_key,
            data_key=self.context_key,
        )
        await call_hook(self._executor.prepare_filesystem, state)
        await call_hook(self._executor.setup, state)
        state["rlm_worker_ready"] = True
        state["sandbox_state"]["ready"] = True
        return state

    def _require_interception_server(self) -> InterceptionServer:
        """Return the interception server of the running event loop."""
        return self._servers.here()

    async def _setup_interception_and_register(self, state: State, rollout_id: str) -> State:
        """Accept the calls of this rollout's code, and set the URLs at which it finds us."""
        backends = getattr(self.sandbox_client, "backends", None)
        port = state["rlm_port"] = port_inside(backends.name if backends is not None else "")
        base = f"http://127.0.0.1:{port}/rollout/{rollout_id}/v1"
        state["interception_url"] = f"{base}/chat/completions"
        state["root_tool_url"] = f"{base}/rlm/tools"
        # The server demands this key, so it takes precedence over variables of authors.
        state["_rlm_api_variables"] = {
            "OPENAI_BASE_URL": base,
            "OPENAI_API_KEY": self._servers.secret,
        }
        self.active_rollouts[rollout_id] = self._new_context(state)
        answers = {
            "/rlm/tools": self.answer_tool_request,
            "/chat/completions": self.answer_chat_request,
        }
        routes = {
            path: functools.partial(self._in_rollout, rollout_id, work)
            for path, work in answers.items()
        }
        self._require_interception_server().register_rollout(rollout_id, state, routes)
        return state

    def with_retry_on_read_errors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with retries after time limits and lost connections of file transfers."""

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(1, self.sandbox_transfer_max_retries + 1):
                try:
                    return await function(*args, **kwargs)
                except Exception as error:
                    if not is_retryable_sandbox_read_error(error):
                        raise
                    self.logger.debug("transfer attempt %d failed: %r", attempt, error)
                await asyncio.sleep(retry_wait_s(attempt))
            return await function(*args, **kwargs)

        return call

    # -------------------------------------------------------------------------------------------------- the REPL

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Add the state to the arguments of the tools that hide it."""
        if "state" in self.skipped_args.get(tool_name, ()):
            return {**tool_args, "state": state}
        return tool_args

    async def call_bash_repl(self, code: str, state: Any) -> str:
        """Run Bash code in a shell that keeps its directory and the variables of the answer between calls."""
        return await self._repl(code, state, "export ANSWER_READY=1")

    async def call_python_repl(self, code: str, state: Any) -> str:
        """Run Python code in a session that keeps its variables between calls."""
        return await self._repl(code, state, 'set answer["ready"] = True')

    async def _repl(self, code: str, state: Any, ready_instruction: str) -> str:
        """Call `_call_repl`. Overrides of 0.1.10 have the argument `append_execution_time`, without a default."""
        own = inspect.signature(self._call_repl).parameters.get("append_execution_time")
        older = {}
        if own is not None and own.default is own.empty:
            older["append_execution_time"] = self.repl_language == "python"
        return await self._call_repl(code, state, ready_instruction=ready_instruction, **older)

    async def _call_repl(
        self,
        code: str,
        state: Any,
        *,
        ready_instruction: str,
        append_execution_time: bool = False,
    ) -> str:
        """Execute code and return the output for the model. Set `final_answer` when the answer is ready."""
        await self._upload_message_history(state)
        started_s = time.perf_counter()
        result = await self._execute_code(code, state)
        duration_s = time.perf_counter() - started_s
        count_execution(state, duration_s)
        times = (state.get("sandbox_state") or {}).get("command_execution_times")
        if times is not None:
            times.append(duration_s)
        output = self._format_execution_output(result)
        if len(output) > self.max_output_length:
            output = output[: self.max_output_length] + CUT.format(limit=self.max_output_length)
        if append_execution_time:
            output += f"\nExecution time: {duration_s:.1f} seconds"
        answer = result.get("answer")
        if isinstance(answer, Mapping) and answer.get("ready"):
            state["final_answer"] = answer.get("content", "")
        return self._maybe_add_context_warning(output, state, ready_instruction=ready_instruction)

    async def _upload_message_history(self, state: Any) -> None:
        """Write the conversation to `.messages` in the working directory. A failure is logged only."""
        try:
            lines = [json.dumps(message) + "\n" for message in self._build_message_history(state)]
            await self._executor.write_history(state, "".join(lines))
        except Exception as error:  # noqa: BLE001 - the code can do without this file
            self.logger.warning("%s: .messages was not written: %r", state.get("rollout_id"), error)

    async def _execute_code(self, code: str, state: Any) -> dict[str, Any]:
        """Return the reply of the worker: `status`, `stdout`, `stderr`, `result`, `execution_count` and `answer`.

        Code that runs too long, and replies that cannot be read, are replies with status "error". Raises errors of a
        class in `stop_errors` that a tool or a sub-LLM has raised meanwhile.
        """
        seq = state["_exec_seq"] = state.get("_exec_seq", 0) + 1
        try:
            raw = await self._executor.execute({"code": code, "seq": seq}, state)
        except RLMCodeExecutionTimeout as error:
            return await self._after_timeout(error, state)
        context = self.active_rollouts.get(state.get("rollout_id"), {})
        if (stop_error := context.get("stop_error")) is not None:
            context["stop_error"] = None
            raise stop_error
        text, errors = raw.stdout or "", raw.stderr or ""
        if not text.strip():
            return _error_reply("The worker returned no output.", stderr=errors)
        try:
            reply = json.loads(text)
        except ValueError as error:
            problem = f"The reply of the worker could not be read: {error}"
            return _error_reply(problem, stdout=text, stderr=errors)
        if not isinstance(reply, dict):
            problem = "The reply of the worker could not be read: it is not an object."
            return _error_reply(problem, stdout=text, stderr=errors)
        if reply.get("seq", seq) != seq:
            self.logger.warning("Got reply %s instead of %d.", reply.get("seq"), seq)
            return _error_reply(
                f"A stale reply arrived (number {reply.get('seq')} instead of {seq}), perhaps after a timeout. "
                "Please retry your command."
            )
        if reply.get("history_error"):
            self.logger.warning(".messages was not written: %s", reply["history_error"])
        return reply

    async def _after_timeout(self, error: RLMCodeExecutionTimeout, state: Any) -> dict[str, Any]:
        limit_s = self.code_execution_timeout
        self.logger.warning("%s: the code ran longer than %g s.", state.get("rollout_id"), limit_s)
        if self.abort_on_code_timeout:
            raise error
        if not await call_hook(self._recover_from_code_timeout, state):
            raise RLMWorkerRecoveryError(
                f"The code ran longer than {limit_s:g} seconds, and the REPL could not be restarted."
            ) from error
        return _error_reply(
            f"The code ran longer than {limit_s:g} seconds and was stopped. The REPL was restarted: its state is lost. "
            "Use a faster algorithm, or smaller steps."
        )

    async def _recover_from_code_timeout(self, state: State) -> bool:
        """Stop the code and start a new worker. Return whether this worked."""
        return await call_hook(self._executor.recover_from_timeout, state)

    def _format_execution_output(self, result: Mapping[str, Any]) -> str:
        """Return the text that the model sees for a reply of the worker."""
        stdout, stderr = result.get("stdout") or "", result.get("stderr") or ""
        value = result.get("result")
        if self.repl_language == "bash":
            return stdout + stderr or str(value or "") or "(no output)"
        parts = [stdout.rstrip(), f"stderr:\n{stderr.rstrip()}" if stderr.strip() else ""]
        if result.get("status") == "error":
            parts.append(str(value or "").rstrip())
        elif value is not None:
            parts.append(f"Out[{result.get('execution_count', 0)}]: {value}")
        return "\n".join(filter(None, parts)) or "(no output)"

    async def _ensure_final_answer(self, state: State) -> None:
        if "final_answer" not in state:
            state["final_answer"] = await call_hook(self._executor.read_answer, state)

    def _should_stop_for_error(self, err: Exception) -> bool:
        """Return whether the error ends the rollout: `stop_errors`, and a sandbox that no call can use again."""
        lost = (SandboxDead, SandboxUnresponsive)
        return super()._should_stop_for_error(err) or any(
            isinstance(link, lost) for link in error_chain(err)
        )

    # ------------------------------------------------------------------------------------------------------ end

    @cleanup
    async def cleanup_rlm_state(self, state: State) -> None:
        """End the calls of the code, its worker and its sandbox."""
        rollout_id = state.get("rollout_id")
        context = self.active_rollouts.pop(rollout_id, None)
        if context is None:
            return
        for task in list(context["tasks"]):
            task.cancel()
        self._require_interception_server().unregister_rollout(rollout_id)
        state.pop("_rlm_api_variables", None)
        await call_hook(self._executor.cleanup, state)

    @teardown
    async def teardown_executor(self) -> None:
        """Delete every sandbox that is left."""
        if hasattr(self, "_executor"):  # the constructor may have failed
            await call_hook(self._executor.teardown)

    @teardown
    async def teardown_interception_server(self) -> None:
        """Close the server of the code's calls."""
        if hasattr(self, "_servers"):
            await self._servers.aclose()


def _error_reply(problem: str, *, stdout: str = "", stderr: str = "") -> dict[str, Any]:
    return {"status": "error", "stdout": stdout, "stderr": stderr, "result": problem}


_PROMPT_OPTIONS = (
    "repl_language",
    "root_prompt_verbosity",
    "sub_prompt_verbosity",
    "pip_install_packages",
    "root_max_completion_tokens",
    "sub_max_completion_tokens",
    "sub_llm_max_turns",
    "enable_sub_llms",
    "enable_summarization",
    "min_turns_in_context",
    "max_turns_in_context",
)
_ATTRIBUTES = frozenset(inspect.signature(RLMEnv).parameters) - {
    "max_turns",
    "tools",
    "root_tools",
    "sub_tools",
    "system_prompt",
    "backend",
    "sandbox_spec",
    "kwargs",
}
"""Arguments that become attributes as they are."""

__all__ = ["RLMEnv"]
