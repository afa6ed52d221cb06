"""The root of `prime` and its entry point. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""

from __future__ import annotations

from typing import Annotated

import typer

from vf_cli import output
from vf_cli.command import run
from vf_cli.init import init
from vf_cli.prime import (
    account,
    config,
    env_find,
    env_install,
    env_publish,
    env_values,
    evaluations,
)
from vf_cli.prime.command import HELP_NAMES, choose, command, forget_choices, group
from vf_cli.validate import validate

environments = group("Write, publish, find and install environments.")
versions = group("List and delete the versions of an environment.")

FIND, MANAGE = "Find", "Write and publish"
for name, function in (
    ("list", env_find.list_environments),
    ("search", env_find.search),
    ("info", env_find.info),
    ("status", env_find.status),
    ("inspect", env_find.inspect),
    ("versions", env_find.versions),
    ("pull", env_install.pull),
    ("install", env_install.install),
    ("uninstall", env_install.uninstall),
):
    command(environments, name, panel=FIND)(function)
for name, function in (
    ("init", init),
    ("validate", validate),
    ("push", env_publish.push),
    ("yank", env_publish.yank),
    ("delete", env_publish.delete),
    ("fork", env_publish.fork),
):
    command(environments, name, panel=MANAGE)(function)
command(versions, "list")(env_find.versions)
command(versions, "delete")(env_publish.delete_version)
environments.add_typer(versions, name="version", rich_help_panel=MANAGE)
environments.add_typer(env_values.secrets, name="secret", rich_help_panel=MANAGE)
environments.add_typer(env_values.variables, name="var", rich_help_panel=MANAGE)

app = typer.Typer(add_completion=False, no_args_is_help=True, context_settings=HELP_NAMES)
app.add_typer(environments, name="env")
app.add_typer(evaluations.app, name="eval")
app.add_typer(config.app, name="config")
app.add_typer(account.teams, name="teams")
app.add_typer(env_values.own_secrets, name="secret")
for function in (account.login, account.logout, account.whoami, account.switch):
    command(app)(function)
command(app)(env_publish.fork)


def _show_version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        output.show(version("verifiers"))
        raise typer.Exit


@app.callback()
def root(
    context: Annotated[
        str | None,
        typer.Option("--context", "-c", help="Use a saved context for this command only."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print terse lines with tabs between columns.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Log everything, and show tracebacks.")
    ] = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-v",
            help="Show the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Environments, evaluations and your account on a hub that you or your team host.

    The hub is set by PRIME_API_BASE_URL, `prime -c CONTEXT`, or `prime config set-base-url`. Without one, commands
    that need a hub stop with exit code 2. Every command accepts --json. Exit codes: 0 done, 1 failed, 2 wrong usage,
    130 interrupted.
    """
    choose(context=context, is_plain=plain, is_verbose=verbose)


def main(arguments: list[str] | None = None) -> int:
    """Run `prime`."""
    forget_choices()
    # Not -v: `prime` uses -v for --version, --visibility or --value, like the public command.
    return run(app, "prime", arguments, verbose="--verbose")
