"""`prime login`, `logout`, `whoami`, `switch` and `teams`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from vf_cli import output
from vf_cli.prime.command import (
    Yes,
    command,
    confirm,
    group,
    refuse_temporary_context,
    settings,
    show_facts,
    show_table,
    with_hub,
)

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient

teams = group("List, create and change your teams.")
PAGE = 100
ROLES = ("admin", "member", "reader")
TeamName = Annotated[str, typer.Argument(metavar="TEAM", help="Name or id of the team.")]


def login(
    headless: Annotated[bool, typer.Option("--headless", help="Do not open a browser.")] = False,
) -> int:
    """Log in to your hub with a browser and save the key in the configuration file.

    On a machine without a browser use PRIME_API_KEY, or `prime config set-api-key -` with the key on stdin.
    """
    from verifiers.hub.config import HubConfigFile
    from verifiers.hub.login import Invitation, log_in
    from vf_cli.prime.config import hub_changes

    refuse_temporary_context()
    at = settings()._replace(api_key=None)
    if not at.is_encrypted:
        output.warn(f"{at.base_url} is not encrypted: others on the network can read the key.")

    def invite(invitation: Invitation) -> None:
        output.note(f"Open {invitation.url} and approve the code {invitation.code}.")
        if not headless:
            import webbrowser

            webbrowser.open(invitation.url)
        output.note("Waiting … Ctrl-C stops.")

    key = with_hub(lambda hub: log_in(hub, invite), at=at)
    person = with_hub(_whoami, at=at._replace(api_key=key))
    file = HubConfigFile()
    changes = {**hub_changes(file.read(), at.base_url), **_known(person)}
    no_team = {"team_id": None, "team_name": None, "team_role": None}
    file.update(**{**changes, **no_team, "api_key": key})
    name = person.get("slug") or person.get("name")
    data = {"user": name, "user_id": person.get("id"), "base_url": at.base_url}
    show_facts(
        data,
        [("logged in as", name), ("hub", at.base_url), ("saved in", file.path)],
        next_step="prime switch TEAM makes new environments a team's",
    )
    return 0


def logout(yes: Yes = False) -> int:
    """Remove the key from the configuration file. The key stays valid until it is revoked on the hub."""
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    file = HubConfigFile()
    if not file.read()["api_key"]:
        show_facts({"logged_out": False}, [("not logged in", file.path)])
        return 0
    confirm("Remove the API key?", is_sure=yes)
    forgotten = ("team_id", "team_name", "team_role", "user_id", "user_name")
    file.update(api_key="", **dict.fromkeys(forgotten))
    show_facts({"logged_out": True}, [("logged out", file.path)])
    return 0


def whoami() -> int:
    """Show the owner of the key and what the key allows."""
    from verifiers.hub.config import HubConfigFile

    at = settings()
    person = with_hub(_whoami, needs_key=True, at=at)
    file = HubConfigFile()
    if at.api_key == file.read()["api_key"]:
        file.update(**_known(person))
    scope = person.get("scope") or {}
    allowed = [
        name for name, rights in scope.items() if isinstance(rights, dict) and any(rights.values())
    ]
    facts = [
        ("user", person.get("slug")),
        ("name", person.get("name")),
        ("email", person.get("email")),
        ("id", person.get("id")),
        ("may", allowed),
        ("team", at.team_id),
        ("hub", at.base_url),
    ]
    show_facts({**person, "base_url": at.base_url, "team_id": at.team_id}, facts)
    return 0


def switch(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="`personal`, or the slug or id of a team."),
    ] = None,
) -> int:
    """Choose the owner of new environments and evaluations: you, or one of your teams."""
    from verifiers.hub.config import HubConfigFile

    refuse_temporary_context()
    file = HubConfigFile()
    mine = with_hub(_all_teams, needs_key=True)
    if target is None:
        now = file.read()["team_id"]
        rows = [["" if now else "*", "personal", ""]]
        rows += [
            ["*" if team["teamId"] == now else "", team.get("slug"), team["teamId"]]
            for team in mine
        ]
        show_table({"team_id": now, "teams": mine}, ["now", "name", "id"], rows)
        return 0
    if target == "personal":
        file.update(team_id=None, team_name=None, team_role=None)
        show_facts({"team_id": None}, [("new things belong to", "you")])
        return 0
    team = next((team for team in mine if target in (team["teamId"], team.get("slug"))), None)
    if team is None:
        not_a_team(target, mine)
    file.update(team_id=team["teamId"], team_name=team.get("name"), team_role=team.get("role"))
    data = {"team_id": team["teamId"], "team_name": team.get("name")}
    show_facts(data, [("new things belong to", team.get("slug"))])
    return 0


@command(teams, "list")
def list_teams(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of teams.")] = PAGE,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Number of teams to skip.")] = 0,
) -> int:
    """List your teams."""
    answer = with_hub(
        lambda hub: hub.get("/user/teams", offset=offset, limit=limit), needs_key=True
    )
    rows = answer.get("data") or []
    show_table(
        {"teams": rows, "total_count": answer.get("total_count", len(rows))},
        ["slug", "name", "role", "id"],
        [[row.get("slug"), row.get("name"), row.get("role"), row.get("teamId")] for row in rows],
        empty="You are not a member of a team.",
    )
    return 0


@command(teams)
def members(
    team_id: Annotated[
        str | None,
        typer.Option("--team-id", help="Id or name of the team. (default: the configured one)"),
    ] = None,
) -> int:
    """List the members of a team."""
    from verifiers.errors import ConfigError

    at = settings()
    team = team_id or at.team_id
    if team is None:
        raise ConfigError("Name a team: --team-id TEAM, or `prime switch TEAM` for all commands.")

    async def known(hub: HubClient) -> Any:
        return await hub.get(f"/teams/{await _team_id(hub, team)}/members")

    answer = with_hub(known, needs_key=True, at=at)
    rows = answer.get("data") or []
    show_table(
        {"members": rows, "total_count": len(rows)},
        ["user", "role", "email", "id"],
        [
            [row.get("userName"), row.get("role"), row.get("userEmail"), row.get("userId")]
            for row in rows
        ],
    )
    return 0


@command(teams)
def create(
    slug: Annotated[str, typer.Argument(metavar="NAME", help="The team's name in owner/name.")],
    name: Annotated[str | None, typer.Option("--name", help="Display name of the team.")] = None,
) -> int:
    """Create a team. You become its owner.

    JSON: {teamId, name, slug}
    """
    from verifiers.hub.client import body_of, data_of
    from verifiers.hub.wire import TeamRequest

    async def found(hub: HubClient) -> dict[str, Any]:
        return dict(data_of(await hub.post("/teams", body_of(TeamRequest, slug=slug, name=name))))

    team = with_hub(found, needs_key=True)
    facts = [("founded", team.get("slug")), ("id", team.get("teamId"))]
    show_facts(team, facts, next_step=f"prime teams add {slug} USER --role member")
    return 0


@command(teams)
def add(
    team: TeamName,
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the person.")],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="admin: everything; member: read, publish, evaluate; reader: read.",
        ),
    ] = "member",
) -> int:
    """Add a person to a team, or change the person's role. Allowed for the team's owner and admins.

    JSON: {team, user, role}
    """
    from verifiers.hub.client import body_of
    from verifiers.hub.wire import MemberRequest

    if role not in ROLES:
        raise typer.BadParameter(f"--role must be one of {', '.join(ROLES)}, not {role!r}.")

    async def take_in(hub: HubClient) -> None:
        body = body_of(MemberRequest, user=user, role=role)
        await hub.post(f"/teams/{await _team_id(hub, team)}/members", body)

    with_hub(take_in, needs_key=True)
    data = {"team": team, "user": user, "role": role}
    show_facts(data, [("team", team), ("member", user), ("role", role)])
    return 0


@command(teams)
def remove(
    team: TeamName,
    user: Annotated[str, typer.Argument(metavar="USER", help="Name of the person.")],
) -> int:
    """Remove a person from a team. The person's published environments stay with the team.

    JSON: {team, removed}
    """

    async def take_out(hub: HubClient) -> None:
        path = f"/teams/{await _team_id(hub, team)}/members/{quote(user, safe='')}"
        await hub.request("DELETE", path)

    with_hub(take_out, needs_key=True)
    show_facts({"team": team, "removed": user}, [("team", team), ("removed", user)])
    return 0


async def _team_id(hub: HubClient, team: str) -> str:
    """Return the id of one of the user's teams, by its slug or id."""
    mine = await _all_teams(hub)
    found = next((one for one in mine if team in (one["teamId"], one.get("slug"))), None)
    return str(found["teamId"]) if found else not_a_team(team, mine)


def not_a_team(name: str, mine: list[dict[str, Any]]) -> NoReturn:
    """Raise ConfigError with the user's teams."""
    from verifiers.errors import ConfigError

    names = ", ".join(str(team.get("slug")) for team in mine) or "none"
    raise ConfigError(f"You are not a member of a team {name!r}. Your teams: {names}.")


async def _whoami(hub: HubClient) -> dict[str, Any]:
    from verifiers.hub.client import data_of

    team = hub.settings.team_id
    return dict(data_of(await hub.get("/user/whoami", teamId=team)))


async def _all_teams(hub: HubClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = await hub.get("/user/teams", offset=len(found), limit=PAGE)
        page = answer.get("data") or []
        found += page
        if not page or len(found) >= int(answer.get("total_count", len(found))):
            return found


def _known(person: dict[str, Any]) -> dict[str, Any]:
    return {"user_id": person.get("id"), "user_name": person.get("slug") or person.get("name")}
