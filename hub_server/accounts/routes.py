"""The caller's account, tokens and teams over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from hub_server import stored
from hub_server.access import (
    PUBLIC,
    ChangesAccount,
    ChangesCaller,
    HubRoute,
    ReadsAccount,
    ReadsCaller,
)
from hub_server.accounts import service
from hub_server.accounts.authorisation import ROLE_ACTIONS, Action
from hub_server.accounts.models import Token
from hub_server.database import iso
from hub_server.hub import HubDep
from verifiers.hub.wire import (
    MemberRequest,
    SlugRequest,
    TeamRequest,
    TokenAnswer,
    TokenRequest,
)

router = APIRouter(prefix="/api/v1", tags=["accounts"], route_class=HubRoute)


@router.get("/user/whoami")
async def whoami(hub: HubDep, caller: ReadsCaller) -> dict[str, Any]:
    """Return the owner of the token and what the token may do."""
    async with hub.database.read() as session:
        user, owner = await service.account_of(session, caller)
    scope = {
        action.value: {"read": True, "write": action is not Action.READ}
        for action in Action
        if action in caller.actions
    }
    return {
        "data": {
            "id": user.id,
            "email": user.email if caller.is_everywhere else None,
            "name": owner.display_name,
            "slug": owner.slug,
            "is_admin": user.is_admin,
            "scope": scope,
        }
    }


@router.patch("/user/slug")
async def rename(hub: HubDep, caller: ChangesAccount, body: SlugRequest) -> dict[str, Any]:
    """Change the caller's public name. The former name leads to the new one."""
    async with hub.database.write() as session:
        owner = await service.rename(session, caller, body.slug)
    return {"data": {"id": owner.id, "slug": owner.slug}}


@router.get("/user/teams")
async def teams(
    hub: HubDep,
    caller: ReadsCaller,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """Return the caller's teams."""
    async with hub.database.read() as session:
        rows, total = await service.teams_of(session, caller, offset, limit)
    data = [
        {
            "teamId": team.id,
            "name": team.display_name,
            "slug": team.slug,
            "role": membership.role,
            "createdAt": iso(team.created_at),
        }
        for team, membership in rows
    ]
    return {"data": data, "total_count": total}


@router.post("/teams")
async def create_team(hub: HubDep, caller: ChangesAccount, body: TeamRequest) -> dict[str, Any]:
    """Create a team."""
    async with hub.database.write() as session:
        team = await service.create_team(session, caller, body, hub.settings.max_teams)
    return {"data": {"teamId": team.id, "name": team.display_name, "slug": team.slug}}


@router.get("/teams/{team_id}/members")
async def members(hub: HubDep, caller: ReadsAccount, team_id: str) -> dict[str, Any]:
    """Return the members of a team. Only those who may change the team see e-mail addresses."""
    async with hub.database.read() as session:
        rows = await service.team_members(session, caller, team_id)
    manages = Action.ACCOUNT in ROLE_ACTIONS.get(caller.roles.get(team_id, ""), ())
    data = [
        {
            "userId": user.id,
            "userName": owner.slug,
            "userEmail": user.email if manages else None,
            "role": membership.role,
            "joinedAt": iso(membership.joined_at),
        }
        for membership, user, owner in rows
    ]
    return {"data": data, "total_count": len(data)}


@router.post("/teams/{team_id}/members")
async def set_member(
    hub: HubDep, caller: ChangesAccount, team_id: str, body: MemberRequest
) -> dict[str, Any]:
    """Add a person to a team, or change the person's role."""
    async with hub.database.write() as session:
        await service.set_member(session, caller, team_id, body)
    return {"data": {"user": body.user, "role": body.role}}


@router.delete("/teams/{team_id}/members/{user}")
async def remove_member(
    hub: HubDep, caller: ChangesAccount, team_id: str, user: str
) -> dict[str, Any]:
    """Remove a person from a team."""
    async with hub.database.write() as session:
        await service.remove_member(session, caller, team_id, user)
    return {"data": {"success": True}}


@router.get("/tokens")
async def tokens(hub: HubDep, caller: ChangesAccount) -> dict[str, Any]:
    """Return the caller's working tokens, without their secrets."""
    async with hub.database.read() as session:
        rows = await service.list_tokens(session, caller)
    shown = [token_answer(row).model_dump() for row in rows]
    return {"data": stored.fitted(shown, {"name", "environments"})}


@router.post("/tokens")
async def create_token(hub: HubDep, caller: ChangesCaller, body: TokenRequest) -> dict[str, Any]:
    """Create a token that can do no more than the token of this request."""
    async with hub.database.write() as session:
        new = await service.create_token(session, caller, body)
    return {"data": token_answer(new.row, new.text)}


@router.delete("/tokens/{token_id}")
async def revoke_token(hub: HubDep, caller: ChangesCaller, token_id: str) -> dict[str, Any]:
    """Revoke a token."""
    async with hub.database.write() as session:
        await service.revoke_token(session, caller, token_id)
    return {"data": {"success": True}}


@router.post("/tokens/leaked", dependencies=[PUBLIC])
async def report_leaked(hub: HubDep, body: list[dict[str, Any]]) -> dict[str, Any]:
    """Report tokens that were found in public. Tokens of this hub are revoked at once."""
    found = 0
    async with hub.database.write() as session:
        for item in body[:100]:
            found += await service.revoke_leaked(session, str(item.get("token", "")))
    return {"data": {"revoked": found}}


def token_answer(row: Token, text: str | None = None) -> TokenAnswer:
    """Return a token in its wire form."""
    return TokenAnswer(
        id=row.id,
        name=row.name,
        prefix=row.prefix,
        actions=row.actions,
        environments=row.environments,
        created_at=iso(row.created_at),
        expires_at=iso(row.expires_at) if row.expires_at else None,
        last_used_at=iso(row.last_used_at) if row.last_used_at else None,
        token=text,
    )
