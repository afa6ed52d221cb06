"""Functions as tools, with an overridden `call_tool` and definitions made by v0's helper."""

import json
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.envs.tool_env import ToolEnv
from verifiers.testing import call
from verifiers.types import Messages, State, ToolMessage
from verifiers.utils.tool_utils import convert_func_to_tool_def

REPLIES = [[call("search", query="cats", limit=2)], [call("search", query="boom")], "cats"]
REWARDS = [1.0]
CALLED: list[str] = []


async def search(query: str, limit: int = 1) -> str:
    """Search the notes.

    Args:
        query: what to look for
        limit: number of hits
    """
    CALLED.append("search")
    if query == "boom":
        raise ValueError("the index is broken")
    return json.dumps([query] * limit)


class Notes(ToolEnv):
    async def call_tool(
        self, tool_name: str, tool_args: dict, tool_call_id: str, **kwargs: Any
    ) -> ToolMessage:
        CALLED.append("call_tool")
        return await super().call_tool(tool_name, tool_args, tool_call_id, **kwargs)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        CALLED.append("env_response")
        answers = await super().env_response(messages, state, **kwargs)
        state["bash_commands_used"] = state.get("bash_commands_used", 0) + len(answers)
        return answers


def used_twice(completion: Messages, state: State, **kwargs: Any) -> float:
    CALLED.append("used_twice")
    told = [m["content"] for m in completion if m["role"] == "tool"]
    assert told == ['["cats", "cats"]', "the index is broken"]
    described = convert_func_to_tool_def(search).parameters["properties"]
    assert described["query"]["description"] == "what to look for"
    return float(state["bash_commands_used"] == 2)


def load_environment(**kwargs: Any) -> vf.Environment:
    rows = [{"question": "q", "answer": "cats"}]
    return Notes(
        tools=[search],
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[used_twice]),
        parser=vf.Parser(),
        system_prompt="Use the tools.",
        max_turns=5,
        error_formatter=lambda error: str(error),
        **kwargs,
    )
