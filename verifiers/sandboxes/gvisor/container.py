"""One container of runsc: its OCI bundle on disk, its control group, and the commands that make and remove it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

from verifiers.sandboxes import carried_guest
from verifiers.sandboxes.containers import ProcessOptions
from verifiers.sandboxes.gvisor.root import Root
from verifiers.sandboxes.gvisor.runsc import RunscHost
from verifiers.sandboxes.local.zygote import cgroups
from verifiers.sandboxes.owned_folders import OWNER_MARK
from verifiers.sandboxes.spec import SandboxSpec

USER_ID = 1000
_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")
_OPEN_FILES = 1024


class Sizes(NamedTuple):
    """Sizes of the writable folders in MiB. Together they leave a quarter of the memory to processes."""

    workdir: int
    other: int
    """Size of /tmp, /dev/shm and each additional folder."""


def sizes_of(spec: SandboxSpec) -> Sizes:
    """Return the sizes: up to two thirds of the memory for files go to the work directory, the rest to all others."""
    budget_mb = spec.memory_mb * 3 // 4
    workdir_mb = min(spec.disk_mb, max(1, budget_mb * 2 // 3))
    others = 2 + len(spec.folders)
    return Sizes(workdir_mb, min(spec.disk_mb, max(1, (budget_mb - workdir_mb) // others)))


def bundle_config(spec: SandboxSpec, root: Root) -> dict[str, Any]:
    """Return the bundle's `config.json`: no privileges, no network, and one process, the guest."""
    sizes = sizes_of(spec)
    limits = {
        # One more than the commands may have: the guest itself.
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
    # Last: the mounts above may cover the folder of an interpreter.
    return [*mounts, *root.mounts]


def _tmpfs(folder: str, size_mb: int, options: list[str]) -> dict[str, Any]:
    return {
        "destination": folder,
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "nodev", f"size={size_mb << 20}", *options],
    }


SENTRY_MEMORY_MB = 256
"""Memory for gVisor itself, in addition to the specification's."""
STUBS, STUBS_PER_PROCESS = 4096, 64
"""Processes and threads on this machine: about one for each pair of a process inside and a thread of gVisor.
RLIMIT_NPROC limits processes inside. This limit is for the case that code takes over gVisor; a low limit would
crash gVisor under load.
"""
_ENTER_GROUPS = (
    # After each file of a group: whether a write to it may fail.
    'while [ "$1" != -- ]; do echo $$ > "$1" || [ "$2" = optional ] || exit 125; shift 2; done; '
    'shift; exec "$@"'
)


class Group(NamedTuple):
    """The control group of a container."""

    groups: cgroups.ControlGroups
    oom_counter: int


class RunscContainer:
    """See `Container`."""

    def __init__(self, name: str, spec: SandboxSpec, open_host: Callable[[], RunscHost]) -> None:
        self._name = name
        self._spec = spec
        self._open_host = open_host
        self._host: RunscHost | None = None
        self._group: Group | None = None

    def prepared_command(self) -> list[str]:
        """See Container."""
        host = self._host = self._open_host()
        root = host.root_for(self._spec)
        os.mkdir(self._bundle)
        path = os.path.join(self._bundle, "config.json")
        with open(path, "w") as file:
            json.dump(bundle_config(self._spec, root), file)
        # Independent of this process's umask: runsc may run as another user.
        os.chmod(self._bundle, 0o755)
        os.chmod(path, 0o644)
        run = [*host.runsc, "run", f"--bundle={self._bundle}", self._name]
        if not host.groups:
            return run
        return self._inside_group(host.groups, run)

    def _inside_group(self, groups: cgroups.ControlGroups, command: list[str]) -> list[str]:
        spec = self._spec
        processes = STUBS + spec.max_processes * STUBS_PER_PROCESS
        memory_bytes = (spec.memory_mb + SENTRY_MEMORY_MB) << 20
        groups.make(self._name, cgroups.GroupLimits(memory_bytes, processes, spec.cpu_cores))
        self._group = Group(groups, groups.open_oom_counter(self._name))
        entrances = []
        for path, is_required in groups.entrances(self._name):
            entrances += [path, "required" if is_required else "optional"]
        return ["/bin/sh", "-c", _ENTER_GROUPS, "sh", *entrances, "--", *command]

    @property
    def _bundle(self) -> str:
        assert self._host is not None
        return os.path.join(self._host.folder, self._name)

    def remove_command(self) -> list[str]:
        """See Container."""
        assert self._host is not None
        return [*self._host.runsc, "delete", "--force", self._name]

    def process_options(self) -> ProcessOptions:
        """See Container. An empty environment, and the mark that identifies leftover processes."""
        assert self._host is not None
        folder, user = self._host.folder, self._host.run_as
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": folder, OWNER_MARK: folder}
        if user is None:
            return {"env": env}
        return {"env": env, "user": user, "group": user, "extra_groups": []}

    def was_out_of_memory(self) -> bool:
        """See Container."""
        return self._group is not None and cgroups.count_oom_kills(self._group.oom_counter) > 0

    def clean_up(self) -> None:
        """See Container."""
        if self._host is None:
            return
        shutil.rmtree(self._bundle, ignore_errors=True)
        group, self._group = self._group, None
        if group is not None:
            os.close(group.oom_counter)
            self._host.release_group(self._name)
