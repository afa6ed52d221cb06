"""The report of a finished evaluation: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vf_cli import output
from vf_cli.progress import duration, estimate_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from verifiers.configs import EvalConfig
    from verifiers.runs.statistics import Comparison, Estimate
    from verifiers.runs.summary import Summary

LIMITS = frozenset(
    (
        "timeout_reached",
        "max_total_tokens_reached",
        "max_total_completion_tokens_reached",
        "max_cost_reached",
    )
)
"""Stop conditions that are shown even if all rollouts ended in the same way, because a limit affects the reward."""
MAX_METRICS = 30
MAX_EXAMPLE_LINES = 8
"""Maximum number of lines per message of the example."""


class Finished(NamedTuple):
    """One evaluation that has ended."""

    config: EvalConfig
    name: str
    """Id of the environment; the configuration may name the environment by a path."""
    title: str
    summary: Summary
    saved_to: Path | None
    is_complete: bool
    """False if the evaluation was interrupted."""
    wanted: int
    """Number of rollouts of a complete run."""
    examples: int
    """Number of examples of a complete run: as requested, or the size of the dataset."""
    example: Mapping[str, Any] | None = None
    """A rollout to show."""
    is_scratch: bool = False
    """Whether `saved_to` is in the scratch folder, where only the last runs stay."""
    error_messages: Mapping[str, str] = {}
    """Type of error → message of one such error."""
    swept: Mapping[str, Any] = {}
    """Values that distinguish the evaluation within a sweep."""
    rewards: Mapping[Any, Sequence[float]] = {}
    """Example → its rewards, for comparisons with other evaluations of the same examples."""

    @property
    def setting(self) -> str:
        """The values of a sweep as text, e.g. `temperature=0.5`."""
        return ", ".join(f"{name}={value}" for name, value in self.swept.items())


def title_of(
    name: str, version: str | None, examples: int, rollouts_per_example: int, model: str
) -> str:
    """`gsm8k 0.1.2   20 examples x 4 rollouts   Qwen/Qwen3-4B`."""
    named = f"{name} {version}" if version else name
    return f"{named}   {_counted(examples, 'example')} x {_counted(rollouts_per_example, 'rollout')}   {model}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def tables(finished: Finished, *, with_example: bool, is_only: bool) -> list[RenderableType]:
    """Yield the parts of the report in order. A command to copy is plain text, because tables break lines."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(output.safe(finished.title), style="bold")]
    if with_example and finished.example is not None:
        parts += [_example(finished.example), ""]
    parts.append(_facts(finished))
    if len(finished.summary.metrics) > 0:
        parts += ["", _metrics(finished.summary)]
    if is_only or not finished.is_complete:
        label, text = next_step(finished, [Path(sys.argv[0]).name, *sys.argv[1:]])
        parts += ["", f"{label}: {text}"]
    return parts


def next_step(finished: Finished, command: Sequence[str]) -> tuple[str, str]:
    """Return label and text of the next step."""
    if not finished.is_complete and finished.saved_to is not None:
        return (
            "resume",
            f"{shell(without_resume(command))} --resume {shell([str(finished.saved_to)])}",
        )
    if finished.summary.failed and finished.summary.failed == finished.summary.rollouts:
        return "next", what_to_do(finished.summary, is_saved=finished.saved_to is not None)
    if finished.saved_to is None:
        return "next", "add -s to keep the rollouts; they were not saved"
    if may_pass_again(finished.summary):
        again = f"{shell(without_resume(command))} --resume {shell([str(finished.saved_to)])}"
        return "next", f"{again}     # reruns the rollouts that infrastructure failed"
    if finished.is_scratch:
        from verifiers.runs.folders import SCRATCH_RUNS

        return "next", f"add -s to keep a run; without -s, only the last {SCRATCH_RUNS} runs stay"
    return "next", "each line of results.jsonl there is one rollout"


def error_free_text(summary: Summary) -> str | None:
    """Return the mean over the rollouts without a failure; None if it equals the mean over all."""
    clean = summary.reward_error_free
    if not summary.failed or not clean.observations:
        return None
    return f"{estimate_text(clean)} over the {clean.observations:,} without an error"


def what_to_do(summary: Summary, *, is_saved: bool) -> str:
    """Return advice for a run in which every rollout failed, by its most frequent failure."""
    name, failure = next(iter({**summary.errors, **summary.reward_errors}.items()))
    kinds = _types_of(name) if name in summary.errors else {"RewardError"}
    advice = next((text for kind, text in _ADVICE.items() if kind in kinds), _LOOK)
    where = f" ({failure.where})" if failure.where else ""
    details = (
        "`error.traceback` or `errors[].traceback` in results.jsonl has the traceback"
        if is_saved
        else "-s saves the traceback of each failure, -v shows tracebacks"
    )
    return f"every rollout failed with {name}{where}: {advice}; {details}"


_LOOK = "follow the message above, then run the command again"
_ADVICE = {
    "RewardError": "correct the reward function, then run the command again",
    "EnvironmentCodeError": "correct the environment, then run the command again",
    "AuthorError": "correct the environment, then run the command again",
    "NoSuchRoute": "check -b and -m, then run the command again",
    "BadRequestError": "check -m and the sampling arguments (-t, -T, -S), then run the command again",
    "RateLimitError": "lower -c, then run the command again",
    "EndpointUnavailable": "check that the server at -b runs, then run the command again",
    "SandboxError": "check the sandbox back end (`vf-sandboxes --help`), then run the command again",
    "MCPServerError": "check the command of the MCP server, then run the command again",
}
"""Type of error → advice."""


def _types_of(name: str) -> list[str]:
    """Return the name of a type of error, then the names of its bases."""
    from verifiers.runs.v0 import vf_error_types

    for kind in vf_error_types():
        if kind.__name__ == name:
            return [base.__name__ for base in kind.__mro__]
    return [name]


def may_pass_again(summary: Summary) -> bool:
    """Whether some rollouts failed for a reason that `--resume` tries again."""
    from verifiers.runs.resume import failed_by_infrastructure

    return any(failed_by_infrastructure({"error": {"error": name}}) for name in summary.errors)


def without_resume(command: Sequence[str]) -> list[str]:
    """Return a command without its `--resume`."""
    kept: list[str] = []
    skip_value = False
    for index, word in enumerate(command):
        if skip_value:
            skip_value = False
        elif word in ("--resume", "-R"):
            skip_value = index + 1 < len(command) and not command[index + 1].startswith("-")
        elif not word.startswith("--resume="):
            kept.append(word)
    return kept


def shell(words: Sequence[str]) -> str:
    """Return words as text for a shell."""
    import shlex

    return shlex.join(words)


def _facts(finished: Finished) -> Table:
    from rich.table import Table
    from rich.text import Text

    summary = finished.summary
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")

    def add(label: str, value: str, style: str = "") -> None:
        table.add_row(label, Text(output.safe(value), style=style))

    add("reward", _estimate_line(summary.reward), "bold")
    if (clean := error_free_text(summary)) is not None:
        add("", clean)
    for label, values in (("pass@k", summary.pass_at_k), ("pass^k", summary.pass_all_k)):
        if len(values) > 1:
            add(label, "   ".join(f"k={k} {estimate_text(v)}" for k, v in values.items()))
    if finished.is_complete:
        add("rollouts", f"{summary.rollouts:,}")
    else:
        add("rollouts", f"{summary.rollouts:,} of {finished.wanted:,}; interrupted", "bold yellow")
    requested = finished.config.num_examples
    if finished.examples < requested:
        add(
            "examples",
            f"{finished.examples:,}; {requested:,} were requested, the dataset has no more",
            "yellow",
        )
    cut_share = summary.truncated / summary.rollouts if summary.rollouts else 0.0
    add("truncated", f"{summary.truncated} ({cut_share:.0%})" if summary.truncated else "none")
    if len(summary.stop_conditions) > 1 or not LIMITS.isdisjoint(summary.stop_conditions):
        add(
            "ended by",
            ", ".join(f"{name} {count}" for name, count in summary.stop_conditions.items()),
        )
    _add_errors(add, summary, finished.error_messages)
    tokens = summary.tokens
    if tokens.rollouts:
        speed = summary.output_tokens_per_s
        speed_text = f"   {speed:,.0f} out/s" if math.isfinite(speed) else ""
        add(
            "tokens", f"{tokens.input_tokens:,.0f} in   {tokens.output_tokens:,.0f} out{speed_text}"
        )
    if summary.cost is not None:
        add("cost", f"${summary.cost['total_usd']:,.4f}")
    add("took", duration(summary.wall_time_s))
    add("kept" if finished.is_scratch else "saved", str(finished.saved_to or "no"))
    return table


def error_messages(rollouts: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return type of error → message of the first rollout with such an error."""
    messages: dict[str, str] = {}
    for rollout in rollouts:
        error = rollout.get("error")
        if isinstance(error, Mapping) and error.get("error") not in messages:
            messages[str(error["error"])] = _unquoted(
                str(error.get("error_chain_repr") or error.get("error_chain_str"))
            )
    return messages


def _unquoted(text: str) -> str:
    """`BadRequestError('refused')` → `refused`; other texts stay unchanged."""
    import ast

    _, _, inner = text.partition("(")
    try:
        message = ast.literal_eval(inner.removesuffix(")"))
    except (ValueError, SyntaxError):
        return text
    return message if isinstance(message, str) else text


def _add_errors(add: Any, summary: Summary, messages: Mapping[str, str]) -> None:
    if not summary.failed:
        add("errors", "none")
        return
    low, high = summary.failed_interval
    of_all = f"{summary.failed} of {_counted(summary.rollouts, 'rollout')}"
    add("errors", f"{of_all}   95 % [{low:.1%}, {high:.1%}]", "bold red")
    for name, errors in summary.errors.items():
        message = messages.get(name) or "".join(errors.messages[:1])
        add("", f"{name} {errors.count}: {_short(message)}", "red")
        if errors.where:
            add("", f"at {errors.where}", "red")
    for name, errors in summary.reward_errors.items():
        message = "".join(errors.messages[:1])
        times = "once" if errors.count == 1 else f"{errors.count} times"
        add("scoring", f"{name} raised {times}: {_short(message)}", "red")
        if errors.where:
            add("", f"at {errors.where}", "red")
    if summary.unscored:
        add("unscored", f"{summary.unscored} rollouts have no finite reward and count 0.0", "red")


def _short(text: str, width: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _estimate_line(estimate: Estimate) -> str:
    if math.isnan(estimate.low):
        return estimate_text(estimate) if estimate.observations else "–"
    return f"{estimate_text(estimate)}   95 % [{estimate.low:.3f}, {estimate.high:.3f}]"


def _metrics(summary: Summary) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("metric")
    for name in ("mean", "± se", "sd", "min", "max"):
        # Names are shortened, numbers are not.
        table.add_column(name, justify="right", no_wrap=True)
    for name, metric in list(summary.metrics.items())[:MAX_METRICS]:
        numbers = (
            metric.estimate.mean,
            metric.estimate.stderr,
            metric.deviation,
            metric.low,
            metric.high,
        )
        table.add_row(output.safe(name), *(_number(number) for number in numbers))
    if len(summary.metrics) > MAX_METRICS:
        table.add_row(f"… {len(summary.metrics) - MAX_METRICS} more in metadata.json")
    return table


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:,.3f}"


def _example(rollout: Mapping[str, Any]) -> RenderableType:
    from rich.panel import Panel
    from rich.text import Text

    from verifiers.messages import format_messages

    shown = Text()
    for label, messages in (
        ("prompt", rollout.get("prompt")),
        ("completion", rollout.get("completion")),
    ):
        shown.append(f"{label}\n", style="dim")
        shown.append_text(_shortened(format_messages(messages or "")))
        shown.append("\n")
    for name, detail in (rollout.get("score_details") or {}).items():
        for field in ("answer", "explanation", "metadata"):
            if (value := detail.get(field)) is not None:
                shown.append(f"{name}, {field}\n", style="dim")
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                shown.append_text(_shortened(Text(text)))
                shown.append("\n")
    shown.rstrip()
    reward = rollout.get("reward")
    title = (
        f"example {rollout.get('example_id')}   reward {reward:.3f}"
        if isinstance(reward, float)
        else "example"
    )
    return Panel(shown, title=title, title_align="left", border_style="dim")


def _shortened(text: Any) -> Any:
    lines = text.split("\n", allow_blank=True)
    if len(lines) <= MAX_EXAMPLE_LINES:
        return text
    from rich.text import Text

    kept = Text("\n").join(lines[:MAX_EXAMPLE_LINES])
    return kept.append(f"\n… {len(lines) - MAX_EXAMPLE_LINES} more lines", style="dim")


def comparison(finished: Sequence[Finished]) -> Table:
    """Return a table with one row per evaluation, for a file with several."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("environment", "model"):
        table.add_column(name, overflow="fold")
    table.add_column("setting", no_wrap=True)
    for name in ("reward", "95 %", "errors", "rollouts"):
        table.add_column(name, justify="right")
    for one in finished:
        reward = one.summary.reward
        interval = "–" if math.isnan(reward.low) else f"[{reward.low:.3f}, {reward.high:.3f}]"
        shown = estimate_text(reward)
        clean = one.summary.reward_error_free
        if one.summary.failed and clean.observations:
            shown += f"\n{clean.mean:.3f} error-free"
        cells = (one.name, one.config.model, one.setting, shown, interval,
                 str(one.summary.failed), f"{one.summary.rollouts}")  # fmt: skip
        table.add_row(*(output.safe(cell) for cell in cells))
    return table


class Difference(NamedTuple):
    """One evaluation minus another of the same environment, example by example."""

    first: Finished
    second: Finished
    comparison: Comparison

    def as_json(self, positions: Mapping[int, int]) -> dict[str, Any]:
        """Return the difference as JSON values; evaluations are given by their position in the list of all."""
        numbers = {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in self.comparison._asdict().items()
        }
        first, second = positions[id(self.first)], positions[id(self.second)]
        return {"env_id": self.second.name, "first": first, "second": second, **numbers}


def differences(finished: Sequence[Finished]) -> list[Difference]:
    """Return each evaluation minus the first of the same environment, if both share at least two examples."""
    from verifiers.runs.statistics import paired_difference

    firsts: dict[str, Finished] = {}
    pairs: list[Difference] = []
    for one in finished:
        first = firsts.setdefault(one.name, one)
        if first is not one:
            difference = Difference(first, one, paired_difference(first.rewards, one.rewards))
            if difference.comparison.examples > 1:
                pairs.append(difference)
    return pairs


def difference_table(pairs: Sequence[Difference]) -> Table:
    """Return a table with one row per difference: estimate, interval, p, and number of examples."""
    from rich import box
    from rich.table import Table

    models = {one.config.model for pair in pairs for one in (pair.first, pair.second)}

    def named(one: Finished) -> str:
        parts = [one.config.model] if len(models) > 1 else []
        return ", ".join([*parts, *([one.setting] if one.setting else [])]) or one.config.model

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("environment", overflow="fold")
    for name in ("setting", "minus"):
        table.add_column(name, no_wrap=True)
    for name in ("difference", "95 %", "p", "examples"):
        table.add_column(name, justify="right", no_wrap=True)
    for pair in pairs:
        numbers = pair.comparison
        interval = "–" if math.isnan(numbers.low) else f"[{numbers.low:+.3f}, {numbers.high:+.3f}]"
        p_value = "<0.001" if numbers.p_value < 0.001 else f"{numbers.p_value:.3f}"
        examples = f"{numbers.examples:,}"
        if numbers.unpaired:
            examples += f" ({numbers.unpaired:,} unpaired)"
        cells = (pair.second.name, named(pair.second), named(pair.first),
                 f"{numbers.difference:+.4f}", interval, p_value, examples)  # fmt: skip
        table.add_row(*(output.safe(cell) for cell in cells))
    return table


def as_json(finished: Finished) -> dict[str, Any]:
    """Return one evaluation as JSON values."""
    return {
        "env_id": finished.name,
        "model": finished.config.model,
        "swept": dict(finished.swept),
        "is_complete": finished.is_complete,
        "rollouts_wanted": finished.wanted,
        "saved_to": str(finished.saved_to) if finished.saved_to else None,
        "config": config_json(finished.config),
        "summary": finished.summary.as_json(),
    }


def config_json(config: EvalConfig) -> dict[str, Any]:
    """Return a resolved evaluation as JSON values, with names of key variables, without keys and secret headers."""
    from verifiers.runs.description import without_secrets

    values = config.model_dump(mode="json")
    client = values["client_config"]
    for endpoint in (client, *client["endpoint_configs"]):
        endpoint["extra_headers"] = without_secrets(endpoint["extra_headers"])
    return values
