"""Rollouts as ART's trajectories: the conversation, with an OpenAI `Choice` for each response of the policy.

    group = trajectory_group(outputs)          # rollouts of one example
    await model.train([group])

ART reads token ids and log-probabilities from the choices, in the format of vLLM's `return_tokens_as_token_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.dialects.chat_completions import native_message, native_messages
from verifiers.training.adapters import trainer_module
from verifiers.training.samples import OnDrift, SampleError, failure_of, samples_of

INSTALL = "pip install openpipe-art"


def trajectory_of(output: Mapping[str, Any], *, on_drift: OnDrift = "error") -> Any:
    """Return the `Trajectory` of a rollout, with its tools: ART's chat template needs them.

    ART accepts one conversation per rollout. If the turns do not continue each other, raise SampleError, or with
    `on_drift="last"` keep the conversation of the last turn only. Raise SampleError for a failed rollout.
    """
    art = trainer_module("art", "Trajectory", install=INSTALL)
    samples = samples_of(output, on_drift=on_drift)
    if not samples:
        raise SampleError(f"The rollout is not trained on: {failure_of(output) or 'no tokens'}.")
    trained = {span.step for span in samples[0].spans}
    return art.Trajectory(
        messages_and_choices=_conversation(output["trajectory"], trained),
        tools=[_tool(tool) for tool in output.get("tool_defs") or []] or None,
        reward=float(output["reward"]),
        metrics={name: float(value) for name, value in (output.get("metrics") or {}).items()},
        metadata={"example_id": str(output.get("example_id"))},
    )


def trajectory_group(outputs: Sequence[Mapping[str, Any]], *, on_drift: OnDrift = "error") -> Any:
    """Return the `TrajectoryGroup` of one example's rollouts. Failed rollouts become its exceptions."""
    art = trainer_module("art", "TrajectoryGroup", install=INSTALL)
    failures = [failure_of(output) for output in outputs]
    return art.TrajectoryGroup(
        [
            trajectory_of(o, on_drift=on_drift)
            for o, f in zip(outputs, failures, strict=True)
            if f is None
        ],
        exceptions=[SampleError(failure) for failure in failures if failure is not None],
    )


def _conversation(steps: Sequence[Mapping[str, Any]], trained: set[int]) -> list[Any]:
    """Return the messages of the last turn, with a choice for each response of a trained step."""
    last = steps[-1]
    messages: list[Any] = [dict(m) for m in native_messages([*last["prompt"], *last["completion"]])]
    for number in trained:
        step = steps[number]
        index = len(step["prompt"])  # the response follows the prompt
        messages[index] = _choice(step)
    return messages


def _choice(step: Mapping[str, Any]) -> Any:
    from openai.types.chat.chat_completion import Choice

    tokens = step["tokens"]
    message = dict(native_message(step["completion"][0]))
    calls = bool(message.get("tool_calls"))
    content = [
        {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(
            tokens["completion_ids"], tokens["completion_logprobs"], strict=True
        )
    ]
    finish = "length" if step.get("is_truncated") else "tool_calls" if calls else "stop"
    return Choice.model_validate(
        {"index": 0, "finish_reason": finish, "message": message, "logprobs": {"content": content}}
    )


def _tool(tool: Any) -> dict[str, Any]:
    from verifiers.dialects.chat_completions import native_tool

    return native_tool(tool)
