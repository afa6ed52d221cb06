"""The OCI bundle of one sandbox: `config.json`, as runsc reads it."""

from __future__ import annotations

from typing import Any, NamedTuple

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.gvisor.root import Root
from verifiers.sandboxes.spec import SandboxSpec

USER_ID = 1000
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
_OPEN_FILES = 1024


class Sizes(NamedTuple):
    """How much the writable places hold, in MiB. Their sum leaves a quarter of the memory to work with."""

    workdir: int
    other: int
    """/tmp, /dev/shm and each further folder."""


def sizes_of(spec: SandboxSpec) -> Sizes:
    """At most two thirds of what files may take for the work directory, the rest for all others."""
    budget_mb = spec.memory_mb * 3 // 4
    workdir_mb = min(spec.disk_mb, max(1, budget_mb * 2 // 3))
    others = 2 + len(spec.folders)
    return Sizes(workdir_mb, min(spec.disk_mb, max(1, (budget_mb - workdir_mb) // others)))


def config(spec: SandboxSpec, root: Root) -> dict[str, Any]:
    """The bundle's configuration: no privileges, no network, one process that is the carried agent."""
    sizes = sizes_of(spec)
    limits = {
        # One more than the commands may have: the agent itself.
        "RLIMIT_NPROC": spec.max_processes + 1,
        "RLIMIT_NOFILE": _OPEN_FILES,
        "RLIMIT_FSIZE": sizes.workdir << 20,
        "RLIMIT_CORE": 0,
    }
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": USER_ID, "gid": USER_ID},
            "args": carried_guest.command(root.python),
            "env": [f"PATH={root.path_variable}"],
            "cwd": "/",
            "capabilities": {name: [] for name in _CAPABILITY_SETS},
            "rlimits": [
                {"type": name, "hard": amount, "soft": amount} for name, amount in limits.items()
            ],
            "noNewPrivileges": True,
        },
        "root": {"path": root.path, "readonly": True},
        "hostname": "sandbox",
        "mounts": _mounts(spec, root, sizes),
        "linux": {
            "namespaces": [{"type": name} for name in ("pid", "network", "ipc", "uts", "mount")],
        },
    }


def _mounts(spec: SandboxSpec, root: Root, sizes: Sizes) -> list[dict[str, Any]]:
    owner = [f"uid={USER_ID}", f"gid={USER_ID}", "mode=755"]
    mounts = [
        {
            "destination": "/proc",
            "type": "proc",
            "source": "proc",
            "options": ["nosuid", "noexec", "nodev"],
        },
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid"]},
        _tmpfs("/dev/shm", sizes.other, ["mode=1777"]),
        _tmpfs("/tmp", sizes.other, ["mode=1777"]),
    ]
    inside_tmp = spec.workdir == "/tmp" or spec.workdir.startswith("/tmp/")
    if not inside_tmp:
        mounts.append(_tmpfs(spec.workdir, sizes.workdir, owner))
    mounts += [_tmpfs(folder, sizes.other, owner) for folder in spec.folders]
    # Last: an interpreter may lie in a place that has been covered by then.
    return [*mounts, *root.mounts]


def _tmpfs(place: str, size_mb: int, options: list[str]) -> dict[str, Any]:
    return {
        "destination": place,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", f"size={size_mb << 20}", *options],
    }
