"""Backup, restore, fsck, gc and the static export: the commands of `vf-hub` for a whole hub."""

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import make_url

from hub_server.accounts.authorisation import ANONYMOUS
from hub_server.database import Database, iso, utc_now
from hub_server.environments.service import OwnedEnvironment, files_of
from hub_server.errors import HubFailure, SettingsError, Unavailable
from hub_server.evaluations.samples import purge
from hub_server.index import service as index
from hub_server.operations import service
from hub_server.private_files import FOLDER_MODE, create, make_folder, touch
from hub_server.secrets.cipher import KEY_FILE
from hub_server.settings import Settings
from hub_server.storage.service import open_store, stage
from hub_server.storage.store import BlobMissing, BlobStore

MANIFEST = "backup.json"


class FsckProblem(NamedTuple):
    """A fault that fsck found."""

    kind: str
    what: str


class FsckReport(NamedTuple):
    """Result of fsck."""

    files: int
    problems: list[FsckProblem]


class GcReport(NamedTuple):
    """Number of things that gc removed."""

    blobs: int
    bytes: int
    staged: int
    uploads: int
    tokens: int
    evaluations: int


async def fsck(database: Database, store: BlobStore, *, read_bytes: bool = True) -> FsckReport:
    """Check that every file's blob is stored, complete and unchanged."""
    problems, count = [], 0
    seen: dict[str, str | None] = {}
    async with database.read() as session:
        files = [file async for file in service.stored_files(session)]
    for file in files:
        count += 1
        if file.sha256 not in seen:
            seen[file.sha256] = await _blob_fault(store, file.sha256, file.size_bytes, read_bytes)
        fault = seen[file.sha256]
        if fault is not None:
            problems.append(FsckProblem(fault, f"{file.environment} {file.filename} {file.sha256}"))
    return FsckReport(count, problems)


async def _blob_fault(
    store: BlobStore, sha256: str, size_bytes: int, read_bytes: bool
) -> str | None:
    actual = await store.size_bytes(sha256)
    if actual is None:
        return "missing"
    if actual != size_bytes:
        return "wrong size"
    if read_bytes:
        digest = hashlib.sha256()
        async for piece in store.read(sha256):
            digest.update(piece)
        if digest.hexdigest() != sha256:
            return "wrong bytes"
    return None


async def gc(settings: Settings, database: Database, store: BlobStore) -> GcReport:
    """Remove unused data: old blobs, files left in transit, ended reservations.

    This is safe while the hub serves: only blobs older than the grace period are removed, and each is checked again
    in a transaction that keeps publishers out.
    """
    grace = timedelta(seconds=settings.gc_grace_s)
    async with database.write() as session:
        uploads = await service.forget_old_uploads(session, grace)
        tokens = await service.forget_expired_tokens(session, grace)
    evaluations = await purge(database)
    async with database.read() as session:
        needed = await service.referenced_blobs(session)
    removed, removed_bytes = 0, 0
    async for blob in store.blobs():
        if blob.sha256 in needed or utc_now() - blob.modified_at < grace:
            continue
        async with database.write() as session:
            if await service.is_referenced(session, blob.sha256):
                continue
            await store.delete(blob.sha256)
        removed, removed_bytes = removed + 1, removed_bytes + blob.size_bytes
    staged = _clear_staging(settings, grace)
    return GcReport(removed, removed_bytes, staged, uploads, tokens, evaluations)


def _clear_staging(settings: Settings, grace: timedelta) -> int:
    count = 0
    oldest = (utc_now() - max(grace, timedelta(hours=1))).timestamp()
    if settings.staging_dir.exists():
        for path in settings.staging_dir.iterdir():
            if path.stat().st_mtime < oldest or grace == timedelta(0):
                path.unlink(missing_ok=True)
                count += 1
    return count


async def backup(settings: Settings, into: Path) -> int:
    """Copy database, key and blobs to an empty folder. Returns the number of blobs.

    The database is copied first: every blob it refers to exists by then, so the copy is complete although the hub
    continues to serve and publish.
    """
    _make_empty_folder(into)
    await _dump_database(settings, into)
    if (settings.data_dir / KEY_FILE).exists():
        _write(into / KEY_FILE, (settings.data_dir / KEY_FILE).read_bytes())
    store, database = open_store(settings), Database(settings.sqlalchemy_url)
    count = 0
    try:
        async with database.read() as session:
            needed = await service.referenced_blobs(session)
        for sha256 in sorted(needed):
            target = into / "blobs" / sha256[:2] / sha256
            make_folder(target.parent)
            await _fetch(store, sha256, target)
            count += 1
    finally:
        await database.aclose()
    manifest = {"made_at": iso(utc_now()), "blobs": count, "sqlite": settings.is_sqlite}
    _write(into / MANIFEST, json.dumps(manifest, indent=1).encode())
    return count


async def _fetch(store: BlobStore, sha256: str, target: Path) -> None:
    """Copy a blob. Raises Unavailable if it is missing or damaged, because the copy would be worthless."""
    try:
        staged = await stage(store.read(sha256), target, 1 << 50)
    except BlobMissing as error:
        raise Unavailable(f"{error.detail} `vf-hub fsck` lists the damaged files.") from error
    if staged.sha256 != sha256:
        await asyncio.to_thread(target.unlink)
        raise Unavailable(f"The blob {sha256} is damaged. `vf-hub fsck` lists the damaged files.")


def _make_empty_folder(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"{folder} is not empty; name an empty folder or a new one.")
    make_folder(folder)
    if folder.stat().st_uid == os.geteuid():
        folder.chmod(FOLDER_MODE)


def _write(path: Path, content: bytes) -> None:
    with create(path) as file:
        file.write(content)


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as original, create(target) as copy:
        shutil.copyfileobj(original, copy, 1 << 20)


def _make_folder_for_database(path: Path) -> None:
    if path.exists():
        raise SettingsError(f"{path} exists; restore into an empty data folder.")
    make_folder(path.parent)


async def _check_empty(settings: Settings) -> None:
    database = Database(settings.sqlalchemy_url)
    try:
        async with database.read() as session:
            found = await session.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    finally:
        await database.aclose()
    if found:
        raise SettingsError(
            "There is already a hub in the database; restore into an empty database."
        )


async def _dump_database(settings: Settings, into: Path) -> None:
    if settings.is_sqlite:
        path = make_url(settings.sqlalchemy_url).database or ""
        await asyncio.to_thread(_copy_sqlite, path, into / "hub.db")
        return
    await _run("pg_dump", "--format=custom", f"--file={into / 'hub.pgdump'}", _libpq_url(settings))


def _copy_sqlite(source: str, target: Path) -> None:
    """Copy the database with SQLite's online backup: consistent, and it waits for writers."""
    touch(target)
    with sqlite3.connect(source) as original, sqlite3.connect(target) as copy:
        original.backup(copy)
    original.close()
    copy.close()


async def restore(settings: Settings, source: Path) -> int:
    """Fill an empty hub from a backup. Returns the number of blobs. Raises SettingsError on a hub in use."""
    if not (source / MANIFEST).exists():
        raise SettingsError(f"{source} is not a finished backup: it has no {MANIFEST}.")
    kinds = {True: "SQLite", False: "PostgreSQL"}
    was_sqlite = (source / "hub.db").exists()
    if was_sqlite != settings.is_sqlite:
        raise SettingsError(
            f"{source} is the backup of a hub on {kinds[was_sqlite]}, and VF_HUB_DATABASE_URL names"
            f" {kinds[settings.is_sqlite]}: restore it on {kinds[was_sqlite]}."
        )
    if settings.is_sqlite:
        path = Path(make_url(settings.sqlalchemy_url).database or "")
        _make_folder_for_database(path)
        await asyncio.to_thread(_copy_sqlite, str(source / "hub.db"), path)
    else:
        await _check_empty(settings)
        await _run(
            "pg_restore",
            "--exit-on-error",
            "--no-owner",
            "--dbname",
            _libpq_url(settings),
            str(source / "hub.pgdump"),
        )
    make_folder(settings.data_dir)
    if (source / KEY_FILE).exists():
        _write(settings.data_dir / KEY_FILE, (source / KEY_FILE).read_bytes())
    store = open_store(settings)
    await store.check()
    count = 0
    make_folder(settings.staging_dir)
    for blob in sorted((source / "blobs").glob("*/*")):
        staged = settings.staging_dir / blob.name
        await asyncio.to_thread(_copy, blob, staged)
        await store.put(staged, blob.name)
        staged.unlink(missing_ok=True)
        count += 1
    return count


async def export(settings: Settings, into: Path) -> int:
    """Write all public environments as a static index that any file server can serve."""
    _make_empty_folder(into)
    store, database = open_store(settings), Database(settings.sqlalchemy_url)
    count = 0
    try:
        async with database.read() as session:
            rows = [OwnedEnvironment(env, owner) async for owner, env in service.exported(session)]
            for found in rows:
                name = found.environment.normalized_name
                page = await index.project(
                    session, ANONYMOUS, found.owner.slug, name, up="../../../"
                )
                folder = into / found.owner.slug / "simple" / name
                make_folder(folder)
                _write(folder / "index.html", page.page.html.identity)
                _write(folder / "index.json", page.page.json.identity)
                for file in await files_of(session, found.environment.id):
                    target = into / index.file_path(found, file)
                    make_folder(target.parent)
                    await _fetch(store, file.sha256, target)
                    if file.kind == "wheel":
                        await _export_metadata(session, found, file.sha256, file.filename, target)
                count += 1
            for slug in sorted({found.owner.slug for found in rows}):
                root = await index.owner_root(session, ANONYMOUS, slug)
                _write(into / slug / "simple" / "index.html", root.page.html.identity)
                _write(into / slug / "simple" / "index.json", root.page.json.identity)
    finally:
        await database.aclose()
    return count


async def _export_metadata(
    session: index.AsyncSession, found: OwnedEnvironment, sha256: str, filename: str, target: Path
) -> None:
    name = found.environment.normalized_name
    download = await index.find_file(
        session, ANONYMOUS, found.owner.slug, name, sha256, f"{filename}.metadata"
    )
    _write(target.with_name(f"{filename}.metadata"), download.metadata or b"")


def _libpq_url(settings: Settings) -> str:
    url = make_url(settings.sqlalchemy_url).set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


async def _run(program: str, *arguments: str) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stderr=asyncio.subprocess.PIPE
        )
    except FileNotFoundError as error:
        raise SettingsError(f"{program} is not installed; it comes with PostgreSQL.") from error
    _, errors = await process.communicate()
    if process.returncode:
        raise HubFailure(f"{program} failed: {errors.decode(errors='replace').strip()[-500:]}")
