"""`vf-eval`: evaluate a model on an environment, or run all evaluations of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, get_origin

import typer
from typer.core import TyperCommand

from verifiers.run_options import FILE_OPTIONS, kinds_of
from vf_cli import eval_options

app = typer.Typer(add_completion=False)

LATEST_RUN = "latest"
"""The value of `--resume` without a path."""


class EvalCommand(TyperCommand):
    """A command whose `--resume` needs no path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the arguments, then parse them as usual."""
        return super().parse_args(ctx, with_resume_value(args))


@app.command(cls=EvalCommand)
@eval_options.with_options
def evaluate(
    env_id_or_config: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_CONFIG",
            help="Id of an installed environment (my-env), a folder (./my_env), a Python file (./my_env.py), or a TOML "
            "file with several evaluations.",
        ),
    ],
    **values: Any,
) -> int:
    """Evaluate a model on an environment, and show the mean reward with its error bars.

    \b
    vf-eval my-env -m Qwen/Qwen3-4B -b http://localhost:8000/v1 -n 20 -r 4 -s
    vf-eval configs/benchmark.toml
    vf-eval my-env -m Qwen/Qwen3-4B -s --resume        finish an interrupted run
    vf-eval owner/my-env@1.2 -m Qwen/Qwen3-4B --push   an environment of your hub; upload the run to the hub

    Exit code: 0 done, 1 some rollouts failed or a threshold was missed, 2 wrong usage, 130 interrupted.
    """
    from vf_cli.command import configure_logging
    from vf_cli.eval_run import run_all

    configure_logging(is_verbose=values["verbose"])
    if values["fullscreen"] and values["disable_tui"]:
        raise typer.BadParameter("--fullscreen and --disable-tui exclude each other.")
    of_command = {one.name: values[one.name] for one in fields(eval_options.CommandOptions)}
    return run_all(
        env_id_or_config,
        settings_of_command(values),
        eval_options.CommandOptions(**of_command),
    )


def settings_of_command(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, by their keys in a configuration file."""
    settings: dict[str, Any] = {}
    for key, one in FILE_OPTIONS.items():
        for name in (one.name, *one.older):
            value = values.get(name)
            # By identity: 0 equals False, and is a value.
            if value is None or value is False or key in settings or key == "resume":
                continue
            kinds = [get_origin(kind) for kind in kinds_of(one)]
            if dict in kinds:
                value = eval_options.json_object(value, one.flags[-1])
            elif list in kinds and not one.is_repeatable:
                value = [part.strip() for part in value.split(",") if part.strip()]
            settings[key] = value
    if values["push"]:
        settings["save_results"] = True
    if values["resume"] == LATEST_RUN:
        settings["resume"] = True
    elif values["resume"] is not None:
        settings["resume_path"] = values["resume"]
    return settings


def with_resume_value(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `latest` after each `--resume` or `-R` that has no path."""
    completed: list[str] = []
    for index, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[index + 1] if index + 1 < len(arguments) else "-"
        if argument in ("--resume", "-R") and following.startswith("-"):
            completed.append(LATEST_RUN)
    return completed
