"""`vf-export`: saved runs as tables, datasets and result cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vf_cli import output

app = typer.Typer(add_completion=False)


@app.command()
def export(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, or folders that contain runs."),
    ],
    to: Annotated[
        Path,
        typer.Option(
            "--to",
            "-o",
            metavar="PATH",
            help="File (.csv, .parquet, .jsonl, .arrow, .yaml), or a folder for a Hugging Face dataset.",
        ),
    ],
    table: Annotated[
        Literal["rollouts", "messages", "runs"],
        typer.Option("--table", "-t", help="One row per rollout, message or run."),
    ] = "rollouts",
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="FIELD",
            help="Further field of the rollouts, such as answer or info.level. Can be repeated.",
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            metavar="DATASET[:TASK]",
            help="Benchmark on Hugging Face that a .yaml file of results refers to, such as owner/name:default.",
        ),
    ] = None,
) -> int:
    """Write saved runs as a table for other programs.

    A .yaml file holds the mean reward of each run in the format of `.eval_results` folders of model repositories.
    """
    from verifiers.runs import frames

    if to.suffix in (".yaml", ".yml"):
        count = frames.write_eval_results(runs, to, benchmark)
        output.show(f"{count} results written to {to}")
        return 0
    arrow = {
        "rollouts": lambda: frames.rollouts_df(*runs, columns=column or (), library="arrow"),
        "messages": lambda: frames.messages_df(*runs, library="arrow"),
        "runs": lambda: frames.runs_df(*runs, library="arrow"),
    }[table]()
    frames.write_table(arrow, to)
    output.show(f"{arrow.num_rows:,} {table} written to {to}")
    return 0
