"""`prime eval`: run evaluations, push their results, and read those on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from vf_cli import output
from vf_cli.command import EXIT_FAILED
from vf_cli.prime.command import (
    Transfers,
    chosen,
    command,
    group,
    is_json,
    show_facts,
    show_table,
    with_hub,
)
from vf_cli.prime.env_find import Num, Page

if TYPE_CHECKING:
    from verifiers.hub.evaluations import PushedRun, RunPush


class EvalGroup(TyperGroup):
    """`prime eval ENVIRONMENT …` is `prime eval run ENVIRONMENT …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` before an argument that is not a command."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = group("Run evaluations, push their results, and read those on the hub.")
app.info.cls = EvalGroup
EvalId = Annotated[str, typer.Argument(metavar="EVAL_ID", help="Id of the evaluation.")]
_ANY: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}


@app.command(context_settings=_ANY, add_help_option=False)
def run(context: typer.Context) -> int:
    """Run an evaluation on this machine: `vf-eval` with its arguments and options, --push included.

    The hub does not run evaluations, so --hosted is refused.
    """
    from vf_cli.command import run as run_app
    from vf_cli.eval import app as eval_app

    arguments = ["--help" if argument == "-h" else argument for argument in context.args]
    if "--hosted" in arguments:
        raise typer.BadParameter(
            "--hosted: evaluations run on this machine, not on the hub; leave it out, and add --push."
        )
    if "--skip-upload" in arguments:  # an option of the public command, which uploads by default
        arguments.remove("--skip-upload")
    if chosen().context is not None and "--context" not in arguments:
        import os

        os.environ["PRIME_CONTEXT"] = chosen().context or ""
    return run_app(eval_app, "prime eval run", arguments)


@command(app)
def push(
    config_path: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run. (default: this folder, else all runs in outputs/evals)",
        ),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", "--env-id", "-e", help="The published environment: owner/name\\[@version]."
        ),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", "-r", help="Id of a training run that the run belongs to."),
    ] = None,
    evaluation: Annotated[
        str | None,
        typer.Option(
            "--eval",
            "--eval-id",
            help="Add to this evaluation. Rollouts that it already has are not added again.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the evaluation.")] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Let everyone read it who may see the environment.")
    ] = False,
) -> int:
    """Upload saved runs to the hub. They are private unless --public.

    JSON: {evaluation_id, environment, samples, url}, or for several {results: [{path, status, eval_id, error}]}
    """
    from verifiers.errors import Error
    from verifiers.hub.evaluations import RunPush, saved_runs_here
    from verifiers.runs.store import RunNotFound

    options = RunPush(env, name, run_id, evaluation, public)
    if config_path is not None:
        folders = [Path(config_path).expanduser()]
    else:
        folders = saved_runs_here(Path())
        if not folders:
            raise RunNotFound(
                "There is no run in this folder or in outputs/evals. Name the folder of a run."
            )
    if len(folders) == 1:
        _show_pushed(push_folder(folders[0], options))
        return 0
    if evaluation is not None:
        raise typer.BadParameter(
            f"--eval takes one run, and there are {len(folders)} here; name its folder."
        )
    results = []
    for folder in folders:
        try:
            done = push_folder(folder, options)
            results.append(
                {"path": str(folder), "status": "success", "eval_id": done.evaluation_id}
            )
        except Error as error:
            output.error(f"{folder}: {error}")
            results.append({"path": str(folder), "status": "failed", "error": str(error)})
    rows = [[one["status"], one["path"], one.get("eval_id", "")] for one in results]
    show_table({"results": results}, ["", "run", "evaluation"], rows)
    return EXIT_FAILED if any(one["status"] == "failed" for one in results) else 0


def push_folder(folder: Path, options: RunPush) -> PushedRun:
    """Upload one run and show the progress."""
    from verifiers.hub.evaluations import push_run

    with Transfers() as transfers:
        transfers.step(f"uploading {folder}")
        return with_hub(
            lambda hub: push_run(
                hub,
                folder,
                options,
                lambda done, total: transfers.progress(folder.name, done, total),
            ),
            needs_key=True,
        )


def _show_pushed(done: PushedRun) -> None:
    for line in done.damaged:
        output.warn(
            f"Line {line.number} of results.jsonl cannot be read and was left out: {line.reason}"
        )
    if done.too_large:
        output.warn(
            f"{done.too_large} rollouts are larger than a request may be, and were left out."
        )
    data = {**done._asdict(), "damaged": [line._asdict() for line in done.damaged]}
    facts = [
        ("pushed", f"{done.samples:,} rollouts of {done.environment}"),
        ("evaluation", done.evaluation_id),
        ("page", done.url),
    ]
    show_facts(data, facts, next_step=f"prime eval get {done.evaluation_id} -o table")


@command(app, "list")
def list_evaluations(
    num: Num = 20,
    page: Page = 1,
    env: Annotated[
        str | None,
        typer.Option(
            "--env",
            "--env-name",
            "-e",
            help="Only evaluations of this environment: name, owner/name or owner/name@version.",
        ),
    ] = None,
) -> int:
    """List evaluations that you may see, newest first.

    JSON: .evaluations[] = {evaluation_id, environments[] = {name, version}, model_name, status, metadata, metrics},
    .total
    """
    from verifiers.hub.client import member
    from verifiers.packages.published import parse_hub_id

    if env is not None and "/" in env:
        parse_hub_id(env)  # an id that is not valid is an error, not an empty list
    answer = with_hub(
        lambda hub: hub.get("/evaluations/", skip=(page - 1) * num, limit=num, environment_name=env)
    )
    found = member(answer, "evaluations")
    rows = [
        [
            row.get("evaluation_id") or row.get("id"),
            _subjects(row) or "-",
            row.get("model_name"),
            row.get("status"),
            _reward(row.get("metrics") or {}),
            row.get("total_samples"),
        ]
        for row in found
    ]
    columns = ["evaluation", "environment", "model", "status", "reward", "rollouts"]
    show_table(answer, columns, rows, empty="No evaluation matches.")
    total = int(answer.get("total", len(found)))
    if total > page * num and not is_json() and not chosen().is_plain:
        output.note(f"{total:,} in total; next: --page {page + 1}")
    return 0


@command(app)
def get(eval_id: EvalId) -> int:
    """Show one evaluation as JSON, or as a table with -o table."""
    found = with_hub(lambda hub: hub.get(f"/evaluations/{eval_id}"))
    if is_json("json") or chosen().format == "pretty":
        output.show_json(found)
        return 0
    metrics = found.get("metrics") or {}
    facts = [
        ("evaluation", found.get("evaluation_id") or found.get("id")),
        ("name", found.get("name")),
        ("status", found.get("status")),
        ("error", found.get("error_message")),
        ("environment", _subjects(found)),
        ("model", found.get("model_name")),
        ("rollouts", found.get("total_samples")),
        ("public", found.get("is_public")),
        ("page", found.get("viewer_url")),
        *(
            (name, _short(value))
            for name, value in metrics.items()
            if not isinstance(value, dict | list)
        ),
    ]
    show_facts(found, facts)
    return 0


@command(app)
def samples(
    eval_id: EvalId,
    page: Page = 1,
    num: Annotated[
        int, typer.Option("--num", "-n", min=1, max=1000, help="Number of items per page.")
    ] = 100,
) -> int:
    """Show rollouts of an evaluation as JSON, or as a table with -o table."""
    found = with_hub(lambda hub: hub.get(f"/evaluations/{eval_id}/samples", page=page, limit=num))
    if is_json("json") or chosen().format == "pretty":
        output.show_json(found)
        return 0
    rows = [
        [
            row.get("example_id"),
            row.get("rollout_number"),
            _short(row.get("reward")),
            row.get("stop_condition"),
            "yes" if row.get("error") else "",
        ]
        for row in found.get("samples") or []
    ]
    show_table(
        found, ["example", "rollout", "reward", "ended by", "error"], rows, empty="No rollouts."
    )
    return 0


def _subjects(evaluation: dict[str, Any]) -> list[str]:
    """Return `owner/name@version` of the evaluated environments, as far as the hub has them."""
    known = evaluation.get("environments")
    if not isinstance(known, list):
        return evaluation.get("environment_names") or []
    return [
        f"{one['name']}@{one['version']}" if one.get("version") else str(one["name"])
        for one in known
    ]


def _reward(metrics: Mapping[str, Any]) -> str:
    """Return the mean reward, and the mean without failed rollouts if it differs."""
    mean, clean = metrics.get("reward"), metrics.get("reward_error_free")
    if clean is None or clean == mean:
        return _short(mean)
    return f"{_short(mean)} ({_short(clean)} error-free)"


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value
