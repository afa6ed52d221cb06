import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verifiers.runs.output import output_from_state
from verifiers.state import RolloutTiming, State, StateUsageTracker, TimeSpan, TimeSpans
from verifiers.types import (
    AssistantMessage,
    Response,
    ResponseMessage,
    RolloutOutput,
    Tool,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)


def response(prompt_tokens: int, completion_tokens: int) -> Response:
    usage = Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
    )
    message = ResponseMessage(content="The answer is 4.", finish_reason="stop", is_truncated=False)
    return Response(id="r", created=1, model="m", usage=usage, message=message)


def finished_state(**changes: Any) -> State:
    """A rollout with one tool call, finished and scored."""
    prompt = [UserMessage(content="2+2?")]
    call = AssistantMessage(
        content=None, tool_calls=[ToolCall(id="c0", name="add", arguments='{"a": 2}')]
    )
    result = ToolMessage(tool_call_id="c0", content="4")
    final = AssistantMessage(content="The answer is 4.")
    row = {
        "prompt": prompt,
        "example_id": 3,
        "answer": "4",
        "info": {"x": 1},
        "input_key": "k" * 16,
        "rollout_index": 1,
    }
    state = State.for_row(row)
    steps = [(prompt, [call], response(20, 6)), ([*prompt, call, result], [final], response(28, 6))]
    state.update(
        completion=[call, result, final],
        reward=1.0,
        metrics={"ok": 1.0, "num_turns": 2.0},
        is_completed=True,
        is_truncated=False,
        stop_condition="no_tools_called",
        tool_defs=[Tool(name="add", description="Add.", parameters={"type": "object"})],
        usage=StateUsageTracker(48, 12),
        timing=RolloutTiming(
            100.0,
            TimeSpan(100, 101),
            TimeSpan(101, 105),
            TimeSpan(105, 106),
            TimeSpans([TimeSpan(101, 104)]),
        ),
        trajectory=[
            {
                "prompt": p,
                "completion": c,
                "response": r,
                "tokens": None,
                "reward": None,
                "advantage": None,
                "is_truncated": False,
                "trajectory_id": "t",
                "extras": {},
            }
            for p, c, r in steps
        ],
    )
    state.update(changes)
    return state


@pytest.fixture
def make_state() -> Callable[..., State]:
    return finished_state


@pytest.fixture
def make_output() -> Callable[..., RolloutOutput]:
    """A saved rollout of an example, with any field replaced."""

    def make(example_id: int = 0, reward: float | None = 1.0, **fields: Any) -> RolloutOutput:
        output = output_from_state(finished_state(example_id=example_id))
        for key in ("rollout_index", "input_key"):
            del output[key]
        output.update(reward=reward, **fields)
        return output

    return make


@pytest.fixture
def make_run() -> Callable[..., Path]:
    """Write a saved run with a number of rollouts, last changed at a given time; return its folder."""

    def make(
        folder: Path,
        lines: int,
        saved_at_s: float,
        *,
        env_id: str = "my-env",
        model: str = "m",
        num_examples: int = 2,
        rollouts_per_example: int = 2,
    ) -> Path:
        folder.mkdir(parents=True)
        names = {"env_id": env_id, "model": model, "num_examples": num_examples}
        (folder / "metadata.json").write_text(
            json.dumps({**names, "rollouts_per_example": rollouts_per_example})
        )
        (folder / "results.jsonl").write_text("".join('{"example_id": 0}\n' for _ in range(lines)))
        os.utime(folder / "results.jsonl", (saved_at_s, saved_at_s))
        return folder

    return make
