"""Saved runs for the tests of the viewer, written by the library's own store."""

import json
from pathlib import Path
from typing import Any

from verifiers.runs.store import RunStore

SCRIPT = "<script>window.hacked = true</script><img src=x onerror='window.hacked = true'>"
HOSTILE = [
    SCRIPT,
    "\"'><svg onload=window.hacked=true>",
    "[a link](javascript:window.hacked=true) ![picture](https://example.org/track.png)",
    "\x1b[31mred\x1b[0m \x00 \x9b31m",
    "\u202eevil\u202c \u2066x\u2069 שלום עולם",
    "{{ 7 * 7 }} {% raw %}",
    "lone surrogate: \ud800",
]


def tool_call(number: int, arguments: dict[str, Any], name: str = "search") -> str:
    """Return a tool call in the form of a saved line: JSON text."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return json.dumps({"id": f"call_{number}", "type": "function", "function": function})


def output(example: int, rollout: int = 0, **changes: Any) -> dict[str, Any]:
    """Return a rollout with one tool call, reasoning and a score with reasons."""
    reward = [0.0, 0.25, 0.5, 1.0][(example + rollout) % 4]
    value = {
        "example_id": example,
        "rollout_index": rollout,
        "prompt": [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": f"What is {example} + {example}?"},
        ],
        "completion": [
            {
                "role": "assistant",
                "content": "Let me look it up.",
                "reasoning_content": "The question is easy.\nI add the numbers.",
                "tool_calls": [tool_call(0, {"query": f"sum of {example}"})],
            },
            {"role": "tool", "tool_call_id": "call_0", "content": f"The sum is {2 * example}."},
            {"role": "assistant", "content": f"The answer is {2 * example}, Größe {rollout}."},
        ],
        "answer": str(2 * example),
        "info": {"level": "hard" if example % 2 else "easy"},
        "reward": reward,
        "error": None,
        "errors": [],
        "timing": {"start_time": 1.79e9, "model": {"spans": [], "duration": 0.5}, "total": 0.75},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "metrics": {"accuracy": float(reward == 1), "num_turns": 2.0},
        "score_details": {
            "accuracy": {"value": reward, "explanation": "Compared with the answer."}
        },
        "token_usage": {"input_tokens": 20.0, "output_tokens": 10.0 + rollout},
    }
    return {**value, **changes}


def error(kind: str = "ToolError", message: str = "the tool failed") -> dict[str, Any]:
    """Return a saved error that voids the reward."""
    return {
        "error": kind,
        "error_chain_repr": f"{kind}('{message}')",
        "error_chain_str": kind,
        "voids_reward": True,
        "traceback": "Traceback …",
    }


def write_run(folder: Path, outputs: list[dict[str, Any]], **metadata: Any) -> Path:
    """Write a finished run."""
    described = {
        "env_id": "sums",
        "model": "small",
        "num_examples": 6,
        "rollouts_per_example": 4,
        "date": "2026-11-22T10:00:00+00:00",
        "time": 12.5,
        "avg_reward": 0.4375,
        "reward_ci95": [0.3, 0.6],
        "num_failed": 1,
        "pass_threshold": 0.5,
        "sampling_args": {"temperature": 0.7},
        **metadata,
    }
    with RunStore.create(folder, described) as store:
        store.append_and_wait(outputs)
    return folder


def usual_outputs() -> list[dict[str, Any]]:
    """Return 6 examples with 4 rollouts each; one rollout has failed."""
    outputs = [output(example, rollout) for example in range(6) for rollout in range(4)]
    outputs[5]["error"] = error()
    outputs[5]["completion"] = []
    return outputs


def hostile_outputs() -> list[dict[str, Any]]:
    """Return rollouts with hostile text in every field."""
    outputs = []
    for number, text in enumerate(HOSTILE):
        calls = [tool_call(0, {text: text}, name=text), text]
        outputs.append(
            output(
                number,
                example_id=text,
                prompt=[{"role": text, "content": text}],
                completion=[
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": text},
                            {
                                "type": "image_url",
                                "image_url": {"url": "https://example.org/a.png"},
                            },
                            {"type": "image_url", "image_url": {"url": f"data:text/html,{SCRIPT}"}},
                        ],
                        "reasoning_content": text,
                        "tool_calls": calls,
                    },
                    {"role": "tool", "tool_call_id": text, "content": text},
                    text,
                    {"role": "assistant", "content": {"nested": text}},
                ],
                answer=text,
                task=text,
                info={text: text},
                stop_condition=text,
                error={"error": text, "error_chain_repr": text, "traceback": text, "where": text},
                errors=[{"function": text, "message": text}],
                metrics={text: 0.5, "accuracy": 1.0},
                score_details={
                    text: {"explanation": text, "answer": text, "metadata": {text: text}}
                },
                judge_response={text: text},
                extra_column={text: [text]},
            )
        )
    return outputs
