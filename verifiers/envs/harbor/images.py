"""Images of Harbor tasks: pulled, or built from a Dockerfile by Docker or Podman.

An image is named after the content of its build context, so a changed file means a new image, and an unchanged context
is built once per machine. If an image has no Python, which the sandbox needs, a second layer adds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from verifiers.errors import ConfigError, DatasetError
from verifiers.sandboxes import SandboxImageError

logger = logging.getLogger(__name__)

ENGINES = ("docker", "podman")
_SHOWN_CHARACTERS = 3000
_PULL_TIMEOUT_S = 1800.0
_FIND_PYTHON = "command -v python3"
_ADD_PYTHON = """FROM {image}
USER root
RUN if command -v apt-get; then apt-get update && apt-get install -y --no-install-recommends python3; \\
    elif command -v apk; then apk add --no-cache python3; \\
    elif command -v dnf; then dnf install -y python3; \\
    else echo 'no package manager is known here' >&2; exit 1; fi
{user}"""
_PYTHON_BASE = re.compile(r"FROM\s+(?:docker\.io/)?(?:library/)?python(?::[\w.-]+)?\s*", re.I)
_HARMLESS = re.compile(r"\s*(?:#.*|(?:WORKDIR|CMD|LABEL|MAINTAINER)\s.*)?", re.I)


class Image(NamedTuple):
    """An image that this machine has."""

    tag: str
    workdir: str | None
    """Its WORKDIR; None if it has none."""


def is_plain_python(dockerfile: Path) -> bool:
    """Return whether a Dockerfile adds nothing to `python:…`, which back ends without images replace by this Python."""
    lines = dockerfile.read_text("utf-8", "replace").splitlines()
    bases = [line for line in lines if _PYTHON_BASE.fullmatch(line)]
    return len(bases) == 1 and all(_HARMLESS.fullmatch(line) for line in lines if line not in bases)


def refuse_build(task: str, file: str, backend: str) -> ConfigError:
    """Return the error for a task that this back end cannot build."""
    return ConfigError(
        f"The task {task!r} is built from {file}, which the sandbox back end {backend!r} cannot do. Choose Docker or "
        "Podman (--sandbox-backend docker, VF_SANDBOX_BACKEND=docker, or backend='docker'), or name a built image as "
        "docker_image: in [environment] of its task.toml, or as an argument of the environment for all tasks."
    )


def check_context(task: str, context: Path, secrets: Iterable[Path]) -> None:
    """Raise DatasetError if a build context contains a file of the tests or of the solution, which an agent could read.

    `secrets` are the folders with those files. Files of fewer than 16 bytes are not compared.
    """
    hidden = {
        path.read_bytes(): path
        for folder in secrets
        for path in _files(folder)
        if path.stat().st_size > 15
    }
    for path in _files(context) if hidden else ():
        found = hidden.get(path.read_bytes())
        if found is not None and found.name != "Dockerfile":
            raise DatasetError(
                f"The image of the task {task!r} would contain {found.parent.name}/{found.name}: "
                f"{path.relative_to(context)} in its build context has the same content, and the agent could read it. "
                "Remove it from environment/."
            )


class ImageBuilder:
    """Builds and pulls images with one engine. Calls for the same image share one build."""

    def __init__(self, engine: str, program: str | None = None) -> None:
        self.engine, self._program = engine, program
        self._running: dict[str, asyncio.Lock] = {}
        self._images: dict[str, Image] = {}

    async def build(self, task: str, context: Path, timeout_s: float) -> Image:
        """Return the image of a build context. Raises SandboxImageError with the output of a failed build."""
        tag = await asyncio.to_thread(_tag_of, task, context)
        async with self._running.setdefault(tag, asyncio.Lock()):
            if tag not in self._images:
                if not await self._has(tag):
                    logger.info("Building the image of the task %s …", task)
                    arguments = ("build", "--tag", tag, "--label", "verifiers.harbor=1")
                    await self._run(
                        f"build the image of {task!r}",
                        *arguments,
                        str(context),
                        timeout_s=timeout_s,
                    )
                self._images[tag] = await self._usable(tag, timeout_s)
            return self._images[tag]

    async def pull(self, reference: str) -> Image:
        """Return an image by its name; pull it if it is not there. Raises SandboxImageError."""
        async with self._running.setdefault(reference, asyncio.Lock()):
            if reference not in self._images:
                if not await self._has(reference):
                    await self._run(
                        f"pull {reference}", "pull", reference, timeout_s=_PULL_TIMEOUT_S
                    )
                self._images[reference] = await self._usable(reference, _PULL_TIMEOUT_S)
            return self._images[reference]

    async def _has(self, tag: str) -> bool:
        code, _ = await self._result("image", "inspect", tag)
        return code == 0

    async def _usable(self, tag: str, timeout_s: float) -> Image:
        """Return the image, or one with Python on top of it."""
        config = await self._config(tag)
        workdir = config.get("WorkingDir") or None
        probe = ("run", "--rm", "--network=none", "--entrypoint=sh", tag, "-c", _FIND_PYTHON)
        code, output = await self._result(*probe)
        if code == 0:
            return Image(tag, workdir)
        if code not in (1, 127):
            raise SandboxImageError(
                f"{self.engine} could not run the image {tag} (exit code {code}): "
                f"{output.strip()[-_SHOWN_CHARACTERS:]}"
            )
        derived = f"vf-python/{hashlib.sha256(tag.encode()).hexdigest()[:16]}"
        if not await self._has(derived):
            user = config.get("User")
            text = _ADD_PYTHON.format(image=tag, user=f"USER {user}\n" if user else "")
            await self._run(
                f"add Python, which the sandbox needs, to the image {tag}",
                *("build", "--tag", derived, "-"),
                stdin=text.encode(),
                timeout_s=timeout_s,
            )
        return Image(derived, workdir)

    async def _config(self, tag: str) -> dict[str, str]:
        output = await self._run(f"inspect {tag}", "image", "inspect", tag)
        try:
            [facts] = json.loads(output)
            return facts.get("Config") or {}
        except (TypeError, ValueError, AttributeError) as error:
            raise SandboxImageError(
                f"{self.engine} described the image {tag} in an unknown form: {error}"
            ) from error

    async def _run(
        self, purpose: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 120.0
    ) -> str:
        code, output = await self._result(*arguments, stdin=stdin, timeout_s=timeout_s)
        if code is None:
            raise SandboxImageError(
                f"{self.engine} could not {purpose} within {timeout_s:g} s. Raise build_timeout_sec in task.toml."
            )
        if code != 0:
            raise SandboxImageError(
                f"{self.engine} could not {purpose} (exit code {code}): {output.strip()[-_SHOWN_CHARACTERS:]}"
            )
        return output

    async def _result(
        self, *arguments: str, stdin: bytes = b"", timeout_s: float = 120.0
    ) -> tuple[int | None, str]:
        """Return the exit code and the output of a command of the engine; the code is None at the time limit."""
        program = self._program or shutil.which(self.engine)
        if program is None:
            raise SandboxImageError(f"The program {self.engine!r} is not in PATH. Install it.")
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, "DOCKER_BUILDKIT": "1"} if self.engine == "docker" else None,
            )
        except OSError as error:
            raise SandboxImageError(f"{program} cannot be executed: {error.strerror}.") from error
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate(stdin)
        except TimeoutError:
            return None, ""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode, output.decode("utf-8", "replace")


def _tag_of(task: str, context: Path) -> str:
    """Return a name for the image: the task, and a hash of the paths, modes and contents of its build context."""
    digest = hashlib.sha256()
    for path in _files(context):
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        facts = f"{path.relative_to(context)}\0{path.lstat().st_mode:o}\0{len(content)}\0"
        digest.update(facts.encode() + content)
    name = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-") or "task"
    return f"vf-harbor/{name[:60].rstrip('-')}:{digest.hexdigest()[:24]}"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
