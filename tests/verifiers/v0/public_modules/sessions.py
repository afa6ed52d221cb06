"""Tools that need the rollout's state: hidden arguments, tools that are removed again, and a session to close."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.envs.stateful_tool_env import StatefulToolEnv
from verifiers.testing import call
from verifiers.types import Info, Messages, State

REPLIES = [[call("write", text="a"), call("write", text="b")], "done"]
REWARDS = [2.0]
CALLED: list[str] = []


class Sessions(StatefulToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tools=[], max_turns=4, **kwargs)
        self.add_tool(self.write, args_to_skip=["session"])
        self.add_tool(self.unused)
        self.remove_tool(self.unused)

    async def write(self, text: str, session: list[str]) -> str:
        """Write a line."""
        CALLED.append("write")
        session.append(text)
        return f"{len(session)} lines"

    async def unused(self) -> str:
        """Do nothing."""
        return ""

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        CALLED.append("setup_state")
        state["session"] = []
        return await super().setup_state(state, **kwargs)

    def update_tool_args(
        self, tool_name: str, tool_args: dict, messages: Messages, state: State, **kwargs: Any
    ) -> dict:
        CALLED.append("update_tool_args")
        assert (tool_name, list(self.tool_map)) == ("write", ["write"])
        return {**tool_args, "session": state["session"]}

    async def is_completed(self, state: State, **kwargs: Any) -> bool:
        CALLED.append("is_completed")
        return await super().is_completed(state, **kwargs)

    @vf.cleanup
    async def _close_session(self, state: State) -> None:
        CALLED.append("_close_session")
        state["sandbox_closed"] = True


def lines(state: State, info: Info, tool_defs: Any = None) -> float:
    CALLED.append("lines")
    [offered] = state["tool_defs"]
    assert list(offered.parameters["properties"]) == ["text"]
    assert info == {}
    assert state["sandbox_closed"]
    return float(len(state["session"]))


def load_environment() -> vf.Environment:
    return Sessions(dataset=Dataset.from_list([{"question": "q"}]), rubric=vf.Rubric(funcs=[lines]))
