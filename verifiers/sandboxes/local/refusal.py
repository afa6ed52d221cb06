"""Why this machine refuses what a sandbox needs, and what helps: for people, from the machine's settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def explain(reason: str) -> str:
    """The zygote's words plus the most likely cause and its remedies."""
    return f"This machine cannot make sandboxes: {reason}. {likely_cause(reason)} {_OTHER_WAYS}"


def likely_cause(reason: str) -> str:
    """Which setting forbids the step that failed."""
    if reason.startswith("proc:"):
        return (
            "A new /proc may only be mounted where the whole of /proc is visible, and here parts of it are masked, as "
            "container runtimes do. Start the container with `--security-opt systempaths=unconfined` (Kubernetes: "
            "procMount: Unmasked)."
        )
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid():
        return (
            "AppArmor restricts unprivileged user namespaces here (Ubuntu 23.10 and newer). An administrator can run "
            "`sysctl kernel.apparmor_restrict_unprivileged_userns=0` or add an AppArmor profile for this interpreter."
        )
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" and os.getuid():
        return "An administrator can run `sysctl kernel.unprivileged_userns_clone=1` (Debian's switch)."
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        if _setting(f"/proc/sys/user/max_{kind}_namespaces") == "0":
            return (
                f"The limit of {kind} namespaces is 0. An administrator can run "
                f"`sysctl user.max_{kind}_namespaces=15000`."
            )
    if _is_in_container():
        return (
            "This process is in a container whose profile forbids new namespaces. Start it with `docker run "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined`, or with the matching securityContext of a Kubernetes pod."
        )
    return "The kernel or a security module forbids it."


def _setting(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _is_in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    return "KUBERNETES_SERVICE_HOST" in os.environ
