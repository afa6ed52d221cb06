"""The change feed and the audit log over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from hub_server.accounts.authorisation import Action, require_account
from hub_server.changes import service
from hub_server.database import iso
from hub_server.environments.service import visible_ids
from hub_server.hub import Caller, HubDep, KnownCaller

router = APIRouter(prefix="/api/v1", tags=["changes"])


@router.get("/changes")
async def changes(
    hub: HubDep,
    caller: Caller,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> dict[str, Any]:
    """What changed after a serial, oldest first, as far as the caller may know."""
    async with hub.database.read() as session:
        rows = await service.changes_since(session, since, limit)
        readable = await visible_ids(session, caller, {row.environment_id for row in rows})
    data = [
        {
            "serial": row.serial,
            "at": iso(row.at),
            "kind": row.kind,
            "owner": row.owner,
            "name": row.name,
            "version": row.version,
        }
        for row in rows
        if row.environment_id in readable
    ]
    # The last serial read, not the last one shown: what is hidden must not be asked for again.
    return {"data": data, "last_serial": rows[-1].serial if rows else since}


@router.get("/audit")
async def audit(
    hub: HubDep,
    caller: KnownCaller,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """The caller's own entries in the audit log; an administrator sees all."""
    require_account(caller, Action.ACCOUNT)
    actor = None if caller.is_unlimited_admin else caller.user_id
    async with hub.database.read() as session:
        rows = await service.audit_entries(session, after, limit, actor)
    return {
        "data": [
            {
                "id": row.id,
                "at": iso(row.at),
                "actor_id": row.actor_id,
                "token_id": row.token_id,
                "action": row.action,
                "subject": row.subject,
                "detail": row.detail,
            }
            for row in rows
        ]
    }
