"""Limits by control groups: version 1, hybrid, version 2, or none. Looked for once, before the root is changed.

Layout: `<own group>/<owner>/<sandbox>`, owner = `vf-<pid namespace>-<pid>-<start time>`, so that a later process can
tell whether whoever made a group still lives, and sweep what a killed one left.
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
"""The part of the memory limit that buffers of TCP may take on top of it, in version 1."""


class GroupLimits(NamedTuple):
    """What one sandbox may use; None = no limit."""

    memory_bytes: int
    processes: int
    cpu_cores: float | None


class Hierarchy(NamedTuple):
    """One mounted tree of groups."""

    path: str
    """The group this process is in, or an ancestor, where groups may be made."""
    controllers: tuple[str, ...]
    version: int


def find_hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """Where this process's groups are, from the texts of /proc/self/mountinfo and /proc/self/cgroup."""
    own: dict[str, str] = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(fields) < 5 or len(rest) < 3:
            continue
        mount_root, mount_point = fields[3], fields[4]
        if rest[0] == "cgroup2":
            found.append(Hierarchy(_below(mount_point, mount_root, own.get("", "/")), (), 2))
        elif rest[0] == "cgroup":
            mounted = tuple(c for c in CONTROLLERS if c in rest[2].split(","))
            if mounted:
                path = _below(mount_point, mount_root, own.get(mounted[0], "/"))
                found.append(Hierarchy(path, mounted, 1))
    return found


def _below(mount_point: str, mount_root: str, group: str) -> str:
    if mount_root != "/" and group.startswith(mount_root):
        group = group[len(mount_root) :]
    return os.path.normpath(mount_point + "/" + group.lstrip("/"))


def owner_name(pid: int) -> str:
    """The group name that says who made it."""
    return f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-{pid}-{_start_time(pid)}"


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    if fields[0] in b"ZX":
        raise ProcessLookupError(f"process {pid} has ended and waits for its parent to notice")
    return fields[19].decode()


def is_owner_alive(name: str) -> bool:
    """Whether the maker of a group may still live. True for names we cannot judge."""
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
    """Remove the groups whose makers are dead; returns how many."""
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
                pass  # its last processes are still dying; the next sweep gets it
    return removed


def usable_controllers(text: str) -> list[str]:
    """Those of `CONTROLLERS` that a `cgroup.controllers` of version 2 has."""
    there = text.split()
    return [controller for controller in CONTROLLERS if controller in there]


class ControlGroups:
    """The groups that this process makes for its sandboxes. Falsy if there are none to be had."""

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
        """Whether every sandbox gets a share of the processor of its own."""
        return bool(self) and "cpu" in self._folders

    def open(self) -> None:
        """Find a usable hierarchy and make this process's own group in it."""
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
            # As much weight as all cores' worth of ordinary processes: the sandboxes together, not each.
            _write(folder, "cpu.shares", str(1024 * (os.cpu_count() or 1)))

    def _open_v2(self, hierarchy: Hierarchy, name: str) -> None:
        path = hierarchy.path
        while True:
            # The own group usually holds processes, which forbids it to hand controllers down; one of its
            # ancestors may be delegated to us.
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
            pass  # made by another user of this class in the same process
        parent = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own.append((parent, os.path.basename(path)))
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def describe(self) -> dict[str, str]:
        """Controller → version, for people."""
        return {name: f"cgroup v{version}" for name, (_, version) in self._folders.items()}

    def make(self, box: str, limits: GroupLimits) -> None:
        """A new group with limits. Raises OSError if memory or processes cannot be limited."""
        done = set()
        for controller, (folder, version) in self._folders.items():
            if folder not in done:
                try:
                    os.mkdir(box, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
                done.add(folder)
            for file, value in _settings(controller, version, limits):
                try:
                    _write(folder, f"{box}/{file}", value)
                except FileNotFoundError:
                    if file not in _MAY_BE_MISSING:  # a kernel that does not count it
                        raise

    def confine(self, box: str, pid: int, limits: GroupLimits) -> None:
        """Put a process into a new group with limits.

        Raises OSError if memory or pids cannot be limited; CPU limits give way silently (real-time processes
        cannot enter a version 1 cpu group).
        """
        self.make(box, limits)
        for controller, (folder, _) in self._folders.items():
            try:
                _write(folder, f"{box}/cgroup.procs", str(pid))
            except OSError:
                if controller != "cpu":
                    raise

    def entrances(self, box: str) -> list[tuple[str, bool]]:
        """Files that a process writes its number into to enter a group, and whether it may not fail to."""
        files: dict[str, bool] = {}
        for controller, (folder, _) in self._folders.items():
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), box, "cgroup.procs")
            files[path] = files.get(path, False) or controller != "cpu"
        return list(files.items())

    def open_oom_counter(self, box: str) -> int:
        """A descriptor for `count_oom_kills`."""
        folder, version = self._folders["memory"]
        name = "memory.oom_control" if version == 1 else "memory.events"
        return os.open(f"{box}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)

    def release(self, box: str) -> None:
        """The group's processes are gone: remove it now or at the next `tidy`."""
        self._leftovers.append(box)
        self.tidy()

    def tidy(self) -> bool:
        """Remove released groups; returns whether any is left for later."""
        self._leftovers = [box for box in self._leftovers if not self._remove(box)]
        return bool(self._leftovers)

    def close(self) -> None:
        """Remove this process's own groups, as far as they are empty."""
        self.tidy()
        for parent, name in self._own:
            try:
                os.rmdir(name, dir_fd=parent)
            except OSError:
                pass  # the next start sweeps it
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
            # Version 1 counts the buffers of TCP apart.
            of_tcp = str(limits.memory_bytes // TCP_SHARE)
            return [
                ("memory.limit_in_bytes", amount),
                ("memory.memsw.limit_in_bytes", amount),
                ("memory.kmem.tcp.limit_in_bytes", of_tcp),
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
    """How often the kernel has killed for memory, from `memory.oom_control` or `memory.events`."""
    for line in os.pread(descriptor, 4096, 0).splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0
