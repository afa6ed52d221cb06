"""Secrets and variables of environments and people."""

from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, require_account, require_owner
from hub_server.accounts.service import owner_by_id
from hub_server.changes.service import record_audit
from hub_server.database import utc_now
from hub_server.environments.service import OwnedEnvironment, find_by_id
from hub_server.errors import Conflict, Forbidden, NotFound, TooLarge
from hub_server.secrets.cipher import Cipher
from hub_server.secrets.models import Secret, SecretLink
from verifiers.hub.wire import SecretPatch, SecretRequest

Kind = Literal["secret", "variable"]
MAX_SECRETS = 200
"""Maximum number of secrets and variables per environment, person or team."""
MAX_VALUE_BYTES = 512 * 1024
"""Maximum size of all their values together."""


async def environment_scope(
    session: AsyncSession, caller: Principal, environment_id: str
) -> OwnedEnvironment:
    """Return the environment if the caller may manage its secrets."""
    return await find_by_id(session, caller, environment_id, Action.SECRETS)


async def own_scope(session: AsyncSession, caller: Principal, team_id: str | None) -> str:
    """Return the id of the person or team that owns the secrets."""
    require_account(caller, Action.SECRETS)
    if not team_id:
        return caller.user_id or ""
    owner = await owner_by_id(session, team_id)
    if owner is None or (team_id not in caller.roles and not caller.is_unlimited_admin):
        raise NotFound(f"Team {team_id[:60]} not found.")
    require_owner(caller, Action.SECRETS, owner.id, owner.slug)
    return owner.id


async def secrets_of(session: AsyncSession, scope: str, kind: Kind) -> list[Secret]:
    """Return the secrets or variables of an environment or owner, by name."""
    query = select(Secret).where(Secret.scope == scope, Secret.kind == kind)
    return list(await session.scalars(query.order_by(Secret.name)))


async def linked_to(session: AsyncSession, environment_id: str) -> list[tuple[SecretLink, Secret]]:
    """Return the owner's secrets that are linked to the environment."""
    query = (
        select(SecretLink, Secret)
        .join(Secret, Secret.id == SecretLink.secret_id)
        .where(SecretLink.environment_id == environment_id)
        .order_by(Secret.name)
    )
    return list(await session.execute(query))


async def get(session: AsyncSession, scope: str, kind: Kind, secret_id: str) -> Secret:
    """Return one secret of a scope. Raises NotFound for a secret of another scope."""
    secret = await session.get(Secret, secret_id)
    if secret is None or secret.scope != scope or secret.kind != kind:
        raise NotFound(f"The {kind} {secret_id[:60]} was not found.")
    return secret


async def create(
    session: AsyncSession,
    caller: Principal,
    cipher: Cipher,
    *,
    scope: str,
    owner_id: str,
    environment_id: str | None,
    kind: Kind,
    requested: SecretRequest,
) -> Secret:
    """Store a value. Raises Conflict for a used name, TooLarge if the scope is full."""
    await _check_room(session, scope, len(requested.value.encode()))
    secret = Secret(
        owner_id=owner_id,
        environment_id=environment_id,
        scope=scope,
        kind=kind,
        name=requested.name,
        value=cipher.seal(requested.value, scope),
        description=requested.description,
        is_file=requested.isFile,
    )
    session.add(secret)
    try:
        await session.flush()
    except IntegrityError as error:
        raise Conflict(f"A {kind} named {requested.name} already exists.") from error
    record_audit(session, caller, f"{kind}.create", f"{scope}/{requested.name}")
    return secret


async def _check_room(session: AsyncSession, scope: str, more_bytes: int, new: int = 1) -> None:
    """Raise TooLarge if a scope has no room: all of a scope is one answer, values of variables included."""
    query = select(func.count(), func.coalesce(func.sum(func.length(Secret.value)), 0))
    count, used = (await session.execute(query.where(Secret.scope == scope))).one()
    if count + new > MAX_SECRETS or used + more_bytes > MAX_VALUE_BYTES:
        raise TooLarge(
            f"There are {count} secrets and variables of {used} bytes here; the maximum is {MAX_SECRETS} and"
            f" {MAX_VALUE_BYTES} bytes."
        )


async def change(
    session: AsyncSession,
    caller: Principal,
    cipher: Cipher,
    secret: Secret,
    requested: SecretPatch,
) -> None:
    """Change name, value or description."""
    if requested.value is not None:
        more = len(requested.value.encode()) - len(secret.value)
        await _check_room(session, secret.scope, more, new=0)
        secret.value = cipher.seal(requested.value, secret.scope)
    secret.name = requested.name or secret.name
    if requested.description is not None:
        secret.description = requested.description
    secret.updated_at = utc_now()
    try:
        await session.flush()
    except IntegrityError as error:
        raise Conflict(f"A {secret.kind} named {requested.name} already exists.") from error
    record_audit(session, caller, f"{secret.kind}.change", f"{secret.scope}/{secret.name}")


async def remove(session: AsyncSession, caller: Principal, secret: Secret) -> None:
    """Delete a secret or variable, and its links."""
    for link in await session.scalars(select(SecretLink).where(SecretLink.secret_id == secret.id)):
        await session.delete(link)
    await session.flush()
    await session.delete(secret)
    record_audit(session, caller, f"{secret.kind}.delete", f"{secret.scope}/{secret.name}")


async def link(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment, secret_id: str
) -> tuple[SecretLink, Secret]:
    """Link a secret of the caller, or of the environment's owner, to the environment.

    Such a secret belongs to a person or team, so a token that is bound to environments may not hand it on.
    """
    if not caller.is_everywhere:
        raise Forbidden(
            "This token is bound to environments. Use a token for all environments to link a personal or team secret."
        )
    secret = await session.get(Secret, secret_id)
    owners = {caller.user_id, found.owner.id}
    if secret is None or secret.environment_id is not None or secret.owner_id not in owners:
        raise NotFound(f"The secret {secret_id[:60]} was not found.")
    query = select(SecretLink).where(
        SecretLink.environment_id == found.environment.id, SecretLink.secret_id == secret_id
    )
    row = await session.scalar(query)
    if row is None:
        links = select(func.count()).where(SecretLink.environment_id == found.environment.id)
        if (await session.scalar(links) or 0) >= MAX_SECRETS:
            raise TooLarge(f"The environment uses {MAX_SECRETS} linked secrets, the maximum.")
        row = SecretLink(environment_id=found.environment.id, secret_id=secret_id)
        session.add(row)
        await session.flush()
        record_audit(session, caller, "secret.link", f"{found.environment.full_name}/{secret.name}")
    return row, secret


async def unlink(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment, secret_id: str
) -> tuple[SecretLink, Secret]:
    """Remove the link."""
    query = (
        select(SecretLink, Secret)
        .join(Secret, Secret.id == SecretLink.secret_id)
        .where(SecretLink.environment_id == found.environment.id, SecretLink.secret_id == secret_id)
    )
    row = (await session.execute(query)).first()
    if row is None:
        raise NotFound(f"The secret {secret_id[:60]} is not linked.")
    await session.delete(row[0])
    record_audit(session, caller, "secret.unlink", f"{found.environment.full_name}/{row[1].name}")
    return row
