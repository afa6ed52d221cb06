"""Publishing an environment: build, compare with the hub, announce, upload, finalize.

The sequence is that of `prime env push`, so it works with any hub of that protocol. Nothing is visible before the
last step, and an interrupted push can be repeated.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from packaging.version import InvalidVersion, Version

from verifiers.errors import ConfigError
from verifiers.hub.client import HubClient, body_of, data_of, environment_path, member
from verifiers.hub.errors import HubConflict, HubRefused
from verifiers.hub.origin import read_origin, write_origin
from verifiers.hub.source_archive import SourceArchive, pack
from verifiers.hub.wire import ArtifactRequest, EnvironmentPatch, ResolveRequest
from verifiers.loading import read_pyproject
from verifiers.packages.build import Built, build_environment

Bump = Literal["patch", "rc", "post"]
RUNTIMES = {"v0": "VERIFIERS_V0", "v1": "VERIFIERS_V1"}
TEAM_ID = re.compile(r"c[a-z0-9]{24}")
_VERSION_LINE = re.compile(r"""^(\s*version\s*=\s*)(["'])(?P<version>[^"'\n]+)\2""", re.MULTILINE)


class PushRequest(NamedTuple):
    """The project to publish, its owner, name and visibility."""

    folder: Path
    name: str | None = None
    """Name on the hub; None means the project's name."""
    owner: str | None = None
    team: str | None = None
    visibility: Literal["PUBLIC", "PRIVATE"] | None = None
    runtime: Literal["v0", "v1"] | None = None
    bump: Bump | None = None
    """How to raise the version in pyproject.toml before publishing new content."""


class Pushed(NamedTuple):
    """Result of a push."""

    owner: str
    name: str
    version: str
    environment_id: str
    version_id: str | None
    visibility: str | None
    content_hash: str
    wheel_sha256: str
    is_new: bool
    """False if exactly this content was published before. Then nothing was sent."""
    is_first: bool
    """Whether the push created the environment."""
    url: str
    """Address of its page."""


class PushWatcher(NamedTuple):
    """Callbacks that report the progress of a push."""

    step: Callable[[str], None] = lambda text: None
    """Called with a description of the step that begins."""
    progress: Callable[[str, int, int | None], None] = lambda name, done, total: None
    """Called with a file's name, the sent bytes and the total bytes."""


class _Packed(NamedTuple):
    built: Built
    source: SourceArchive


async def push(hub: HubClient, request: PushRequest, watcher: PushWatcher | None = None) -> Pushed:
    """Publish the project in a folder as a new version, unless exactly this content is published.

    A raised version number is written to pyproject.toml before the build, and restored if the push fails. Raises
    ConfigError, BuildError, HubError.
    """
    watcher = watcher or PushWatcher()
    hub.require_key()
    folder = request.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="prime-push-") as scratch:
        watcher.step(f"building {folder.name}")
        packed = await asyncio.to_thread(_pack, folder, Path(scratch) / "first")
        name = request.name or packed.built.manifest.name
        watcher.step(f"looking up {name}")
        environment = await _resolve(hub, request, name)
        owner = str(member(member(environment, "owner"), "name"))
        rows = [] if environment["created"] else await versions(hub, owner, name)
        same = next((r for r in rows if r.get("content_hash") == packed.source.content_hash), None)
        if same is not None:
            return _pushed(hub, environment, owner, name, packed, same)
        undo = None
        if request.bump is not None:
            undo = _raise_version(folder, request.bump)
        try:
            if undo is not None:
                watcher.step("building it with the new version")
                packed = await asyncio.to_thread(_pack, folder, Path(scratch) / "second")
            version_id = await _publish(hub, environment, packed, request, name, watcher)
        except BaseException:
            if undo is not None:
                undo()
            raise
    done = _pushed(hub, environment, owner, name, packed, None)._replace(version_id=version_id)
    write_origin(
        folder,
        environment_id=done.environment_id,
        owner=owner,
        name=name,
        version=done.version,
        wheel_sha256=done.wheel_sha256,
    )
    return done


async def versions(hub: HubClient, owner: str, name: str) -> list[dict[str, Any]]:
    """Return the versions of an environment, newest first."""
    data = data_of(await hub.get(f"{environment_path(owner, name)}/versions"))
    rows = data.get("versions", []) if isinstance(data, dict) else data
    return [row for row in rows if isinstance(row, dict)]


def _pack(folder: Path, scratch: Path) -> _Packed:
    built = build_environment(folder, scratch)
    project = built.manifest
    target = scratch / f"{project.normalized_name}-{project.version}.source.tar.gz"
    return _Packed(built, pack(folder, built.wheel.path, target))


async def _resolve(hub: HubClient, request: PushRequest, name: str) -> dict[str, Any]:
    whose: dict[str, str] = {}
    team = hub.settings.team_id
    if request.owner:
        whose["owner_slug"] = request.owner
    elif request.team:
        whose["team_slug"] = request.team
    elif team:
        whose["team_id" if TEAM_ID.fullmatch(team) else "team_slug"] = team
    first = request.visibility or await _visibility_of_origin(hub, request.folder)
    body = body_of(ResolveRequest, name=name, visibility=first, **whose)
    environment = data_of(await hub.post("/environmentshub/resolve", body))
    member(environment, "id")
    environment.setdefault("created", False)
    has = environment.get("visibility")
    if request.visibility and has and has != request.visibility:
        # Before the upload: a version that is meant to be private must never be public, not even for a moment.
        owner = str(member(member(environment, "owner"), "name"))
        path = environment_path(owner, name)
        body = body_of(EnvironmentPatch, visibility=request.visibility)
        await hub.request("PATCH", path, body=body)
        environment["visibility"] = request.visibility
    return environment


async def _visibility_of_origin(hub: HubClient, folder: Path) -> str | None:
    """Return PRIVATE if the folder was published as a private environment before; None leaves the choice to the hub.

    The result counts only for an environment that this push creates, under another owner or name.
    """
    origin = read_origin(folder)
    if not origin.get("owner") or not origin.get("name"):
        return None
    try:
        path = environment_path(str(origin["owner"]), str(origin["name"]))
        status = data_of(await hub.get(f"{path}/status"))
    except HubRefused:
        return None  # of another hub, or deleted
    return "PRIVATE" if status.get("visibility") == "PRIVATE" else None


async def _publish(
    hub: HubClient,
    environment: dict[str, Any],
    packed: _Packed,
    request: PushRequest,
    name: str,
    watcher: PushWatcher,
) -> str | None:
    """Send both files, publish them as a version and return its id."""
    base = f"/environmentshub/{environment['id']}"
    wheel, source, project = packed.built.wheel, packed.source, packed.built.manifest
    runtime = RUNTIMES[request.runtime] if request.runtime else project.runtime_hint
    common = {
        "content_hash": source.content_hash,
        "semantic_version": project.version,
        "runtime_hint": runtime,
    }
    metadata = _metadata(request.folder, packed.built)

    def announcement(original_filename: str, **file: Any) -> dict[str, Any]:
        body = body_of(ArtifactRequest, **common, **file)
        # More than our hub reads: other hubs of this protocol show it.
        return {**body, "metadata": {**metadata, "original_filename": original_filename}}

    try:
        announced = data_of(
            await hub.post(
                f"{base}/wheels",
                announcement(
                    wheel.path.name,
                    filename=wheel.path.name,
                    sha256=wheel.sha256,
                    size=wheel.size_bytes,
                ),
            )
        )
        if announced.get("upload_url"):  # null: the hub has these bytes already
            await _send(hub, announced["upload_url"], wheel.path, watcher)
            await hub.post(f"{base}/wheels/{member(announced, 'wheel_id')}/finalize", is_slow=True)
        plain = f"{name}-{project.version}"
        announced = data_of(
            await hub.post(
                f"{base}/versions",
                announcement(
                    f"{plain}.tar.gz",
                    filename=f"{plain}-{source.content_hash[:8]}.tar.gz",
                    sha256=source.sha256,
                ),
            )
        )
        await _send(hub, member(announced, "upload_url"), source.path, watcher)
        watcher.step("the hub checks and publishes it")
        version_id = member(announced, "version_id")
        done = data_of(await hub.post(f"{base}/versions/{version_id}/finalize", is_slow=True))
    except HubConflict as error:
        raise HubConflict(
            f"{error} Raise the version in pyproject.toml, or push with --auto-bump.", error.status
        ) from error
    if not done.get("success", True):
        raise HubRefused(
            str(done.get("message") or "The hub did not publish it and gave no reason.")
        )
    return done.get("version_id") or version_id


async def _send(hub: HubClient, url: str, file: Path, watcher: PushWatcher) -> None:
    watcher.step(f"uploading {file.name}")
    await hub.upload(url, file, lambda done, total: watcher.progress(file.name, done, total))


def _metadata(folder: Path, built: Built) -> dict[str, Any]:
    project = read_pyproject(folder).get("project", {})
    manifest = built.manifest
    tags = project.get("keywords", []) if isinstance(project, dict) else []
    return {
        "description": manifest.summary,
        "tags": [str(tag) for tag in tags],
        "license": manifest.license,
        "dependencies": manifest.requires_dist,
        "python_requires": manifest.requires_python or "",
        "requires_dist": manifest.requires_dist,
    }


def _pushed(
    hub: HubClient,
    environment: dict[str, Any],
    owner: str,
    name: str,
    packed: _Packed,
    same: dict[str, Any] | None,
) -> Pushed:
    return Pushed(
        owner=owner,
        name=name,
        version=str(same["version"]) if same else packed.built.manifest.version,
        environment_id=str(environment["id"]),
        version_id=same.get("version_id") if same else None,
        visibility=environment.get("visibility"),
        content_hash=packed.source.content_hash,
        wheel_sha256=packed.built.wheel.sha256,
        is_new=same is None,
        is_first=bool(environment["created"]),
        url=f"{hub.settings.frontend_url}/dashboard/environments/{owner}/{name}",
    )


def _raise_version(folder: Path, bump: Bump) -> Callable[[], None]:
    """Write the next version to pyproject.toml and return a function that restores the file."""
    file = folder / "pyproject.toml"
    before = file.read_bytes()
    file.write_bytes(with_version_raised(before.decode("utf-8"), bump, file).encode())
    return lambda: _restore(file, before)


def _restore(file: Path, before: bytes) -> None:
    file.write_bytes(before)


def with_version_raised(text: str, bump: Bump, file: Path | str = "pyproject.toml") -> str:
    """Return the text of a pyproject.toml with the next version in `[project]` and no other change."""
    start = re.search(r"^\[project\][^\n]*$", text, re.MULTILINE)
    if start is None:
        raise ConfigError(f"{file} has no [project] table whose version could be raised.")
    end = re.search(r"^\[", text[start.end() :], re.MULTILINE)
    stop = start.end() + end.start() if end else len(text)
    line = _VERSION_LINE.search(text, start.end(), stop)
    if line is None:
        raise ConfigError(
            f'{file} has no `version = "…"` in [project] (it may be dynamic); raise it by hand.'
        )
    here = slice(line.start("version"), line.end("version"))
    return text[: here.start] + raised(line["version"], bump) + text[here.stop :]


def raised(version: str, bump: Bump) -> str:
    """Return the next version: `1.2.3` → `1.2.4`, `1.2.3rc0` (of a pre-release: rc1), or `1.2.3.post0`.

    The patch after a pre-release is the release itself: `1.2.3rc1` → `1.2.3`.
    """
    try:
        now = Version(version)
    except InvalidVersion as error:
        raise ConfigError(f"{version!r} is not a version such as 1.2.0 (PEP 440).") from error
    release = [*now.release, 0, 0][: max(3, len(now.release))]
    if bump == "patch":
        if now.is_prerelease and now.post is None:
            return ".".join(str(number) for number in now.release)
        return ".".join(str(number) for number in [*release[:2], release[2] + 1])
    plain = ".".join(str(number) for number in now.release)
    if bump == "post":
        number = 0 if now.post is None else now.post + 1
        before_post = str(now).partition(".post")[0].partition(".dev")[0]
        return f"{before_post}.post{number}"
    if now.post is not None:
        raise ConfigError(f"{version} is a post-release; a release candidate cannot follow it.")
    number = now.pre[1] + 1 if now.pre is not None and now.pre[0] == "rc" else 0
    return f"{plain}rc{number}"
