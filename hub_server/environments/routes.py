"""Environments over HTTP: find or create, describe, change, delete, browse, fork."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from packaging.version import Version as ParsedVersion

from hub_server import stored
from hub_server.access import HubRoute, KnownReader, Manages, Publishes, ReadsEnvironment
from hub_server.accounts import service as accounts
from hub_server.accounts.authorisation import Action, Principal
from hub_server.accounts.service import NewToken
from hub_server.database import iso
from hub_server.environments import forks, search, service
from hub_server.environments.answers import (
    Address,
    Dependencies,
    environment_answer,
    environment_row,
    owner_answer,
    pylock,
    version_row,
)
from hub_server.environments.dependencies import Unresolved, dependencies, lines_of
from hub_server.environments.models import File
from hub_server.environments.search import ListQuery
from hub_server.errors import BadRequest, Forbidden, NotFound
from hub_server.hub import Hub, HubDep, base_url_of
from hub_server.publishing.archives import read_member
from hub_server.storage.service import stage, staging_path
from verifiers.hub.wire import (
    EnvironmentPatch,
    ForkRequest,
    InstallTokenRequest,
    LookupRequest,
    ResolveAnswer,
    ResolveRequest,
    YankRequest,
)

router = APIRouter(prefix="/api/v1/environmentshub", tags=["environments"], route_class=HubRoute)


@router.post("/resolve")
async def resolve(hub: HubDep, caller: KnownReader, body: ResolveRequest) -> dict[str, Any]:
    """Get or create an environment: the first step of a push."""
    async with hub.database.write() as session:
        found, created = await service.resolve(session, caller, body, hub.settings)
        answer = ResolveAnswer(
            id=found.environment.id,
            name=found.environment.name,
            created=created,
            visibility="PRIVATE" if found.environment.visibility == "PRIVATE" else "PUBLIC",
            owner=owner_answer(found.owner),
        )
    return {"data": answer}


@router.post("/lookup")
async def lookup(hub: HubDep, caller: ReadsEnvironment, body: LookupRequest) -> dict[str, Any]:
    """Find an environment by id, or by owner and name."""
    async with hub.database.read() as session:
        found = await service.find_any(session, caller, body)
    return {"data": environment_row(found)}


@router.post("/install-token")
async def install_token(
    request: Request, hub: HubDep, caller: KnownReader, body: InstallTokenRequest
) -> dict[str, Any]:
    """Return one short-lived token that only reads these environments, to install them together."""
    base_url = base_url_of(request, hub)
    async with hub.database.read() as session:
        found = [
            await service.find(session, caller, *_owner_and_name(reference))
            for reference in body.environments
        ]
        for one in tuple(found):
            if one.environment.latest_version is not None:
                version = await service.find_version(session, one.environment, "latest")
                needed = await dependencies(session, caller, one, version, base_url)
                found += [dependency.found for dependency in needed]
    names = sorted({one.environment.full_name for one in found})
    new = await _install_token(hub, caller, names)
    ends = iso(new.row.expires_at) if new.row.expires_at else None
    return {"data": {"token": new.text, "expires_at": ends, "environments": names}}


def _owner_and_name(reference: str) -> tuple[str, str]:
    owner, _, name = reference.rpartition("/")
    return owner, name


@router.get("/")
async def list_environments(
    hub: HubDep,
    caller: ReadsEnvironment,
    filters: Annotated[ListQuery, Query()],
) -> dict[str, Any]:
    """Return a page of the environments that the caller may see; `search` is full text."""
    async with hub.database.read() as session:
        page = await search.list_environments(session, caller, filters)
    rows = [environment_row(found).model_dump() for found in page.rows]
    return {"data": stored.fitted(rows, {"description", "tags"}), "total_count": page.total}


@router.get("/{owner}/{name}/versions")
async def list_versions(
    hub: HubDep,
    caller: ReadsEnvironment,
    owner: str,
    name: str,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> dict[str, Any]:
    """Return the versions, newest first."""
    async with hub.database.read() as session:
        found = await service.find(session, caller, owner, name)
        versions = await service.versions_of(session, found.environment.id)
        files = await service.files_of(session, found.environment.id)
    versions.sort(key=lambda version: ParsedVersion(version.version), reverse=True)
    of_version: dict[str, list[File]] = {}
    for file in files:
        of_version.setdefault(file.version_id, []).append(file)
    shown = versions[offset : offset + limit]
    rows = [version_row(v, of_version.get(v.id, [])).model_dump() for v in shown]
    fitted = stored.fitted(rows, {"yanked_reason", "files"})
    return {"data": {"versions": fitted}}


@router.get("/{owner}/{name}/status")
async def status(hub: HubDep, caller: ReadsEnvironment, owner: str, name: str) -> dict[str, Any]:
    """Return name, visibility and newest version."""
    async with hub.database.read() as session:
        found = await service.find(session, caller, owner, name)
        environment = found.environment
        latest = None
        if environment.latest_version is not None:
            version = await service.find_version(session, environment, "latest")
            latest = {
                "semantic_version": version.version,
                "content_hash": version.content_hash,
                "created_at": iso(version.created_at),
            }
    return {
        "data": {
            "id": environment.id,
            "name": environment.name,
            "description": environment.description,
            "visibility": environment.visibility,
            "status": environment.status,
            "status_reason": environment.status_reason,
            "downloads": environment.downloads,
            "latest_version": latest,
        }
    }


@router.get("/{owner}/{name}/@{reference}/inspect")
async def inspect(
    hub: HubDep,
    caller: ReadsEnvironment,
    owner: str,
    name: str,
    reference: str,
    max_bytes: Annotated[int, Query(ge=1, le=500_000)] = 100_000,
    path: str = "",
) -> dict[str, Any]:
    """Browse the source of a version: a folder's entries, or the beginning of a file."""
    async with hub.database.read() as session:
        found = await service.find(session, caller, owner, name)
        version = await service.find_version(session, found.environment, reference)
        archive = await service.source_members(session, version.id)
    if archive is None or archive.members is None:
        raise NotFound(f"Version {version.version} has no source archive.")
    path = path.strip("/")
    member = next((m for m in archive.members if m["path"] == path), None)
    if member is None:
        entries = _entries_below(archive.members, path, iso(archive.uploaded_at))
        if path and not entries:
            raise NotFound(f"There is nothing at {path[:200]!r} in this version.")
        shown = _first_that_fit(entries)
        is_cut = len(shown) < len(entries)
        answer = {"kind": "directory", "path": path, "entries": shown, "truncated": is_cut}
        return {"data": {**answer, "version_id": version.id}}
    content = await _read_source(hub, archive.sha256, path, max_bytes)
    return {
        "data": {
            "kind": "file",
            "path": path,
            "content": content.decode("utf-8", "replace"),
            "truncated": member["size"] > len(content),
            "total_bytes": member["size"],
            "version_id": version.id,
        }
    }


def _entries_below(members: list[dict[str, Any]], path: str, moment: str) -> list[dict[str, Any]]:
    prefix = f"{path}/" if path else ""
    entries: dict[str, dict[str, Any]] = {}
    for member in members:
        if not member["path"].startswith(prefix):
            continue
        name, slash, _ = member["path"].removeprefix(prefix).partition("/")
        entry = {"name": name, "path": prefix + name, "is_directory": bool(slash)}
        if not slash:
            entry.update(size=member["size"], content_hash=member["sha256"], modified_at=moment)
        entries[name] = entry
    return [entries[name] for name in sorted(entries)]


def _first_that_fit(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first entries, as many as one page can hold. The caller reports that the list was cut."""
    left, count = stored.PAGE_BYTES, 0
    for entry in entries:
        left -= len(stored.encoded(entry, "An entry")) + 1
        if left < 0:
            break
        count += 1
    return entries[:count]


async def _read_source(hub: Hub, sha256: str, path: str, max_bytes: int) -> bytes:
    local = hub.store.local_path(sha256)
    async with hub.unpacking:
        if local is not None:
            return await asyncio.to_thread(read_member, local, path, max_bytes)
        with staging_path(hub.settings) as copy:
            await stage(hub.store.read(sha256), copy, hub.settings.max_source_bytes)
            return await asyncio.to_thread(read_member, copy, path, max_bytes)


@router.get("/{owner}/{name}/@{reference}/pylock.toml", response_class=PlainTextResponse)
async def pylock_file(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str, name: str, reference: str
) -> Response:
    """Return a pylock.toml (PEP 751) that pins the version by address and hash."""
    async with hub.database.read() as session:
        found = await service.find(session, caller, owner, name)
        version = await service.find_version(session, found.environment, reference)
        files = await service.files_of_version(session, version.id)
        base_url = base_url_of(request, hub)
        needed = await dependencies(session, caller, found, version, base_url)
    wheels = [file for file in files if file.kind == "wheel"]
    locked = [(found, version, wheels)] + [(one.found, one.version, [one.wheel]) for one in needed]
    text = pylock(locked, Address(base_url))
    return PlainTextResponse(text, headers={"Cache-Control": "private, no-cache"})


@router.get("/{owner}/{name}/@{reference}")
async def details(
    request: Request, hub: HubDep, caller: ReadsEnvironment, owner: str, name: str, reference: str
) -> dict[str, Any]:
    """Return one version in full, with the ways to install and download it."""
    async with hub.database.read() as session:
        found = await service.find(session, caller, owner, name)
        version = None
        if reference != "latest" or found.environment.latest_version is not None:
            version = await service.find_version(session, found.environment, reference)
        files = await service.files_of_version(session, version.id) if version else []
        starred = await search.is_starred(session, caller, found.environment.id)
        needed, refusal = [], None
        base_url = base_url_of(request, hub)
        wheel = next((file for file in files if file.kind == "wheel"), None)
        if version is not None and wheel is not None:
            try:
                needed = await dependencies(session, caller, found, version, base_url)
            except Unresolved as error:
                refusal = error.detail
    lines = lines_of(needed, base_url)
    copy = await hub.pinned.sha256(wheel, lines) if wheel is not None and lines else None
    together = [found.environment, *(one.found.environment for one in needed)]
    is_private = any(environment.visibility == "PRIVATE" for environment in together)
    token = None
    may_read = caller.is_known and Action.READ in caller.actions
    if (is_private or not hub.settings.anonymous_read) and files and may_read:
        names = sorted({environment.full_name for environment in together})
        token = (await _install_token(hub, caller, names)).text
    answer = environment_answer(
        found,
        version,
        files,
        Address(base_url, token),
        starred=starred,
        tell_index=hub.settings.install_urls == "index",
        needs=Dependencies(lines, copy, refusal),
    )
    return {"data": answer}


async def _install_token(hub: Hub, caller: Principal, names: list[str]) -> NewToken:
    """Return a token that can only read these environments, for the addresses that installers receive.

    Addresses appear in terminals and logs, so the token lives an hour and opens nothing else. It covers only
    environments that the caller's own token covers: the other environments are public, and every token reads those.
    """
    covered = [name for name in names if caller.covers(name)] or list(caller.environments)
    secret, lifetime_s = hub.cipher.token_secret, hub.settings.install_token_lifetime_s
    async with hub.database.write() as session:
        return await accounts.install_token(session, caller, secret, covered, lifetime_s)


@router.patch("/{owner}/{name}")
async def change(
    hub: HubDep, caller: Manages, owner: str, name: str, body: EnvironmentPatch
) -> dict[str, Any]:
    """Change visibility, status, description or tags."""
    async with hub.database.write() as session:
        found = await service.find(session, caller, owner, name, Action.MANAGE, lock=True)
        await service.patch(session, caller, found, body)
        await search.reindex(session, found.environment)
        row = environment_row(found)
    return {"data": row}


@router.post("/{owner}/{name}/@{reference}/yank")
async def yank(
    hub: HubDep, caller: Manages, owner: str, name: str, reference: str, body: YankRequest
) -> dict[str, Any]:
    """Yank a version, so that normal resolution skips it, or undo that."""
    async with hub.database.write() as session:
        found = await service.find(session, caller, owner, name, Action.MANAGE, lock=True)
        reason = body.reason if body.yanked else None
        version = await service.set_yanked(session, caller, found, reference, reason)
        row = version_row(version, await service.files_of_version(session, version.id))
    return {"data": row}


@router.put("/{owner}/{name}/star")
@router.delete("/{owner}/{name}/star")
async def star(
    request: Request, hub: HubDep, caller: KnownReader, owner: str, name: str
) -> dict[str, Any]:
    """Add (PUT) or remove (DELETE) the caller's star."""
    async with hub.database.write() as session:
        found = await service.find(session, caller, owner, name, lock=True)
        if not caller.covers(found.environment.full_name):
            raise Forbidden(f"This token does not cover {found.environment.full_name}.")
        stars = await search.set_star(session, caller, found, request.method == "PUT")
    return {"data": {"stars": stars, "starred": request.method == "PUT"}}


@router.post("/{owner}/{name}/fork")
async def fork(
    hub: HubDep, caller: Publishes, owner: str, name: str, body: ForkRequest
) -> dict[str, Any]:
    """Copy the newest version to the caller or a team. Both share the same files."""
    async with hub.database.write() as session:
        source = await service.find(session, caller, owner, name)
        found, version = await forks.fork(session, caller, source, body, hub.settings)
    return {
        "data": {
            "success": True,
            "slug": f"{found.owner.slug}/{found.environment.name}",
            "environment_id": found.environment.id,
            "version_id": version.id,
            "message": f"Forked {owner}/{name} {version.version}.",
            "name": found.environment.name,
            "owner": owner_answer(found.owner),
        }
    }


@router.delete("/{owner}/{name}/@{reference}")
async def delete_version(
    hub: HubDep, caller: Manages, owner: str, name: str, reference: str
) -> dict[str, Any]:
    """Delete a version by number or content hash. The number stays used."""
    async with hub.database.write() as session:
        found = await service.find(session, caller, owner, name, Action.MANAGE, lock=True)
        version = await service.delete_version(session, caller, found, reference)
    return {"data": {"success": True, "version": version.version}}


@router.delete("/{owner}/{name}")
async def delete_environment(hub: HubDep, caller: Manages, owner: str, name: str) -> dict[str, Any]:
    """Delete an environment with all versions. The name stays with its owner."""
    async with hub.database.write() as session:
        found = await service.find(session, caller, owner, name, Action.MANAGE, lock=True)
        await service.delete_environment(session, caller, found)
    return {"data": {"success": True}}


@router.delete("/{environment_id}")
async def delete_by_id(hub: HubDep, caller: Manages, environment_id: str) -> dict[str, Any]:
    """Delete an environment by id."""
    if not environment_id:
        raise BadRequest("Name the environment to delete.")
    async with hub.database.write() as session:
        found = await service.find_by_id(session, caller, environment_id, Action.MANAGE, lock=True)
        await service.delete_environment(session, caller, found)
    return {"data": {"success": True}}
