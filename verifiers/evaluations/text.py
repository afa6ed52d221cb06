"""A run's results as plain text, for callers of v0's `print_results`."""

from __future__ import annotations

from verifiers.messages import content_text, messages_to_printable, printable_text
from verifiers.runs.summary import summarize
from verifiers.types import GenerateOutputs


def results_text(results: GenerateOutputs, num_samples: int = 1) -> str:
    """Settings, up to `num_samples` rollouts, then rewards, pass@k and metrics with their standard errors."""
    results = GenerateOutputs.of(results)
    outputs, metadata = results.outputs, results.get("metadata") or {}
    summary = summarize(outputs, metadata.get("pass_threshold", 0.5))
    lines = ["--- Evaluation ---"]
    for label, key in (("Environment", "env_id"), ("Model", "model"), ("Endpoint", "base_url")):
        lines.append(f"{label}: {metadata.get(key, '')}")
    lines += [
        f"Examples: {summary.examples}",
        f"Rollouts per example: {summary.rollouts_per_example}",
    ]
    for output in outputs[: max(0, num_samples)]:
        lines.append(f"--- Example {output.get('example_id')}, reward {output.get('reward')} ---")
        for message in messages_to_printable(
            [*_list(output.get("prompt")), *_list(output.get("completion"))]
        ):
            lines.append(
                f"{message.get('role')}: {printable_text(content_text(message.get('content')))}"
            )
    lines.append("--- All ---")
    reward = summary.reward
    lines.append(f"reward: mean {reward.mean:.3f}, standard error {reward.stderr:.3f}")
    for label, values in (("pass@k", summary.pass_at_k), ("pass^k", summary.pass_all_k)):
        if values:
            lines.append(
                f"{label}: "
                + ", ".join(f"{k}={estimate.mean:.3f}" for k, estimate in values.items())
            )
    for name, metric in summary.metrics.items():
        lines.append(f"{name}: mean {metric.estimate.mean:.3f}, deviation {metric.deviation:.3f}")
    lines.append(
        f"errors: {summary.error_count} of {summary.rollouts}, truncated: {summary.truncated}"
    )
    for name, errors in summary.errors.items():
        lines.append(f"  {name}: {errors.count}")
    return "\n".join(lines) + "\n"


def _list(messages: object) -> list[object]:
    if isinstance(messages, str):
        return [{"role": "text", "content": messages}]
    return list(messages) if isinstance(messages, list) else []
