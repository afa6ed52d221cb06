"""`vf-rescore`: score the rollouts of a saved run again."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import output
from vf_cli.command import EXIT_FAILED
from vf_cli.interrupts import protect, run

if TYPE_CHECKING:
    from verifiers.evaluate.rescore import Agreement, Rescored
    from verifiers.rubrics.rubric import Rubric

app = typer.Typer(add_completion=False)

RubricPlace = Annotated[
    str | None,
    typer.Option(
        "--rubric",
        metavar="FILE.py:OBJECT",
        help="A Rubric, a function that returns one, or a reward function. Default: the environment's rubric.",
    ),
]
EnvArgs = Annotated[
    str | None,
    typer.Option(
        "--env-args",
        "-a",
        help="JSON object of arguments for load_environment(). Default: the run's.",
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Make the new scores the scores of the run; the old ones move to score_history. Without this option "
        "the new scores are only added there.",
    ),
]


@app.command()
def rescore(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    rubric: RubricPlace = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            help="Id, folder or Python file of the environment. Default: the run's environment.",
        ),
    ] = None,
    env_args: EnvArgs = None,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="Only rollouts in which a reward function (such as a judge) failed."
        ),
    ] = False,
    overwrite: Overwrite = False,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, help="Score each rollout this many times, for the agreement."
        ),
    ] = 1,
    author: Annotated[
        str | None, typer.Option("--author", help="Name for the history. Default: the user's name.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason for the history.")] = "",
    max_concurrent: Annotated[
        int,
        typer.Option(
            "--max-concurrent", "-c", min=1, help="Maximum number of examples at the same time."
        ),
    ] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log everything.")] = False,
) -> int:
    """Score a saved run again, without playing it: after a change of a reward function, or with another rubric.

    Reward functions that read the state need their keys among the state columns of the run (vf-eval -C).

    Exit code: 0 all rollouts have a score, 1 some have none, 2 wrong usage.
    """
    from verifiers.evaluate.rescore import rescore
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    protect()
    scorer, name = _rubric(folder, rubric, env, env_args)
    with output.stderr().status(f"scoring {folder} …"):
        result = run(
            rescore(
                folder,
                scorer,
                which="failed" if failed else "all",
                overwrite=overwrite,
                repeat=repeat,
                author=author or getpass.getuser(),
                reason=reason,
                name=name,
                max_concurrent=max_concurrent,
            )
        )
    if as_json:
        output.show_json(_as_json(result))
    else:
        _show(result, overwrite=overwrite)
    return EXIT_FAILED if result.failed else 0


def _rubric(
    folder: Path, rubric: str | None, env: str | None, env_args: str | None
) -> tuple[Rubric, str]:
    """Return the rubric and its name in the history."""
    from verifiers.evaluate.rescore import load_rubric
    from verifiers.loading import load, load_path, path_of
    from verifiers.runs.store import load_metadata
    from vf_cli.eval_options import json_object

    if rubric is not None:
        return load_rubric(rubric), rubric
    metadata = load_metadata(folder)
    chosen = env or str(metadata.get("env_id"))
    arguments = json_object(env_args, "-a") if env_args else dict(metadata.get("env_args") or {})
    path = path_of(chosen)
    loaded = load(chosen, arguments) if path is None else load_path(path, arguments)
    return loaded.environment.rubric, chosen


def _show(result: Rescored, *, overwrite: bool) -> None:
    kept = f", {result.kept:,} kept their scores" if result.kept else ""
    output.show(
        f"{result.scored:,} rollouts scored again{kept}; {result.changed:,} rewards changed"
    )
    if not result.scored:
        return
    output.show(f"mean reward {result.old_mean:.4f} before, {result.new_mean:.4f} now")
    _show_agreement("saved and new scores", result.agreement)
    if result.repeats is not None:
        _show_agreement("the repetitions", result.repeats)
    if result.failed:
        output.warn(f"{result.failed:,} rollouts have no score: a reward function failed again.")
    where = "are the scores of the run" if overwrite else "were added to score_history"
    output.show(f"The new scores {where}.")


def _show_agreement(what: str, agreement: Agreement) -> None:
    parts = [f"Krippendorff's alpha {_number(agreement.alpha)}"]
    if agreement.kappa == agreement.kappa:
        parts.append(f"kappa of passing {_number(agreement.kappa)}")
    if agreement.correlation == agreement.correlation:
        parts.append(f"correlation {_number(agreement.correlation)}")
    output.show(f"agreement of {what}: {', '.join(parts)} ({agreement.rollouts:,} rollouts)")


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.3f}"


def _as_json(result: Rescored) -> dict[str, Any]:
    values = result._asdict()
    for key in ("agreement", "repeats"):
        if values[key] is not None:
            values[key] = {name: _finite(value) for name, value in values[key]._asdict().items()}
    return {key: _finite(value) for key, value in values.items()}


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value
