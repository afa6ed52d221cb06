"""`vf-plan`: how many examples and rollouts detect a difference?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vf_cli import output

app = typer.Typer(add_completion=False)


@app.command()
def plan(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="One pilot run, or two runs to be compared again."),
    ],
    effect: Annotated[
        list[float] | None,
        typer.Option(
            "--effect",
            "-e",
            help="Difference that matters. Can be repeated. Default: 0.01 0.02 0.05 0.1.",
        ),
    ] = None,
    power: Annotated[
        float,
        typer.Option(
            "--power", min=0.01, max=0.999, help="Probability of detecting the difference."
        ),
    ] = 0.8,
    significance: Annotated[
        float,
        typer.Option("--significance", min=0.0001, max=0.5, help="Probability of a false alarm."),
    ] = 0.05,
    correlation: Annotated[
        float,
        typer.Option(
            "--correlation",
            min=0.0,
            max=0.999,
            help="Expected correlation of the two runs' true means per example. With two runs it is measured.",
        ),
    ] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show how many examples and rollouts detect a difference, from the variances of a pilot run.

    With one pilot run of at least two rollouts per example, the second run is assumed to have the same variances. With
    two runs, the variance of their difference is measured.
    """
    from verifiers.comparison.plan import ROLLOUTS, pilot_variances, plan_table
    from vf_cli.compare import table_of

    variances = pilot_variances(runs, correlation)
    effects = effect or [0.01, 0.02, 0.05, 0.1]
    table = plan_table(variances, effects, power=power, significance=significance)
    if as_json:
        output.show_json(
            {
                "between_examples": variances.between,
                "within_example": list(variances.within),
                "examples": variances.examples,
                "power": power,
                "significance": significance,
                "needed_examples": [
                    {"effect": one, "rollouts": k, "examples": n}
                    for one, row in zip(effects, table, strict=True)
                    for k, n in zip(ROLLOUTS, row, strict=True)
                ],
            }
        )
        return 0
    output.show(
        f"variance between examples {variances.between:.4f}, within an example "
        f"{variances.within[0]:.4f} and {variances.within[1]:.4f}; {variances.examples:,} examples in the pilot"
    )
    output.show()
    rows = [[f"{one:g}", *(f"{n:,}" for n in row)] for one, row in zip(effects, table, strict=True)]
    output.show(table_of(["difference", *(f"r = {k}" for k in ROLLOUTS)], rows, None))
    output.show(
        f"Examples per run that detect the difference with probability {power:g}, by rollouts per example (r)."
    )
    return 0
