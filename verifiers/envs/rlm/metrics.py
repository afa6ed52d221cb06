"""Counts of a rollout in `RLMEnv`: how they are kept in the state, and the metrics that report them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

from verifiers.rubrics.rubric import Rubric
from verifiers.state import State, extract_usage_tokens

COUNTS: dict[str, float] = {
    "sub_llm_call_count": 0,
    "sub_llm_total_turns": 0,
    "sub_llm_prompt_tokens": 0,
    "sub_llm_completion_tokens": 0,
    "sub_llm_total_tool_calls": 0,
    "sub_llm_batch_count": 0,
    "sub_llm_max_batch_size": 0,
    "sub_llm_mean_batch_size": 0.0,
    "root_llm_turns": 0,
    "root_llm_prompt_tokens": 0,
    "root_llm_completion_tokens": 0,
    "repl_total_time_seconds": 0.0,
    "repl_call_count": 0,
    "repl_mean_time_seconds": 0.0,
    "root_tool_call_count": 0,
    "llm_batch_mean_time_seconds": 0.0,
    "root_tool_non_llm_mean_time_seconds": 0.0,
    "sub_llm_max_turns_reached_frac": 0.0,
    "max_turns_in_context_stopped": False,
    "summarize_count": 0,
    "summarize_rejected_count": 0,
    "summarize_total_turns_dropped": 0,
    "summarize_total_chars_dropped": 0,
    "summarize_summary_length_chars": 0,
    "summarize_char_compression_ratio": 0.0,
    "summarize_mean_turns_per_call": 0.0,
    "summarize_mean_remaining_turns": 0.0,
    "summarize_mean_turns_between": 0.0,
}
"""Name of a metric, which is also its key in the state → its value in a rollout that never uses it."""
BATCH = "llm_batch"
"""The tool that calls sub-LLMs."""


def prepare_counts(state: MutableMapping[str, Any]) -> None:
    """Set every count that the state lacks to zero."""
    fresh: dict[str, Any] = {
        **COUNTS,
        "root_tool_calls": {},
        "root_tool_times": {},
        "_sub_llm_request_count": 0,
        "_sub_llm_max_turns_reached_count": 0,
        "_rlm_sub_llm_call_ids": {},
        "_rlm_sub_llm_batch_counts": {},
        "_summarize_remaining_turns_list": [],
        "_summarize_at_root_llm_turns": [],
    }
    for name, value in fresh.items():
        state.setdefault(name, value)


def update_rlm_metrics_from_step(state: MutableMapping[str, Any], step: Mapping[str, Any]) -> None:
    """Count a step of the root model, or of a sub-LLM if its `extras` mark it so."""
    prepare_counts(state)
    prompt_tokens, completion_tokens = extract_usage_tokens(step.get("response"))
    extras = step.get("extras") or {}
    if not extras.get("is_sub_llm_call"):
        state["root_llm_turns"] += 1
        state["root_llm_prompt_tokens"] += prompt_tokens
        state["root_llm_completion_tokens"] += completion_tokens
        for name in ("turns", "prompt_tokens", "completion_tokens"):
            state[f"main_rlm_{name}"] = state[f"root_llm_{name}"]  # names of 0.1.10
        return
    state["sub_llm_total_turns"] += 1
    state["sub_llm_prompt_tokens"] += prompt_tokens
    state["sub_llm_completion_tokens"] += completion_tokens
    state["sub_llm_total_tool_calls"] += extras.get("tool_call_count") or 0
    batch_id, request_id = extras.get("batch_id"), extras.get("request_id")
    if not batch_id or not request_id:
        state["sub_llm_call_count"] += 1
        return
    known, sizes = state["_rlm_sub_llm_call_ids"], state["_rlm_sub_llm_batch_counts"]
    if (call := f"{batch_id}:{request_id}") not in known:
        known[call] = True
        state["sub_llm_call_count"] += 1
        sizes[batch_id] = sizes.get(batch_id, 0) + 1
    state["sub_llm_batch_count"] = len(sizes)
    state["sub_llm_max_batch_size"] = max(sizes.values())
    state["sub_llm_mean_batch_size"] = sum(sizes.values()) / len(sizes)


def count_request(state: MutableMapping[str, Any], *, max_turns_reached: bool) -> None:
    """Count the end of one sub-LLM."""
    prepare_counts(state)
    state["_sub_llm_request_count"] += 1
    state["_sub_llm_max_turns_reached_count"] += max_turns_reached
    reached, requests = state["_sub_llm_max_turns_reached_count"], state["_sub_llm_request_count"]
    state["sub_llm_max_turns_reached_frac"] = reached / requests


def count_execution(state: MutableMapping[str, Any], duration_s: float) -> None:
    """Count one execution of code."""
    prepare_counts(state)
    state["repl_call_count"] += 1
    state["repl_total_time_seconds"] += duration_s
    state["repl_mean_time_seconds"] = state["repl_total_time_seconds"] / state["repl_call_count"]


def count_root_tool(state: MutableMapping[str, Any], name: str, duration_s: float) -> None:
    """Count one call of a tool by code."""
    prepare_counts(state)
    calls, times = state["root_tool_calls"], state["root_tool_times"]
    calls[name] = calls.get(name, 0) + 1
    times[name] = times.get(name, 0.0) + duration_s
    state["root_tool_call_count"] += 1
    is_batch = name == BATCH
    key = "llm_batch_mean_time_seconds" if is_batch else "root_tool_non_llm_mean_time_seconds"
    names = [each for each in calls if (each == BATCH) == is_batch]
    state[key] = sum(times[each] for each in names) / sum(calls[each] for each in names)


def count_summary(
    state: MutableMapping[str, Any], *, dropped: int, dropped_chars: int, remaining: int
) -> None:
    """Count one summary, after the summary so far was stored in the state."""
    prepare_counts(state)
    state["summarize_count"] += 1
    state["summarize_total_turns_dropped"] += dropped
    state["summarize_total_chars_dropped"] += dropped_chars
    length = state["summarize_summary_length_chars"] = len(state["_summary_text"])
    total_chars = state["summarize_total_chars_dropped"]
    state["summarize_char_compression_ratio"] = length / total_chars if total_chars else 0.0
    count = state["summarize_count"]
    state["summarize_mean_turns_per_call"] = state["summarize_total_turns_dropped"] / count
    left, turns = state["_summarize_remaining_turns_list"], state["_summarize_at_root_llm_turns"]
    left.append(remaining)
    turns.append(state["root_llm_turns"])
    state["summarize_mean_remaining_turns"] = sum(left) / count
    if gaps := [later - earlier for earlier, later in pairwise(turns)]:
        state["summarize_mean_turns_between"] = sum(gaps) / len(gaps)


class RLMMonitorRubric(Rubric):
    """Metrics of recursive calls, with weight 0: one per count, and two per tool of the REPL."""

    def __init__(self, root_tool_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in COUNTS:
            self.add_metric(_metric(name, name, None))
        for tool in root_tool_names or ():
            self.add_metric(_metric(f"{tool}_root_calls", "root_tool_calls", tool))
            self.add_metric(_metric(f"{tool}_root_time_seconds", "root_tool_times", tool))


def _metric(name: str, key: str, tool: str | None) -> Any:
    async def metric(state: State) -> float:
        value = state.get(key)
        if tool is not None:
            value = (value or {}).get(tool)
        return float(value or 0.0)

    metric.__name__ = metric.__qualname__ = name
    return metric


__all__ = ["RLMMonitorRubric", "prepare_counts", "update_rlm_metrics_from_step"]
