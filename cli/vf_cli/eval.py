"""`vf-eval`: evaluate a model on an environment, or run all evaluations of a configuration file."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from vf_cli import eval_options

app = typer.Typer(add_completion=False)


class EvalCommand(TyperCommand):
    """A command whose `--resume` needs no path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the arguments, then parse them as usual."""
        return super().parse_args(ctx, eval_options.with_resume_value(args))


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
        eval_options.settings_of_command(values),
        eval_options.CommandOptions(**of_command),
    )
