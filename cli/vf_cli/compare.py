"""`vf-compare`: is a candidate better than the baseline?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import output

if TYPE_CHECKING:
    from rich.table import Table

    from verifiers.comparison.compare import Report
    from verifiers.comparison.gate import Decision

app = typer.Typer(add_completion=False)

SHOWN_FLIPS = 5
"""Number of lost examples shown by default."""

Confidence = Annotated[
    float,
    typer.Option("--confidence", min=0.5, max=0.9999, help="Confidence of the intervals."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, 2 to 8; the first is the baseline."),
    ],
    confidence: Confidence = 0.95,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="FIELD",
            help="Field of the rollouts that groups correlated examples, such as info.repository.",
        ),
    ] = None,
    pass_threshold: Annotated[
        float | None,
        typer.Option(
            "--pass-threshold", help="Reward from which a rollout passes. Default: the baseline's."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse runs that differ in environment, data, prompt, sampling or judge.",
        ),
    ] = False,
    gate: Annotated[
        Path | None,
        typer.Option(
            "--gate", metavar="POLICY", help="TOML file with the checks that a candidate must pass."
        ),
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write the report as Markdown."),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Write the checks of the gate as JUnit XML."),
    ] = None,
    flips: Annotated[
        int, typer.Option("--flips", min=0, help="Number of lost and of won examples to show.")
    ] = SHOWN_FLIPS,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the resampling.")] = 0,
    as_json: Json = False,
) -> int:
    """Compare saved runs example by example, with intervals.

    Examples are paired by their content, so that their difficulty cancels out.

    Exit code: 0; with --gate 0 PASS, 1 FAIL, 2 INCONCLUSIVE. Wrong usage is 2 as well, without a report.
    """
    from verifiers.comparison import report as reports
    from verifiers.comparison.compare import compare
    from verifiers.comparison.gate import Policy, decide, waived_examples
    from verifiers.errors import ConfigError

    if junit is not None and gate is None:
        raise ConfigError("--junit writes the checks of a gate; add --gate POLICY.")
    policy = None if gate is None else Policy.load(gate)
    found = compare(
        *runs,
        confidence=confidence,
        cluster=cluster,
        pass_threshold=pass_threshold,
        strict=strict,
        leave_out=None if policy is None else lambda ids: waived_examples(policy, ids),
        seed=seed,
    )
    decision = None if policy is None else decide(found, policy)
    if markdown is not None:
        _write(markdown, reports.as_markdown(found, decision))
    if junit is not None and decision is not None:
        _write(junit, reports.as_junit(decision))
    if as_json:
        output.show_json(reports.as_json(found, decision))
    else:
        _show(found, decision, flips)
    return 0 if decision is None else decision.exit_code


def _write(path: Path, text: str) -> None:
    from verifiers.errors import ConfigError

    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error


def _show(report: Report, decision: Decision | None, flips: int) -> None:
    from verifiers.comparison import report as reports

    output.show(reports.headline(report))
    output.show()
    output.show(_runs_table(report))
    for pair in report.pairs:
        output.show()
        output.show(f"{pair.candidate.name} minus {pair.baseline.name}")
        output.show(
            table_of(reports.HEADER, list(reports.rows_of(pair)), f"{report.confidence:.0%}")
        )
        _show_facts(report, pair, flips)
    for text in reports.warnings(report):
        output.warn(text)
    if decision is not None:
        output.show()
        rows = [
            (one.outcome.value, f"{one.candidate}: {one.name}", one.rule, one.detail)
            for one in decision.checks
        ]
        output.show(table_of(("", "check", "rule", "numbers"), rows, None))
        output.show(f"gate: {decision.outcome}")


def _show_facts(report: Report, pair: Any, flips: int) -> None:
    from verifiers.comparison import report as reports

    one = pair.reward
    output.show(f"method: {one.method}; sign-flip test p {reports.p_text(pair.sign_flip_p)}")
    if pair.second_method:
        output.show(f"{pair.second_method}: {reports.interval_text(pair.second_interval)}")
    output.show(
        f"standard error {one.estimate.stderr:.4f} (unpaired {pair.unpaired_stderr:.4f}, correlation "
        f"{pair.correlation:.2f})"
    )
    output.show(reports.power_sentence(pair))
    output.show(pair.advice)
    if len(report.pairs) > 1:
        output.show(
            f"all {len(report.pairs)} candidates together: interval {reports.interval_text(pair.simultaneous)}, "
            f"p {reports.p_text(pair.adjusted_p)}"
        )
    lost = [flip for flip in pair.flips if flip.difference < 0]
    won = [flip for flip in reversed(pair.flips) if flip.difference > 0]
    for title, some in (
        (f"{len(lost)} examples lost reward", lost),
        (f"{len(won)} examples won", won),
    ):
        if some and flips:
            output.show(f"{title}; the first {min(flips, len(some))}:")
            header = ("example", "baseline", "candidate", "difference")
            output.show(table_of(header, [reports.flip_row(flip) for flip in some[:flips]], None))


def _runs_table(report: Report) -> Table:
    from verifiers.comparison.report import mean_reward

    rows = []
    for place, run in enumerate(report.runs):
        mean = mean_reward(run, report.confidence)
        row = [
            run.name,
            str(run.metadata.get("env_id") or ""),
            f"{len(run.rewards):,}",
            f"{run.rollouts:,}",
            f"{mean.mean:.4f}",
            f"[{mean.low:.4f}, {mean.high:.4f}]" if mean.low == mean.low else "–",
        ]
        if report.ranks:
            best, worst = report.ranks[place]
            row.append(str(best) if best == worst else f"{best}–{worst}")
        rows.append(row)
    header = ["run", "environment", "examples", "rollouts", "reward", "interval"]
    return table_of([*header, "rank"] if report.ranks else header, rows, f"{report.confidence:.0%}")


def table_of(header: Sequence[str], rows: Sequence[Sequence[str]], confidence: str | None) -> Table:
    """Return a plain table with numbers right-aligned; `confidence` is the title of the interval's column."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numbers = {
        "baseline",
        "candidate",
        "difference",
        "interval",
        "p",
        "examples",
        "rollouts",
        "reward",
        "rank",
    }
    for name in header:
        title = confidence if name == "interval" and confidence else name
        is_number = name in numbers
        table.add_column(
            title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold"
        )
    for row in rows:
        table.add_row(*(output.safe(cell) for cell in row))
    return table
