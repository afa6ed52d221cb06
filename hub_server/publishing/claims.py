"""The claim: the one transaction that makes checked files a version, or part of one.

Statements are built once, and rows are inserted without the unit of work of the ORM. Both together are most of the
processor time of a publish.
"""

from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, require
from hub_server.changes.service import audit_entry, hold_blobs
from hub_server.database import insert_rows, new_id, utc_now
from hub_server.environments.dependencies import BOUND, bind
from hub_server.environments.models import Environment, File, Version
from hub_server.environments.names import better_latest, canonical
from hub_server.environments.search import index_document
from hub_server.environments.service import OwnedEnvironment, announce, set_tags
from hub_server.errors import Conflict, TooLarge, Unavailable
from hub_server.limits import check_quota
from hub_server.publishing.intake import Arrived
from hub_server.settings import Settings
from hub_server.storage.store import BlobStore

_VERSION = select(Version).where(
    Version.environment_id == bindparam("environment_id"),
    Version.canonical_version == bindparam("number"),
)
_FILE = select(File).where(
    File.environment_id == bindparam("environment_id"), File.filename == bindparam("filename")
)
_SOURCE = select(File).where(
    File.environment_id == bindparam("environment_id"),
    File.version_id == bindparam("version_id"),
    File.kind == "source",
)
_VERSION_COUNT = select(func.count()).where(Version.environment_id == bindparam("environment_id"))
_FILE_COUNT = select(func.count()).where(File.environment_id == bindparam("environment_id"))
_FILENAMES = select(File.filename).where(File.version_id == bindparam("version_id"))

_NOT_LISTED = frozenset({"metadata_text", "description", "sha256", "size_bytes", "filename"})
"""Keys of a manifest that the version's row does not repeat."""


class Publication(NamedTuple):
    """Result of a claim."""

    version: Version
    is_new: bool
    """False if exactly these files were published before."""


class Claims:
    """Makes the versions of one hub."""

    def __init__(self, settings: Settings, store: BlobStore) -> None:
        self._settings = settings
        self._store = store

    async def make(
        self,
        session: AsyncSession,
        caller: Principal,
        found: OwnedEnvironment,
        files: list[Arrived],
        *,
        version: str,
        content_hash: str | None = None,
        runtime_hint: str | None = None,
        tags: list[str] | None = None,
    ) -> Publication:
        """Publish the files as a version or a part of one. The environment must be locked.

        Raises Conflict if the version or a file name was used for other bytes, or was deleted.
        """
        environment = found.environment
        require(
            caller, Action.PUBLISH, environment.resource, f"Environment {environment.full_name}"
        )
        key = {"environment_id": environment.id, "number": canonical(version)}
        release = await session.scalar(_VERSION, key)
        is_first = release is None
        if release is None:
            await self._check_version_count(session, environment)
            release = Version(
                id=new_id(),
                environment_id=environment.id,
                version=version,
                canonical_version=key["number"],
                content_hash=content_hash,
                published_by=caller.user_id or "",
                manifest={},
                readme="",
            )
        else:
            await self._check_open(session, release, environment, files)
        claims = [await _claim_file(session, environment, release, file) for file in files]
        rows = [row for row in claims if row is not None]
        if not rows:
            return Publication(release, is_new=False)
        await self._check_file_count(session, environment, len(rows))
        await hold_blobs(session)
        environment.updated_at = utc_now()
        for row in rows:
            if await self._store.size_bytes(row.sha256) is None:
                raise Unavailable(f"The bytes of {row.filename} are gone; upload it again.")
        await self.check_quota(session, found, sum(file.size_bytes for file in files))
        environment.stored_bytes += sum(row.size_bytes for row in rows)
        release.runtime_hint = release.runtime_hint or runtime_hint
        wheel = next((file.contents for file in files if file.kind == "wheel"), None)
        if wheel is not None:
            bound = await bind(session, caller, environment, wheel)
            await _describe(session, found, release, {**wheel, BOUND: bound}, tags)
        entry = audit_entry(
            caller,
            "version.publish",
            f"{environment.full_name}@{release.version}",
            files={file.filename: file.sha256 for file in files},
        )
        try:
            # A version is inserted before its files, which refer to it.
            await insert_rows(session, [*([release] if is_first else []), *rows, entry])
        except IntegrityError as error:
            raise Conflict(f"Version {version} was published by someone else just now.") from error
        await announce(session, "publish", environment, found.owner, release.version)
        return Publication(release, is_new=True)

    async def check_quota(
        self, session: AsyncSession, found: OwnedEnvironment, more_bytes: int
    ) -> None:
        """Raise TooLarge if the owner may not store `more_bytes` more."""
        owner, quota_bytes = found.owner, self._settings.owner_quota_bytes
        await check_quota(session, owner.id, owner.slug, more_bytes, quota_bytes)

    async def _check_version_count(self, session: AsyncSession, environment: Environment) -> None:
        count = await session.scalar(_VERSION_COUNT, {"environment_id": environment.id})
        if (count or 0) >= self._settings.max_versions:
            raise TooLarge(
                f"{environment.full_name} has {count} versions, the maximum on this hub. Ask the operator."
            )

    async def _check_file_count(
        self, session: AsyncSession, environment: Environment, more: int
    ) -> None:
        """Refuse files beyond the length of one index page: two files per version on average."""
        count = await session.scalar(_FILE_COUNT, {"environment_id": environment.id}) or 0
        if count + more > 2 * self._settings.max_versions:
            raise TooLarge(
                f"{environment.full_name} has {count} files, the maximum. Ask the operator."
            )

    async def _check_open(
        self,
        session: AsyncSession,
        release: Version,
        environment: Environment,
        files: list[Arrived],
    ) -> None:
        """Refuse a deleted version number, and new files for an old version.

        A wheel with other tags that is added later would replace the first one in many installations.
        """
        if release.deleted_at is not None:
            raise number_is_spent(release, environment)
        if (utc_now() - release.created_at).total_seconds() <= self._settings.release_window_s:
            return
        names = await session.scalars(_FILENAMES, {"version_id": release.id})
        new = {file.filename for file in files} - set(names)
        if new:
            raise Conflict(
                f"Version {release.version} already exists and is closed; {sorted(new)} cannot be"
                " added any more. Bump the version."
            )


def number_is_spent(release: Version, environment: Environment) -> Conflict:
    """Return the error for a deleted version. It does not depend on the new bytes."""
    return Conflict(
        f"Version {release.version} of {environment.full_name} was deleted; its number cannot be"
        " used again. Bump the version."
    )


async def _claim_file(
    session: AsyncSession, environment: Environment, release: Version, file: Arrived
) -> File | None:
    """Return the row for a file, or None if exactly this file is published. Raises Conflict."""
    key = {"environment_id": environment.id}
    taken = await session.scalar(_FILE, {**key, "filename": file.filename})
    if taken is None and file.kind == "source":
        taken = await session.scalar(_SOURCE, {**key, "version_id": release.id})
    if taken is not None:
        same = taken.sha256 == file.sha256 and taken.version_id == release.id
        if same and taken.deleted_at is None:
            return None
        raise Conflict(
            f"File already exists: {file.filename} of {environment.full_name} with different"
            f" content (version {release.version} already exists); bump the version."
        )
    is_wheel = file.kind == "wheel"
    return File(
        environment_id=environment.id,
        version_id=release.id,
        kind=file.kind,
        filename=file.filename,
        sha256=file.sha256,
        uploaded_sha256=file.uploaded_sha256,
        size_bytes=file.size_bytes,
        metadata_text=file.contents["metadata_text"].encode() if is_wheel else None,
        metadata_sha256=file.contents["metadata_sha256"] if is_wheel else None,
        requires_python=file.contents["requires_python"] if is_wheel else None,
        members=None if is_wheel else file.contents["members"],
    )


async def _describe(
    session: AsyncSession,
    found: OwnedEnvironment,
    release: Version,
    wheel: dict[str, Any],
    tags: list[str] | None,
) -> None:
    """Copy the wheel's description to the version, and to the environment if the version is the newest."""
    environment = found.environment
    release.manifest = {key: wheel[key] for key in wheel if key not in _NOT_LISTED}
    release.readme = wheel["description"]
    release.runtime_hint = wheel["runtime_hint"] or release.runtime_hint
    latest = better_latest(environment.latest_version, release.version)
    if latest == release.version and release.yanked_at is None:
        environment.latest_version = latest
        environment.description = wheel["summary"] or environment.description
        if tags or wheel["keywords"]:
            await set_tags(session, environment, [*(tags or []), *wheel["keywords"]])
        await index_document(session, environment, release.readme)
