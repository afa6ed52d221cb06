"""The library on a hub, as `verifiers/verifiers`, where the hub's environments and other users find it.

The public package index has a different package of the same name. The owner's name is reserved, so no account can
have it.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import EVERYTHING, Principal
from hub_server.accounts.models import Owner
from hub_server.changes.service import record_audit
from hub_server.database import Database
from hub_server.environments.dependencies import LIBRARY
from hub_server.environments.models import Environment, File, Version
from hub_server.environments.names import canonical, skeleton
from hub_server.environments.service import OwnedEnvironment
from hub_server.errors import BadRequest, Conflict, NotOffered
from hub_server.publishing.claims import Claims
from hub_server.publishing.intake import Arrived
from hub_server.settings import Settings
from hub_server.storage.store import BlobStore
from verifiers.packages.library import LibraryMissing, installed_library, write_library
from verifiers.packages.wheel import WheelRejected, read_wheel

_OPERATOR = Principal(is_admin=True, actions=EVERYTHING, environments=("*",))


class PublishedLibrary(NamedTuple):
    """The library on the hub."""

    version: str
    path: str
    """Address of the wheel below the hub's own, with its hash."""
    is_new: bool
    """False if the same files were published before."""


async def publish_library(
    settings: Settings, database: Database, store: BlobStore
) -> PublishedLibrary:
    """Publish the library that runs this command, unless the same files are already published.

    Different files under a used version number get its next post-release. Raises NotOffered, Conflict.
    """
    try:
        library = await asyncio.to_thread(installed_library)
    except LibraryMissing as error:
        raise NotOffered(str(error)) from error
    async with database.write() as session:
        found = await _place(session)
        query = select(Version).where(Version.environment_id == found.environment.id)
        versions = list(await session.scalars(query))
        same = next(
            (v for v in versions if v.content_hash == library.sha256 and v.deleted_at is None), None
        )
        if same is not None:
            file = await session.scalar(select(File).where(File.version_id == same.id))
            assert file is not None, "a version has its wheel"
            return PublishedLibrary(same.version, _path(file), is_new=False)
        number = _free_number(library.version, {v.canonical_version for v in versions})
        with TemporaryDirectory(prefix="vf-hub-library-") as scratch:
            wheel = await asyncio.to_thread(write_library, library, Path(scratch), number)
            try:
                manifest = await asyncio.to_thread(read_wheel, wheel, is_library=True)
            except WheelRejected as error:
                raise BadRequest(str(error)) from error
            await store.put(wheel, manifest.sha256)
        arrived = Arrived(
            "wheel",
            manifest.filename,
            manifest.sha256,
            manifest.sha256,
            manifest.size_bytes,
            manifest.model_dump(mode="json"),
        )
        done = await Claims(settings, store).make(
            session, _OPERATOR, found, [arrived], version=number, content_hash=library.sha256
        )
        file = await session.scalar(select(File).where(File.version_id == done.version.id))
        assert file is not None, "it was inserted just now"
        return PublishedLibrary(number, _path(file), is_new=True)


def _path(file: File) -> str:
    return f"files/{LIBRARY}/{LIBRARY}/{file.sha256}/{file.filename}#sha256={file.sha256}"


def _free_number(version: str, taken: set[str]) -> str:
    number, count = version, 0
    while canonical(number) in taken:
        count += 1
        number = f"{version}.post{count}"
    return number


async def _place(session: AsyncSession) -> OwnedEnvironment:
    """Return the library's environment on the hub; create it if it is missing."""
    owner = await session.scalar(select(Owner).where(Owner.slug == LIBRARY))
    if owner is None:
        shape = skeleton(LIBRARY)
        taken = await session.scalar(select(Owner.slug).where(Owner.skeleton == shape))
        if taken is not None:
            raise Conflict(
                f"An account of this hub has the name {taken!r}, which looks like {LIBRARY!r}. Rename it first."
            )
        owner = Owner(slug=LIBRARY, skeleton=shape, kind="team", display_name="The library")
        session.add(owner)
        await session.flush()
    query = select(Environment).where(
        Environment.owner_id == owner.id, Environment.normalized_name == LIBRARY
    )
    environment = await session.scalar(query.with_for_update())
    if environment is None:
        environment = Environment(
            owner_id=owner.id,
            name=LIBRARY,
            normalized_name=LIBRARY,
            full_name=f"{LIBRARY}/{LIBRARY}",
            visibility="PUBLIC",
        )
        session.add(environment)
        await session.flush()
        record_audit(session, _OPERATOR, "environment.create", environment.full_name)
    environment.deleted_at = None
    return OwnedEnvironment(environment, owner)
