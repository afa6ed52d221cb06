"""Limits by control groups: version 1, hybrid, version 2, or none.

Layout: `<own group>/<owner>/<sandbox>`, with owner = `vf-<pid namespace>-<pid>-<start time>`. From the name, a
later process can tell whether the owner is alive, and remove the groups of a killed one.
"""

from __future__ import annotations

import os
from typing import NamedTuple

CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "vf-"
_PERIOD_US = 100_000
_MAY_BE_MISSING = (
    "memory.memsw.limit_in_bytes",
    "memory.swap.max",
    "memory.kmem.tcp.limit_in_bytes",
)
TCP_SHARE = 4
"""Version 1: the fraction of the memory limit that TCP buffers may use in addition."""


class GroupLimits(NamedTuple):
    """Limits of one sandbox; None = no limit."""

    memory_bytes: int
    processes: int
    cpu_cores: float | None


class Hierarchy(NamedTuple):
    """One mounted tree of control groups."""

    path: str
    """This process's group, or an ancestor of it where groups can be made."""
    controllers: tuple[str, ...]
    version: int


def find_hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """Return the trees that hold this process, given the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    group_paths: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            group_paths[name] = path
    hierarchies = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or len(rest) < 3:
            continue
        mount_root, mount_point = fields[3], fields[4]
        if rest[0] == "cgroup2":
            hierarchies.append(
                Hierarchy(_below(mount_point, mount_root, group_paths.get("", "/")), (), 2)
            )
        elif rest[0] == "cgroup":
            mounted = tuple(c for c in CONTROLLERS if c in rest[2].split(","))
            if mounted:
                path = _below(mount_point, mount_root, group_paths.get(mounted[0], "/"))
                hierarchies.append(Hierarchy(path, mounted, 1))
    return hierarchies


def _below(mount_point: str, mount_root: str, group: str) -> str:
    if mount_root != "/" and group.startswith(mount_root):
        group = group[len(mount_root) :]
    return os.path.normpath(mount_point + "/" + group.lstrip("/"))


def owner_name(pid: int) -> str:
    """Return the name of the groups of one process."""
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{_start_time(pid)}"


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    if fields[0] in b"ZX":
        raise ProcessLookupError(f"process {pid} has ended and its parent has not reaped it")
    return fields[19].decode()


def is_owner_alive(name: str) -> bool:
    """Whether the owner of a group may be alive. True for names of another pid namespace or format."""
    try:
        namespace, pid, start_time = name[len(_PREFIX) :].split("-")
        if int(namespace) != os.stat("/proc/self/ns/pid").st_ino:
            return True
        return _start_time(int(pid)) == start_time
    except FileNotFoundError:
        return False
    except ProcessLookupError:
        return False
    except ValueError:
        return True


def sweep(base: str) -> int:
    """Remove groups whose owners are dead; return their number."""
    removed = 0
    for name in os.listdir(base):
        if not name.startswith(_PREFIX) or is_owner_alive(name):
            continue
        owner = os.path.join(base, name)
        inner = [entry.path for entry in os.scandir(owner) if entry.is_dir()]
        for path in (*inner, owner):
            try:
                os.rmdir(path)
                removed += 1
            except OSError:
                pass  # its last processes are still ending; the next sweep removes it
    return removed


def usable_controllers(text: str) -> list[str]:
    """Return those of `CONTROLLERS` that a version 2 file `cgroup.controllers` names."""
    available = text.split()
    return [controller for controller in CONTROLLERS if controller in available]


class ControlGroups:
    """The control groups that this process makes for its sandboxes. False if there are none."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[int, int]] = {}  # controller → (descriptor, version)
        self._leftovers: list[str] = []
        self._own: list[tuple[int, str]] = []  # (descriptor of the parent, name)
        self.swept = 0
        self.problems: list[str] = []

    def __bool__(self) -> bool:
        return "memory" in self._folders and "pids" in self._folders

    @property
    def limits_cpu(self) -> bool:
        """Whether every sandbox gets its own share of CPU time."""
        return bool(self) and "cpu" in self._folders

    def open(self) -> None:
        """Find usable trees and make this process's own group in each."""
        with open("/proc/self/mountinfo") as mountinfo, open("/proc/self/cgroup") as own:
            hierarchies = find_hierarchies(mountinfo.read(), own.read())
        name = owner_name(os.getpid())
        for hierarchy in hierarchies:
            try:
                if hierarchy.version == 1:
                    self._open_v1(hierarchy, name)
                else:
                    self._open_v2(hierarchy, name)
            except OSError as error:
                self.problems.append(f"{hierarchy.path}: {error.strerror}")

    def _open_v1(self, hierarchy: Hierarchy, name: str) -> None:
        self.swept += sweep(hierarchy.path)
        folder = self._make(os.path.join(hierarchy.path, name))
        for controller in hierarchy.controllers:
            self._folders[controller] = (folder, 1)
        if "cpu" in hierarchy.controllers:
            # As much weight as ordinary processes on all cores: for all sandboxes together, not for each.
            _write(folder, "cpu.shares", str(1024 * (os.cpu_count() or 1)))

    def _open_v2(self, hierarchy: Hierarchy, name: str) -> None:
        path = hierarchy.path
        while True:
            # This process's group usually holds processes, and such a group cannot delegate controllers. One of its
            # ancestors may be delegated to this user.
            try:
                self._open_v2_at(path, name)
                return
            except OSError as error:
                parent = os.path.dirname(path)
                if not os.path.exists(os.path.join(parent, "cgroup.procs")):
                    raise
                self.problems.append(f"{path}: {error.strerror}")
                path = parent

    def _open_v2_at(self, path: str, name: str) -> None:
        with open(os.path.join(path, "cgroup.controllers")) as file:
            available = usable_controllers(file.read())
        if not {"memory", "pids"} <= set(available):
            raise OSError(95, "memory and pids controllers are not available")
        self.swept += sweep(path)
        enable = " ".join("+" + controller for controller in available)
        with open(os.path.join(path, "cgroup.subtree_control"), "w") as file:
            file.write(enable)
        folder = self._make(os.path.join(path, name))
        _write(folder, "cgroup.subtree_control", enable)
        for controller in available:
            self._folders[controller] = (folder, 2)

    def _make(self, path: str) -> int:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass  # another instance of this class made it in the same process
        parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own.append((parent, os.path.basename(path)))
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def describe(self) -> dict[str, str]:
        """Return controller → version, for people."""
        return {name: f"cgroup v{version}" for name, (_, version) in self._folders.items()}

    def make(self, box: str, limits: GroupLimits) -> None:
        """Make a group with limits. Raises OSError if memory or processes cannot be limited."""
        made = set()
        for controller, (folder, version) in self._folders.items():
            if folder not in made:
                try:
                    os.mkdir(box, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
                made.add(folder)
            for file, value in _settings(controller, version, limits):
                try:
                    _write(folder, f"{box}/{file}", value)
                except FileNotFoundError:
                    if file not in _MAY_BE_MISSING:  # a kernel that does not count this
                        raise

    def confine(self, box: str, pid: int, limits: GroupLimits) -> None:
        """Move a process into a new group with limits.

        Raises OSError if memory or pids cannot be limited. A failure to limit CPU is ignored, because real-time
        processes cannot enter a version 1 cpu group.
        """
        self.make(box, limits)
        for controller, (folder, _) in self._folders.items():
            try:
                _write(folder, f"{box}/cgroup.procs", str(pid))
            except OSError:
                if controller != "cpu":
                    raise

    def entrances(self, box: str) -> list[tuple[str, bool]]:
        """Return the files into which a process writes its number to enter a group, and whether that must succeed."""
        files: dict[str, bool] = {}
        for controller, (folder, _) in self._folders.items():
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), box, "cgroup.procs")
            files[path] = files.get(path, False) or controller != "cpu"
        return list(files.items())

    def open_oom_counter(self, box: str) -> int:
        """Open a descriptor for `count_oom_kills`."""
        folder, version = self._folders["memory"]
        name = "memory.oom_control" if version == 1 else "memory.events"
        return os.open(f"{box}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)

    def release(self, box: str) -> None:
        """Remove a group without processes, now or at the next `tidy`."""
        self._leftovers.append(box)
        self.tidy()

    def tidy(self) -> bool:
        """Remove released groups; return whether any is left."""
        self._leftovers = [box for box in self._leftovers if not self._remove(box)]
        return bool(self._leftovers)

    def close(self) -> None:
        """Remove this process's own groups if they are empty."""
        self.tidy()
        for parent, name in self._own:
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                pass  # the next start removes it
            os.close(parent)
        self._own.clear()
        for folder in {folder for folder, _ in self._folders.values()}:
            os.close(folder)
        self._folders.clear()

    def _remove(self, box: str) -> bool:
        for folder in {folder for folder, _ in self._folders.values()}:
            try:
                os.rmdir(box, dir_fd=folder)
            except FileNotFoundError:
                pass
            except OSError:
                return False
        return True


def _settings(controller: str, version: int, limits: GroupLimits) -> list[tuple[str, str]]:
    if controller == "memory":
        amount = str(limits.memory_bytes)
        if version == 1:
            # Version 1 counts TCP buffers separately.
            tcp_amount = str(limits.memory_bytes // TCP_SHARE)
            return [
                ("memory.limit_in_bytes", amount),
                ("memory.memsw.limit_in_bytes", amount),
                ("memory.kmem.tcp.limit_in_bytes", tcp_amount),
            ]
        return [("memory.max", amount), ("memory.swap.max", "0")]
    if controller == "pids":
        return [("pids.max", str(limits.processes))]
    if limits.cpu_cores is None:
        return []
    quota_us = str(max(1000, int(limits.cpu_cores * _PERIOD_US)))
    if version == 1:
        return [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", quota_us)]
    return [("cpu.max", f"{quota_us} {_PERIOD_US}")]


def _write(folder: int, name: str, value: str) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def count_oom_kills(descriptor: int) -> int:
    """Return how many processes the kernel's OOM killer has ended, from `memory.oom_control` or `memory.events`."""
    for line in os.pread(descriptor, 4096, 0).splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
