"""The root file system of gVisor's sandboxes: a skeleton on disk, and the mounts in it.

As in the local back end, it is an allow-listed, read-only view of this machine, or of a directory with an image.
That directory is never written: each of its entries is mounted into a separate skeleton.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.sandboxes.errors import OTHER_BACKEND, SandboxImageError
from verifiers.sandboxes.gvisor import statx_workaround
from verifiers.sandboxes.local.zygote import rootfs

VIEW_TIMEOUT_S = 30.0
_START = Path(rootfs.__file__).with_name("start.py")
_MADE_BY_RUNSC = ("proc", "dev", "tmp", "sys")
_READ_ONLY = ["bind", "ro", "nosuid", "nodev"]
_SHIM = "/etc/statx-shim.so"
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Root(NamedTuple):
    """A finished root file system."""

    path: str
    """Path of the skeleton."""
    mounts: list[dict[str, Any]]
    """Mounts in the skeleton, in OCI's format."""
    path_variable: str
    python: str


def host_root(
    path: str, interpreter: Sequence[str], host_names: Sequence[str] = (), *, with_shim: bool
) -> Root:
    """Return a view of this machine for `interpreter`. Raises SandboxImageError if it cannot be executed."""
    view = interpreter_view(interpreter)
    os.makedirs(path)
    mounts = []
    for name in ("usr", "bin", "sbin", "lib", "lib64", "lib32"):
        _show(path, f"/{name}", f"/{name}", mounts)
    for file in rootfs.SYSTEM_FILES:
        _copy(file, path + file)
    for file, text in rootfs.written_files(host_names).items():
        _write(path + file, text.encode())
    if with_shim:
        _add_shim(path)
    empty = path + ".empty"
    os.mkdir(empty, 0o755)
    for prefix in view["prefixes"]:
        _show(path, prefix, prefix, mounts)
    mounts += [_mount(empty, folder) for folder in view["hidden"] if os.path.isdir(folder)]
    if view["program_folders"][0] == rootfs.TOOLS:
        os.makedirs(path + rootfs.TOOLS)
        os.symlink(view["executable"], f"{path}{rootfs.TOOLS}/python")
    _make_mount_points(path)
    return Root(path, mounts, ":".join(view["program_folders"]), view["executable"])


def image_root(path: str, image: str, python: str, *, with_shim: bool) -> Root:
    """Return a view of a directory that holds a root file system."""
    if not os.path.isabs(image) or not os.path.isdir(image):
        raise SandboxImageError(
            f"image={image!r} is neither 'host' nor the absolute path of a directory with a root file system. "
            f"gVisor does not pull images; unpack one (`docker export`, `debootstrap`). {OTHER_BACKEND}"
        )
    os.makedirs(path)
    mounts: list[dict[str, Any]] = []
    for name in sorted(os.listdir(image)):
        if name not in _MADE_BY_RUNSC and not (name == "etc" and with_shim):
            _show(path, os.path.join(image, name), f"/{name}", mounts)
    if with_shim:
        _copy(os.path.join(image, "etc"), path + "/etc")
        _add_shim(path)
    _make_mount_points(path)
    return Root(path, mounts, _IMAGE_PATH, python)


def interpreter_view(interpreter: Sequence[str]) -> dict[str, Any]:
    """Return which parts of this machine an interpreter needs, as it reports them itself."""
    try:
        completed = subprocess.run(
            [*interpreter, str(_START), "view"],
            capture_output=True,
            timeout=VIEW_TIMEOUT_S,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxImageError(f"Cannot execute {interpreter[0]!r}: {error}") from error
    if completed.returncode != 0:
        stderr_tail = completed.stderr.decode("utf-8", "replace").strip()[-500:]
        raise SandboxImageError(
            f"{interpreter[0]!r} is not an interpreter that works here: {stderr_tail}"
        )
    return json.loads(completed.stdout)


def _mount(source: str, destination: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": source,
        "options": _READ_ONLY,
    }


def _show(root: str, source: str, destination: str, mounts: list[dict[str, Any]]) -> None:
    """Show a path of this machine at a path inside. Does nothing if it does not exist."""
    target = root + destination
    if os.path.islink(source) and source.count("/") == destination.count("/") == 1:
        os.symlink(os.readlink(source), target)
    elif os.path.islink(source) and not os.path.isabs(os.readlink(source)):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        mounts.append(_mount(os.path.realpath(source), destination))
    elif os.path.isfile(source):
        _write(target, b"")
        mounts.append(_mount(os.path.realpath(source), destination))


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # Skip files that this user cannot read: /etc has some.
    with contextlib.suppress(OSError, shutil.Error):
        if os.path.isdir(source):
            shutil.copytree(source, target, symlinks=True, ignore=_unreadable)
        elif os.path.isfile(source):
            shutil.copyfile(source, target)


def _unreadable(folder: str, names: list[str]) -> list[str]:
    paths = {name: os.path.join(folder, name) for name in names}
    return [
        name for name, path in paths.items() if not os.path.islink(path) and not _is_public(path)
    ]


def _is_public(path: str) -> bool:
    """Whether every user may read the file. Sandboxes must not get files that only root may read."""
    return bool(os.stat(path).st_mode & 0o004)


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_bytes(content)


def _add_shim(root: str) -> None:
    _write(root + _SHIM, statx_workaround.shared_object())
    os.chmod(root + _SHIM, 0o755)
    _write(root + "/etc/ld.so.preload", f"{_SHIM}\n".encode())


def _make_mount_points(root: str) -> None:
    for name in (*_MADE_BY_RUNSC, "var", "run", "home"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    if not os.path.lexists(f"{root}/var/tmp"):
        os.symlink("../tmp", f"{root}/var/tmp")
    # Independent of this process's umask: the user inside is another one.
    os.chmod(root, 0o755)
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | (0o055 if name in folders else 0o044))
