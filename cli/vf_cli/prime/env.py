"""`prime env`: the group, and the commands that are other commands' under its name."""

from __future__ import annotations

from vf_cli.init import init
from vf_cli.prime import env_find, env_install, env_publish, env_values
from vf_cli.prime.command import command, group
from vf_cli.validate import validate

app = group("Write, publish, find and install environments.")
version = group("The versions of an environment.")

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
    command(app, name, panel=FIND)(function)
for name, function in (
    ("init", init),
    ("validate", validate),
    ("push", env_publish.push),
    ("yank", env_publish.yank),
    ("delete", env_publish.delete),
    ("fork", env_publish.fork),
):
    command(app, name, panel=MANAGE)(function)
command(version, "list")(env_find.versions)
command(version, "delete")(env_publish.delete_version)
app.add_typer(version, name="version", rich_help_panel=MANAGE)
app.add_typer(env_values.secrets, name="secret", rich_help_panel=MANAGE)
app.add_typer(env_values.variables, name="var", rich_help_panel=MANAGE)
