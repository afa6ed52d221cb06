"""`OpenEnvEnv`: an environment that an OpenEnv server provides over its WebSocket."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verifiers.decorators import cleanup, setup, stop, teardown
from verifiers.envs.integrations.gym_env import RowsOnDemand, sum_step_rewards
from verifiers.envs.integrations.openenv_server import (
    ActionRefused,
    OpenEnvServer,
    OpenEnvServerError,
    Sessions,
    read_manifest,
)
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import ConfigError, ToolParseError
from verifiers.messages import normalize_messages
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.tasks import Row
from verifiers.tools.functions import parsed_arguments, tool_message
from verifiers.types import Messages, Tool, ToolCall, ToolMessage

_FENCE = re.compile(r"^```[a-zA-Z]*\s*\n(.*?)\n?```$", re.DOTALL)


class OpenEnvEpisodicSumRubric(Rubric):
    """The reward of a rollout is the sum of the rewards of its steps."""

    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_reward_func(sum_step_rewards, weight)


class OpenEnvEnv(MultiTurnEnv):
    """Plays one session of an OpenEnv server per rollout. The reward of a turn comes from the server.

    `openenv_project` is the URL of a running server, or a project folder. The server of a project is started on first
    use: with `server_command`, a list of words in which `{port}` stands for the port; without one, by docker or
    podman from v0's `.build.json`; without that file, by uv from `openenv.yaml`. The default project is the folder
    `proj` beside the module that creates the environment. `prompt_renderer(observation, ...)` returns the chat
    messages for an observation; it may take `context` ("reset" or "step"), `action_schema`, `contract` and `seed`.

    With the `gym` contract, the response of the model is the action: a JSON object, or plain text if the action has
    one text field. With the `mcp` contract, the server offers tools. A response that is not a valid action ends the
    episode. If the server has no free session, rollouts wait until one of them ends.
    """

    def __init__(
        self,
        openenv_project: str | Path | None = None,
        num_train_examples: int = 100,
        num_eval_examples: int = 50,
        seed: int = 0,
        prompt_renderer: Callable[..., Messages] | None = None,
        max_turns: int = -1,
        rubric: Rubric | None = None,
        startup_timeout_seconds: float = 30,
        startup_poll_interval_seconds: float = 1.0,
        health_request_timeout_seconds: float = 2.0,
        schema_request_timeout_seconds: float = 5.0,
        wait_for_creation_max_attempts: int = 20,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 0.001,
        *,
        server_command: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        # The last six of v0's arguments configure a cloud sandbox for the server. They are ignored: no sandbox is
        # created.
        if prompt_renderer is None:
            raise ConfigError(
                "OpenEnvEnv requires `prompt_renderer`: a function that turns an observation into chat messages, e.g. "
                'lambda observation, **_: [{"role": "user", "content": observation["text"]}].'
            )
        for name, count in (("train", num_train_examples), ("eval", num_eval_examples)):
            if count < 0:
                raise ConfigError(f"num_{name}_examples must not be negative; got {count}.")
        self.prompt_renderer = prompt_renderer
        self._renderer_asks_for = _asked_for(prompt_renderer)
        self.seed = seed
        url, folder = _place(openenv_project)
        self.contract: str | None = None
        """`gym` or `mcp`; derived from the server's schema if there is no manifest."""
        if folder is not None and (manifest := read_manifest(folder)) is not None:
            self.contract = manifest.contract
        self.server = OpenEnvServer(
            url,
            folder=folder,
            command=server_command,
            start_timeout_s=startup_timeout_seconds,
            poll_s=startup_poll_interval_seconds,
            health_timeout_s=health_request_timeout_seconds,
            request_timeout_s=schema_request_timeout_seconds,
        )
        self.sessions = Sessions(self.server)
        train = RowsOnDemand(self.episode_row, seed, num_train_examples)
        evaluation = RowsOnDemand(self.episode_row, seed + num_train_examples, num_eval_examples)
        super().__init__(
            max_turns=max_turns,
            dataset=train or None,
            eval_dataset=evaluation or None,
            rubric=rubric or OpenEnvEpisodicSumRubric(),
            **kwargs,
        )

    # ------------------------------------------------------------------------------------------------- the rows

    def episode_row(self, seed: int) -> Row:
        """Return the dataset row of one seed: the server's observation after a reset with the seed."""
        from verifiers.concurrency import run_sync

        async def first() -> Messages:
            session, observed = await self.sessions.open(seed)
            try:
                schema, contract = await self._contract()
                return self.render(
                    observed.observation,
                    "reset",
                    action_schema=schema,
                    contract=contract,
                    seed=seed,
                )
            finally:
                await self.sessions.close(session)

        self._keep_open()  # a server may run from here on
        return {"prompt": run_sync(first), "info": {"seed": seed}}

    async def _contract(self) -> tuple[dict[str, Any], str]:
        schema = (await self.server.schema())["action"]
        is_mcp = {"tool_name", "arguments"} <= set(schema.get("properties", {}))
        if self.contract == "mcp" and not is_mcp:
            raise ConfigError(
                "The project's manifest says that its contract is 'mcp', but the server's actions call no tools: "
                f"{json.dumps(schema)[:300]}"
            )
        self.contract = self.contract or ("mcp" if is_mcp else "gym")
        return schema, self.contract

    def render(self, observation: Any, context: str, **values: Any) -> Messages:
        """Return the chat messages for an observation. Raises ConfigError if the renderer returns none."""
        values = {
            "action_schema": None,
            "contract": None,
            "seed": None,
            **values,
            "context": context,
        }
        accepted = self._renderer_asks_for
        passed = values if accepted is None else {k: v for k, v in values.items() if k in accepted}
        messages = self.prompt_renderer(observation, **passed)
        if not isinstance(messages, list) or not messages:
            raise ConfigError(
                f"prompt_renderer must return a non-empty list of chat messages; for {context} it returned "
                f"{messages!r:.200}"
            )
        return normalize_messages(messages, field_name="prompt_renderer")

    # ---------------------------------------------------------------------------------------------- the episode

    @setup(priority=1000)
    async def open_session(self, state: State) -> None:
        """Open a session for the rollout, reset with the seed of its row."""
        self._keep_open()
        info = state.get("info")
        seed = info.get("seed") if isinstance(info, Mapping) else None
        session, observed = await self.sessions.open(seed)
        state["openenv_session"] = session
        schema, contract = await self._contract()
        state["openenv_contract"], state["openenv_action_schema"] = contract, schema
        state["openenv_done"] = observed.done
        rendered = self.render(
            observed.observation, "reset", action_schema=schema, contract=contract, seed=seed
        )
        before = len(state.prompt) - len(rendered)
        if before >= 0 and state.prompt[before:] != rendered:
            # Many servers ignore seeds: the model sees this episode instead of the episode that the row was made from.
            state.prompt = [*state.prompt[:before], *rendered]
        if contract == "mcp":
            found = await session.ask("step", {"type": "list_tools"})
            state.tool_defs = _tools((found.get("observation") or {}).get("tools") or [])

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Send the model's action, or its tool calls, to the server."""
        if state["openenv_contract"] == "mcp":
            calls = messages[-1].get("tool_calls") or []
            return [await self._called(call, state) for call in calls]
        turn = state.trajectory[-1]
        try:
            action = parse_action(_text(messages), state["openenv_action_schema"])
            observed = await state["openenv_session"].observe("step", action)
        except (ValueError, ActionRefused) as error:
            if isinstance(error, OpenEnvServerError) and not isinstance(error, ActionRefused):
                raise
            turn["reward"] = 0.0
            state["openenv_done"] = True
            reply: Messages = normalize_messages(
                [{"role": "user", "content": f"Action Parsing Error: {error}"}], field_name="action"
            )
            state.final_env_response = reply
            return reply
        turn["reward"] = observed.reward or 0.0
        state["openenv_done"] = observed.done
        reply = self.render(
            observed.observation,
            "step",
            action_schema=state["openenv_action_schema"],
            contract="gym",
        )
        if observed.done or 0 < self.max_turns <= len(state.trajectory):
            state.final_env_response = reply
        return reply

    async def _called(self, call: ToolCall, state: State) -> ToolMessage:
        name, call_id = call["name"], call["id"]
        try:
            arguments = parsed_arguments(name, call["arguments"])
        except ToolParseError as error:
            return tool_message(call_id, str(error))
        action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        observed = await state["openenv_session"].observe("step", action)
        turn = state.trajectory[-1]
        turn["reward"] = (turn["reward"] or 0.0) + (observed.reward or 0.0)
        state["openenv_done"] = state["openenv_done"] or observed.done
        return tool_message(call_id, tool_result(observed.observation))

    @stop(priority=10)
    async def openenv_done(self, state: State) -> bool:
        """Stop when the server ends the episode."""
        return bool(dict.get(state, "openenv_done")) and bool(state.trajectory)

    @stop
    async def max_turns_reached(self, state: State) -> bool:
        """Stop at the maximum number of turns. With the gym contract, `env_response` applies the limit after the last
        action.
        """
        if dict.get(state, "openenv_contract") != "mcp":
            return False
        return await super().max_turns_reached(state)

    @stop
    async def mcp_no_tool_calls(self, state: State) -> bool:
        """Stop when the model has called no tool."""
        if dict.get(state, "openenv_contract") != "mcp" or not state.trajectory:
            return False
        return not any(
            message.get("tool_calls")
            for message in state.trajectory[-1]["completion"]
            if message["role"] == "assistant"
        )

    @cleanup
    async def cleanup_openenv(self, state: State) -> None:
        """Close the session of the rollout."""
        session = state.pop("openenv_session", None)
        if session is not None:
            await self.sessions.close(session)

    @teardown
    async def teardown_server(self) -> None:
        """Stop the server, if it was started here."""
        self.server.stop()


def _place(project: str | Path | None) -> tuple[str | None, Path | None]:
    """Return the URL or the folder of a project."""
    if project is None:
        folder = _folder_of_caller() / "proj"
    elif isinstance(project, str) and project.startswith(("http://", "https://")):
        return project, None
    else:
        folder = Path(project).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"There is no OpenEnv project at {folder}. Pass a project's folder, or the URL of a server, as "
            "openenv_project."
        )
    return None, folder.resolve()


def _folder_of_caller() -> Path:
    """Return the folder of the first module up the stack that is not part of this library."""
    frame = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("verifiers."):
        frame = frame.f_back
    return Path(frame.f_code.co_filename).parent if frame is not None else Path.cwd()


def _asked_for(renderer: Callable[..., Any]) -> set[str] | None:
    """Return the keyword arguments that a renderer accepts; None means all."""
    parameters = inspect.signature(renderer).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}


def _text(messages: Messages) -> str:
    content = messages[-1].get("content")
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content or ""


def parse_action(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the action in a response of the model. Raises ValueError if there is none.

    The response may be a JSON object, with or without a code fence, or plain text if the schema has exactly one
    text field or exactly one required field, which is text.
    """
    stripped = text.strip()
    fenced = _FENCE.match(stripped)
    candidate = fenced[1].strip() if fenced else stripped
    try:
        action = json.loads(candidate)
    except ValueError:
        action = None
    if isinstance(action, dict):
        return action
    field = single_text_field(schema)
    if field is None:
        raise ValueError(
            "the response must be a JSON object with these fields: "
            f"{', '.join(name for name in schema.get('properties', {}) if name != 'metadata')}"
        )
    return {field: candidate}


def single_text_field(schema: Mapping[str, Any]) -> str | None:
    """Return the field that receives plain text, or None if there is no single text field."""
    fields = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
    required = [name for name in schema.get("required", []) if name in fields]
    names = required if len(required) == 1 else list(fields)
    if len(names) == 1 and fields[names[0]].get("type") == "string":
        return names[0]
    return None


def tool_result(observation: Any) -> Any:
    """Return the result of a tool as content of a tool message: its data, its text or its error."""
    if not isinstance(observation, dict):
        return str(observation)
    if error := observation.get("error"):
        return f"Error: {error.get('message') if isinstance(error, dict) else error}"
    result = observation.get("result")
    if isinstance(result, dict):
        if result.get("data") is not None:
            result = result["data"]
        elif isinstance(parts := result.get("content"), list):
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            if texts and all(isinstance(one, str) for one in texts):
                return "\n".join(str(one) for one in texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _tools(listed: Sequence[Mapping[str, Any]]) -> list[Tool]:
    return [
        Tool(
            name=tool["name"],
            description=tool.get("description") or "",
            parameters=tool.get("input_schema") or tool.get("inputSchema") or {"type": "object"},
        )
        for tool in listed
    ]


__all__ = ["OpenEnvEnv", "OpenEnvEpisodicSumRubric", "parse_action", "tool_result"]
