"""What this machine can isolate, and if it cannot, exactly why and what helps."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from verifiers.sandboxes.local.zygote_process import ZygoteFacts
from verifiers.sandboxes.results import SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec

SUPPORTED_MACHINES = ("x86_64", "aarch64")
_OTHER_WAYS = "Or use another back end (Docker, Podman, a remote one), or accept less with isolation_min='restricted'."


def unsupported_reason() -> str | None:
    """Why local sandboxes cannot work on this kind of machine at all; None if they may."""
    if sys.platform != "linux":
        return (
            f"Local sandboxes need Linux, this is {sys.platform}. Use a Docker or Podman back end, or a remote "
            "one. Code is never run unprotected unless the back end 'unsafe-local' is asked for by name."
        )
    machine = os.uname().machine
    if machine not in SUPPORTED_MACHINES:
        return (
            f"Local sandboxes know the system calls of {' and '.join(SUPPORTED_MACHINES)}, this is {machine}. "
            "Use a Docker or Podman back end, or a remote one."
        )
    return None


def _setting(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def explain_refusal(reason: str) -> str:
    """The zygote's words plus the most likely cause and its remedies."""
    return f"{reason}. {likely_cause()} {_OTHER_WAYS}"


def likely_cause() -> str:
    """Why this machine refuses user namespaces, from its settings."""
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid():
        return (
            "AppArmor restricts unprivileged user namespaces here (Ubuntu 23.10 and newer). An administrator can run "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` or add an AppArmor profile for this interpreter."
        )
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" and os.getuid():
        return "An administrator can run `sysctl kernel.unprivileged_userns_clone=1` (Debian's switch)."
    if _setting("/proc/sys/user/max_user_namespaces") == "0":
        return "The limit of user namespaces is 0. An administrator can run `sysctl user.max_user_namespaces=15000`."
    if _is_in_container():
        return (
            "This process is in a container whose profile forbids new namespaces. Start it with `docker run "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined`, or with the matching securityContext of a Kubernetes pod."
        )
    return "The kernel or a security module forbids new user namespaces here."


def _is_in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    return "KUBERNETES_SERVICE_HOST" in os.environ


def describe(backend: str, spec: SandboxSpec, facts: ZygoteFacts) -> SandboxInfo:
    """What a sandbox of a zygote really enforces."""
    groups = facts.cgroups
    notes = []
    if groups:
        memory = f"{spec.memory_mb} MiB together ({groups['memory']})"
        processes = f"{spec.max_processes} ({groups['pids']}, RLIMIT_NPROC)"
    else:
        memory = f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog"
        processes = f"{spec.max_processes} (RLIMIT_NPROC)"
        notes.append(
            "No control groups: memory is watched every 50 ms; memfd_create and shmget are refused."
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
        "disk": f"{spec.disk_mb} MiB, {spec.max_files} files (tmpfs)",
    }
    return SandboxInfo(backend, "container", spec.workdir, limits, tuple(notes))
