"""Secrets and variables over HTTP. Keys are camelCase here, as clients expect."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from hub_server import stored
from hub_server.access import EnvironmentSecrets, HubRoute, OwnSecrets
from hub_server.database import iso
from hub_server.hub import Hub, HubDep
from hub_server.secrets import service
from hub_server.secrets.models import Secret, SecretLink
from hub_server.secrets.service import Kind
from verifiers.hub.wire import SecretPatch, SecretRequest

router = APIRouter(prefix="/api/v1", tags=["secrets"], route_class=HubRoute)
TeamId = Annotated[str | None, Query(alias="teamId")]


def _answer(secret: Secret, hub: Hub, source: str = "environment") -> dict[str, Any]:
    answer = {
        "id": secret.id,
        "name": secret.name,
        "description": secret.description,
        "isFile": secret.is_file,
        "source": source,
        "createdAt": iso(secret.created_at),
        "updatedAt": iso(secret.updated_at),
    }
    if secret.kind == "variable":
        answer["value"] = hub.cipher.open(secret.value, secret.scope)
    return answer


def _link_answer(link: SecretLink, secret: Secret) -> dict[str, Any]:
    return {
        "id": link.id,
        "secretId": secret.id,
        "secretName": secret.name,
        "environmentId": link.environment_id,
        "createdAt": iso(link.created_at),
    }


# --- of an environment ------------------------------------------------------------------------


async def _list(
    hub: Hub, caller: EnvironmentSecrets, environment_id: str, kind: Kind
) -> dict[str, Any]:
    async with hub.database.read() as session:
        await service.environment_scope(session, caller, environment_id)
        rows = await service.secrets_of(session, environment_id, kind)
        linked = await service.linked_to(session, environment_id) if kind == "secret" else []
    data = [_answer(row, hub) for row in rows]
    data += [_answer(secret, hub, "linked") for _, secret in linked]
    return {"data": stored.fitted(data, {"description"})}


async def _create(
    hub: Hub, caller: EnvironmentSecrets, environment_id: str, kind: Kind, body: SecretRequest
) -> dict[str, Any]:
    async with hub.database.write() as session:
        found = await service.environment_scope(session, caller, environment_id)
        secret = await service.create(
            session,
            caller,
            hub.cipher,
            scope=environment_id,
            owner_id=found.owner.id,
            environment_id=environment_id,
            kind=kind,
            requested=body,
        )
    return {"data": _answer(secret, hub)}


async def _change(
    hub: Hub,
    caller: EnvironmentSecrets,
    environment_id: str,
    kind: Kind,
    secret_id: str,
    body: SecretPatch | None,
) -> dict[str, Any]:
    async with hub.database.write() as session:
        await service.environment_scope(session, caller, environment_id)
        secret = await service.get(session, environment_id, kind, secret_id)
        if body is None:
            await service.remove(session, caller, secret)
        else:
            await service.change(session, caller, hub.cipher, secret, body)
    return {"data": _answer(secret, hub)}


@router.get("/environmentshub/{environment_id}/secrets")
async def list_secrets(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str
) -> dict[str, Any]:
    """Return the secrets of an environment, without values."""
    return await _list(hub, caller, environment_id, "secret")


@router.get("/environmentshub/{environment_id}/variables")
async def list_variables(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str
) -> dict[str, Any]:
    """Return the variables of an environment, with values."""
    return await _list(hub, caller, environment_id, "variable")


@router.post("/environmentshub/{environment_id}/secrets")
async def create_secret(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, body: SecretRequest
) -> dict[str, Any]:
    """Store a secret of an environment."""
    return await _create(hub, caller, environment_id, "secret", body)


@router.post("/environmentshub/{environment_id}/variables")
async def create_variable(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, body: SecretRequest
) -> dict[str, Any]:
    """Store a variable of an environment."""
    return await _create(hub, caller, environment_id, "variable", body)


@router.post("/environmentshub/{environment_id}/secrets/link/{secret_id}")
async def link(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str
) -> dict[str, Any]:
    """Let an environment use a secret of its owner or of the caller."""
    async with hub.database.write() as session:
        found = await service.environment_scope(session, caller, environment_id)
        row = await service.link(session, caller, found, secret_id)
    return {"data": _link_answer(*row)}


@router.delete("/environmentshub/{environment_id}/secrets/link/{secret_id}")
async def unlink(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str
) -> dict[str, Any]:
    """Remove the link."""
    async with hub.database.write() as session:
        found = await service.environment_scope(session, caller, environment_id)
        row = await service.unlink(session, caller, found, secret_id)
    return {"data": _link_answer(*row)}


@router.patch("/environmentshub/{environment_id}/secrets/{secret_id}")
async def change_secret(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str, body: SecretPatch
) -> dict[str, Any]:
    """Change a secret."""
    return await _change(hub, caller, environment_id, "secret", secret_id, body)


@router.patch("/environmentshub/{environment_id}/variables/{secret_id}")
async def change_variable(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str, body: SecretPatch
) -> dict[str, Any]:
    """Change a variable."""
    return await _change(hub, caller, environment_id, "variable", secret_id, body)


@router.delete("/environmentshub/{environment_id}/secrets/{secret_id}")
async def delete_secret(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str
) -> dict[str, Any]:
    """Delete a secret."""
    return await _change(hub, caller, environment_id, "secret", secret_id, None)


@router.delete("/environmentshub/{environment_id}/variables/{secret_id}")
async def delete_variable(
    hub: HubDep, caller: EnvironmentSecrets, environment_id: str, secret_id: str
) -> dict[str, Any]:
    """Delete a variable."""
    return await _change(hub, caller, environment_id, "variable", secret_id, None)


# --- of a person or team ----------------------------------------------------------------------


@router.get("/secrets/")
async def list_own(hub: HubDep, caller: OwnSecrets, team_id: TeamId = None) -> dict[str, Any]:
    """Return the secrets of the caller or a team, without values."""
    async with hub.database.read() as session:
        scope = await service.own_scope(session, caller, team_id)
        rows = await service.secrets_of(session, scope, "secret")
    return {"data": stored.fitted([_answer(row, hub, "global") for row in rows], {"description"})}


@router.post("/secrets/")
async def create_own(hub: HubDep, caller: OwnSecrets, body: SecretRequest) -> dict[str, Any]:
    """Store a secret of the caller or a team."""
    async with hub.database.write() as session:
        scope = await service.own_scope(session, caller, body.teamId)
        secret = await service.create(
            session,
            caller,
            hub.cipher,
            scope=scope,
            owner_id=scope,
            environment_id=None,
            kind="secret",
            requested=body,
        )
    return {"data": _answer(secret, hub, "global")}


@router.get("/secrets/{secret_id}")
async def get_own(
    hub: HubDep, caller: OwnSecrets, secret_id: str, team_id: TeamId = None
) -> dict[str, Any]:
    """Return one secret, without its value."""
    async with hub.database.read() as session:
        scope = await service.own_scope(session, caller, team_id)
        secret = await service.get(session, scope, "secret", secret_id)
    return {"data": _answer(secret, hub, "global")}


@router.patch("/secrets/{secret_id}")
async def change_own(
    hub: HubDep, caller: OwnSecrets, secret_id: str, body: SecretPatch, team_id: TeamId = None
) -> dict[str, Any]:
    """Change a secret of the caller or a team."""
    async with hub.database.write() as session:
        scope = await service.own_scope(session, caller, team_id)
        secret = await service.get(session, scope, "secret", secret_id)
        await service.change(session, caller, hub.cipher, secret, body)
    return {"data": _answer(secret, hub, "global")}


@router.delete("/secrets/{secret_id}")
async def delete_own(
    hub: HubDep, caller: OwnSecrets, secret_id: str, team_id: TeamId = None
) -> dict[str, Any]:
    """Delete a secret of the caller or a team."""
    async with hub.database.write() as session:
        scope = await service.own_scope(session, caller, team_id)
        secret = await service.get(session, scope, "secret", secret_id)
        await service.remove(session, caller, secret)
    return {"data": {"success": True, "id": secret_id}}
