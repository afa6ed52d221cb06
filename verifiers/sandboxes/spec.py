"""`SandboxSpec`: the specification of a sandbox, the same for every back end."""

from __future__ import annotations

import ipaddress
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

IsolationLevel = Literal["none", "restricted", "container", "gvisor", "vm"]
"""Isolation from the machine, weakest first."""

ISOLATION_ORDER: tuple[IsolationLevel, ...] = ("none", "restricted", "container", "gvisor", "vm")

_DOMAIN = re.compile(
    r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
)
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")
_FOLDER = re.compile(r"(/[^/\0:,]+)+")


def is_at_least(level: IsolationLevel, required: IsolationLevel) -> bool:
    """Whether `level` isolates at least as strongly as `required`."""
    return ISOLATION_ORDER.index(level) >= ISOLATION_ORDER.index(required)


class ProxyNetwork(BaseModel):
    """Network through a filtering HTTP proxy: listed domains on public addresses, and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: tuple[str, ...]
    """Domains that can be reached: `example.com`, or `*.example.com` for every name below it."""
    ports: tuple[int, ...] = (80, 443)
    """TCP ports that can be reached."""
    allow_private_addresses: bool = False
    """Also reach loopback, private and link-local addresses. Only for services that are meant to be attacked."""

    @field_validator("allow")
    @classmethod
    def _lower_case_domains(cls, domains: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(domain.lower().rstrip(".") for domain in domains)
        for domain in lowered:
            if not _is_domain_pattern(domain):
                raise ValueError(
                    f"{domain!r} is not a domain name. Write 'example.org' or '*.example.org', without scheme or port."
                )
        return lowered


class ComposeProject(BaseModel):
    """A Compose file and the values of its variables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Path on this machine."""
    variables: tuple[tuple[str, str], ...] = ()
    """Name and value of each variable that the file may use."""
    build_main: str | None = None
    """Build context of the service `main`, if the file does not name one."""
    volumes: tuple[str, ...] = ()
    """Names of volumes that the file may use."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """Time until all services run, including their builds."""


def _is_domain_pattern(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _DOMAIN.fullmatch(text) is not None
    return True


class SandboxSpec(BaseModel):
    """One kind of sandbox. Equal specifications may share prepared processes (a zygote, a warm pool)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = "host"
    """`"host"` (an allow-listed, read-only view of this machine's system), a directory with a root file
    system, or an image reference for a back end that pulls images.
    """
    python: str | None = None
    """Interpreter for `python3` inside. None selects the running interpreter, or the image's on back ends with
    images.
    """
    writable_image: bool = False
    """Whether the root file system is a writable copy of the image, and commands run as the user of the image with its
    variables. For images that were built for a task, on back ends with images. `folders` are then plain directories,
    snapshots are not possible, and `disk_mb` limits single files only.
    """
    compose: ComposeProject | None = None
    """Services that run beside the sandbox, which is the service `main` of a Compose file. Docker and Podman only."""
    packages: str | None = None
    """Installed packages that can be imported inside, for image "host" only. None: only the standard library. "host":
    the packages of the running environment. Otherwise the path of a virtual environment. None also hides the host's
    installed packages, since the source of an environment can contain the answers.
    """
    preload: tuple[str, ...] = ()
    """Modules that are imported once in advance, so that every forked program and session already has them."""
    cpu_cores: float | None = Field(default=None, gt=0)
    """CPU time per second of wall time, over all processes. None shares the machine fairly."""
    memory_mb: int = Field(default=512, ge=32)
    """Memory of all processes and files together, in MiB. The local back end limits a control group
    (`local/zygote/cgroups.py`). Without control groups the guest limits each process (`limit_process` in
    `guest/launch.py`) and watches the sum (`guest/processes.py`). Other back ends: `gvisor/container.py`,
    `containers.py`, `prime.py`.
    """
    disk_mb: int = Field(default=256, ge=1)
    """All files together, in MiB. On the local back end, files are held in memory and count toward `memory_mb` too."""
    max_files: int = Field(default=20_000, ge=16)
    """Files, directories and links together."""
    max_processes: int = Field(default=128, ge=4)
    """Processes and threads at once."""
    network: Literal["none", "full"] | ProxyNetwork = "none"
    """`"none"`: only a loopback interface inside. `ProxyNetwork`: listed domains. `"full"`: every public address. On
    the local back end, both networks use an HTTP proxy: they carry TCP of programs that support `http_proxy` and
    `https_proxy`, and never reach this machine itself or its private network.
    """
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every command. No other variable of the host is visible inside."""
    files: dict[str, bytes] = Field(default_factory=dict)
    """Files that are written before the sandbox is ready: path → content."""
    workdir: str = "/box"
    """Directory in which commands start and relative paths begin, if the back end can choose it (`SandboxInfo.workdir`
    has the actual directory).
    """
    folders: tuple[str, ...] = ()
    """Further writable directories, empty at first, as absolute paths: directories that programs expect,
    such as "/app" and "/logs". They share `disk_mb` with the work directory.
    """
    host_names: tuple[str, ...] = ()
    """Names that lead to the sandbox's own loopback interface, for servers that run in the sandbox. Back ends without
    an own /etc/hosts ignore them.
    """
    ttl_s: float | None = Field(default=None, gt=0)
    """Maximum lifetime in seconds. None: until the sandbox is terminated or this process ends."""
    command_timeout_s: float = Field(default=30.0, gt=0)
    """Time limit in seconds of a command that has no time limit of its caller."""
    isolation_min: IsolationLevel = "container"
    """The weakest accepted isolation. If it is not available, creation fails with `IsolationUnavailable`, never
    silently.
    """

    @field_validator("env")
    @classmethod
    def _no_unusable_variables(cls, env: dict[str, str]) -> dict[str, str]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(
                    f"environment variable {name!r} has an empty name, a '=' or a zero byte"
                )
        return env

    @field_validator("host_names")
    @classmethod
    def _valid_host_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is not a host name. Use letters, digits, '.', '-' and '_'."
                )
        return names

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
                    f"{folder!r} is not a folder. Write an absolute path without '.', '..' or ':', such as '/app'."
                )
        return tuple(dict.fromkeys(folders))
