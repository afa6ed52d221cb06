"""What sandbox is wanted: `SandboxSpec`, the same for every back end."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

IsolationLevel = Literal["none", "restricted", "container", "gvisor", "vm"]
"""How strongly a sandbox is separated from the machine, weakest first."""

ISOLATION_ORDER: tuple[IsolationLevel, ...] = ("none", "restricted", "container", "gvisor", "vm")

_DOMAIN = re.compile(
    r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
)
_FOLDER = re.compile(r"(/[^/\0:,]+)+")


def is_at_least(level: IsolationLevel, wanted: IsolationLevel) -> bool:
    """Whether `level` isolates at least as strongly as `wanted`."""
    return ISOLATION_ORDER.index(level) >= ISOLATION_ORDER.index(wanted)


class ProxyNetwork(BaseModel):
    """Network through a filtering HTTP proxy: named domains, public addresses, no other way out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: tuple[str, ...]
    """Domains that may be reached: `example.com`, or `*.example.com` for every name below it."""
    ports: tuple[int, ...] = (80, 443)
    """TCP ports that may be reached."""
    allow_private_addresses: bool = False
    """Also reach loopback, private and link-local addresses. Only for services made to be attacked."""

    @field_validator("allow")
    @classmethod
    def _lower_case_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(domain.lower().rstrip(".") for domain in domains)
        for domain in lowered:
            if not _is_domain_pattern(domain):
                raise ValueError(
                    f"{domain!r} is no domain name. Write 'example.org' or '*.example.org', without scheme or port."
                )
        return lowered


def _is_domain_pattern(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _DOMAIN.fullmatch(text) is not None
    return True


class SandboxSpec(BaseModel):
    """One kind of sandbox. Equal specifications may share prepared machinery (a zygote, a warm pool)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = "host"
    """`"host"` (an allow-listed, read-only view of this machine's system), a directory that holds a root file
    system, or an image reference where the back end pulls images."""
    python: str | None = None
    """Interpreter that is `python3` inside; None takes the one running now (back ends with images: the image's)."""
    packages: str | None = None
    """Whose installed packages are importable inside, image "host" only: None = the standard library alone, "host" =
    the running environment's, or the path of a virtual environment. None also hides the host's installed
    packages from view, since an environment's source can hold the answers."""
    preload: tuple[str, ...] = ()
    """Modules imported once beforehand, so that every forked program and session has them for free."""
    cpu_cores: float | None = Field(default=None, gt=0)
    """CPU time per second of wall time, over all processes; None shares the machine fairly."""
    memory_mb: int = Field(default=512, ge=32)
    """Memory of all processes and files together, in MiB."""
    disk_mb: int = Field(default=256, ge=1)
    """All files together, in MiB (they lie in memory on the local back end and count there too)."""
    max_files: int = Field(default=20_000, ge=16)
    """Files, directories and links together."""
    max_processes: int = Field(default=128, ge=4)
    """Processes and threads at once."""
    network: Literal["none", "full"] | ProxyNetwork = "none"
    """`"none"` has its own loopback only; `ProxyNetwork` reaches listed domains; `"full"` reaches every public
    address. On the local back end both go through an HTTP proxy: TCP of programs that honour `http_proxy` and
    `https_proxy`, and never this machine itself or its private network."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every command. Nothing else of the host's environment is visible inside."""
    files: dict[str, bytes] = Field(default_factory=dict)
    """Files written before the sandbox counts as ready: path → content."""
    workdir: str = "/box"
    """Where commands start and relative paths begin, where the back end can choose (`SandboxInfo.workdir`
    has the real one)."""
    folders: tuple[str, ...] = ()
    """Further directories that can be written, empty at first, as absolute paths: what programs expect that name them,
    such as "/app" and "/logs". They share `disk_mb` with the work directory."""
    ttl_s: float | None = Field(default=None, gt=0)
    """Longest life in seconds, however busy; None lives until it is terminated or this process ends."""
    command_timeout_s: float = Field(default=30.0, gt=0)
    """Time limit of a command that names none, in seconds."""
    isolation_min: IsolationLevel = "container"
    """The weakest level accepted. Below it, creation fails with `IsolationUnavailable`, never silently."""

    @field_validator("env")
    @classmethod
    def _no_unusable_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(
                    f"environment variable {name!r} has an empty name, a '=' or a zero byte"
                )
        return env

    @field_validator("workdir")
    @classmethod
    def _absolute_workdir(cls, workdir: str) -> str:
        if not workdir.startswith("/") or "\0" in workdir:
            raise ValueError(f"workdir must be an absolute path, got {workdir!r}")
        return workdir

    @field_validator("folders")
    @classmethod
    def _absolute_folders(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if not _FOLDER.fullmatch(folder) or {".", ".."} & set(folder.split("/")):
                raise ValueError(
                    f"{folder!r} is no folder to add. Write an absolute path without '.', '..' or ':', such as '/app'."
                )
        return tuple(dict.fromkeys(folders))
