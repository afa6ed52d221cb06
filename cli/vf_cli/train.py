"""`vf-train`: train a small model on an environment, with the reference trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import eval_options as o
from vf_cli import output
from vf_cli.interrupts import protect

if TYPE_CHECKING:
    from verifiers.loading import Loaded
    from verifiers.training.reference.config import TrainConfig
    from verifiers.training.reference.orchestrator import RunResult
    from verifiers.training.reference.run_folder import RunFolder

app = typer.Typer(add_completion=False)

COMPARED_STEPS = 5
"""Number of steps at the beginning and at the end that the summary compares."""


@app.command()
def train(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG_OR_ENV",
            help="TOML file, name of a configuration in the package, or an environment: a Python file "
            "(./my_env.py), a folder (./my_env), or an id.",
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Train on reverse-text: minutes on two CPU cores.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Continue from the latest checkpoint in a run's folder."),
    ] = None,
    output_folder: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder of the run. If it contains a run already, the next free name is used.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Number of steps of reinforcement learning."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None,
    sandbox_backend: Annotated[str | None, o.typer_option("sandbox_backend")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON document.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log all messages and show tracebacks.")
    ] = False,
) -> int:
    """Train a small model on an environment: warm start, then asynchronous reinforcement learning.

    \b
    vf-train --demo                            mean reward from about 0.6 to more than 0.9
    vf-train ./my_env.py                       your own environment, with default settings
    vf-train my_run.toml --steps 200
    vf-train --resume outputs/train/my_run     continue an interrupted run; --steps for more

    Three processes: this one plays rollouts, one trains (torch), one serves the model. Needs the `train` extra. Ctrl-C
    ends the run after the current step, with a checkpoint; a second Ctrl-C ends it at once.
    """
    from vf_cli.command import EXIT_FAILED, EXIT_INTERRUPTED, configure_logging

    configure_logging(is_verbose=verbose)
    protect()
    options = {"steps": steps, "seed": seed}
    changes = {name: value for name, value in options.items() if value is not None}
    settings, folder, loaded = _prepared(config, demo, resume, output_folder, changes)
    from verifiers.errors import ConfigError, Error

    try:
        result = asyncio.run(_train(settings, loaded, folder, is_quiet=json_output))
    except (Error, OSError, KeyboardInterrupt) as error:
        # A resumed run has the same settings, so settings that cannot work would fail again.
        if not isinstance(error, ConfigError):
            output.note(
                f"To continue from the last checkpoint: vf-train --resume {folder.path}"
                if folder.latest() is not None
                else f"{folder.path} has no checkpoint yet."
            )
        raise
    _show(result, loaded.environment.env_id, json_output=json_output)
    if result.is_interrupted:
        return EXIT_INTERRUPTED
    return 0 if result.rewards else EXIT_FAILED


def _prepared(
    config: str | None,
    demo: bool,
    resume: Path | None,
    output_folder: Path | None,
    changes: dict[str, Any],
) -> tuple[TrainConfig, RunFolder, Loaded]:
    """Return the configuration with the changes of the command line, its folder and its environment."""
    from verifiers.loading import path_of
    from verifiers.training.reference.config import DEMO, parse_config
    from verifiers.training.reference.run_folder import RunFolder

    if (config is not None) + demo + (resume is not None) != 1:
        raise typer.BadParameter("give one of: a CONFIG_OR_ENV, --demo, --resume FOLDER")
    if resume is not None:
        if output_folder is not None:
            raise typer.BadParameter("--output is for a new run; leave it out with --resume")
        folder, fields = RunFolder.existing(resume)
        settings = parse_config(fields | changes, name=str(resume))
        return settings, folder, _loaded(settings)
    fields, name = _fields(DEMO if demo else config or "")
    fields |= changes
    if output_folder is not None:
        fields["output"] = str(output_folder)
    fields.setdefault("output", str(Path("outputs/train") / name))
    settings = parse_config(fields, name=name)
    loaded = _loaded(settings)
    if (path := loaded.environment.loaded_from) is not None and path_of(settings.environment.id):
        # The run may have been started in another folder.
        section = settings.environment.model_copy(update={"id": str(path)})
        settings = settings.model_copy(update={"environment": section})
    return settings, RunFolder.new(settings), loaded


def _fields(name: str) -> tuple[dict[str, Any], str]:
    """Return the fields of the configuration of this name, or the default ones for the environment of this name; and
    its name."""
    from verifiers.errors import ConfigError, EnvironmentNotFound
    from verifiers.loading import path_of, require_present, source_at
    from verifiers.training.reference.config import OWN, example_names, example_path, read_fields

    file, example = Path(name), example_path(Path(name).name.replace("-", "_"))
    environment = {"environment": {"id": name}}
    if file.suffix == ".toml":
        return read_fields(file), file.stem
    if (path := path_of(name)) is not None:
        return read_fields(example_path(OWN)) | environment, source_at(path).env_id
    if file.is_file():
        return read_fields(file), file.stem
    if example.exists():
        return read_fields(example), example.stem
    try:
        require_present(name)
    except EnvironmentNotFound as error:
        raise ConfigError(
            f"There is no configuration file {name}, and no environment of this name is installed. Configurations "
            f"in the package: {', '.join(example_names())}."
        ) from error
    return read_fields(example_path(OWN)) | environment, name.rpartition("/")[2].partition("@")[0]


def _loaded(settings: TrainConfig) -> Loaded:
    from verifiers.loading import load

    return load(settings.environment.id, settings.environment.args)


async def _train(
    settings: TrainConfig, loaded: Loaded, folder: RunFolder, *, is_quiet: bool
) -> RunResult:
    from verifiers.training.reference.orchestrator import train as run
    from vf_cli.interrupts import interruptible
    from vf_cli.train_progress import PlainTable, shown_live

    def on_first() -> None:
        output.note(
            "Stopping after this step, with a checkpoint. Press Ctrl-C again to stop at once."
        )

    if is_quiet or not output.stderr().is_terminal:
        table = PlainTable(settings, write=output.note)
        return await interruptible(
            lambda stop: run(settings, loaded, folder, stop=stop, listener=table), on_first
        )
    with shown_live(settings) as live:
        return await interruptible(
            lambda stop: run(settings, loaded, folder, stop=stop, listener=live), on_first
        )


def _show(result: RunResult, env_id: str, *, json_output: bool) -> None:
    rewards = result.rewards
    first, last = rewards[:COMPARED_STEPS], rewards[-COMPARED_STEPS:]
    model = None if result.checkpoint is None else result.checkpoint.model
    summary = {
        "environment": env_id,
        "steps": len(rewards),
        "reward_first": sum(first) / len(first) if first else None,
        "reward_last": sum(last) / len(last) if last else None,
        "evaluation_before": result.evaluated_before,
        "evaluation_after": result.evaluated_after,
        "is_interrupted": result.is_interrupted,
        "folder": str(result.folder.path),
        "model": None if model is None else str(model),
    }
    if json_output:
        output.show_json(summary)
        return
    if first:
        output.show(
            f"reward     {summary['reward_first']:.3f} in the first {len(first)} steps, "
            f"{summary['reward_last']:.3f} in the last {len(last)}   ({len(rewards)} steps)"
        )
    evaluations = [
        f"{mean:.3f} {when}"
        for when, mean in (
            ("before", result.evaluated_before),
            ("after", result.evaluated_after),
        )
        if mean is not None
    ]
    if evaluations:
        output.show(f"held out   {', '.join(evaluations)}")
    folder = result.folder
    output.show(f"metrics    {folder.metrics_file}")
    if folder.curve_file.exists():
        output.show(f"curve      {folder.curve_file}")
    if result.checkpoint is not None:
        output.show(f"checkpoint {result.checkpoint.folder}")
    if result.is_interrupted:
        output.show(f"next       vf-train --resume {folder.path}")
    elif model is not None:
        output.show(f"next       vf-endpoint --weights {model}")
