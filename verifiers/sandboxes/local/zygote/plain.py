"""A guest in an ordinary process: level "restricted" (Landlock, system call filter, limits) or "none"."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import socket
import sys
from typing import NamedTuple

# Imported before anything is restricted, whether used or not.
from ...guest import archive, files, interpreter, loop, seccomp  # noqa: F401  # pyright: ignore[reportUnusedImport]
from . import confine, landlock, linux, rootfs

_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/proc")


class PlainSettings(NamedTuple):
    """Settings that the host writes to stdin."""

    folder: str
    """The sandbox's own directory, which contains `box` and `tmp`."""
    env: dict[str, str]
    preload: list[str]
    uid: int | None
    """As root: switch to this user first."""
    restrict: bool
    memory_bytes: int
    disk_bytes: int
    max_processes: int


def main(descriptor: int) -> None:
    """Serve the host on an inherited socket until the host closes it."""
    settings = PlainSettings(**json.loads(sys.stdin.buffer.read()))
    stream = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    for module in settings.preload:
        importlib.import_module(module)
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _hang_up)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    workdir = os.path.join(settings.folder, "box")
    temporary = os.path.join(settings.folder, "tmp")
    if settings.uid is not None:
        linux.drop_bounding_set()  # only root can
        os.setgroups([])
        os.setresgid(settings.uid, settings.uid, settings.uid)
        os.setresuid(settings.uid, settings.uid, settings.uid)
    os.chdir(workdir)
    env = {
        "PATH": _path_variable(),
        "HOME": workdir,
        "LANG": "C.UTF-8",
        "TMPDIR": temporary,
        "PYTHONDONTWRITEBYTECODE": "1",
        **settings.env,
    }
    guest_settings = loop.GuestSettings(workdir=workdir, env=env, is_init=False)
    if settings.restrict:
        _restrict(settings)
        guest_settings = guest_settings._replace(
            watched_memory_bytes=settings.memory_bytes,
            prepare_fork=lambda: linux.prctl(linux.PR_SET_DUMPABLE, 1),
        )
    loop.serve(stream, guest_settings)
    os._exit(0)


def _hang_up(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
    raise EOFError  # the guest's loop treats it as the end of the stream and ends what it has started


def _path_variable() -> str:
    folders = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return ":".join(dict.fromkeys(folders))


def _restrict(settings: PlainSettings) -> None:
    request = confine.BoxRequest(
        box=0,
        host_uid=settings.uid,
        memory_bytes=settings.memory_bytes,
        disk_bytes=settings.disk_bytes,
        max_files=0,
        max_processes=settings.max_processes + _own_processes(),
        cpu_cores=None,
        env={},
        workdir="",
        proxy=False,
    )
    prefixes = rootfs.interpreter_prefixes(())
    hidden = rootfs.host_packages_to_hide(prefixes)
    confine.set_limits(request, has_cgroup=False)
    # After the limits, which read this process's own /proc.
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.drop_capabilities()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(
        readable=[*_SYSTEM_FOLDERS, *prefixes, *rootfs.SYSTEM_FILES],
        writable=[settings.folder],
        devices=[f"/dev/{name}" for name in rootfs.DEVICES],
        hidden=hidden,
    )
    program = seccomp.instructions(
        linux.MACHINE,
        deny_unbounded_memory=True,
        allow_sockets=False,
        protection=seccomp.Protection(os.getpid(), forbids_signals=True),
    )
    linux.SystemCallFilter(seccomp.assemble(program)).install()


def _own_processes() -> int:
    """Return the number of threads that this user already runs: the limit of processes counts them too."""
    own, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == own:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return count if hard == resource.RLIM_INFINITY else min(count, hard)
