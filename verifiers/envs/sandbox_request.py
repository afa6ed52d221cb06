"""`CreateSandboxRequest`: the request for a rollout's sandbox in v0's terms, and the specification that it means."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from verifiers.errors import ConfigError
from verifiers.sandboxes import SandboxSpec

IMAGELESS_BACKENDS = frozenset({"local", "unsafe-local", "gvisor"})
"""Back ends that use the files of this machine."""
_PYTHON_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?python(?::[\w.-]+)?(?:@sha256:\w+)?")
_OWN_PLACES = ("/box", "/tmp")
"""Directories of every sandbox that are writable."""
_IDLE_COMMANDS = frozenset({"", "tail -f /dev/null", "sleep infinity"})
"""Start commands that only keep a container alive."""


class AdvancedConfigs(BaseModel):
    """Options of a provider, under any names. They are stored for providers that use them."""

    model_config = ConfigDict(extra="allow")


class CreateSandboxRequest(BaseModel):
    """The request for a rollout's sandbox, in v0's terms. `get_sandbox_request` may change it.

    | v0 | specification of the sandbox |
    |---|---|
    | `docker_image` | `image`. Back ends without images accept `python:…` only, which means this interpreter |
    | `start_command` | runs in the background once the sandbox is ready, unless it only waits, as the default does |
    | `cpu_cores`, `memory_gb`, `disk_size_gb` | limits |
    | `gpu_count` | must be 0 |
    | `timeout_minutes` | `ttl_s` |
    | `environment_vars` | `env` |
    | `name`, `gpu_type`, `vm`, `labels`, `team_id`, `advanced_configs`, … | stored; for providers only |
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    name: str = "sandbox-env"
    docker_image: str | None = "python:3.11-slim"
    start_command: str | None = "tail -f /dev/null"
    cpu_cores: float | None = Field(default=1, gt=0)
    memory_gb: float | None = Field(default=2, gt=0)
    """GiB."""
    disk_size_gb: float | None = Field(default=5, gt=0)
    """GiB."""
    gpu_count: int = Field(default=0, ge=0)
    gpu_type: str | None = None
    vm: bool = False
    timeout_minutes: float | None = Field(default=60, gt=0)
    """Maximum lifetime of the sandbox."""
    environment_vars: dict[str, str] | None = None
    team_id: str | None = None
    advanced_configs: Any = None
    """An `AdvancedConfigs`, or the class of the same name in a provider's package."""
    labels: list[str] = Field(default_factory=list)
    files: dict[str, bytes] = Field(default_factory=dict)
    """Not in v0: files that are written before the sandbox counts as ready, path → content."""
    folders: tuple[str, ...] = ()
    """Not in v0: further writable directories, empty at first; those in a writable place already are left out."""
    spec_fields: dict[str, Any] = Field(default_factory=dict)
    """Not in v0: further fields of the `SandboxSpec`, which replace those of the environment."""

    @property
    def background_command(self) -> str | None:
        """The start command, unless it only keeps a container alive."""
        command = (self.start_command or "").strip()
        return None if command in _IDLE_COMMANDS else command


def spec_of(request: Any, template: SandboxSpec, backend_name: str) -> SandboxSpec:
    """Return the specification for a request. Values that the request leaves open (None) come from `template`.

    Raises ConfigError for settings that no back end supports.
    """
    if request.gpu_count:
        raise ConfigError(
            f"Sandboxes of the back end {backend_name!r} have no GPU; got gpu_count={request.gpu_count}. Set it to 0."
        )
    changes: dict[str, Any] = {"env": {**template.env, **(request.environment_vars or {})}}
    if files := getattr(request, "files", None):  # a provider's class lacks it
        changes["files"] = {**template.files, **files}
    if folders := getattr(request, "folders", ()):
        changes["folders"] = with_folders(template, folders)
    if (image := _image(request.docker_image, backend_name)) is not None:
        changes["image"] = image
    if request.cpu_cores is not None:
        changes["cpu_cores"] = float(request.cpu_cores)
    if request.memory_gb is not None:
        changes["memory_mb"] = max(32, round(request.memory_gb * 1024))
    if request.disk_size_gb is not None:
        changes["disk_mb"] = max(1, round(request.disk_size_gb * 1024))
    if request.timeout_minutes is not None:
        changes["ttl_s"] = request.timeout_minutes * 60.0
    changes |= getattr(request, "spec_fields", None) or {}
    return SandboxSpec.model_validate({**dict(template), **changes})


def with_folders(spec: SandboxSpec, needed: Iterable[str]) -> tuple[str, ...]:
    """Return the `folders` of a specification plus those of `needed` that are not below a writable directory yet."""
    folders = list(spec.folders)
    for folder in sorted({posixpath.normpath(each) for each in needed}):
        own_places = (*_OWN_PLACES, spec.workdir, *folders)
        if not any(folder == own or folder.startswith(f"{own}/") for own in own_places):
            folders.append(folder)
    return tuple(folders)


def is_python_image(docker_image: str | None) -> bool:
    """Return whether an image is `python:…`, for which back ends without images use this interpreter."""
    return docker_image is not None and _PYTHON_IMAGE.fullmatch(docker_image) is not None


def _image(docker_image: str | None, backend_name: str) -> str | None:
    if backend_name in IMAGELESS_BACKENDS and is_python_image(docker_image):
        return "host"
    return docker_image


__all__ = ["AdvancedConfigs", "CreateSandboxRequest", "is_python_image", "spec_of", "with_folders"]
