"""Artifacts of Harbor tasks: files that are copied out of the agent's sandbox when the agent has ended.

They are the only files of the agent that a separate verifier sees.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import posixpath
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from verifiers.envs.harbor.task_config import MAIN, Artifact, CollectHook, TaskConfig
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.errors import ConfigError
from verifiers.sandboxes import Sandbox, SandboxDead, SandboxFileError

logger = logging.getLogger(__name__)

ARTIFACTS_DIR = "/logs/artifacts"
"""CollectedArtifact for every task, without an entry in task.toml."""


class CollectedArtifact(NamedTuple):
    """An artifact that has been copied to this machine."""

    local: Path
    path: str
    """Absolute path in the sandboxes."""


async def collect_artifacts(
    client: SandboxClient,
    sandbox_id: str,
    config: TaskConfig,
    folder: Path,
    kept: Path | None = None,
) -> list[CollectedArtifact]:
    """Run the collect hooks of a task, and copy its artifacts into `folder` and into `kept`. Return those that the
    verifier may receive.

    A missing artifact is not an error: the tests judge it. `kept` receives the layout of Harbor: the destination of the
    artifact, else the path of its source. Raises ConfigError for a service of a sandbox without services.
    """
    sandbox = client.sandbox(sandbox_id)
    collected: list[CollectedArtifact] = []
    try:
        for hook in config.verifier.collect:
            await _run_hook(client, sandbox_id, hook)
        for artifact in (Artifact(source=ARTIFACTS_DIR), *config.artifacts):
            local = folder / str(len(collected))
            path = await _copy_out(sandbox, artifact, local, kept)
            if path is not None:
                collected.append(CollectedArtifact(local, path))
    except SandboxDead as error:
        if not error.by_program:
            raise
        logger.info("Sandbox %s has ended; it has no artifacts: %s", sandbox_id, error)
    return collected


async def _run_hook(client: SandboxClient, sandbox_id: str, hook: CollectHook) -> None:
    _check_service(hook.service)
    user = client.sandbox(sandbox_id).spec.writable_image and hook.user
    try:
        done = await client.execute_command(
            sandbox_id,
            hook.command,
            timeout=hook.timeout_sec,
            user=str(user) if user else None,
        )
    except timeout_errors() as error:
        logger.warning("Collect hook: %s", error)
        return
    if done.exit_code != 0:
        logger.warning("Collect hook %r: exit code %d", hook.command[:100], done.exit_code)


async def _copy_out(
    sandbox: Sandbox, artifact: Artifact, local: Path, kept: Path | None
) -> str | None:
    """Return the absolute path of the artifact, or None if the verifier must not receive it."""
    _check_service(artifact.service)
    source = posixpath.normpath(posixpath.join(sandbox.info.workdir, artifact.source))
    await asyncio.to_thread(_make_room, local)
    try:
        await sandbox.download(source, local, max_bytes=sandbox.spec.disk_mb << 20)
    except SandboxFileError as error:
        logger.debug("No artifact %s: %s", source, error)
        return None
    await asyncio.to_thread(_leave_out, local, artifact.exclude)
    if kept is not None:
        target = kept / (artifact.destination or source.lstrip("/"))
        await asyncio.to_thread(_copy, local, target)
    return None if artifact.is_protected else source


async def upload_artifacts(sandbox: Sandbox, collected: Sequence[CollectedArtifact]) -> None:
    """Copy artifacts to the paths that they had. Raises SandboxFileError if they cannot be written."""
    for local, path in collected:
        await sandbox.upload(local, path)


def _check_service(service: str | None) -> None:
    if service not in (None, MAIN):
        raise ConfigError(
            f"The service {service!r} has no sandbox here: only the service {MAIN!r} can be read."
        )


def _make_room(path: Path) -> None:
    """Remove a file or directory, so that it can be written, and create its parent directories."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)


def _leave_out(path: Path, patterns: tuple[str, ...]) -> None:
    """Delete the files that match a pattern, by their relative path or by any part of it."""
    for inner in sorted(path.rglob("*")) if patterns and path.is_dir() else []:
        relative = inner.relative_to(path)
        names = (relative.as_posix(), f"./{relative.as_posix()}", inner.name)
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns for name in names):
            if inner.is_dir() and not inner.is_symlink():
                shutil.rmtree(inner)
            else:
                inner.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    _make_room(target)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copyfile(source, target, follow_symlinks=False)
