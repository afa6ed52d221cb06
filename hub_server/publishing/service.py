"""From uploaded bytes to an immutable version.

Every way of publishing ends in the same order. The bytes arrive in the staging folder and are checked there. The blob
is stored durably under its SHA-256. Then one transaction claims version and file names and makes them visible. Before
that transaction the version is invisible, after it the version is immutable.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, require
from hub_server.database import Database, utc_now
from hub_server.environments.models import Environment, File, Version
from hub_server.environments.names import canonical
from hub_server.environments.service import OwnedEnvironment, find_by_id
from hub_server.errors import BadRequest, Conflict, Forbidden, NotFound
from hub_server.publishing.claims import Claims, Publication, number_is_spent
from hub_server.publishing.intake import Announced, Arrived, Intake, hash_file
from hub_server.publishing.models import Upload
from hub_server.settings import Settings
from hub_server.storage.service import Staged, stage, staging_path
from hub_server.storage.store import BlobStore


class Reservation(NamedTuple):
    """A reserved upload. The secret is part of its address."""

    upload: Upload
    secret: str


class Publisher:
    """Publishes versions in one hub."""

    def __init__(self, settings: Settings, database: Database, store: BlobStore) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self.intake = Intake(settings, store)
        self.claims = Claims(settings, store)

    # --- two phases: reserve, receive, publish ------------------------------------------------

    async def reserve(
        self,
        session: AsyncSession,
        caller: Principal,
        found: OwnedEnvironment,
        announced: Announced,
    ) -> Reservation:
        """Let the caller upload one file. Raises Conflict if it cannot be published any more."""
        environment = found.environment
        require(
            caller, Action.PUBLISH, environment.resource, f"Environment {environment.full_name}"
        )
        self.intake.check_announced(environment, announced)
        await self._check_not_taken(session, environment, announced)
        await self.claims.check_quota(session, found, announced.size_bytes or 0)
        secret = secrets.token_urlsafe(32)
        upload = Upload(
            environment_id=environment.id,
            user_id=caller.user_id or "",
            token_id=caller.token_id,
            kind=announced.kind,
            filename=announced.filename,
            sha256=announced.sha256,
            size_bytes=announced.size_bytes,
            content_hash=announced.content_hash,
            semantic_version=announced.semantic_version,
            runtime_hint=announced.runtime_hint,
            tags=list(announced.tags),
            secret_sha256=hashlib.sha256(secret.encode()).hexdigest(),
            expires_at=utc_now() + timedelta(seconds=self._settings.upload_lifetime_s),
        )
        session.add(upload)
        await session.flush()
        return Reservation(upload, secret)

    async def receive(self, upload_id: str, secret: str, body: AsyncIterator[bytes]) -> None:
        """Receive the bytes of a reservation. Repeating it has no effect.

        Bytes that break a packaging rule are stored as refused, and `publish` reports the reason: clients show its
        answer, but not the answer of this request. Raises BadRequest for bytes other than the announced ones.
        """
        upload = await self._open_upload(upload_id, secret)
        limit = (
            upload.size_bytes
            if upload.size_bytes is not None
            else self.intake.max_bytes(upload.kind)
        )
        with staging_path(self._settings) as path:
            staged = await stage(body, path, limit)
            await self._take(upload, staged)

    async def _take(self, upload: Upload, staged: Staged) -> None:
        if staged.sha256 != upload.sha256 or staged.size_bytes != (
            staged.size_bytes if upload.size_bytes is None else upload.size_bytes
        ):
            raise BadRequest(
                f"The bytes are not the announced ones: sha256 {staged.sha256} and"
                f" {staged.size_bytes} bytes arrived, {upload.sha256} and {upload.size_bytes} were"
                " announced."
            )
        refusal, arrived = None, None
        try:
            arrived = await self.intake.accept(upload.kind, upload.filename, staged, {})
        except BadRequest as error:
            refusal = error.detail
        async with self._database.write() as session:
            row = await session.get_one(Upload, upload.id)
            row.refusal = refusal
            if arrived is not None:
                row.received_sha256, row.received_bytes = arrived.sha256, arrived.size_bytes
                row.contents = arrived.contents

    async def _open_upload(self, upload_id: str, secret: str) -> Upload:
        async with self._database.read() as session:
            upload = await session.get(Upload, upload_id)
        given = hashlib.sha256(secret.encode()).hexdigest()
        if upload is None or not secrets.compare_digest(given, upload.secret_sha256):
            raise NotFound("This upload address is unknown.")
        if upload.finalized_at is not None or upload.expires_at <= utc_now():
            raise Forbidden("This upload address was used or has expired; request a new one.")
        return upload

    async def fetch_incoming(self, upload_id: str) -> None:
        """Fetch bytes that the client put into the storage directly, if there are any."""
        async with self._database.read() as session:
            upload = await session.get(Upload, upload_id)
        if upload is None or upload.contents is not None or upload.finalized_at is not None:
            return
        limit = (
            upload.size_bytes
            if upload.size_bytes is not None
            else self.intake.max_bytes(upload.kind)
        )
        with staging_path(self._settings) as path:
            if not await self._store.take_incoming(upload.id, path, limit):
                return
            digest, size_bytes = await asyncio.to_thread(hash_file, path)
            await self._take(upload, Staged(path, digest, size_bytes))

    async def uploads(
        self, session: AsyncSession, caller: Principal, upload_ids: list[str]
    ) -> tuple[OwnedEnvironment, list[Upload]]:
        """Return the caller's reservations and their environment, locked for publishing."""
        found: OwnedEnvironment | None = None
        uploads = []
        for upload_id in upload_ids:
            upload = await session.get(Upload, upload_id)
            if upload is None or (found and upload.environment_id != found.environment.id):
                raise NotFound(f"Upload {upload_id[:60]} not found.")
            if found is None:
                found = await find_by_id(
                    session, caller, upload.environment_id, Action.PUBLISH, lock=True
                )
            uploads.append(upload)
        if found is None:
            raise BadRequest("Name at least one upload.")
        return found, uploads

    async def publish_push(
        self, session: AsyncSession, caller: Principal, found: OwnedEnvironment, source: Upload
    ) -> Publication:
        """Publish a pushed source archive and the wheel with the same content hash as a version."""
        if source.version_id is not None:
            return Publication(await session.get_one(Version, source.version_id), is_new=False)
        wheel = await session.scalar(
            select(Upload)
            .where(
                Upload.environment_id == found.environment.id,
                Upload.kind == "wheel",
                Upload.content_hash == source.content_hash,
                Upload.finalized_at.is_not(None),
                Upload.received_sha256.is_not(None),
            )
            .order_by(Upload.created_at.desc())
            .limit(1)
        )
        if wheel is None:
            raise BadRequest("The wheel of this version has not arrived; push again.")
        return await self.publish_uploads(session, caller, found, [wheel, source])

    async def publish_uploads(
        self,
        session: AsyncSession,
        caller: Principal,
        found: OwnedEnvironment,
        uploads: list[Upload],
    ) -> Publication:
        """Publish the uploads as one version. The wheel names the version, or the announcements without a wheel."""
        files = [arrived(upload) for upload in uploads]
        numbers = {f.contents["version"] for f in files if f.kind == "wheel"}
        numbers = numbers or {u.semantic_version for u in uploads if u.semantic_version}
        if len(numbers) != 1:
            raise BadRequest(f"The files must be of one version, not of {sorted(numbers)}.")
        done = await self.claims.make(
            session,
            caller,
            found,
            files,
            version=numbers.pop(),
            content_hash=next((u.content_hash for u in uploads if u.content_hash), None),
            runtime_hint=next((u.runtime_hint for u in uploads if u.runtime_hint), None),
            tags=[tag for upload in uploads for tag in upload.tags],
        )
        for upload in uploads:
            upload.version_id = done.version.id
            upload.finalized_at = upload.finalized_at or utc_now()
        return done

    # --- rules --------------------------------------------------------------------------------

    async def _check_not_taken(
        self, session: AsyncSession, environment: Environment, announced: Announced
    ) -> None:
        query = select(Version).where(Version.environment_id == environment.id)
        if announced.content_hash is not None:
            same = query.where(
                Version.content_hash == announced.content_hash, Version.deleted_at.is_(None)
            )
            if await session.scalar(same.limit(1)) is not None:
                raise Conflict("Version with this content hash already exists")
        file = await session.scalar(
            select(File).where(
                File.environment_id == environment.id, File.filename == announced.filename
            )
        )
        if file is not None and file.deleted_at is not None:
            raise number_is_spent(await session.get_one(Version, file.version_id), environment)
        if file is not None and file.uploaded_sha256 != announced.sha256:
            raise Conflict(
                f"File already exists: {announced.filename} with different content; bump the"
                " version."
            )
        if announced.semantic_version is not None and announced.content_hash is not None:
            number = canonical(announced.semantic_version)
            other = await session.scalar(query.where(Version.canonical_version == number))
            if other is not None and other.deleted_at is not None:
                raise number_is_spent(other, environment)
            if other is not None and file is None:
                raise Conflict(
                    f"Version {announced.semantic_version} already exists with different content;"
                    " bump the version"
                )


def arrived(upload: Upload) -> Arrived:
    """Return the received file. Raises BadRequest with the reason if no usable file was received."""
    if upload.refusal is not None:
        raise BadRequest(upload.refusal)
    if upload.contents is None or upload.received_sha256 is None:
        raise BadRequest(f"The bytes of {upload.filename} have not arrived; PUT them first.")
    return Arrived(
        kind=upload.kind,
        filename=upload.filename,
        uploaded_sha256=upload.sha256,
        sha256=upload.received_sha256,
        size_bytes=upload.received_bytes or 0,
        contents=upload.contents,
    )
