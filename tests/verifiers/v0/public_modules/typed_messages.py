"""Messages as objects: made with keyword arguments, read as attributes and as dicts."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.types import (
    AssistantMessage,
    ChatMessage,
    FinishReason,
    Message,
    Messages,
    Response,
    SystemMessage,
    TextMessage,
    Tool,
    ToolCall,
    ToolMessage,
    TrajectoryStep,
    UserMessage,
)

REPLIES = ["first", "second"]
REWARDS = [1.0]
CALLED: list[str] = []
ALIASES = (ChatMessage, FinishReason, Message, TextMessage)

LOOKUP = Tool(name="lookup", description="Look up.", parameters={"type": "object"}, strict=False)
CALL = ToolCall(id="c1", name="lookup", arguments='{"key": 1}')
FEW_SHOT: Messages = [
    UserMessage(content="example"),
    AssistantMessage(content="", tool_calls=[CALL]),
    ToolMessage(tool_call_id="c1", content="found"),
    AssistantMessage(content="answer"),
]


class Typed(vf.MultiTurnEnv):
    async def env_response(self, messages: Messages, state: vf.State, **kwargs: Any) -> Messages:
        CALLED.append("env_response")
        last = messages[-1]
        assert (last.role, last.content, last.get("content")) == ("assistant", "first", "first")
        return [vf.UserMessage(content=f"You said {last.content}.")]


def reads_steps(state: vf.State, prompt: Messages, completion: Messages) -> float:
    CALLED.append("reads_steps")
    step: TrajectoryStep = state["trajectory"][0]
    response: Response = step["response"]
    assert response.message.content == step["completion"][0]["content"] == "first"
    assert prompt[0] == SystemMessage(content="Be typed.")
    assert prompt[2].tool_calls[0].arguments == CALL.arguments
    assert [message["role"] for message in completion] == ["assistant", "user", "assistant"]
    assert state["tool_defs"] == [LOOKUP]
    return 1.0


def load_environment() -> vf.Environment:
    return Typed(
        dataset=Dataset.from_list([{"question": "q", "answer": "a"}]),
        system_prompt="Be typed.",
        few_shot=FEW_SHOT,
        tool_defs=[LOOKUP],
        max_turns=2,
        rubric=vf.Rubric(funcs=[reads_steps]),
    )
