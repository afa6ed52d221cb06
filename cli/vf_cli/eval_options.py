"""The options of `vf-eval`: those of `verifiers.run_options`, and those that only the command line has."""

# Annotations are not postponed here: `options_of` reads them as objects.
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from verifiers.run_options import (
    DISPLAY,
    ENVIRONMENT,
    FILE_OPTIONS,
    PANELS,
    RESULTS,
    Option,
    choices_of,
    kinds_of,
    option,
    options_of,
)
from vf_cli import output

BACKEND_NAMES = "local, unsafe-local, gvisor, docker, podman, prime"
"""Names of the back ends of sandboxes. Written out, because the table imports the library; a test compares them."""


# fmt: off
@dataclass(kw_only=True, repr=False, eq=False)
class CommandOptions:
    """Options of the command as a whole; a configuration file has `heartbeat_url` only."""

    sandbox_backend: str | None = option(
        None, "--sandbox-backend", panel=ENVIRONMENT, since="1.0.0", metavar="NAME", default_help="local",
        help=f"Back end of sandboxes, for environments that name none: {BACKEND_NAMES}. The environment variable "
        "VF_SANDBOX_BACKEND has the same effect.",
    )
    no_interleave_scoring: bool = option(
        False, "--no-interleave-scoring", "-N",
        help="Has no effect; accepted for callers of 0.1.14.",
    )
    push: bool = option(
        False, "--push", panel=RESULTS, since="1.0.0",
        help="Upload the finished run to your hub (see `prime config`); implies -s.",
    )
    fail_under: float | None = option(
        None, "--fail-under", panel=RESULTS, since="1.0.0",
        help="Exit with code 1 if the mean reward is below this number.",
    )
    as_json: bool = option(
        False, "--json", panel=DISPLAY, since="1.0.0",
        help="Print one JSON object on stdout and nothing else.",
    )
    dry_run: bool = option(
        False, "--dry-run", panel=DISPLAY, since="1.0.0",
        help="Show the evaluations that would run, without loading environments and without requests.",
    )
    yes: bool = option(
        False, "--yes", "-y", panel=DISPLAY, since="1.0.0",
        help="Do not ask for confirmation before a very large run or before the installation of an environment.",
    )
    fullscreen: bool = option(
        False, "--fullscreen", "-f", panel=DISPLAY,
        help="Use the whole terminal during the run.",
    )
    abbreviated_summary: bool = option(
        False, "--abbreviated-summary", "-A", panel=DISPLAY,
        help="Omit the example from the summary.",
    )
    heartbeat_url: str | None = option(
        None, "--heartbeat-url", panel=DISPLAY,
        help="URL that receives a GET request while rollouts keep finishing.",
    )
    version: bool = option(
        False, "--version", panel=DISPLAY, since="1.0.0",
        help="Show the version and exit.",
    )


# fmt: on


def choose_backend(name: str | None) -> str | None:
    """Select the back end of all sandboxes of this process and of its workers for which code names no other."""
    if name is not None:
        if name not in BACKEND_NAMES.split(", "):
            raise typer.BadParameter(f"{name!r} is not one of {BACKEND_NAMES}.")
        os.environ["VF_SANDBOX_BACKEND"] = name
    return name


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        output.show(version("verifiers"))
        raise typer.Exit


OPTIONS: Mapping[str, Option] = {
    one.name: one
    for one in sorted(
        (one for one in (*FILE_OPTIONS.values(), *options_of(CommandOptions)) if one.flags),
        key=lambda one: PANELS.index(one.panel),
    )
}
"""Name of a parameter of the command → option, in the order of the help."""
_CALLBACKS: Mapping[str, Callable[..., Any]] = {
    "sandbox_backend": choose_backend,
    "version": _show_version,
}


def typer_option(name: str) -> Any:
    """Return the `typer.Option` of an option, for `Annotated`."""
    one = OPTIONS[name]
    choices = choices_of(one)
    return typer.Option(
        *one.flags,
        help=one.full_help,
        rich_help_panel=one.panel,
        metavar=one.metavar or ("|".join(choices) if len(choices) in range(1, 4) else None),
        min=one.minimum,
        callback=_CALLBACKS.get(name),
        is_eager=name == "version",
    )


def _command_type(one: Option) -> Any:
    """Return the type of the value on the command line. JSON, columns and choices are text there."""
    kinds = kinds_of(one)
    if kinds == (bool,) and one.metavar is None:
        return bool
    if one.is_repeatable:
        return list[str] | None
    return {(int,): int | None, (float,): float | None}.get(kinds, str | None)


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of Typer one parameter per option; it receives the values by name in `**values`."""
    own = [
        one for one in signature(command, eval_str=True).parameters.values() if one.name != "values"
    ]
    for one in OPTIONS.values():
        kind = _command_type(one)
        default = False if kind is bool else None
        own.append(
            Parameter(
                one.name,
                Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[kind, typer_option(one.name)],
            )
        )
        for flag in (older for older in one.older if older.startswith("--")):
            hidden = typer.Option(flag, help=f"Older name of {one.flags[0]}.", hidden=True)
            name = flag.removeprefix("--").replace("-", "_")
            own.append(
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=Annotated[kind, hidden],
                )
            )
    command.__signature__ = signature(command).replace(parameters=own)  # pyright: ignore[reportFunctionMemberAccess]
    return command


def json_object(text: str, flag: str) -> dict[str, Any]:
    """Return the JSON object of an option. Raises a usage error that shows the position of a mistake."""
    import json

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(
            f"{flag} is not valid JSON: {error.msg} at character {error.pos + 1} of {text!r}. "
            """Write it like '{"key": "value", "number": 1}', in single quotes."""
        ) from error
    if not isinstance(value, dict):
        raise typer.BadParameter(
            f"{flag} must be a JSON object, e.g. '{{\"key\": 1}}'; got {text!r}."
        )
    return value
