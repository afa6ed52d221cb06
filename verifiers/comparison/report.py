"""A comparison as JSON values, as Markdown for a pull request, and as JUnit XML for a CI system."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

from verifiers.comparison.compare import Flip, Measure, PairReport, Report
from verifiers.comparison.gate import Decision, GateOutcome
from verifiers.comparison.runs import RunNumbers
from verifiers.runs.statistics import Estimate, Interval, clustered_mean

SHOWN_FLIPS = 10
"""Number of lost examples in a Markdown report."""


def mean_reward(run: RunNumbers, confidence: float = 0.95) -> Estimate:
    """Return the mean reward of a run over all its examples, with its clustered interval."""
    return clustered_mean(
        [reward for rewards in run.rewards.values() for reward in rewards],
        [key for key, rewards in run.rewards.items() for _ in rewards],
        confidence,
    )


def warnings(report: Report) -> list[str]:
    """Return what a reader must know before trusting the numbers, one sentence each."""
    found = []
    for pair in report.pairs:
        names = f"{pair.candidate.name} and {pair.baseline.name}"
        if pair.incompatibilities:
            differing = "; ".join(map(str, pair.incompatibilities))
            found.append(f"{names} were not run alike. {differing}.")
        unpaired = pair.pairing.only_first + pair.pairing.only_second
        if unpaired:
            found.append(
                f"{unpaired} examples are in only one of {names} and are not compared "
                f"({len(pair.pairing.shared)} are)."
            )
        if pair.pairing.duplicates:
            found.append(
                f"{pair.pairing.duplicates} rollouts of {names} belong to rows that have the content of another row; "
                "they count as rollouts of that row."
            )
        if pair.verdict_depends_on_failures and pair.error_free is not None:
            found.append(
                f"The verdict on {pair.candidate.name} depends on failed rollouts: {pair.reward.verdict} if they count "
                f"0, {pair.error_free.verdict} if they are left out ({pair.error_free.difference:+.4f})."
            )
    return found


# --- JSON


def as_json(report: Report, decision: Decision | None = None) -> dict[str, Any]:
    """Return the report as JSON values; numbers that cannot be computed are None."""
    return _plain(
        {
            "confidence": report.confidence,
            "examples": report.shared,
            "runs": [_run(report, place) for place in range(len(report.runs))],
            "comparisons": [_pair(pair) for pair in report.pairs],
            "warnings": warnings(report),
            "gate": None
            if decision is None
            else {
                "outcome": decision.outcome.value,
                "checks": [check._asdict() for check in decision.checks],
            },
        }
    )


def _run(report: Report, place: int) -> dict[str, Any]:
    run = report.runs[place]
    estimate = mean_reward(run, report.confidence)
    return {
        "name": run.name,
        "folder": str(run.folder),
        "env_id": run.metadata.get("env_id"),
        "model": run.metadata.get("model"),
        "examples": len(run.rewards),
        "rollouts": run.rollouts,
        "reward": estimate.mean,
        "interval": list(estimate.interval),
        "ranks": list(report.ranks[place]) if report.ranks else None,
    }


def _pair(pair: PairReport) -> dict[str, Any]:
    return {
        "baseline": pair.baseline.name,
        "candidate": pair.candidate.name,
        "verdict": pair.reward.verdict,
        "reward": _measure(pair.reward),
        "unpaired_stderr": pair.unpaired_stderr,
        "correlation": pair.correlation,
        "detectable_difference": pair.detectable,
        "variance": {
            "between_examples": pair.levels.between,
            "sampling": pair.levels.sampling,
            "sampling_share": pair.levels.sampling_share,
            "advice": pair.advice,
        },
        "sign_flip_p": pair.sign_flip_p,
        "second_interval": {"method": pair.second_method, "ends": list(pair.second_interval)}
        if pair.second_method
        else None,
        "counts": None if pair.counts is None else pair.counts._asdict(),
        "pass": [_measure(one) for one in pair.passes],
        "metrics": [_measure(one) for one in pair.metrics],
        "costs": [_measure(one) for one in pair.costs],
        "error_free": None if pair.error_free is None else _measure(pair.error_free),
        "flips": [{**flip._asdict(), "difference": flip.difference} for flip in pair.flips],
        "adjusted_p": pair.adjusted_p,
        "simultaneous_interval": list(pair.simultaneous),
        "incompatibilities": [one._asdict() for one in pair.incompatibilities],
        "examples": {
            "shared": len(pair.pairing.shared),
            "only_baseline": pair.pairing.only_first,
            "only_candidate": pair.pairing.only_second,
            "duplicates": pair.pairing.duplicates,
        },
    }


def _measure(measure: Measure) -> dict[str, Any]:
    return {
        "name": measure.name,
        "baseline": measure.baseline,
        "candidate": measure.candidate,
        "difference": measure.difference,
        "stderr": measure.estimate.stderr,
        "interval": [measure.low, measure.high],
        "p_value": measure.p_value,
        "examples": measure.examples,
        "method": measure.method,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


# --- text


def signed(value: float) -> str:
    """Return a difference with its sign, or a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:+.4g}" if abs(value) >= 1 else f"{value:+.4f}"


def interval_text(interval: Interval | Sequence[float]) -> str:
    """Return both ends, or a dash for NaN."""
    low, high = interval
    return "–" if math.isnan(low) else f"[{signed(low)}, {signed(high)}]"


def p_text(p_value: float) -> str:
    """Return a p-value with three places."""
    if math.isnan(p_value):
        return "–"
    return "<0.001" if p_value < 0.001 else f"{p_value:.3f}"


def rows_of(pair: PairReport) -> Iterator[tuple[str, ...]]:
    """Yield a row of text per quantity: name, baseline, candidate, difference, interval, p."""
    for one in (pair.reward, *pair.passes, *pair.metrics, *pair.costs):
        yield (
            one.name,
            f"{one.baseline:.4g}",
            f"{one.candidate:.4g}",
            signed(one.difference),
            interval_text((one.low, one.high)),
            p_text(one.p_value),
        )


HEADER = ("", "baseline", "candidate", "difference", "interval", "p")


def as_markdown(report: Report, decision: Decision | None = None) -> str:
    """Return the report as Markdown: headline, warnings, checks of the gate, tables, the largest losses."""
    lines = [f"# {_escaped(headline(report))}", ""]
    lines += [f"> **Warning:** {_escaped(text)}" for text in warnings(report)]
    if decision is not None:
        lines += ["", f"**Gate: {decision.outcome}**", ""]
        lines += _table(
            ("check", "rule", "outcome", "numbers"),
            [
                (f"{one.candidate}: {one.name}", one.rule, one.outcome.value, one.detail)
                for one in decision.checks
            ],
        )
    for pair in report.pairs:
        lines += [
            "",
            f"## {_escaped(pair.candidate.name)} minus {_escaped(pair.baseline.name)}",
            "",
        ]
        lines += _table(HEADER, list(rows_of(pair)))
        lines += ["", _escaped(pair.advice), "", _escaped(power_sentence(pair)), ""]
        losses = [flip for flip in pair.flips if flip.difference < 0]
        if losses:
            lines += [f"### The largest losses ({len(losses)} examples lost reward)", ""]
            lines += _table(
                ("example", "baseline", "candidate", "difference"),
                [flip_row(flip) for flip in losses[:SHOWN_FLIPS]],
            )
    return "\n".join(lines).rstrip() + "\n"


def headline(report: Report) -> str:
    """Return the conclusion in one line."""
    parts = []
    for pair in report.pairs:
        one = pair.reward
        verdict = {
            "better": f"{pair.candidate.name} is better than {pair.baseline.name}",
            "worse": f"{pair.candidate.name} is worse than {pair.baseline.name}",
        }.get(
            one.verdict,
            f"No difference between {pair.candidate.name} and {pair.baseline.name} was detected",
        )
        interval = interval_text((one.low, one.high))
        parts.append(f"{verdict}: {signed(one.difference)} {interval}")
    return "; ".join(parts)


def power_sentence(pair: PairReport) -> str:
    """Return which difference the comparison could have found."""
    if math.isnan(pair.detectable):
        return "One example cannot show a difference."
    return (
        f"With {pair.reward.examples} examples, this comparison detects a true difference of {pair.detectable:.3g} in "
        "four of five cases."
    )


def flip_row(flip: Flip) -> tuple[str, ...]:
    """Return an example as text: id, both means, difference."""
    return (
        str(flip.example_id),
        f"{flip.baseline:.3g}",
        f"{flip.candidate:.3g}",
        signed(flip.difference),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(_escaped(cell) for cell in row) + " |"
        for row in (header, ["---"] * len(header), *rows)
    ]


def _escaped(text: str) -> str:
    """Return text without Markdown or HTML effects in a table cell. Names of models and metrics are not trusted."""
    for mark, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", " "), ("\r", " ")):
        text = text.replace(mark, safe)
    return text


# --- JUnit


def as_junit(decision: Decision) -> str:
    """Return the checks of a gate as JUnit XML: FAIL is a failure, INCONCLUSIVE is skipped, or an error if it fails."""
    counts = {
        outcome: sum(one.outcome is outcome for one in decision.checks) for outcome in GateOutcome
    }
    inconclusive_fails = decision.outcome is GateOutcome.FAIL and not counts[GateOutcome.FAIL]
    cases = [_case(check, inconclusive_fails=inconclusive_fails) for check in decision.checks]
    errors = counts[GateOutcome.INCONCLUSIVE] if inconclusive_fails else 0
    skipped = counts[GateOutcome.INCONCLUSIVE] - errors
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="vf-compare" tests="{len(cases)}" failures="{counts[GateOutcome.FAIL]}" errors="{errors}" '
        f'skipped="{skipped}">\n' + "".join(cases) + "</testsuite>\n"
    )


def _case(check, *, inconclusive_fails: bool) -> str:
    name = quoteattr(_xml(f"{check.name}: {check.rule}"))
    opening = f"  <testcase classname={quoteattr(_xml(check.candidate))} name={name}"
    if check.outcome is GateOutcome.PASS:
        return f"{opening}/>\n"
    kind = "failure" if check.outcome is GateOutcome.FAIL else "skipped"
    if kind == "skipped" and inconclusive_fails:
        kind = "error"
    message = quoteattr(_xml(f"{check.outcome}: {check.detail}"))
    return f"{opening}>\n    <{kind} message={message}/>\n  </testcase>\n"


def _xml(text: str) -> str:
    """Return text without the characters that XML 1.0 does not allow."""
    return re.sub("[^\\t\\n\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]", "", text)
