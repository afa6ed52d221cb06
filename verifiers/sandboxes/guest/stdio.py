"""The entry point of a guest on stdin and stdout, inside a container that other software made.

The host's side, `verifiers.sandboxes.carried_guest`, sends this folder's source and calls `main`.
"""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from typing import Any

from . import loop, seccomp
from .processes import Throttle

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 36, 38
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_SHARED_OOM_COUNTER = "/proc/vmstat"
"""Counter of the whole kernel: exact in a virtual machine, shared in a container that hides its control group."""


def main(settings: dict[str, Any]) -> None:
    """Serve until the host closes the stream.

    `settings`: workdir, folders, env, preload, memory_bytes, limit_memory, max_processes (None: another mechanism
    limits them), owns_kernel (/proc/meminfo counts this sandbox only), filter_system_calls, keeps_variables (commands
    receive the variables of this process).
    """
    stream = loop.PipeStream(os.dup(0), os.dup(1))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):  # commands must not be able to write to the stream
        os.dup2(null, number)
    workdir = settings["workdir"]
    for folder in (workdir, *settings.get("folders", ())):
        os.makedirs(folder, exist_ok=True)
    os.chdir(workdir)
    for module in settings["preload"]:
        importlib.import_module(module)
    is_init = os.getpid() == 1
    # The kernel ignores signals to the first process that have no handler. With Python's own handler of SIGINT, any
    # command could end the sandbox.
    signal.signal(signal.SIGINT, signal.SIG_DFL if is_init else signal.SIG_IGN)
    if not is_init:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    oom_score = _open_oom_score()  # after the next step, the file belongs to root
    _set_oom_score(oom_score, 0)
    # Commands may run as the same user: they must not trace this process.
    _prctl(_PR_SET_DUMPABLE, 0)
    memory_bytes = settings["memory_bytes"]
    if settings["limit_memory"]:
        _lower(resource.RLIMIT_AS, memory_bytes + (64 << 20))
    if settings["max_processes"] is not None:
        _lower(resource.RLIMIT_NPROC, settings["max_processes"])
    counter = next((path for path in _OOM_COUNTERS if os.access(path, os.R_OK)), None)
    path = os.environ.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    # Those of the image, where the image is the task's.
    inherited = dict(os.environ) if settings.get("keeps_variables") else {"HOME": workdir}
    env = {
        **inherited,
        "PATH": ":".join(dict.fromkeys([os.path.dirname(sys.executable), *path.split(":")])),
        "LANG": inherited.get("LANG", "C.UTF-8"),
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        **settings["env"],
    }
    os.environ.clear()
    # gVisor does not protect the first process from signals.
    must_forbid_signals = settings["owns_kernel"] or not is_init
    _filter_system_calls(must_forbid_signals, whole=settings["filter_system_calls"])
    # stderr may lead to a file of the host, and gVisor lets commands open descriptors of this process.
    os.dup2(null, 2)
    own_bytes = _used_memory_bytes() if settings["owns_kernel"] else 0
    loop.Guest(
        stream,
        loop.GuestSettings(
            workdir=workdir,
            env=env,
            is_init=is_init,
            watched_memory_bytes=memory_bytes if counter is None else None,
            used_memory_bytes=(
                (lambda: _used_memory_bytes() - own_bytes) if settings["owns_kernel"] else None
            ),
            throttle=Throttle(os.cpu_count() or 1) if settings["limit_memory"] else None,
            oom_kills=lambda: _oom_kills(counter or _SHARED_OOM_COUNTER),
            is_oom_counter_shared=counter is None,
            set_oom_score=lambda score: _set_oom_score(oom_score, score),
            prepare_fork=lambda: _prctl(_PR_SET_DUMPABLE, 1),
        ),
    ).run()
    os._exit(0)


def _filter_system_calls(must_forbid_signals: bool, *, whole: bool) -> None:
    """Install a filter in addition to the container's own. Its main purpose: commands must not be able to end this
    process.

    With `whole` false, the filter protects only this process and gives up no privilege.
    """
    machine, guest_pid = os.uname().machine, os.getpid()
    if machine not in seccomp.AUDIT_ARCHITECTURE:
        return
    protection = seccomp.Protection(guest_pid, must_forbid_signals)
    try:
        if whole:
            program = seccomp.instructions(
                machine, deny_unbounded_memory=False, protection=protection
            )
            _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        else:
            program = seccomp.protection_alone(machine, protection)
        seccomp.install(program)
    except (ImportError, OSError, AttributeError):
        pass  # an image without ctypes or a kernel without filters: the container's own protection remains


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # an image without ctypes: the container's own protection remains


def _lower(which: int, amount: int) -> None:
    hard = resource.getrlimit(which)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(which, (amount, amount))


def _oom_kills(counter: str) -> int:
    try:
        with open(counter, "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _used_memory_bytes() -> int:
    """Return the used memory of the whole kernel."""
    sizes = {}
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            fields = line.split()
            sizes[fields[0]] = int(fields[1]) << 10
    return sizes[b"MemTotal:"] - sizes[b"MemFree:"]


def _open_oom_score() -> int | None:
    try:
        return os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None  # a kernel without this file, or a read-only /proc


def _set_oom_score(descriptor: int | None, score: int) -> None:
    if descriptor is not None:
        try:
            os.write(descriptor, str(score).encode())
        except OSError:
            pass
