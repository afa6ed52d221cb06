"""`State` → `RolloutOutput`: what is returned and saved of a finished rollout.

The keys, their order and their shapes are those of 0.1.14, so that everything that reads its `results.jsonl` reads
ours. Beyond them: `task` when the row has one, `errors` (reward functions that raised), and, when the state carries
them, the identity `rollout_index` and `input_key` and the verdicts of a judge (`judge_response`). Nothing is copied
deeply: an output shares its messages with the state it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verifiers.messages import sanitize_tool_calls, serialize_message_for_output
from verifiers.saved_errors import error_info
from verifiers.state import LIVE_KEYS, State
from verifiers.timing import RolloutTiming, TimeSpan, TimeSpans
from verifiers.types import RolloutOutput, TokenUsage

_of = (
    dict.get
)  # `State.get` resolves views; the framework's own keys are plain keys, and this path is hot


def output_from_state(state: State, state_columns: Sequence[str] | None = None) -> RolloutOutput:
    """What is returned and saved of one rollout.

    `state_columns` are further keys of the state to keep; a key the state does not have gives None. A reward that was
    never computed is 0.0. Metrics stand under `metrics` and, as in 0.1.14, again as top-level keys, unless a key of
    that name exists already.
    """
    error, reward, metrics = state.error, state.reward, state.metrics
    output = RolloutOutput(
        example_id=_of(state, "example_id", 0),
        prompt=_saved_messages(state.prompt),
        completion=_saved_messages(state.completion),
    )
    for key in ("answer", "info", "task"):
        if value := _of(state, key):
            output[key] = value
    output["reward"] = 0.0 if reward is None else reward
    output["error"] = None if error is None else saved_error(error)
    output["timing"] = saved_timing(state.timing)
    output["is_completed"] = bool(state.is_completed)
    output["is_truncated"] = bool(state.is_truncated)
    output["stop_condition"] = state.stop_condition
    output["metrics"] = {} if metrics is None else dict(metrics)
    output["tool_defs"] = state.tool_defs
    if (usage := token_usage(state)) is not None:
        output["token_usage"] = usage
    if (saved := output["error"]) is not None:  # 0.1.14 repeats the two chains at the top level
        output["error_chain"] = saved.get("error_chain_repr")
        output["long_error_chain"] = saved.get("error_chain_str")
    output["errors"] = list(state.reward_errors or ())
    for key in ("rollout_index", "input_key", "judge_response"):
        if (value := _of(state, key)) is not None:
            output[key] = value
    if metrics:
        for name, value in metrics.items():
            output.setdefault(name, value)
    for key in state_columns or ():
        if key not in output:
            output[key] = _column(state, key)
    return output


def _column(state: State, key: str) -> Any:
    if key in LIVE_KEYS:
        return None
    # `state.get("turn")` is for authors who count turns themselves: it must not find the library's own count.
    return state[key] if key == "turn" else state.get(key)


def outputs_from_states(
    states: Iterable[State], state_columns: Sequence[str] | None = None
) -> list[RolloutOutput]:
    """`output_from_state` of every state, in order."""
    return [output_from_state(state, state_columns) for state in states]


def _saved_messages(messages: Any) -> Any:
    """Messages as 0.1.14 saves them: tool calls as JSON text, then `content` is "" where there was none.

    Text (of completion environments) and None stay as they are.
    """
    if not isinstance(messages, list | tuple):
        return messages
    plain = [m if isinstance(m, dict) else _message_fields(m) for m in messages]
    for index, message in enumerate(plain):
        if message.get("tool_calls"):
            [changed] = sanitize_tool_calls([message])
            plain[index] = {key: value for key, value in changed.items() if value is not None}
        if isinstance(message.get("content"), list):
            plain[index] = serialize_message_for_output(plain[index])
    return plain


def _message_fields(message: Any) -> dict[str, Any]:
    if hasattr(
        message, "model_dump"
    ):  # an OpenAI response message that an author appended as it came
        return message.model_dump(exclude_none=True)
    if isinstance(message, Mapping):
        return dict(message)
    return {"role": "text", "content": str(message)}


def saved_error(error: Any) -> Any:
    """`ErrorInfo` of an exception; an error that is data already (a resumed or remote rollout) stays as it is."""
    if isinstance(error, BaseException):
        return error_info(error)
    if isinstance(error, Mapping):
        return dict(error)
    text = str(error)
    return {"error": text, "error_chain_repr": text, "error_chain_str": text}


def saved_timing(timing: Any) -> dict[str, Any]:
    """Timing as a plain dict, derived figures (`duration`, `total`, `overhead`) included."""
    if timing is None:
        return {}
    if not isinstance(timing, RolloutTiming):
        return timing.model_dump() if hasattr(timing, "model_dump") else dict(timing)
    setup, generation, scoring = timing.setup, timing.generation, timing.scoring
    model, env = _saved_spans(timing.model), _saved_spans(timing.env)
    start_time = timing.start_time
    saved_setup, saved_scoring = _saved_span(setup), _saved_span(scoring)
    end = scoring.end or generation.end
    total = max(0.0, end - start_time) if end else 0.0
    busy = saved_setup["duration"] + saved_scoring["duration"] + model["duration"] + env["duration"]
    return {
        "start_time": start_time,
        "setup": saved_setup,
        "generation": _saved_span(generation),
        "scoring": saved_scoring,
        "model": model,
        "env": env,
        "total": total,
        "overhead": max(0.0, total - busy),
    }


def _saved_span(span: TimeSpan) -> dict[str, float]:
    start, end = span.start, span.end
    return {"start": start, "end": end, "duration": max(0.0, end - start) if end else 0.0}


def _saved_spans(spans: TimeSpans) -> dict[str, Any]:
    saved = [_saved_span(span) for span in spans.spans]
    return {"spans": saved, "duration": sum(span["duration"] for span in saved) if saved else 0.0}


def token_usage(state: State) -> TokenUsage | None:
    """Tokens of a rollout, or None when no model call reported any.

    The totals come from what the environment counted (`token_usage`, the usage tracker), else from the responses of
    the trajectory. `final_*` describe the last context: `final_output_tokens` is everything the model wrote,
    `final_input_tokens` the rest of the last call's tokens, so tokens that turns share count once.
    """
    trajectory = state.trajectory
    counted = _of(state, "token_usage")
    if counted is None:
        tracker = state.usage or _of(state, "usage_tracker")
        if tracker is not None:
            counted = tracker.snapshot() if hasattr(tracker, "snapshot") else tracker
    if counted is None and not trajectory:
        return None
    calls = [tokens for step in trajectory or () if (tokens := _step_tokens(step)) is not None]
    if counted is None:
        if not calls:
            return None
        totals = (sum(call[0] for call in calls), sum(call[1] for call in calls))
    else:
        totals = (counted["input_tokens"], counted["output_tokens"])
    usage: TokenUsage = {"input_tokens": float(totals[0]), "output_tokens": float(totals[1])}
    if trajectory:
        usage.update(_context_tokens(calls))  # type: ignore[typeddict-item]  # the two `final_*` keys
    return usage


def context_tokens(trajectory: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """`final_output_tokens` and `final_input_tokens` of a trajectory; see `token_usage`."""
    return _context_tokens(
        [tokens for step in trajectory if (tokens := _step_tokens(step)) is not None]
    )


def _context_tokens(calls: list[tuple[int, int]]) -> dict[str, int]:
    written = sum(output for _, output in calls)
    last = sum(calls[-1]) if calls else 0
    return {"final_output_tokens": written, "final_input_tokens": max(0, last - written)}


def _step_tokens(step: Mapping[str, Any]) -> tuple[int, int] | None:
    response = step.get("response")
    return None if response is None else reported_tokens(response)


def reported_tokens(response: Any) -> tuple[int, int] | None:
    """(prompt tokens, completion tokens) that a response reports, or None when it reports none."""
    usage = (
        response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    )
    if usage is None:
        return None
    if isinstance(usage, dict):
        return usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return getattr(usage, "prompt_tokens", 0) or 0, getattr(usage, "completion_tokens", 0) or 0


def extract_usage_tokens(response: Any) -> tuple[int, int]:
    """(prompt tokens, completion tokens) of a response of any API; 0 for what is missing or not a number.

    `input_tokens` and `output_tokens` count when the names of the chat API hold no tokens.
    """
    usage = (
        response.get("usage") if isinstance(response, dict) else getattr(response, "usage", None)
    )
    if usage is None:
        return 0, 0
    for names in (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")):
        counts = [
            _count(usage.get(name) if isinstance(usage, dict) else getattr(usage, name, None))
            for name in names
        ]
        if any(counts):
            return counts[0], counts[1]
    return 0, 0


def _count(value: Any) -> int:
    try:
        return max(0, int(float(value)))
    except (TypeError, ValueError, OverflowError):  # None, text, NaN, infinity
        return 0
