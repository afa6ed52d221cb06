"""`prime env secret`, `prime env var` and `prime secret`: values that environments receive when they run.

The hub stores the values of secrets and never shows them again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli.prime.command import (
    Yes,
    ask,
    command,
    confirm,
    environment_of,
    group,
    moment,
    settings,
    show_facts,
    show_table,
    with_hub,
)

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient

secrets = group("Manage the secrets of an environment.")
variables = group("Manage the variables of an environment.")
own_secrets = group("Manage your own secrets, which can be linked to environments.")

Environment = Annotated[
    str | None,
    typer.Argument(
        metavar="ENVIRONMENT", help="owner/name. (default: the environment of this folder)"
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", "-n", help="Name of capital letters, digits and underscores."),
]
Value = Annotated[
    str | None,
    typer.Option(
        "--value",
        "-v",
        help="The value. If it is missing, the command asks for it. `-` reads it from stdin.",
    ),
]
Description = Annotated[
    str | None, typer.Option("--description", "-d", help="Purpose of the value.")
]
Id = Annotated[str | None, typer.Option("--id", help="Id of the secret.")]


@command(secrets, "list")
def list_secrets(environment: Environment = None) -> int:
    """List the secrets of an environment, without values."""
    rows = _within(environment, lambda hub, base: hub.get(f"{base}/secrets"))
    _show_list("secrets", rows, ["name", "source", "description", "id"])
    return 0


@command(secrets, "create")
def create_secret(
    environment: Environment = None,
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
) -> int:
    """Add a secret to an environment."""
    body = _new(name, value, description, is_secret=True)
    made = _within(
        environment, lambda hub, base: hub.post(f"{base}/secrets", body, is_repeatable=False)
    )
    return _show_one("created", made)


@command(secrets, "update")
def update_secret(
    environment: Environment = None,
    secret_id: Id = None,
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
) -> int:
    """Change a secret, selected by --id or --name."""
    return _update(environment, "secrets", secret_id, name, value, description)


@command(secrets, "delete")
def delete_secret(
    environment: Environment = None,
    secret_id: Id = None,
    name: NameOption = None,
    yes: Yes = False,
) -> int:
    """Delete a secret of an environment, selected by --id or --name."""
    reference = secret_id or _checked(name)
    return _delete(environment, "secrets", reference, yes)


@command(secrets)
def link(
    global_secret_id: Annotated[str, typer.Argument(metavar="GLOBAL_SECRET_ID")],
    environment: Environment = None,
) -> int:
    """Link one of your own secrets to an environment."""
    made = _within(
        environment, lambda hub, base: hub.post(f"{base}/secrets/link/{global_secret_id}", {})
    )
    show_facts(made, [("linked", made.get("secretName")), ("id", made.get("id"))])
    return 0


@command(secrets)
def unlink(
    global_secret_id: Annotated[str, typer.Argument(metavar="GLOBAL_SECRET_ID")],
    environment: Environment = None,
    yes: Yes = False,
) -> int:
    """Remove the link of one of your own secrets to an environment."""
    settings()
    confirm(f"Unlink {global_secret_id}?", is_sure=yes)
    _within(
        environment,
        lambda hub, base: hub.request("DELETE", f"{base}/secrets/link/{global_secret_id}"),
    )
    show_facts({"unlinked": global_secret_id}, [("unlinked", global_secret_id)])
    return 0


@command(variables, "list")
def list_variables(environment: Environment = None) -> int:
    """List the variables of an environment with their values."""
    rows = _within(environment, lambda hub, base: hub.get(f"{base}/variables"))
    _show_list("variables", rows, ["name", "value", "description", "id"])
    return 0


@command(variables, "create")
def create_variable(
    environment: Environment = None,
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
) -> int:
    """Add a variable to an environment. Everyone who may see the environment's variables sees its value."""
    body = _new(name, value, description, is_secret=False)
    made = _within(
        environment, lambda hub, base: hub.post(f"{base}/variables", body, is_repeatable=False)
    )
    return _show_one("created", made)


VariableId = Annotated[str, typer.Argument(metavar="VAR_ID", help="Id or name of the variable.")]


@command(variables, "update")
def update_variable(
    var_id: VariableId,
    environment: Environment = None,
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
) -> int:
    """Change a variable."""
    return _update(environment, "variables", var_id, name, value, description)


@command(variables, "delete")
def delete_variable(var_id: VariableId, environment: Environment = None, yes: Yes = False) -> int:
    """Delete a variable."""
    return _delete(environment, "variables", var_id, yes)


# --- your own -----------------------------------------------------------------------------------


@command(own_secrets, "list")
def list_own() -> int:
    """List your secrets, without values."""
    _show_list("secrets", _data(_of_team("GET", "/secrets/")), ["name", "description", "id"])
    return 0


@command(own_secrets, "get")
def get_own(secret_id: Annotated[str, typer.Argument(metavar="SECRET_ID")]) -> int:
    """Show a secret without its value."""
    return _show_one("secret", _data(_of_team("GET", f"/secrets/{secret_id}")))


@command(own_secrets, "create")
def create_own(
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
    is_file: Annotated[
        bool, typer.Option("--file", help="Mark the value as the contents of a file.")
    ] = False,
) -> int:
    """Store a secret on the hub, for you or the configured team."""
    body = {**_new(name, value, description, is_secret=True), "isFile": is_file}
    return _show_one("created", _data(_of_team("POST", "/secrets/", body)))


@command(own_secrets, "update")
def update_own(
    secret_id: Annotated[str, typer.Argument(metavar="SECRET_ID")],
    name: NameOption = None,
    value: Value = None,
    description: Description = None,
) -> int:
    """Change one of your secrets."""
    body = _changes(name, value, description, is_secret=True)
    return _show_one("updated", _data(_of_team("PATCH", f"/secrets/{secret_id}", body)))


@command(own_secrets, "delete")
def delete_own(
    secret_id: Annotated[str, typer.Argument(metavar="SECRET_ID")], yes: Yes = False
) -> int:
    """Delete one of your secrets. Environments that are linked to it lose it."""
    settings()
    confirm(f"Delete the secret {secret_id}?", is_sure=yes)
    _of_team("DELETE", f"/secrets/{secret_id}")
    show_facts({"deleted": secret_id}, [("deleted", secret_id)])
    return 0


# --- shared -------------------------------------------------------------------------------------


def _within(
    environment: str | None, work: Callable[[HubClient, str], Awaitable[dict[str, Any]]]
) -> Any:
    """Run `work(hub, path of the environment)` and return the data of its answer."""
    from verifiers.hub.evaluations import lookup_id

    reference = environment_of(environment or ".")

    async def found(hub: HubClient) -> dict[str, Any]:
        environment_id = await lookup_id(hub, f"{reference.owner}/{reference.name}")
        return await work(hub, f"/environmentshub/{environment_id}")

    return _data(with_hub(found, needs_key=True))


def _of_team(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    at = settings()
    if method == "POST" and body is not None and at.team_id:
        body = {**body, "teamId": at.team_id}
    return with_hub(
        lambda hub: hub.request(
            method, path, query={"teamId": at.team_id}, body=body, is_repeatable=method != "POST"
        ),
        needs_key=True,
        at=at,
    )


def _data(answer: dict[str, Any]) -> Any:
    return answer.get("data", answer)


def _checked(name: str | None) -> str:
    if name is None:
        raise typer.BadParameter("Select one: --name NAME, or --id ID.")
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        raise typer.BadParameter(
            f"{name!r} is not a valid name: use capital letters, digits and underscores, as in API_KEY."
        )
    return name


def _new(
    name: str | None, value: str | None, description: str | None, *, is_secret: bool
) -> dict[str, Any]:
    checked = _checked(name)
    body = {"name": checked, "value": ask(f"Value of {checked}", value, is_secret=is_secret)}
    return {**body, "description": description} if description is not None else body


def _changes(
    name: str | None, value: str | None, description: str | None, *, is_secret: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if name is not None:
        body["name"] = _checked(name)
    if value is not None:
        body["value"] = ask("Value", value, is_secret=is_secret)
    if description is not None:
        body["description"] = description
    if not body:
        raise typer.BadParameter("Name the change: --name, --value or --description.")
    return body


async def _find(hub: HubClient, base: str, kind: str, reference: str) -> str:
    """Return the id of a secret or variable that is given by id or name."""
    from verifiers.hub.errors import HubNotFound

    rows = (await hub.get(f"{base}/{kind}")).get("data") or []
    row = next((row for row in rows if reference in (row["id"], row["name"])), None)
    if row is None:
        names = ", ".join(row["name"] for row in rows) or "none"
        raise HubNotFound(
            f"The environment has no {reference!r} among its {kind}; it has {names}.", 404
        )
    return str(row["id"])


def _update(
    environment: str | None,
    kind: str,
    reference: str | None,
    name: str | None,
    value: str | None,
    description: str | None,
) -> int:
    # Without an id the name selects the secret and is not changed.
    target = reference or _checked(name)
    body = _changes(name if reference else None, value, description, is_secret=kind == "secrets")

    async def change(hub: HubClient, base: str) -> dict[str, Any]:
        found = await _find(hub, base, kind, target)
        return await hub.request("PATCH", f"{base}/{kind}/{found}", body=body)

    return _show_one("updated", _within(environment, change))


def _delete(environment: str | None, kind: str, reference: str, yes: bool) -> int:
    settings()
    confirm(f"Delete {reference}?", is_sure=yes)

    async def remove(hub: HubClient, base: str) -> dict[str, Any]:
        found = await _find(hub, base, kind, reference)
        return await hub.request("DELETE", f"{base}/{kind}/{found}")

    _within(environment, remove)
    show_facts({"deleted": reference}, [("deleted", reference)])
    return 0


def _show_list(name: str, rows: list[dict[str, Any]], columns: list[str]) -> None:
    listed = [
        [*(row.get(column) for column in columns), moment(row.get("createdAt"))] for row in rows
    ]
    show_table({name: rows}, [*columns, "created"], listed, empty=f"There are no {name}.")


def _show_one(label: str, row: dict[str, Any]) -> int:
    facts = [
        (label, row.get("name")),
        ("value", row.get("value")),
        ("description", row.get("description")),
    ]
    show_facts(row, [*facts, ("id", row.get("id"))])
    return 0
