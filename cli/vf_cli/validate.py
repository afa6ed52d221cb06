"""`vf-validate`: check an environment without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from vf_cli import eval_options as o
from vf_cli import output
from vf_cli.command import EXIT_FAILED
from vf_cli.interrupts import protect, run

app = typer.Typer(add_completion=False)

_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}


@app.command()
def validate(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="Id of an installed environment, a folder (./my_env), or a Python file (./my_env.py).",
        ),
    ],
    env_args: Annotated[
        str | None,
        typer.Option("--env-args", "-a", help="JSON object of arguments for load_environment()."),
    ] = None,
    sandbox_backend: Annotated[str | None, o.typer_option("sandbox_backend")] = None,
    num_rows: Annotated[
        int, typer.Option("--num-rows", "-n", min=-1, help="Number of rows to check; -1 means all.")
    ] = 100,
    num_played: Annotated[
        int, typer.Option("--num-played", min=1, help="Number of rows to play rollouts on.")
    ] = 8,
    load_limit: Annotated[
        float, typer.Option("--load-limit", help="Maximum time for loading, in seconds.")
    ] = 60.0,
    play_limit: Annotated[
        float,
        typer.Option("--play-limit", help="Maximum time for one set of rollouts, in seconds."),
    ] = 60.0,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="CHECK", help="Run this check only; can be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
) -> int:
    """Check an environment without a model: rows, gold answers, empty answers, determinism, isolation.

    Checks: rows, same-rows, gold, empty, same-scores, isolation, contract. Tasks in Harbor's format have two more: with
    oracle, the solution of each task must score 1; with nop, an agent that does nothing must score less.

    A right answer must get the full reward and an empty answer none. For conversations and tools, write a function
    gold_completion(row) that returns the right replies, beside load_environment. Without it that check is skipped, and
    a skipped check is not a pass.

    Exit code: 0 nothing failed, 1 something failed, 2 wrong usage.
    """
    import logging

    from verifiers.packages.validation import CHECKS, ValidationLimits, validate
    from vf_cli.command import configure_logging
    from vf_cli.eval_options import json_object

    # The checks make rollouts fail on purpose, and report the failures that matter.
    configure_logging(is_verbose=verbose, least=logging.CRITICAL)
    arguments = json_object(env_args, "-a") if env_args else {}
    if unknown := sorted(set(only or ()) - set(CHECKS)):
        raise typer.BadParameter(
            f"--only {', '.join(unknown)} is not a check. Choose from {', '.join(CHECKS)}."
        )
    limits = ValidationLimits(num_rows, num_played, load_limit, play_limit)
    protect()
    with output.stderr().status(f"checking {env} …"):
        result = run(validate(env, arguments, limits=limits, only=only or ()))
    if as_json:
        checks = [check._asdict() for check in result.checks]
        output.show_json({"env_id": result.env_id, "is_sound": result.is_sound, "checks": checks})
    else:
        _show(env, result.env_id, result.checks)
    return 0 if result.is_sound else EXIT_FAILED


def _show(env: str, env_id: str, checks: list) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        style = _STYLES[check.status]
        table.add_row(Text(check.status, style=style), check.name, output.safe(check.detail))
    output.show(table)
    counts = {
        status: sum(check.status == status for check in checks)
        for status in ("pass", "fail", "skip")
    }
    summary = f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"
    output.show(
        f"{env_id}: {summary}" + ("" if counts["fail"] else f"   next: vf-eval {env} -m MODEL")
    )
