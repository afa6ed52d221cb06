"""The engine's counters in the text format of Prometheus."""

from __future__ import annotations

from verifiers.endpoint.engine import Engine

_COUNTERS = (
    ("requests", "Generations asked for."),
    ("prompt_tokens", "Prompt tokens of admitted generations."),
    ("cached_prompt_tokens", "Prompt tokens copied from an earlier prompt."),
    ("generation_tokens", "Tokens generated."),
    ("steps", "Engine steps."),
    ("weight_updates", "Weight updates applied."),
    ("finished_stop", "Generations ended by an end token or stop string."),
    ("finished_length", "Generations ended by a token limit."),
    ("finished_abort", "Generations cancelled."),
    ("finished_error", "Generations ended by broken weights."),
)


def metrics_text(engine: Engine) -> str:
    """One block a metric.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []

    def add(name: str, kind: str, text: str, value: float) -> None:
        full = f"verifiers_endpoint_{name}"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {value}"))

    for name, text in _COUNTERS:
        add(f"{name}_total", "counter", text, engine.counts[name])
    status = engine.status
    add("busy_seconds_total", "counter", "Processor time spent in steps.", round(engine.busy_s, 6))
    add("running", "gauge", "Generations in the batch.", status.running)
    add("waiting", "gauge", "Generations in line.", status.waiting)
    add("paused", "gauge", "1 while paused.", int(status.paused))
    add("weight_version", "gauge", "Version of the weights in use.", status.version)
    return "\n".join(lines) + "\n"
