"""What the sandboxes of a zygote really enforce."""

from __future__ import annotations

from verifiers.sandboxes.local.zygote.cgroups import TCP_SHARE
from verifiers.sandboxes.local.zygote_process import ZygoteFacts
from verifiers.sandboxes.results import SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec

MAX_OPEN_FILES = 1024
"""Of one process inside."""


def disk_mb(spec: SandboxSpec) -> int:
    """Size of the file system. A full one must leave memory to work with, since it lies in memory itself."""
    return min(spec.disk_mb, max(1, spec.memory_mb * 3 // 4))


def describe(backend: str, spec: SandboxSpec, facts: ZygoteFacts) -> SandboxInfo:
    """What a sandbox of a zygote really enforces."""
    groups = facts.cgroups
    notes = []
    if groups:
        memory = f"{spec.memory_mb} MiB together ({groups['memory']})"
        if groups["memory"] == "cgroup v1":
            memory += f", and {spec.memory_mb // TCP_SHARE} MiB for buffers of TCP"
        processes = f"{spec.max_processes} ({groups['pids']}, RLIMIT_NPROC)"
    else:
        memory = f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog"
        processes = f"{spec.max_processes} (RLIMIT_NPROC)"
        notes.append(
            "No control groups: the memory of processes and sockets is watched every 50 ms; memfd_create and System V "
            "memory, semaphores and messages are refused."
        )
        notes.append(
            "Not in the memory limit: buffers of pipes (64 MiB for all sandboxes of this user, then 8 KiB for each "
            f"pipe), and epoll, inotify and event objects. {spec.max_processes} processes with "
            f"{MAX_OPEN_FILES} descriptors each are the limit of their number."
        )
        notes += [f"Control groups: {problem}" for problem in facts.cgroup_problems]
    if spec.cpu_cores is None:
        cpu = (
            f"fair share ({groups['cpu']})"
            if "cpu" in groups
            else "fair share (throttled when busy)"
        )
    elif "cpu" in groups:
        cpu = f"{spec.cpu_cores:g} cores ({groups['cpu']})"
    else:
        cpu = "not enforced"
        notes.append(
            f"cpu_cores={spec.cpu_cores:g} is not enforced: there is no cpu control group."
        )
    if not facts.is_root:
        notes.append("All sandboxes are the same user of this machine, apart by namespaces only.")
    limits = {
        "memory": memory,
        "processes": processes,
        "cpu": cpu,
        "disk": f"{disk_mb(spec)} MiB, {spec.max_files} files (tmpfs)",
    }
    return SandboxInfo(backend, "container", spec.workdir, limits, tuple(notes))


def describe_restricted(
    backend: str, spec: SandboxSpec, workdir: str, landlock_version: int, has_own_user: bool
) -> SandboxInfo:
    """What a sandbox without namespaces really enforces."""
    notes = [
        "No namespaces: the processes of the machine are visible in /proc, and so are system files.",
        "Files: only each one's size is limited, not their number or sum.",
        "No sockets at all, only pairs.",
    ]
    if landlock_version < 6:
        notes.append("Signals to processes of the same user are not confined (Linux before 6.12).")
    if not has_own_user:
        notes.append("Sandboxes are the same user of this machine as this program.")
    limits = {
        "memory": f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog",
        "processes": f"{spec.max_processes} (RLIMIT_NPROC)",
        "cpu": "not enforced",
        "disk": f"{spec.disk_mb} MiB per file (RLIMIT_FSIZE)",
    }
    return SandboxInfo(backend, "restricted", workdir, limits, tuple(notes))
