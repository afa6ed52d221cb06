"""Environments and their versions: finding, creating, changing, deleting."""

from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    and_,
    bindparam,
    delete,
    false,
    func,
    insert,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from hub_server.accounts.authorisation import Action, Principal, require, require_owner
from hub_server.accounts.models import Owner
from hub_server.accounts.service import owner_by_id, owner_by_slug
from hub_server.changes.service import record_audit, record_change
from hub_server.database import inserter, new_id, utc_now
from hub_server.environments.models import Environment, EnvironmentTag, File, Version
from hub_server.environments.names import (
    canonical,
    check_environment_name,
    choose_latest,
    is_hash_prefix,
    normalized,
)
from hub_server.errors import BadRequest, Forbidden, NotFound, TooLarge
from hub_server.settings import Settings
from verifiers.hub.wire import EnvironmentPatch, LookupRequest, ResolveRequest

MAX_TAGS = 50
MAX_TAG_CHARACTERS = 64


class OwnedEnvironment(NamedTuple):
    """An environment with its owner."""

    environment: Environment
    owner: Owner


def readable_by(caller: Principal) -> ColumnElement[bool]:
    """Return the condition of environments that the caller may see; every query over environments includes it.

    It makes the same decision as `authorisation.may(caller, READ, …)`, for many rows at once.
    """
    open_to_all = and_(Environment.visibility == "PUBLIC", Environment.status != "quarantined")
    if not (caller.sees_public or caller.is_known):
        open_to_all = and_(false())
    alive = Environment.deleted_at.is_(None)
    if Action.READ not in caller.actions:
        return and_(alive, open_to_all)
    in_token = covered_by(caller)
    if caller.is_unlimited_admin:
        return and_(alive, or_(open_to_all, in_token))
    mine = Environment.owner_id.in_(caller.readable_owners())
    return and_(alive, or_(open_to_all, and_(mine, in_token)))


def covered_by(caller: Principal) -> ColumnElement[bool]:
    """Return the condition of environments that the caller's token covers: `Principal.covers` for many rows at once."""
    if caller.is_everywhere:
        return true()
    patterns = [_like(pattern) for pattern in caller.environments]
    return or_(*(Environment.full_name.like(p, escape="\\") for p in patterns), false())


def _like(pattern: str) -> str:
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return escaped.replace("*", "%")


# --- finding ----------------------------------------------------------------------------------


async def find(
    session: AsyncSession,
    caller: Principal,
    owner_slug: str,
    name: str,
    action: Action = Action.READ,
    *,
    lock: bool = False,
) -> OwnedEnvironment:
    """Return the environment if the caller may do this to it.

    Raises NotFound with the same message whether it is missing, deleted or hidden from the caller.
    """
    what = f"Environment {owner_slug}/{name}"[:200]
    owner = await owner_by_slug(session, owner_slug)
    environment = None
    if owner is not None:
        # Hidden environments are not loaded: loading one would take 30 microseconds longer than finding nothing.
        query = select(Environment).where(
            readable_by(caller),
            Environment.owner_id == owner.id,
            Environment.normalized_name == normalized(name),
        )
        environment = await session.scalar(query.with_for_update() if lock else query)
    return _allowed(caller, action, environment, owner, what)


async def find_by_id(
    session: AsyncSession,
    caller: Principal,
    environment_id: str,
    action: Action = Action.READ,
    *,
    lock: bool = False,
) -> OwnedEnvironment:
    """Return the environment with this id if the caller may do this to it. Raises the errors of `find`."""
    query = select(Environment).where(Environment.id == environment_id)
    environment = await session.scalar(query.with_for_update() if lock else query)
    owner = await owner_by_id(session, environment.owner_id) if environment else None
    return _allowed(caller, action, environment, owner, f"Environment {environment_id[:60]}")


def _allowed(
    caller: Principal,
    action: Action,
    environment: Environment | None,
    owner: Owner | None,
    what: str,
) -> OwnedEnvironment:
    if environment is not None and environment.deleted_at is not None:
        environment = None
    require(caller, action, environment.resource if environment else None, what)
    if environment is None or owner is None:
        raise NotFound(f"{what} not found.")
    return OwnedEnvironment(environment, owner)


async def find_any(
    session: AsyncSession, caller: Principal, requested: LookupRequest
) -> OwnedEnvironment:
    """Return the environment of a look-up by id, or by owner and name (by default the caller's own)."""
    if requested.id:
        return await find_by_id(session, caller, requested.id)
    if not requested.name:
        raise BadRequest("A look-up needs an id or a name.")
    owner, _, name = requested.name.rpartition("/")
    owner = requested.owner_slug or requested.team_slug or owner or caller.slug or ""
    return await find(session, caller, owner, name)


async def find_version(session: AsyncSession, environment: Environment, reference: str) -> Version:
    """Return a version by `latest`, its number, or the first 8 or more characters of its content hash.

    Raises NotFound if there is no such version, or only deleted ones.
    """
    query = select(Version).where(
        Version.environment_id == environment.id, Version.deleted_at.is_(None)
    )
    missing = NotFound(f"Version {reference[:80]} of {environment.full_name} not found.")
    if reference == "latest":
        if environment.latest_version is None:
            raise missing
        reference = environment.latest_version
    try:
        by_number = query.where(Version.canonical_version == canonical(reference))
        found = await session.scalar(by_number.options(undefer(Version.readme)))
    except BadRequest:
        found = None
    if found is None and is_hash_prefix(reference):
        by_hash = query.where(Version.content_hash.startswith(reference)).limit(2)
        matches = list(await session.scalars(by_hash.options(undefer(Version.readme))))
        found = matches[0] if len(matches) == 1 else None
    if found is None:
        raise missing
    return found


async def versions_of(session: AsyncSession, environment_id: str) -> list[Version]:
    """Return all versions that are not deleted, in no particular order, without their READMEs."""
    query = select(Version).where(
        Version.environment_id == environment_id, Version.deleted_at.is_(None)
    )
    return list(await session.scalars(query))


async def files_of(session: AsyncSession, environment_id: str) -> list[File]:
    """Return all files that are not deleted."""
    query = select(File).where(File.environment_id == environment_id, File.deleted_at.is_(None))
    return list(await session.scalars(query.order_by(File.filename)))


async def files_of_version(session: AsyncSession, version_id: str) -> list[File]:
    """Return the files of one version; wheels for all platforms come first."""
    query = select(File).where(File.version_id == version_id, File.deleted_at.is_(None))
    files = list(await session.scalars(query))
    return sorted(files, key=lambda f: (not f.filename.endswith("none-any.whl"), f.filename))


async def source_members(session: AsyncSession, version_id: str) -> File | None:
    """Return the source archive of a version with the list of its members."""
    query = select(File).where(
        File.version_id == version_id, File.kind == "source", File.deleted_at.is_(None)
    )
    return await session.scalar(query.options(undefer(File.members)))


# --- creating ---------------------------------------------------------------------------------


async def resolve(
    session: AsyncSession, caller: Principal, requested: ResolveRequest, settings: Settings
) -> tuple[OwnedEnvironment, bool]:
    """Get or create an environment for an owner. The second value is True if it was created."""
    owner = await _owner_of_request(session, caller, requested)
    name = requested.name.rpartition("/")[2]
    return await get_or_create(
        session, caller, owner, name, settings, visibility=requested.visibility
    )


async def _owner_of_request(
    session: AsyncSession, caller: Principal, requested: ResolveRequest
) -> Owner:
    slug = requested.owner_slug or requested.team_slug or requested.name.rpartition("/")[0]
    if requested.team_id:
        owner = await owner_by_id(session, requested.team_id)
    else:
        owner = await owner_by_slug(session, slug or caller.slug or "")
    shown = requested.team_id or slug or "you"
    if owner is None:
        raise NotFound(f"Owner {shown!r} not found.")
    require_owner(caller, Action.READ, owner.id, owner.slug)
    return owner


_LOCKED_BY_NAME = (
    select(Environment)
    .where(
        Environment.owner_id == bindparam("owner"), Environment.normalized_name == bindparam("name")
    )
    .with_for_update()
)


async def get_or_create(
    session: AsyncSession,
    caller: Principal,
    owner: Owner,
    name: str,
    settings: Settings,
    *,
    visibility: str | None = None,
) -> tuple[OwnedEnvironment, bool]:
    """Return the environment, locked until the end of the transaction, and whether it was created.

    A deleted environment comes back empty: its versions and file names stay used.
    """
    check_environment_name(name)
    plain = normalized(name)
    key = {"owner": owner.id, "name": plain}
    environment = await session.scalar(_LOCKED_BY_NAME, key)
    if environment is not None and environment.deleted_at is None:
        require(caller, Action.READ, environment.resource, f"Environment {owner.slug}/{name}")
        return OwnedEnvironment(environment, owner), False
    require_owner(caller, Action.PUBLISH, owner.id, owner.slug)
    full_name = f"{owner.slug}/{plain}"
    if not caller.covers(full_name):
        raise NotFound(f"Environment {full_name} not found: this token does not cover it.")
    if environment is None:
        await _check_count(session, owner, settings)
        values = {
            "id": new_id(),
            "owner_id": owner.id,
            "name": name,
            "normalized_name": plain,
            "full_name": full_name,
            "visibility": visibility or await _first_visibility(session, caller, plain, settings),
            "status": "active",
            "description": "",
            "tags": [],
            "stars": 0,
            "downloads": 0,
            "stored_bytes": 0,
            "created_at": utc_now(),
            "updated_at": utc_now(),
        }
        # Two first publishes at once: one inserts, the other finds the inserted row.
        await session.execute(
            inserter(session)(Environment).values(values).on_conflict_do_nothing()
        )
        environment = await session.scalar(_LOCKED_BY_NAME, key)
        assert environment is not None, "inserted or found in the same transaction"
        created = environment.id == values["id"]
    else:
        environment.deleted_at, created = None, True
        environment.visibility = visibility or environment.visibility
    if created:
        record_audit(session, caller, "environment.create", full_name)
    return OwnedEnvironment(environment, owner), created


async def _first_visibility(
    session: AsyncSession, caller: Principal, plain: str, settings: Settings
) -> str:
    """Return the visibility of a new environment whose author does not choose one.

    An environment that is private under one owner stays private when the same person publishes it for another owner,
    for example a team.
    """
    query = select(Environment.id).where(
        Environment.normalized_name == plain,
        Environment.visibility == "PRIVATE",
        Environment.deleted_at.is_(None),
        Environment.owner_id.in_(list(caller.roles)),
    )
    is_private_elsewhere = await session.scalar(query.limit(1)) is not None
    return "PRIVATE" if is_private_elsewhere else settings.default_visibility


async def _check_count(session: AsyncSession, owner: Owner, settings: Settings) -> None:
    count = await session.scalar(
        select(func.count()).select_from(Environment).where(Environment.owner_id == owner.id)
    )
    if (count or 0) >= settings.max_environments:
        raise TooLarge(
            f"{owner.slug} has {count} environments, the maximum on this hub. Ask the operator."
        )


# --- changing ---------------------------------------------------------------------------------


async def patch(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment, requested: EnvironmentPatch
) -> None:
    """Change the fields that do not belong to a version."""
    environment, owner = found
    given = requested.model_dump(exclude_none=True)
    if "quarantined" in (given.get("status"), environment.status):
        require_admin(caller)
    for field in ("visibility", "description", "status", "status_reason"):
        if field in given:
            setattr(environment, field, given[field])
    if "tags" in given:
        await set_tags(session, environment, given["tags"])
    environment.updated_at = utc_now()
    record_audit(session, caller, "environment.change", environment.full_name, **given)
    await announce(session, "change", environment, owner)


def require_admin(caller: Principal) -> None:
    """Raise Forbidden if the caller is not an administrator of the hub."""
    if not caller.is_unlimited_admin:
        raise Forbidden("Only an administrator of this hub may set or lift a quarantine.")


async def set_tags(session: AsyncSession, environment: Environment, tags: list[str]) -> None:
    """Replace the tags. Tags that are too long are cut, not refused, because they only serve search."""
    clean = [tag.strip().lower()[:MAX_TAG_CHARACTERS] for tag in tags if tag.strip()]
    environment.tags = sorted(set(clean))[:MAX_TAGS]
    await session.execute(
        delete(EnvironmentTag).where(EnvironmentTag.environment_id == environment.id)
    )
    if environment.tags:
        rows = [{"environment_id": environment.id, "tag": tag} for tag in environment.tags]
        await session.execute(insert(EnvironmentTag), rows)


async def set_yanked(
    session: AsyncSession,
    caller: Principal,
    found: OwnedEnvironment,
    reference: str,
    reason: str | None,
) -> Version:
    """Yank a version with a reason, or undo the yank if the reason is None."""
    version = await find_version(session, found.environment, reference)
    version.yanked_at = None if reason is None else (version.yanked_at or utc_now())
    version.yanked_reason = reason
    await _after_change(session, found, "unyank" if reason is None else "yank", version.version)
    subject = f"{found.environment.full_name}@{version.version}"
    record_audit(session, caller, "version.yank", subject, reason=reason)
    return version


async def delete_version(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment, reference: str
) -> Version:
    """Delete a version. Its number and file names are never used again."""
    version = await find_version(session, found.environment, reference)
    await _entomb(session, [version.id])
    await _after_change(session, found, "delete", version.version)
    subject = f"{found.environment.full_name}@{version.version}"
    record_audit(session, caller, "version.delete", subject)
    return version


async def delete_environment(
    session: AsyncSession, caller: Principal, found: OwnedEnvironment
) -> None:
    """Delete an environment with all versions. The name stays with its owner."""
    environment = found.environment
    versions = await versions_of(session, environment.id)
    await _entomb(session, [version.id for version in versions])
    environment.deleted_at = utc_now()
    environment.latest_version = None
    environment.stored_bytes = 0
    record_audit(session, caller, "environment.delete", environment.full_name)
    await announce(session, "delete", environment, found.owner)


async def _entomb(session: AsyncSession, version_ids: list[str]) -> None:
    now = utc_now()
    await session.execute(update(Version).where(Version.id.in_(version_ids)).values(deleted_at=now))
    await session.execute(
        update(File).where(File.version_id.in_(version_ids)).values(deleted_at=now)
    )


async def _after_change(
    session: AsyncSession, found: OwnedEnvironment, kind: str, version: str | None = None
) -> None:
    environment = found.environment
    await session.flush()
    left = await versions_of(session, environment.id)
    environment.latest_version = choose_latest(v.version for v in left if not v.is_yanked)
    environment.stored_bytes = sum(
        file.size_bytes for file in await files_of(session, environment.id)
    )
    environment.updated_at = utc_now()
    await announce(session, kind, environment, found.owner, version)


async def announce(
    session: AsyncSession,
    kind: str,
    environment: Environment,
    owner: Owner,
    version: str | None = None,
) -> None:
    """Record for caches and mirrors that the environment's pages have changed."""
    await record_change(
        session,
        kind,
        environment_id=environment.id,
        owner=owner.slug,
        name=environment.normalized_name,
        version=version,
    )


async def note_downloads(session: AsyncSession, counts: dict[str, int]) -> None:
    """Add to the download counts, by environment id."""
    for environment_id, count in counts.items():
        await session.execute(
            update(Environment)
            .where(Environment.id == environment_id)
            .values(downloads=Environment.downloads + count)
        )


async def visible_ids(
    session: AsyncSession, caller: Principal, environment_ids: set[str]
) -> set[str]:
    """Return those of the environments that the caller may see."""
    query = select(Environment.id).where(Environment.id.in_(environment_ids), readable_by(caller))
    return set(await session.scalars(query))
