"""`OpenCodeRLMEnv`: OpenCode with a plugin by which the agent gives parts of its task to sub-LLMs.

    agent ──── main request ─────────────► turn of the rollout
      └─ tool ─ x-rlm-role: sub (many) ──► answered beside the rollout, at most `max_sub_llm_parallelism` at once

The header of a request decides. Sub-LLM calls are counted in the state, and are steps of the trajectory if
`include_sub_llm_in_trajectory`.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from verifiers.concurrency import PerLoop
from verifiers.decorators import cleanup
from verifiers.envs import stops
from verifiers.envs.agents.open_code_env import (
    INSTALL_OPENCODE,
    RUN_OPENCODE,
    STRICT_SHELL,
    OpenCodeEnv,
)
from verifiers.envs.cli_agent_env import CliAgentEnv, is_gone
from verifiers.envs.hooks import call_hook
from verifiers.envs.multiturn_env import MultiTurnEnv, completion_messages, step_tokens
from verifiers.interception.server import Intercept
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State, extract_usage_tokens
from verifiers.types import Messages, Response, TrajectoryStep

ROLE_HEADER = "x-rlm-role"
"""Header of the plugin's requests; the value of a sub-LLM is `sub`."""
SUB_COUNTERS = ("sub_llm_turns", "sub_llm_prompt_tokens", "sub_llm_completion_tokens")

RLM_RUN_COMMAND_TEMPLATE = (
    STRICT_SHELL
    + """\
export PATH="$HOME/.bun/bin:$PATH"
for program in curl git unzip jq; do
  if ! command -v "$program" > /dev/null; then
    apt-get update -qq && apt-get install -y curl git unzip jq > /dev/null
    break
  fi
done
"""
    + INSTALL_OPENCODE
    + """\
if ! command -v bun > /dev/null; then
  curl -fsSL https://bun.sh/install | bash
fi
if [ ! -d {plugin_install_path} ]; then
  git clone --branch {plugin_branch} https://github.com/{plugin_repo}.git {plugin_install_path}
fi
(cd {plugin_install_path} && bun install)
"""
    + RUN_OPENCODE
)
"""As `DEFAULT_RUN_COMMAND_TEMPLATE`, with the placeholders `{plugin_repo}`, `{plugin_branch}` and
`{plugin_install_path}` in addition. Programs that the image has are not installed.
"""


class OpenCodeRLMMonitorRubric(Rubric):
    """Turns and tokens of the agent's own model calls and of its sub-LLMs, as metrics with weight 0."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for metric in (self.main_turns, self.main_prompt_tokens, self.main_completion_tokens):
            self.add_metric(metric)
        for name in SUB_COUNTERS:
            self.add_metric(getattr(self, name))

    async def main_turns(self, state: State) -> float:
        """Return the number of turns of the agent itself."""
        return float(len(main_steps(state)))

    async def main_prompt_tokens(self, state: State) -> float:
        """Return the sum of the prompt tokens of these turns."""
        return float(sum(_step_usage(step)[0] for step in main_steps(state)))

    async def main_completion_tokens(self, state: State) -> float:
        """Return the sum of the completion tokens of these turns."""
        return float(sum(_step_usage(step)[1] for step in main_steps(state)))

    async def sub_llm_turns(self, state: State) -> float:
        """Return the number of responses that sub-LLMs received."""
        return float(state.get("sub_llm_turns") or 0)

    async def sub_llm_prompt_tokens(self, state: State) -> float:
        """Return the sum of their prompt tokens."""
        return float(state.get("sub_llm_prompt_tokens") or 0)

    async def sub_llm_completion_tokens(self, state: State) -> float:
        """Return the sum of their completion tokens."""
        return float(state.get("sub_llm_completion_tokens") or 0)


def main_steps(state: Mapping[str, Any]) -> list[Any]:
    """Return the steps of a trajectory that are not sub-LLM calls."""
    steps: Sequence[Any] = state.get("trajectory") or []
    return [step for step in steps if not (step.get("extras") or {}).get("is_sub_llm_call")]


def _step_usage(step: Mapping[str, Any]) -> tuple[int, int]:
    return extract_usage_tokens(step.get("response"))


class OpenCodeRLMEnv(OpenCodeEnv):
    """Runs OpenCode with the RLM plugin, and answers the requests of its sub-LLMs beside the rollout.

    `sub_model` answers the sub-LLMs; None selects the model of the rollout. `sub_llm_max_turns` and `sub_timeout_ms`
    are limits of the plugin for one sub-LLM. The plugin comes from the branch of a GitHub repository, unless the image
    has the folder `plugin_install_path`. Further arguments are those of `OpenCodeEnv`.
    """

    DEFAULT_PLUGIN_REPO = "snimu/oc"
    DEFAULT_PLUGIN_BRANCH = "main"
    DEFAULT_PLUGIN_INSTALL_PATH = "/tmp/opencode-rlm"

    def __init__(
        self,
        plugin_repo: str = DEFAULT_PLUGIN_REPO,
        plugin_branch: str = DEFAULT_PLUGIN_BRANCH,
        plugin_install_path: str = DEFAULT_PLUGIN_INSTALL_PATH,
        sub_model: str | None = None,
        max_sub_llm_parallelism: int = 10,
        sub_llm_max_turns: int = 10,
        sub_timeout_ms: int = 120_000,
        include_sub_llm_in_trajectory: bool = False,
        **kwargs: Any,
    ) -> None:
        self.plugin_repo = plugin_repo
        self.plugin_branch = plugin_branch
        self.plugin_install_path = plugin_install_path
        self.sub_model = sub_model
        self.max_sub_llm_parallelism = max_sub_llm_parallelism
        self.sub_llm_max_turns = sub_llm_max_turns
        self.sub_timeout_ms = sub_timeout_ms
        self.include_sub_llm_in_trajectory = include_sub_llm_in_trajectory
        kwargs.setdefault("run_command_template", RLM_RUN_COMMAND_TEMPLATE)
        super().__init__(**kwargs)
        self._sub_llm_limit = PerLoop(
            lambda: asyncio.Semaphore(self.max_sub_llm_parallelism), _nothing_to_close
        )
        self.add_rubric(OpenCodeRLMMonitorRubric())

    # ----------------------------------------------------------------------------------------- command and variables

    def build_opencode_config(
        self,
        disabled_tools: list[str] | None = None,
        system_prompt_path: str | None = None,
        disable_compaction: bool = True,
        enable_interleaved: bool = True,
    ) -> str:
        """Return the configuration with the plugin."""
        config = json.loads(
            super().build_opencode_config(
                disabled_tools, system_prompt_path, disable_compaction, enable_interleaved
            )
        )
        config["plugin"] = [f"file://{self.plugin_install_path}"]
        return json.dumps(config, indent=2)

    def _further_placeholders(self) -> dict[str, str]:
        return {
            "plugin_repo": shlex.quote(self.plugin_repo),
            "plugin_branch": shlex.quote(self.plugin_branch),
            "plugin_install_path": shlex.quote(self.plugin_install_path),
        }

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Return the variables of the agent, with the limits of the plugin for a sub-LLM."""
        return {
            **await super().build_env_vars(state),
            "RLM_SUBAGENT_VIA_TOOL_LOOP": "true",
            "RLM_SUB_MAX_TURNS": str(self.sub_llm_max_turns),
            "RLM_SUB_TIMEOUT": str(self.sub_timeout_ms),
        }

    async def setup_state(self, state: State) -> State:
        """Start the agent, and the counters of its sub-LLMs."""
        own = await super().setup_state(state)
        chosen: Any = own if isinstance(own, MutableMapping) else state
        for name in SUB_COUNTERS:
            chosen.setdefault(name, 0)
        chosen.setdefault("_sub_llm_tasks", set())
        return chosen

    # -------------------------------------------------------------------------------------------- sub-LLM requests

    @staticmethod
    def _is_sub_llm_request(intercept: Mapping[str, Any]) -> bool:
        """Return whether a request belongs to a sub-LLM. Names of headers are in lower case."""
        return (intercept.get("headers") or {}).get(ROLE_HEADER) == "sub"

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the messages of the agent's next own request. When the agent has ended, wait for its sub-LLMs."""
        messages = await super().get_prompt_messages(state)
        if not messages and (tasks := state.get("_sub_llm_tasks")):
            await asyncio.gather(*tasks, return_exceptions=True)
        return messages

    def _takes_aside(self, state: State, request_id: str, intercept: Intercept) -> bool:
        if not self._is_sub_llm_request(intercept):
            return False
        tasks: set[asyncio.Task[None]] = state.setdefault("_sub_llm_tasks", set())
        task = asyncio.get_running_loop().create_task(
            self._handle_sub_llm_request(state, request_id, intercept), name=f"sub-LLM {request_id}"
        )
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return True

    async def _handle_sub_llm_request(
        self, state: State, request_id: str, intercept: Intercept
    ) -> None:
        """Answer one request of a sub-LLM. Its failure is the answer, and not an error of the rollout."""
        async with self._sub_llm_limit.here():
            if is_gone(intercept):
                return
            try:
                prompt = await call_hook(self.normalize_intercepted_messages, intercept["messages"])
                tools = self.normalize_intercepted_tools(intercept.get("tools") or [])
                # Not that of `CliAgentEnv`, which answers the agent's own request.
                response = await super(CliAgentEnv, self).get_model_response(
                    state=state,
                    prompt=prompt,
                    model=self.sub_model or state["model"],
                    tool_defs=tools or [],
                )
            except Exception as error:  # noqa: BLE001 - the agent may continue without this sub-LLM
                self.logger.warning("The request %s of a sub-LLM failed: %r", request_id, error)
                await self._answer(intercept, None, error)
                return
        await self._answer(intercept, response, None)
        self._update_sub_metrics(state, response)
        if self.include_sub_llm_in_trajectory:
            await self._add_sub_llm_step(state, prompt, response, intercept.get("model"))

    async def _add_sub_llm_step(
        self, state: State, prompt: Messages, response: Response, role: str | None
    ) -> None:
        response = await call_hook(self.normalize_response, response)
        tokens: Any = step_tokens(response, self.max_seq_len, state["trajectory"])
        is_cut = tokens is not None and tokens["is_truncated"]
        step: TrajectoryStep = {
            "prompt": prompt,
            "completion": completion_messages(response),
            "response": response,
            "tokens": tokens,
            "reward": None,
            "advantage": None,
            "is_truncated": is_cut or bool(response.message.is_truncated),
            "trajectory_id": state["trajectory_id"],
            "extras": {"is_sub_llm_call": True, "agent_role": role},
        }
        await self.add_trajectory_step(state, step)

    @staticmethod
    def _extract_token_counts(response: Any) -> tuple[int, int]:
        """Return the prompt tokens and the completion tokens of a response; 0 without usage."""
        return extract_usage_tokens(response)

    def _update_sub_metrics(self, state: MutableMapping[str, Any], response: Any) -> None:
        """Count one response of a sub-LLM."""
        for name, count in zip(
            SUB_COUNTERS, (1, *self._extract_token_counts(response)), strict=True
        ):
            state[name] = state.get(name, 0) + count

    @cleanup(priority=1)
    async def cancel_sub_llm_tasks(self, state: State) -> None:
        """Cancel the requests of sub-LLMs that are still running."""
        tasks = list(state.get("_sub_llm_tasks") or ())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- main turns

    async def add_model_response(
        self, state: State, prompt_messages: Messages, response: Response
    ) -> None:
        """Store a turn. The prompt of the agent's first own turn becomes the prompt of the rollout."""
        if not prompt_messages:
            return
        if not main_steps(state):
            state["prompt"] = prompt_messages
        await MultiTurnEnv.add_model_response(self, state, prompt_messages, response)

    @stops.condition(general=True)
    def max_turns_reached(self, state: State) -> bool:
        """The agent itself has had `max_turns` turns."""
        return self.max_turns > 0 and len(main_steps(state)) >= self.max_turns

    async def render_completion(self, state: State) -> None:
        """Set the completion: all messages after the prompt, those of sub-LLMs excluded."""
        own: Any = {**state, "trajectory": main_steps(state)}
        await super().render_completion(own)
        state["completion"] = own["completion"]


async def _nothing_to_close(_: asyncio.Semaphore) -> None: ...


__all__ = [
    "RLM_RUN_COMMAND_TEMPLATE",
    "OpenCodeRLMEnv",
    "OpenCodeRLMMonitorRubric",
]
