"""Finished rollouts made by hand, with everything a sample needs."""

from __future__ import annotations

from typing import Any

from verifiers.tokens import TokenGraph


def turn(prompt: list[int], completion: list[int], **more: Any) -> dict[str, Any]:
    return {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-0.5 - 0.25 * (n % 4) for n in range(len(completion))],
        **more,
    }


def rollout(
    turns: list[dict[str, Any]],
    reward: float = 1.0,
    *,
    stored: bool = True,
    steps: dict[int, dict[str, Any]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An output whose steps have these tokens; `stored`: as views of one graph, else as plain dicts.

    `steps`: further fields of steps by number.
    """
    graph = TokenGraph()
    trajectory: list[dict[str, Any]] = [
        {
            "tokens": graph.commit(tokens) if stored else tokens,
            "advantage": None,
            "is_truncated": False,
            "trajectory_id": "t0",
            "extras": {},
            **((steps or {}).get(number) or {}),
        }
        for number, tokens in enumerate(turns)
    ]
    return {
        "example_id": 3,
        "reward": reward,
        "error": None,
        "errors": [],
        "is_truncated": False,
        "trajectory": trajectory,
        **more,
    }
