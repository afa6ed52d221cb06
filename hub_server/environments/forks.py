"""Forks: new rows that refer to the same blobs."""

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from hub_server.accounts.authorisation import Action, Principal, require, require_owner
from hub_server.accounts.service import owner_by_id, owner_by_slug
from hub_server.changes.service import record_audit
from hub_server.environments.dependencies import BOUND, bound_for_a_fork
from hub_server.environments.models import File, Version
from hub_server.environments.search import index_document
from hub_server.environments.service import (
    OwnedEnvironment,
    announce,
    find_version,
    get_or_create,
    set_tags,
)
from hub_server.errors import BadRequest, Conflict, NotFound
from hub_server.settings import Settings
from verifiers.hub.wire import ForkRequest


async def fork(
    session: AsyncSession,
    caller: Principal,
    source: OwnedEnvironment,
    requested: ForkRequest,
    settings: Settings,
) -> tuple[OwnedEnvironment, Version]:
    """Copy the newest version to the caller, or to a team of the caller.

    Raises Conflict if the target exists. The fork of a private environment is private, and the caller must be allowed
    to manage the environment.
    """
    if requested.team_id:
        owner = await owner_by_id(session, requested.team_id)
    else:
        owner = await owner_by_slug(session, requested.team_slug or caller.slug or "")
    if owner is None:
        raise NotFound(f"Owner {requested.team_id or requested.team_slug!r} not found.")
    require_owner(caller, Action.PUBLISH, owner.id, owner.slug)
    original = source.environment
    if original.visibility == "PRIVATE":
        # The owner of the copy can make it public. A reader must not decide that.
        require(caller, Action.MANAGE, original.resource, f"Environment {original.full_name}")
    if requested.name and requested.name != original.name:
        raise BadRequest("A fork keeps the name of the environment, because the wheel contains it.")
    found, created = await get_or_create(
        session, caller, owner, original.name, settings, visibility=original.visibility
    )
    if not created:
        raise Conflict(f"{found.environment.full_name} already exists.")
    version = await find_version(session, original, "latest")
    # Its requirements keep the meaning that they have for the owner of the source.
    bound = await bound_for_a_fork(session, original, version.manifest)
    copy = Version(
        environment_id=found.environment.id,
        version=version.version,
        canonical_version=version.canonical_version,
        content_hash=version.content_hash,
        manifest={**version.manifest, BOUND: bound},
        readme=version.readme,
        runtime_hint=version.runtime_hint,
        published_by=caller.user_id or "",
    )
    session.add(copy)
    await session.flush()
    total_bytes = await _copy_files(session, version, copy)
    environment = found.environment
    environment.latest_version = copy.version
    environment.description = original.description
    environment.stored_bytes = total_bytes
    environment.forked_from = {
        "owner": source.owner.slug,
        "name": original.name,
        "environment_id": original.id,
        "version": version.version,
    }
    await set_tags(session, environment, original.tags)
    await index_document(session, environment, copy.readme)
    record_audit(session, caller, "environment.fork", environment.full_name, of=original.full_name)
    await announce(session, "publish", environment, owner, copy.version)
    return found, copy


async def _copy_files(session: AsyncSession, version: Version, copy: Version) -> int:
    """Add rows for the same blobs to the copy of a version, and return the total size of the blobs."""
    query = select(File).where(File.version_id == version.id, File.deleted_at.is_(None))
    total_bytes = 0
    for file in await session.scalars(
        query.options(undefer(File.metadata_text), undefer(File.members))
    ):
        total_bytes += file.size_bytes
        session.add(
            File(
                environment_id=copy.environment_id,
                version_id=copy.id,
                kind=file.kind,
                filename=file.filename,
                sha256=file.sha256,
                uploaded_sha256=file.uploaded_sha256,
                size_bytes=file.size_bytes,
                metadata_text=file.metadata_text,
                metadata_sha256=file.metadata_sha256,
                requires_python=file.requires_python,
                members=file.members,
            )
        )
    return total_bytes
