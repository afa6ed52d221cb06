"""`OpenCodeEnv`: OpenCode, a coding agent, works on each row in a sandbox.

    env = OpenCodeEnv(dataset=[{"question": "Fix the bug in /app.", "answer": ""}], rubric=rubric)

The command of the agent is made from a template when the environment is constructed. It installs OpenCode unless the
image has it, writes its configuration, and pipes the question into `opencode run`. Authors override `build_prompt`,
`build_opencode_config`, `build_run_command`, and the hooks of `CliAgentEnv`.

Source: https://opencode.ai/docs/cli
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from verifiers.envs.agents.harnesses.open_code import with_task_prompt
from verifiers.envs.agents.open_code_config import (
    DEFAULT_SYSTEM_PROMPT,
    ENTER_OPENCODE,
    PROVIDER_TIMEOUT_MS,
    build_opencode_config,
)
from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.sandbox_client import SandboxClient
from verifiers.envs.sandbox_request import is_python_image
from verifiers.messages import content_text
from verifiers.rubrics.tool_rubric import ToolMonitorRubric, called_tools
from verifiers.state import State
from verifiers.types import Response, ToolCall

OPENCODE_TOOLS = (
    "bash",
    "edit",
    "write",
    "read",
    "grep",
    "glob",
    "skill",
    "todowrite",
    "webfetch",
    "websearch",
    "codesearch",
    "task",
    "question",
)
"""Names of OpenCode's tools."""

DEFAULT_INSTALL_COMMAND = "curl -fsSL https://opencode.ai/install | bash -s -- --version v1.2.15"


def as_template(text: str) -> str:
    """Return shell text as a part of a template: `str.format` leaves it as it is."""
    return text.replace("{", "{{").replace("}", "}}")


STRICT_SHELL = """\
set -e
if (set -o pipefail) 2> /dev/null; then set -o pipefail; fi
export PATH="$HOME/.opencode/bin:$PATH"
"""
"""First lines of a template. A shell without `pipefail` loses the exit code of OpenCode behind `tee`."""

INSTALL_OPENCODE = """\
if ! command -v opencode > /dev/null; then
  for attempt in 1 2 3; do
    if ({install_command}); then break; fi
    sleep 2
  done
fi
if ! command -v opencode > /dev/null; then
  echo "OpenCode could not be installed. Use an image that has it, or allow the sandbox network access." >&2
  exit 127
fi
"""

RUN_OPENCODE = (
    as_template(ENTER_OPENCODE)
    + """\
export XDG_CONFIG_HOME=~/.config
mkdir -p ~/.config/opencode
cat > ~/.config/opencode/opencode.json << EOFCONFIG
{config_json}
EOFCONFIG
cd {agent_workdir}
cat {prompt_path} | opencode run 2>&1 | tee {logs_path}
"""
)

DEFAULT_RUN_COMMAND_TEMPLATE = (
    STRICT_SHELL
    + """\
if ! command -v curl > /dev/null && ! command -v opencode > /dev/null; then
  apt-get update -qq && apt-get install -y -qq ca-certificates curl > /dev/null
fi
"""
    + INSTALL_OPENCODE
    + RUN_OPENCODE
)
"""Shell text with the placeholders `{config_json}`, `{agent_workdir}`, `{prompt_path}`, `{logs_path}` and
`{install_command}`; all other braces are doubled.
"""


class OpenCodeMonitorRubric(ToolMonitorRubric):
    """Metrics of the tool calls, with weight 0: their number, for all tools and for each tool of OpenCode."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.unique_tools_used)
        self.add_metric(self.has_tool_calls)
        for name in OPENCODE_TOOLS:
            self.add_tool_metric(name)

    async def unique_tools_used(self, completion: Any) -> float:
        """Return the number of different tools that were called."""
        return float(len(set(called_tools(completion))))

    async def has_tool_calls(self, completion: Any) -> float:
        """Return 1 if a tool was called."""
        return float(bool(called_tools(completion)))


class OpenCodeEnv(CliAgentEnv):
    """Runs OpenCode in a sandbox for each row and answers its model calls.

    `asset_dir` is the folder of the prompt, the system prompt and the log in the sandbox; `agent_workdir` is the folder
    in which OpenCode works. `system_prompt` is the system message of the rows and of the agent; with
    `include_task_system_prompt`, `task_system_prompt` follows it. `disable_compaction` keeps the whole conversation in
    the prompt, `enable_interleaved` sends `reasoning_content` of earlier turns back, and `provider_timeout_ms` limits
    one model call. Further arguments are those of `CliAgentEnv`.
    """

    DEFAULT_ASSET_DIR = "/opencode"
    DEFAULT_AGENT_WORKDIR = "/app"
    DEFAULT_DISABLED_TOOLS = ["question", "task"]
    DEFAULT_SYSTEM_PROMPT = DEFAULT_SYSTEM_PROMPT
    DEFAULT_INSTALL_COMMAND = DEFAULT_INSTALL_COMMAND
    DEFAULT_RUN_COMMAND_TEMPLATE = DEFAULT_RUN_COMMAND_TEMPLATE
    DEFAULT_DISABLE_COMPACTION = True
    DEFAULT_ENABLE_INTERLEAVED = True
    DEFAULT_PROVIDER_TIMEOUT_MS = PROVIDER_TIMEOUT_MS
    DEFAULT_TASK_SYSTEM_PROMPT = ""
    DEFAULT_INCLUDE_TASK_SYSTEM_PROMPT = False

    def __init__(
        self,
        dataset: Any,
        asset_dir: str = DEFAULT_ASSET_DIR,
        agent_workdir: str = DEFAULT_AGENT_WORKDIR,
        disabled_tools: Sequence[str] | None = DEFAULT_DISABLED_TOOLS,
        system_prompt: str | None = DEFAULT_SYSTEM_PROMPT,
        install_command: str = DEFAULT_INSTALL_COMMAND,
        run_command_template: str = DEFAULT_RUN_COMMAND_TEMPLATE,
        disable_compaction: bool = DEFAULT_DISABLE_COMPACTION,
        enable_interleaved: bool = DEFAULT_ENABLE_INTERLEAVED,
        provider_timeout_ms: int = DEFAULT_PROVIDER_TIMEOUT_MS,
        task_system_prompt: str = DEFAULT_TASK_SYSTEM_PROMPT,
        include_task_system_prompt: bool = DEFAULT_INCLUDE_TASK_SYSTEM_PROMPT,
        **kwargs: Any,
    ) -> None:
        self.asset_dir = asset_dir
        self.agent_workdir = agent_workdir
        self.disabled_tools = None if disabled_tools is None else list(disabled_tools)
        self.provider_timeout_ms = provider_timeout_ms
        if include_task_system_prompt:
            system_prompt = with_task_prompt(system_prompt, task_system_prompt)
        run_command = self.build_run_command(
            run_command_template,
            agent_workdir,
            disabled_tools=self.disabled_tools,
            system_prompt=system_prompt,
            install_command=install_command,
            disable_compaction=disable_compaction,
            enable_interleaved=enable_interleaved,
        )
        super().__init__(
            run_command=run_command, dataset=dataset, system_prompt=system_prompt, **kwargs
        )
        self.add_rubric(OpenCodeMonitorRubric())

    @property
    def remote_prompt_path(self) -> str:
        """Path of the question in the sandbox."""
        return f"{self.asset_dir}/prompt.txt"

    @property
    def remote_system_prompt_path(self) -> str:
        """Path of the system prompt in the sandbox."""
        return f"{self.asset_dir}/system.txt"

    @property
    def remote_logs_path(self) -> str:
        """Path of OpenCode's output in the sandbox."""
        return f"{self.asset_dir}/logs.txt"

    # ----------------------------------------------------------------------------------------- what authors override

    def build_prompt(self, state: State) -> str:
        """Return the text that OpenCode receives: the last message of the row's prompt."""
        return content_text(state["prompt"][-1]["content"])

    def build_opencode_config(
        self,
        disabled_tools: list[str] | None = None,
        system_prompt_path: str | None = None,
        disable_compaction: bool = True,
        enable_interleaved: bool = True,
    ) -> str:
        """Return OpenCode's configuration: JSON in which the shell of the sandbox expands variables.

        Called once, during construction.
        """
        return build_opencode_config(
            disabled_tools,
            system_prompt_path,
            disable_compaction,
            provider_timeout_ms=self.provider_timeout_ms,
            enable_interleaved=enable_interleaved,
        )

    def build_run_command(
        self,
        run_command_template: str,
        agent_workdir: str,
        disabled_tools: list[str] | None = None,
        system_prompt: str | None = None,
        install_command: str = DEFAULT_INSTALL_COMMAND,
        disable_compaction: bool = True,
        enable_interleaved: bool = True,
    ) -> str:
        """Return the command of the agent. Called once, during construction."""
        config = self.build_opencode_config(
            disabled_tools,
            self.remote_system_prompt_path if system_prompt else None,
            disable_compaction,
            enable_interleaved,
        )
        return run_command_template.format(
            config_json=config,
            agent_workdir=shlex.quote(agent_workdir),
            prompt_path=shlex.quote(self.remote_prompt_path),
            logs_path=shlex.quote(self.remote_logs_path),
            install_command=install_command,
            **self._further_placeholders(),
        )

    def _further_placeholders(self) -> dict[str, str]:
        """Hook of subclasses in this library."""
        return {}

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Return the variables of the agent; with the tool `websearch`, also the one that enables it."""
        env = await super().build_env_vars(state)
        if "websearch" not in (self.disabled_tools or ()):
            env["OPENCODE_ENABLE_EXA"] = "1"
        return env

    async def create_sandbox(self, state: Any, request: Any) -> str:
        """See `SandboxMixin.create_sandbox`. The sandbox has the folders of the agent."""
        if isinstance(self.sandbox_client, SandboxClient):
            folders = [*request.folders, self.asset_dir]
            if is_python_image(request.docker_image):  # others contain the folder, with their files
                folders.append(self.agent_workdir)
            request = request.model_copy(update={"folders": tuple(folders)})
        return await super().create_sandbox(state, request)

    async def post_sandbox_setup(self, state: State) -> None:
        """Upload the question and the system prompt."""
        await super().post_sandbox_setup(state)
        sandbox_id = state["sandbox_id"]
        folders = shlex.join([self.asset_dir, self.agent_workdir])
        await self.sandbox_client.execute_command(
            sandbox_id, f"mkdir -p {folders}", working_dir=None
        )
        await self.upload_content(sandbox_id, self.build_prompt(state), self.remote_prompt_path)
        if self.system_prompt:
            await self.upload_content(
                sandbox_id, self.system_prompt, self.remote_system_prompt_path
            )

    async def post_rollout(self, state: State) -> None:
        """Store OpenCode's output as `agent_logs` in the state. A failure is logged."""
        await super().post_rollout(state)
        sandbox_id = state.get("sandbox_id")
        if not sandbox_id:
            return
        path = shlex.quote(self.remote_logs_path)
        try:
            done = await self.sandbox_client.execute_command(
                sandbox_id, f"cat {path} 2>/dev/null || echo '<no logs>'", working_dir=None
            )
        except Exception as error:  # noqa: BLE001 - the rollout counts without its logs
            self.logger.warning("The logs of the agent could not be read: %r", error)
            return
        state["agent_logs"] = (done.stdout or "").strip()

    async def normalize_response(self, response: Response) -> Response:
        """Return the response as OpenCode sends it back in its next request, so that turns continue each other."""
        message = response.message
        calls = [
            ToolCall(id=call.id, name=call.name.lower(), arguments=_compact(call.arguments))
            for call in message.tool_calls or []
        ]
        rest = {k: v for k, v in message.items() if k not in ("reasoning_content", "tool_calls")}
        changed = {"reasoning_content": message.reasoning_content, "tool_calls": calls}
        kept = {key: value for key, value in changed.items() if value}
        normalized = type(message).of({**rest, "content": message.content or "", **kept})
        return response.model_copy(update={"message": normalized})


def _compact(arguments: str) -> str:
    """Return JSON text without white space between its tokens; other text as it is."""
    try:
        return json.dumps(json.loads(arguments), separators=(",", ":"), ensure_ascii=False)
    except ValueError:
        return arguments


__all__ = [
    "DEFAULT_INSTALL_COMMAND",
    "DEFAULT_RUN_COMMAND_TEMPLATE",
    "DEFAULT_SYSTEM_PROMPT",
    "OPENCODE_TOOLS",
    "OpenCodeEnv",
    "OpenCodeMonitorRubric",
]
