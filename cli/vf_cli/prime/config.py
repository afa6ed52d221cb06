"""`prime config`: the configuration file `~/.prime/config.json`, shared with the public command, and its contexts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vf_cli import output
from vf_cli.prime.command import (
    Yes,
    ask,
    chosen,
    command,
    confirm,
    group,
    is_json,
    refuse_temporary_context,
    settings,
    show_facts,
    show_table,
)

app = group("Configure the hub, the key, the team, and saved contexts.")
Url = Annotated[
    str | None,
    typer.Argument(metavar="URL", help="The address. If it is missing, the command asks for it."),
]
Switch = Annotated[str, typer.Argument(metavar="ENABLED", help="true or false.")]


def hub_changes(values: dict[str, Any], base_url: str) -> dict[str, Any]:
    """Return the settings that change with the hub: its address, and pages and traces unless they were set elsewhere.

    The public evaluator sends traces to its vendor even if another hub is configured. Only this setting keeps them
    here.
    """
    from verifiers.hub.config import DEFAULTS

    own = {values["base_url"], None, ""}
    changes: dict[str, Any] = {"base_url": base_url}
    for key in ("frontend_url", "traces_url"):
        if values[key] in own or values[key] == DEFAULTS[key]:
            changes[key] = base_url
    return changes


def _set(key: str, value: Any, shown: Any = None) -> int:
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    file = HubConfigFile()
    file.update(**{key: value})
    shown = value if shown is None else shown
    show_facts({key: shown}, [(key, shown), ("saved in", file.path)])
    return 0


@command(app)
def view() -> int:
    """Show the effective configuration, including variables and context. Keys are shortened."""
    import os

    from verifiers.hub.config import HubConfigFile, hub_settings, masked
    from verifiers.hub.errors import HubNotConfigured

    file = HubConfigFile()
    values = file.read()
    try:
        at = hub_settings(chosen().context, file=file)
    except HubNotConfigured as error:
        at = None
        output.note(str(error))
    names = (
        "PRIME_API_BASE_URL",
        "PRIME_BASE_URL",
        "PRIME_API_KEY",
        "PRIME_TEAM_ID",
        "PRIME_CONTEXT",
    )
    data = {
        **values,
        "base_url": at.base_url if at else None,
        "api_key": masked(at.api_key if at else values["api_key"]),
        "team_id": at.team_id if at else values["team_id"],
        "frontend_url": at.frontend_url if at else values["frontend_url"],
        "current_environment": at.context if at else values["current_environment"],
        "config_file": str(file.path),
        "from_variables": [name for name in names if os.environ.get(name)],
    }
    show_facts(
        data, [(key, "-" if value in (None, "", []) else value) for key, value in data.items()]
    )
    return 0


@command(app)
def set_api_key(
    api_key: Annotated[
        str | None,
        typer.Argument(
            metavar="API_KEY",
            help="The key. If it is missing, the command asks for it. `-` reads it from stdin.",
        ),
    ] = None,
) -> int:
    """Save an API key for the configured hub."""
    from verifiers.hub.config import HubConfigFile, hub_settings, masked

    refuse_temporary_context()
    key = ask("API key", api_key, is_secret=True).strip()
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise typer.BadParameter("An API key is one word of ASCII characters.")
    file = HubConfigFile()
    at = hub_settings(file=file)
    # With the address of its hub: a key without one could be sent to another hub.
    file.update(**hub_changes(file.read(), at.base_url), api_key=key)
    data = {"api_key": masked(key), "base_url": at.base_url}
    show_facts(
        data,
        [("api_key", masked(key)), ("for", at.base_url), ("saved in", file.path)],
        next_step="prime whoami",
    )
    return 0


@command(app)
def set_base_url(url: Url = None) -> int:
    """Set the address of the hub. The key of another hub is removed, so that it is never sent to this hub."""
    from verifiers.hub.config import PUBLIC_API_URL, HubConfigFile, checked_url, is_loopback, origin

    refuse_temporary_context()
    base_url = checked_url(ask("Address of the hub", url))
    file = HubConfigFile()
    values = file.read()
    changes = hub_changes(values, base_url)
    was = values["base_url"]
    if values["api_key"] and origin(was) not in (origin(base_url), origin(PUBLIC_API_URL)):
        changes["api_key"] = ""
        output.note(f"The API key of {was} was removed; `prime login` gets one for {base_url}.")
    file.update(**changes)
    if origin(base_url) == origin(PUBLIC_API_URL):
        output.warn(
            "The public command writes this address by itself, so it does not count as a choice in the file. Use "
            "`prime -c production …`, or PRIME_API_BASE_URL."
        )
    scheme, host, _ = origin(base_url)
    if scheme == "http" and not is_loopback(host):
        output.warn(f"{base_url} is not encrypted: others on the network can read your key.")
    show_facts(
        {key: value for key, value in changes.items() if key != "api_key"},
        [("base_url", base_url), ("saved in", file.path)],
        next_step="prime login",
    )
    return 0


@command(app)
def set_frontend_url(url: Url = None) -> int:
    """Set the address of the hub's pages, if it is not the hub's own address."""
    from verifiers.hub.config import checked_url

    return _set("frontend_url", checked_url(ask("Address of the pages", url)))


@command(app)
def set_inference_url(url: Url = None) -> int:
    """Set the address of inference for the public command. Commands here do not use it."""
    return _set("inference_url", _address(ask("Address of the inference", url)))


@command(app)
def set_traces_url(url: Url = None) -> int:
    """Set the address to which the public evaluator sends traces. Commands here send none."""
    return _set("traces_url", _address(ask("Address for traces", url)))


@command(app)
def set_team_id(team_id: Annotated[str, typer.Argument(metavar="TEAM_ID")]) -> int:
    """Make a team the owner of new environments, by its id. (`prime switch` takes its name.)"""
    from verifiers.hub.publishing import TEAM_ID

    if not TEAM_ID.fullmatch(team_id):
        raise typer.BadParameter(
            f"{team_id!r} is not a team id (c and 24 lower-case letters or digits). `prime teams list` shows them."
        )
    return _set("team_id", team_id)


@command(app)
def remove_team_id() -> int:
    """Become the owner of new environments again."""
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    HubConfigFile().update(team_id=None, team_name=None, team_role=None)
    show_facts({"team_id": None}, [("new things belong to", "you")])
    return 0


@command(app)
def set_ssh_key_path(path: Annotated[str, typer.Argument(metavar="PATH")]) -> int:
    """Set the path of the SSH key that the public command uses."""
    return _set("ssh_key_path", path)


@command(app)
def set_share_resources_with_team(enabled: Switch) -> int:
    """Set whether the public command shares new machines with the team."""
    return _set("share_resources_with_team", _truth(enabled))


@command(app)
def set_traces_opt_out(enabled: Switch) -> int:
    """Set whether the public evaluator sends no traces."""
    return _set("traces_opt_out", _truth(enabled))


@command(app)
def reset(yes: Yes = False) -> int:
    """Reset all settings to their defaults and remove the key. Contexts stay."""
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    confirm("Reset the whole configuration?", is_sure=yes)
    file = HubConfigFile()
    file.reset()
    show_facts({"reset": True}, [("reset", file.path)], next_step="prime config set-base-url URL")
    return 0


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.")]


@command(app)
def save(name: Name) -> int:
    """Save the configuration, key included, as a context: `prime -c NAME …` uses it once."""
    from verifiers.hub.config import HubConfigFile

    path = HubConfigFile().save_context(name)
    show_facts({"saved": name, "path": str(path)}, [("saved", name), ("in", path)])
    return 0


@command(app)
def use(name: Annotated[str, typer.Argument(metavar="ENV", help="Name of the context.")]) -> int:
    """Switch to a saved context for all following commands."""
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    file = HubConfigFile()
    file.use_context(name)
    show_facts(
        {"current_environment": name, "base_url": file.read()["base_url"]},
        [("context", name), ("hub", file.read()["base_url"])],
    )
    return 0


@command(app)
def envs() -> int:
    """List the contexts and mark the one in use.

    JSON: {environments: [{name, is_current, base_url}], base_url}; the last is the hub in use, null without one
    """
    from verifiers.errors import ConfigError
    from verifiers.hub.config import PRODUCTION, HubConfigFile, origin
    from verifiers.hub.errors import HubNotConfigured

    file = HubConfigFile()
    try:
        used = settings()
    except (ConfigError, HubNotConfigured):  # the list helps to choose another one
        used = None
    rows = []
    for name in [PRODUCTION, *file.contexts()]:
        url = file.context(name)["base_url"]
        # The file names the context that it was filled from; its address may have changed since.
        is_now = used is not None and used.context == name and origin(url) == origin(used.base_url)
        rows.append([name, "*" if is_now else "", url])
    listed = [{"name": name, "is_current": bool(mark), "base_url": url} for name, mark, url in rows]
    data = {"environments": listed, "base_url": used.base_url if used else None}
    show_table(data, ["context", "now", "hub"], rows)
    if (
        used is not None
        and not any(mark for _, mark, _ in rows)
        and not chosen().is_plain
        and not is_json()
    ):
        output.show(f"now  {used.base_url}, in no context; `prime config save NAME` keeps it")
    return 0


@command(app)
def delete(name: Name) -> int:
    """Delete a saved context and its key."""
    from verifiers.hub.config import HubConfigFile

    HubConfigFile().delete_context(name)
    show_facts({"deleted": name}, [("deleted", name)])
    return 0


def _address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise typer.BadParameter(
            f"{text!r} is not an address: it must begin with https:// or http://."
        )
    return text.rstrip("/")


def _truth(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    if text.lower() not in words:
        raise typer.BadParameter(f"{text!r} is neither true nor false.")
    return words[text.lower()]
