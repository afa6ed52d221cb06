"""Directories of this machine that belong to a running program. If the program is killed, the next one removes them.

The name identifies the owner: `vf-<pid namespace>-<pid>-<start time>-<random>`. Processes that work for it have the
path in their environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import tempfile
from pathlib import Path

from verifiers.sandboxes.local.zygote import cgroups

OWNER_MARK = "SANDBOX_FOLDER"
"""Environment variable of a process with the directory that it works for."""


def make_folder() -> str:
    """Create a directory of this program, closed to other users. Removes directories of dead programs first."""
    sweep_folders()
    owner = cgroups.owner_name(os.getpid())
    return tempfile.mkdtemp(prefix=f"{owner}-", dir=tempfile.gettempdir())


def sweep_folders() -> None:
    """Remove the directories of programs that were killed, and kill the processes that still work for them."""
    top = tempfile.gettempdir()
    for name in os.listdir(top):
        if name.startswith("vf-") and not cgroups.is_owner_alive(name.rpartition("-")[0]):
            path = os.path.join(top, name)
            with contextlib.suppress(
                FileNotFoundError
            ):  # another program may sweep at the same time
                if not os.path.islink(path) and os.stat(path).st_uid == os.getuid():
                    kill_leftovers(path)
                    remove_folder(path)


def kill_leftovers(folder: str) -> None:
    """Kill the processes that carry the mark of a directory."""
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
    """Remove such a directory, unreadable and deeply nested parts included. Links in it are never followed.

    The removal avoids recursion and long paths: it moves nested directories to the top before it removes their parent.
    """
    os.chmod(folder, stat.S_IRWXU)
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        number = 0
        while directories := _remove_files(top):
            for name in directories:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                try:
                    for moved in _remove_files(inner):
                        number += 1
                        os.rename(
                            moved, f"moved-{os.getpid()}-{number}", src_dir_fd=inner, dst_dir_fd=top
                        )
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _remove_files(directory: int) -> list[str]:
    """Remove all files in a directory. Return its subdirectories, made readable and writable."""
    directories = []
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _give_rights(entry.name, directory)
                directories.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=directory)
    return directories


def _give_rights(name: str, parent: int) -> None:
    """Make a directory readable and writable. If its name now belongs to something else, leave that alone."""
    with contextlib.suppress(NotADirectoryError, FileNotFoundError):
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
        descriptor = os.open(name, flags, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IRWXU)
        finally:
            os.close(descriptor)
