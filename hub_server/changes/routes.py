"""The change feed and the audit log over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from hub_server import stored
from hub_server.access import ChangesAccount, HubRoute, ReadsEnvironment
from hub_server.changes import service
from hub_server.database import iso
from hub_server.environments.service import visible_ids
from hub_server.hub import HubDep

router = APIRouter(prefix="/api/v1", tags=["changes"], route_class=HubRoute)


@router.get("/changes")
async def changes(
    hub: HubDep,
    caller: ReadsEnvironment,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> dict[str, Any]:
    """Return the changes after a serial that the caller may see, oldest first."""
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
    # The last serial that was read, not the last one shown: hidden changes are not read again.
    return {"data": data, "last_serial": rows[-1].serial if rows else since}


@router.get("/audit")
async def audit(
    hub: HubDep,
    caller: ChangesAccount,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """Return the caller's own entries of the audit log. An administrator sees all entries."""
    actor = None if caller.is_unlimited_admin else caller.user_id
    async with hub.database.read() as session:
        rows = await service.audit_entries(session, after, limit, actor)
    shown = [
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
    return {"data": stored.fitted(shown, {"subject", "detail"})}
