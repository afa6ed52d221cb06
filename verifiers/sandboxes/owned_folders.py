"""Directories of this machine that belong to a running program: when it is killed, the next one removes them.

The name says who made it, `vf-<pid namespace>-<pid>-<start time>-<random>`; processes that work for it carry the
path in their environment.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from verifiers.sandboxes.local.zygote import cgroups

OWNER_MARK = "SANDBOX_FOLDER"
"""The variable by which a process says which directory it works for."""


def make_folder() -> str:
    """A new directory of this program, closed to others. Those of dead programs are removed first."""
    sweep_folders()
    owner = cgroups.owner_name(os.getpid())
    return tempfile.mkdtemp(prefix=f"{owner}-", dir=tempfile.gettempdir())


def sweep_folders() -> None:
    """Remove directories of programs that were killed, and what still runs for them."""
    top = tempfile.gettempdir()
    for name in os.listdir(top):
        if name.startswith("vf-") and not cgroups.is_owner_alive(name.rpartition("-")[0]):
            path = os.path.join(top, name)
            with contextlib.suppress(FileNotFoundError):  # another program sweeps too
                if not os.path.islink(path) and os.stat(path).st_uid == os.getuid():
                    kill_leftovers(path)
                    remove_folder(path)


def kill_leftovers(folder: str) -> None:
    """End the processes that carry the mark of a directory."""
    mark = f"{OWNER_MARK}={folder}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue


def remove_folder(folder: str) -> None:
    """Remove such a directory, unreadable parts included. Links in it are never followed."""

    def make_writable(function: Callable[[str], object], path: str, _: object) -> None:
        parent = os.path.dirname(path)
        for each in (parent, path):
            if not os.path.islink(each) and each.startswith(folder):
                with contextlib.suppress(OSError):
                    os.chmod(each, stat.S_IRWXU)
        with contextlib.suppress(OSError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=make_writable)
    else:
        shutil.rmtree(folder, onerror=make_writable)
