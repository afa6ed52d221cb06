"""Content of index pages, and permission to read a file."""

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer

from hub_server.accounts.authorisation import Action, Principal, Resource, may
from hub_server.accounts.models import Owner
from hub_server.accounts.service import owner_by_slug
from hub_server.changes.models import Change
from hub_server.database import iso
from hub_server.environments.dependencies import dependencies, lines_of
from hub_server.environments.models import Environment, File, Version
from hub_server.environments.names import normalized, parse_version
from hub_server.environments.service import (
    OwnedEnvironment,
    find,
    find_version,
    readable_by,
    versions_of,
)
from hub_server.errors import NotFound
from hub_server.index.pages import IndexFile, Page, ProjectListing, project_page, root_page


class IndexPage(NamedTuple):
    """A page, and whether everyone may receive it."""

    page: Page
    owner: str
    is_public: bool


async def owner_root(session: AsyncSession, caller: Principal, owner_slug: str) -> IndexPage:
    """Return the names of an owner's environments that have something to install."""
    owner = await owner_by_slug(session, owner_slug)
    if owner is None:
        raise NotFound("Not found.")
    query = (
        select(Environment.normalized_name, Environment.visibility)
        .where(
            readable_by(caller),
            Environment.owner_id == owner.id,
            Environment.latest_version.is_not(None),
        )
        .order_by(Environment.normalized_name)
    )
    rows = (await session.execute(query)).all()
    serial = await session.scalar(select(func.max(Change.serial)).where(Change.owner == owner.slug))
    page = root_page([name for name, _ in rows], serial or 0)
    return IndexPage(page, owner.slug, is_public=not caller.is_known)


async def project(
    session: AsyncSession, caller: Principal, owner_slug: str, name: str, up: str
) -> IndexPage:
    """Return the page of one environment. `up` leads from the page to the hub's root."""
    found = await _find_or_quarantined(session, caller, owner_slug, name)
    environment = found.environment
    quarantined = environment.status == "quarantined"
    listing = ProjectListing(
        name=environment.normalized_name,
        status=environment.status,
        status_reason=environment.status_reason,
        serial=await _serial_of(session, environment.id),
        versions=[],
        files=[],
    )
    if not quarantined:
        listing = await _filled(session, found, listing, up)
    return IndexPage(
        project_page(listing), found.owner.slug, is_public=environment.visibility == "PUBLIC"
    )


async def reads_all_of(
    session: AsyncSession, caller: Principal, owner_slug: str, project_name: str
) -> bool:
    """Return whether the caller would see this project of the owner if it existed."""
    owner = await owner_by_slug(session, owner_slug)
    if owner is None:
        return False
    resource = Resource(
        owner.id, f"{owner.slug}/{normalized(project_name)}", "PRIVATE", is_open=True
    )
    return may(caller, Action.READ, resource)


async def dependency(
    session: AsyncSession,
    caller: Principal,
    place: tuple[str, str],
    project_name: str,
    base_url: str,
) -> IndexPage:
    """Return the page of an environment that the one at `place` requires. Raises NotFound, Unresolved."""
    found = await find(session, caller, *place)
    if found.environment.latest_version is None:
        raise NotFound("Not found.")
    version = await find_version(session, found.environment, "latest")
    for one in await dependencies(session, caller, found, version, base_url):
        environment, owner = one.found
        if environment.normalized_name == normalized(project_name):
            name = environment.normalized_name
            return await project(session, caller, owner.slug, name, up="../../../../")
    raise NotFound("Not found.")


async def _find_or_quarantined(
    session: AsyncSession, caller: Principal, owner_slug: str, name: str
) -> OwnedEnvironment:
    """Return the environment like `find`, and also a public environment under quarantine, to be shown without files.

    If it were missing, a resolver would ask the next index and take a package of the same name there.
    """
    try:
        return await find(session, caller, owner_slug, name)
    except NotFound:
        query = (
            select(Environment, Owner)
            .join(Owner, Owner.id == Environment.owner_id)
            .where(
                Owner.slug == owner_slug,
                Environment.normalized_name == normalized(name),
                Environment.visibility == "PUBLIC",
                Environment.status == "quarantined",
                Environment.deleted_at.is_(None),
            )
        )
        row = (await session.execute(query)).first()
        if row is None or not (caller.sees_public or caller.is_known):
            raise
        return OwnedEnvironment(*row)


async def _filled(
    session: AsyncSession, found: OwnedEnvironment, listing: ProjectListing, up: str
) -> ProjectListing:
    versions = {version.id: version for version in await versions_of(session, found.environment.id)}
    query = select(File).where(
        File.environment_id == found.environment.id,
        File.kind == "wheel",
        File.deleted_at.is_(None),
    )
    wheels = [f for f in await session.scalars(query) if f.version_id in versions]
    wheels.sort(key=lambda f: (parse_version(versions[f.version_id].version), f.filename))
    files = [
        IndexFile(
            filename=wheel.filename,
            url=up + file_path(found, wheel),
            sha256=wheel.sha256,
            size_bytes=wheel.size_bytes,
            upload_time=iso(wheel.uploaded_at),
            requires_python=wheel.requires_python,
            metadata_sha256=wheel.metadata_sha256,
            yanked_reason=(
                (versions[wheel.version_id].yanked_reason or "")
                if versions[wheel.version_id].is_yanked
                else None
            ),
        )
        for wheel in wheels
    ]
    numbers = list(dict.fromkeys(versions[wheel.version_id].version for wheel in wheels))
    return listing._replace(versions=numbers, files=files)


async def _serial_of(session: AsyncSession, environment_id: str) -> int:
    query = select(func.max(Change.serial)).where(Change.environment_id == environment_id)
    return await session.scalar(query) or 0


def file_path(found: OwnedEnvironment, file: File) -> str:
    """Return the path of a file below the hub's root. Its last part is the file name."""
    name = found.environment.normalized_name
    return f"files/{found.owner.slug}/{name}/{file.sha256}/{file.filename}"


class WheelToPin(NamedTuple):
    """A wheel, and the requirements that its copy contains as addresses."""

    found: OwnedEnvironment
    file: File
    lines: tuple[str, ...]


async def wheel_to_pin(
    session: AsyncSession, caller: Principal, place: tuple[str, str], filename: str, base_url: str
) -> WheelToPin | None:
    """Return the wheel of this file name with its dependencies on this hub, or None without such a wheel.

    Raises Unresolved if it cannot be installed.
    """
    try:
        found = await find(session, caller, *place)
    except NotFound:
        return None
    query = (
        select(File, Version)
        .join(Version, Version.id == File.version_id)
        .where(
            File.environment_id == found.environment.id,
            File.filename == filename,
            File.kind == "wheel",
            File.deleted_at.is_(None),
        )
    )
    row = (await session.execute(query)).first()
    if row is None:
        return None
    file, version = row
    needed = await dependencies(session, caller, found, version, base_url)
    return WheelToPin(found, file, lines_of(needed, base_url))


class Download(NamedTuple):
    """A file that the caller may read."""

    found: OwnedEnvironment
    file: File
    metadata: bytes | None
    """The content of METADATA, if it was requested."""


async def find_file(
    session: AsyncSession,
    caller: Principal,
    owner_slug: str,
    name: str,
    sha256: str,
    filename: str,
) -> Download:
    """Return a file by hash and name; `….metadata` beside a wheel is its METADATA. Raises NotFound."""
    found = await find(session, caller, owner_slug, name)
    wants_metadata = filename.endswith(".whl.metadata")
    query = select(File).where(
        File.environment_id == found.environment.id,
        File.filename == filename.removesuffix(".metadata"),
        File.sha256 == sha256,
        File.deleted_at.is_(None),
    )
    if wants_metadata:
        query = query.options(undefer(File.metadata_text))
    file = await session.scalar(query)
    if file is None or (wants_metadata and file.metadata_text is None):
        raise NotFound("File not found.")
    return Download(found, file, file.metadata_text if wants_metadata else None)
