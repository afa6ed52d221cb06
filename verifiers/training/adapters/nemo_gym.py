"""Rollouts as NeMo Gym's response items with the token ids that NeMo RL trains on, and rows for its JSONL files.

NeMo Gym's `verifiers_agent` works with the library unchanged. This module is for your own agents and datasets. It does
not import NeMo Gym: items and rows are JSON values in the format that its servers exchange.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from verifiers.dialects.chat_completions import native_message, native_messages
from verifiers.training.samples import SampleError, failure_of, samples_of

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.training.adapters import Split


def dataset_rows(env: Environment, split: Split = "train", n: int = -1) -> list[dict[str, Any]]:
    """Return rows for the JSONL file of a dataset, one for each example."""
    return [
        {
            "task_idx": index,
            "vf_env_id": env.env_id,
            "responses_create_params": {
                "input": [dict(message) for message in native_messages(row["prompt"])]
            },
            "answer": row.get("answer", ""),
            "task": row.get("task", "default"),
            "example_id": row["example_id"],
            "info": row.get("info") or {},
        }
        for index, row in enumerate(env.source(split).inputs(n))
    ]


def response_items(output: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the `output` of the response: messages, tool calls and tool results after the prompt, in order.

    The last item of every response has `prompt_token_ids`, `generation_token_ids` and `generation_log_probs`. Raise
    SampleError for a rollout that failed or sampled nothing, and for turns that do not continue each other token by
    token: NeMo RL accepts one sequence per rollout.
    """
    if not samples_of(output, on_drift="error"):
        raise SampleError(f"The rollout is not trained on: {failure_of(output) or 'no tokens'}.")
    steps = {len(step["prompt"]): step for step in output["trajectory"]}
    last = output["trajectory"][-1]
    conversation = [*last["prompt"], *last["completion"]]
    first = min(steps)
    return [
        item
        for index, message in enumerate(conversation[first:], start=first)
        for item in _items(native_message(message), index, steps.get(index))
    ]


def _items(
    message: Mapping[str, Any], index: int, step: Mapping[str, Any] | None
) -> Iterator[dict[str, Any]]:
    role = message["role"]
    if role == "tool":
        call_id = message["tool_call_id"]
        yield {"type": "function_call_output", "id": call_id, "call_id": call_id,
               "output": _text(message), "status": "completed"}  # fmt: skip
        return
    if role != "assistant":
        yield {"type": "message", "role": role, "content": _text(message)}
        return
    text, calls = _text(message), message.get("tool_calls") or []
    items: list[dict[str, Any]] = []
    if text or not calls:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "id": f"msg_{index}", "role": "assistant",
                      "status": "completed", "content": content})  # fmt: skip
    for call in calls:
        items.append({"type": "function_call", "id": call["id"], "call_id": call["id"],
                      **call["function"], "status": "completed"})  # fmt: skip
    if step is not None:
        items[-1] |= {
            "prompt_token_ids": step["tokens"]["prompt_ids"],
            "generation_token_ids": step["tokens"]["completion_ids"],
            "generation_log_probs": step["tokens"]["completion_logprobs"],
        }
    yield from items


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content) if content else ""
