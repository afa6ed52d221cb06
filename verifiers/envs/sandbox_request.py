"""What v0's arguments say about a sandbox, and the specification that it comes to.

| v0 | here |
|---|---|
| `docker_image` | `image`; on back ends without images `python:…` means this interpreter, others are refused |
| `start_command` | run in the background once the sandbox is up, unless it only waits, as the default does |
| `cpu_cores`, `memory_gb`, `disk_size_gb` | limits |
| `gpu_count` | 0, anything else is refused |
| `timeout_minutes` | `ttl_s` |
| `environment_vars` | `env` |
| `name`, `labels`, `team_id`, `advanced_configs`, … | kept, and of no effect where there is no provider |
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from verifiers.errors import ConfigError
from verifiers.sandboxes import SandboxSpec

IMAGELESS_BACKENDS = frozenset({"local", "unsafe-local", "gvisor"})
"""Back ends that run on the files of this machine."""
_PYTHON_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?python(?::[\w.-]+)?(?:@sha256:\w+)?")
_IDLE_COMMANDS = frozenset({"", "tail -f /dev/null", "sleep infinity"})
"""Start commands that only keep a container alive."""


class AdvancedConfigs(BaseModel):
    """Options of a provider, by whatever name; kept for providers that know them."""

    model_config = ConfigDict(extra="allow")


class CreateSandboxRequest(BaseModel):
    """The sandbox that a rollout asks for, in v0's words. May be changed in `get_sandbox_request`."""

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
    timeout_minutes: float | None = Field(default=60, gt=0)
    """Longest life of the sandbox."""
    environment_vars: dict[str, str] | None = None
    team_id: str | None = None
    advanced_configs: Any = None
    """An `AdvancedConfigs`, or that of a provider's own package."""
    labels: list[str] = Field(default_factory=list)
    files: dict[str, bytes] = Field(default_factory=dict)
    """Ours, not v0's: files written before the sandbox counts as ready, path → content."""

    @property
    def background_command(self) -> str | None:
        """The start command, if it does anything."""
        command = (self.start_command or "").strip()
        return None if command in _IDLE_COMMANDS else command


def spec_of(request: Any, template: SandboxSpec, backend_name: str) -> SandboxSpec:
    """The specification for a request; what the request does not say (None) comes from `template`.

    Raises ConfigError for what no back end offers.
    """
    if request.gpu_count:
        raise ConfigError(
            f"Sandboxes of the back end {backend_name!r} have no GPU, and gpu_count={request.gpu_count} was asked for."
        )
    changes: dict[str, Any] = {"env": {**template.env, **(request.environment_vars or {})}}
    if files := getattr(request, "files", None):  # a provider's own request class has none
        changes["files"] = {**template.files, **files}
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
    return SandboxSpec.model_validate({**dict(template), **changes})


def _image(docker_image: str | None, backend_name: str) -> str | None:
    if docker_image is None:
        return None
    if backend_name in IMAGELESS_BACKENDS and _PYTHON_IMAGE.fullmatch(docker_image):
        return "host"
    return docker_image
