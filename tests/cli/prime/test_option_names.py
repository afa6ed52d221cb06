"""Commands and options have the names that people know from the public command (0.7 and 0.18, from their --help)."""

from functools import cache

import pytest
import typer.main

from vf_cli.prime.main import app

PUBLIC = {
    "login": "--headless",
    "logout": "--yes -y",
    "whoami": "",
    "switch": "TARGET",
    "fork": "ENVIRONMENT --team -t --output -o",
    "config view": "",
    "config set-api-key": "API_KEY",
    "config set-team-id": "TEAM_ID",
    "config remove-team-id": "",
    "config set-base-url": "URL",
    "config set-frontend-url": "URL",
    "config set-inference-url": "URL",
    "config set-traces-url": "URL",
    "config set-share-resources-with-team": "ENABLED",
    "config set-traces-opt-out": "ENABLED",
    "config set-ssh-key-path": "PATH",
    "config reset": "--yes -y",
    "config use": "ENV",
    "config save": "NAME",
    "config delete": "NAME",
    "config envs": "",
    "teams list": "--limit --offset --output -o",
    "teams members": "--team-id --output -o",
    "env list": "--num -n --page -p --owner --visibility --output --search -s --tag -t --sort --order --starred --mine",
    "env push": "ENV_ID --path -p --name -n --owner -o --team -t --visibility -v --runtime --auto-bump --rc --post",
    "env pull": "ENV_ID --target -t --version -v",
    "env install": "ENV_IDS... --with --path -p --no-upgrade --prerelease",
    "env uninstall": "ENV_NAME --with",
    "env info": "ENV_ID --version -v",
    "env status": "ENV_ID --output",
    "env inspect": "ENV_ID SOURCE_PATH --version -v --output -o --max-bytes",
    "env version list": "ENV_ID --full-hashes",
    "env version delete": "ENV_ID CONTENT_HASH --force -f",
    "env delete": "ENV_ID --force -f",
    "env init": "--path -p --rewrite-readme --multi-file",
    "env secret list": "ENVIRONMENT --output -o",
    "env secret create": "ENVIRONMENT --name -n --value -v --description -d --output -o",
    "env secret update": "ENVIRONMENT --id --name -n --value -v --description -d --output -o",
    "env secret delete": "ENVIRONMENT --id --yes -y",
    "env secret link": "GLOBAL_SECRET_ID ENVIRONMENT --output -o",
    "env secret unlink": "GLOBAL_SECRET_ID ENVIRONMENT --yes -y",
    "env var list": "ENVIRONMENT --output -o",
    "env var create": "ENVIRONMENT --name -n --value -v --description -d --output -o",
    "env var update": "VAR_ID ENVIRONMENT --name -n --value -v --description -d --output -o",
    "env var delete": "VAR_ID ENVIRONMENT --yes -y",
    "eval list": "--output -o --num -n --page -p --env --env-name -e",
    "eval get": "EVAL_ID --output -o",
    "eval samples": "EVAL_ID --page -p --num -n --output -o",
    "eval push": "--env --env-id -e --run-id -r --eval --eval-id --name --output -o --public",
}
OURS = ["env search", "env versions", "env yank", "env fork", "env validate", "eval run"]


@cache
def tree():
    return typer.main.get_command(app)


def command_of(path: str):
    found = tree()
    for name in path.split():
        found = found.commands[name]
    return found


def leaves(group, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize("path", PUBLIC)
def test_the_names_of_the_public_command_are_there(path):
    command = command_of(path)
    names = {name for parameter in command.params for name in parameter.opts}
    names |= {parameter.metavar for parameter in command.params if parameter.metavar}
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    assert set(PUBLIC[path].split()) - {"--plain"} <= names
    wanted = [word for word in PUBLIC[path].split() if not word.startswith("-")]
    assert [argument.metavar for argument in arguments][
        : len(wanted)
    ] == wanted or path == "env init"


def test_every_command_has_help_json_and_no_option_twice():
    commands = dict(leaves(tree()))
    assert set(OURS) <= set(commands)
    for path, command in commands.items():
        if path == "eval run":
            continue  # it is vf-eval, with all options of that
        names = [name for parameter in command.params for name in parameter.opts]
        assert len(names) == len(set(names)), path
        assert "--json" in names, path
        assert command.help, path
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert parameter.help, f"{path} {parameter.name}"


def test_every_command_shows_its_help(prime):
    """-h is another name of --help; that it is accepted is seen without printing every help again."""
    for path, _ in leaves(tree()):
        done = prime(*path.split(), "--help")
        assert (done.code, "Usage: prime" in done.out) == (0, True), path
        if path == "eval run":
            continue  # it is vf-eval, with all options of that
        command = tree()
        context = command.make_context("prime", [], resilient_parsing=True)
        for name in path.split():
            command = command.commands[name]
            context = command.make_context(name, [], parent=context, resilient_parsing=True)
        assert "-h" in command.get_help_option_names(context), path
    for path in ("env push", "env secret list", "eval run", "login"):
        done = prime(*path.split(), "-h")
        assert (done.code, "Usage: prime" in done.out) == (0, True), path
