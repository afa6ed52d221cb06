"""The files visible inside: an allow-listed, read-only view of the host, made once and shared by all sandboxes.

`build_template` runs in the zygote as the real user, because another user could not reach a path such as
/root/.pyenv
(mode 0700 above it). Each sandbox then adds only its own writable file system of limited size.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from . import linux
from .linux import (
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    mount,
)

USER_NAME, USER_ID = "sandbox", 1000
WRITABLE = ("/box", "/tmp", "/var/tmp", "/dev/shm")
TOOLS = "/opt/sandbox/bin"
_AGAIN = "/.again"
_EMPTY = "/.empty"
DEVICES = ("null", "zero", "full", "random", "urandom")
SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust/extracted",
    "/etc/ca-certificates",
)
_HOSTS = "/etc/hosts"
WRITTEN_FILES = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER_NAME}:x:{USER_ID}:{USER_ID}::/box:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "/etc/group": f"root:x:0:\n{USER_NAME}:x:{USER_ID}:\nnogroup:x:65534:\n",
    _HOSTS: "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/hostname": "sandbox\n",
}
_READ_ONLY = MS_RDONLY | MS_NOSUID | MS_NODEV


class Template(NamedTuple):
    """Properties of the finished view that a sandbox needs."""

    path_variable: str
    rebind: tuple[tuple[str, str], ...]
    """(hidden path, real path) of directories that a sandbox's own file systems would cover."""
    folders: tuple[str, ...]
    """Directories that a sandbox can write in addition to the usual ones."""


def interpreter_prefixes(extra: tuple[str, ...]) -> list[str]:
    """Return directories that this interpreter needs, outermost first, none inside another or inside /usr."""
    candidates = [os.path.realpath(sys.base_prefix), os.path.abspath(sys.prefix), *extra]
    # A virtual environment's `bin/python` may lead to the real one through several links.
    executable = sys.executable
    for _ in range(8):
        if not os.path.islink(executable):
            break
        target = os.path.join(os.path.dirname(executable), os.readlink(executable))
        executable = os.path.normpath(target)
        candidates.append(os.path.dirname(os.path.dirname(executable)))
    prefixes: list[str] = []
    for prefix in sorted(set(candidates), key=len):
        if not any(_is_within(prefix, outer) for outer in ("/usr", *prefixes)):
            prefixes.append(prefix)
    return prefixes


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def host_packages_to_hide(visible: list[str]) -> list[str]:
    """Return folders of installed packages below the visible prefixes from which this interpreter does not import.

    In addition to its own `site-packages`, a prefix may hold whole environments (pyenv, conda, pipx) and conda's
    packages.
    """
    hidden = set()
    for prefix in ["/usr", "/usr/local", *visible]:
        depths = ("", "*", "*/*") if prefix != "/usr" else ("",)
        for depth in depths:
            for kind in ("site-packages", "dist-packages"):
                hidden |= set(glob.glob(os.path.join(prefix, depth, "lib*", "py*", kind)))
        for name in ("envs/*", "venvs/*", "pkgs"):
            hidden |= set(filter(os.path.isdir, glob.glob(os.path.join(prefix, name))))
    imported = {os.path.realpath(entry) for entry in sys.path}
    needed = [*visible, os.path.abspath(sys.prefix), os.path.realpath(sys.prefix), *imported]
    hidden = {path for path in hidden if not any(_is_within(own, path) for own in needed)}
    hidden = {path for path in hidden if os.path.realpath(path) not in imported}
    return sorted(
        path for path in hidden if not any(_is_within(path, other) for other in hidden - {path})
    )


def written_files(host_names: Sequence[str]) -> dict[str, str]:
    """Return path → text of the files that are not those of the host."""
    added = "".join(f"127.0.0.1 {name}\n" for name in host_names)
    return {**WRITTEN_FILES, _HOSTS: WRITTEN_FILES[_HOSTS] + added}


def build_template(folders: tuple[str, ...] = (), host_names: tuple[str, ...] = ()) -> Template:
    """Replace this process's root with the read-only view. Needs CAP_SYS_ADMIN in the mount namespace."""
    prefixes = interpreter_prefixes(())
    hidden = host_packages_to_hide(prefixes)
    mount("none", "/", None, MS_PRIVATE | MS_REC)
    # The new root is mounted on a directory that exists everywhere. After the pivot, the old root is complete again
    # below /old, which includes the covered directory.
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    os.umask(0o022)
    os.mkdir("/tmp/old")
    linux.pivot_root("/tmp", "/tmp/old")
    os.chdir("/")
    for folder in ("/proc", "/dev", "/tmp", "/box", "/home", "/run", "/var", "/etc", "/rw", "/opt"):
        os.mkdir(folder, 0o755)
    os.symlink("../tmp", "/var/tmp")
    _bind_system()
    rebind = []
    for prefix in prefixes:
        _bind(prefix)
        if any(_is_within(prefix, own) for own in (*WRITABLE, *folders)):
            mount_point = f"{_AGAIN}/{len(rebind)}"
            _bind(prefix, mount_point)
            rebind.append((mount_point, prefix))
            hidden += [
                mount_point + path[len(prefix) :] for path in hidden if _is_within(path, prefix)
            ]
    _hide(hidden)
    for folder in folders:
        os.makedirs(folder, 0o755, exist_ok=True)
    _make_devices()
    for path, text in written_files(host_names).items():
        with open(path, "w") as file:
            file.write(text)
    # Recursive: a sandbox may only mount a new proc while a complete one is visible here.
    mount("/old/proc", "/proc", None, MS_BIND | MS_REC)
    path_variable = _path_variable()
    linux.unmount("/old")
    os.rmdir("/old")
    mount("none", "/", None, MS_REMOUNT | MS_BIND | _READ_ONLY)
    return Template(path_variable, tuple(rebind), folders)


def _bind_system() -> None:
    _bind("/usr")
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        old = f"/old/{name}"
        if os.path.islink(old):
            os.symlink(os.readlink(old), f"/{name}")
        elif os.path.isdir(old):
            _bind(f"/{name}")
    for path in SYSTEM_FILES:
        _bind(path)


def _bind(path: str, mount_point: str | None = None) -> None:
    """Show a path of the old root read-only at the same or another path. Does nothing if it does not exist."""
    source, target = "/old" + path, mount_point or path
    if os.path.islink(source) and not os.path.isdir(source):
        # Absolute links would lead out of /old: follow them here, once.
        link_target = os.path.join(os.path.dirname(path), os.readlink(source))
        source = "/old" + os.path.normpath(link_target)
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    elif os.path.isfile(source):
        os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
        with open(target, "w"):
            pass
    else:
        return
    # Not recursive: file systems mounted below (network shares, secrets) stay invisible.
    mount(source, target, None, MS_BIND)
    mount("none", target, None, MS_REMOUNT | MS_BIND | _READ_ONLY)


def _hide(folders: list[str]) -> None:
    os.mkdir(_EMPTY, 0o755)
    for folder in folders:
        if os.path.isdir(folder):
            mount(_EMPTY, folder, None, MS_BIND)
            mount("none", folder, None, MS_REMOUNT | MS_BIND | _READ_ONLY)


def _make_devices() -> None:
    for name in DEVICES:
        with open(f"/dev/{name}", "w"):
            pass
        mount(f"/old/dev/{name}", f"/dev/{name}", None, MS_BIND)
        mount("none", f"/dev/{name}", None, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NOEXEC)
    for name, target in (
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"/dev/{name}")
    os.makedirs("/dev/shm", 0o1777, exist_ok=True)  # it may already hold an interpreter


def program_folders() -> list[str]:
    """Return directories of programs, this interpreter's first. `TOOLS` leads if it must provide the name `python`."""
    folders = [os.path.dirname(sys.executable), os.path.join(sys.base_prefix, "bin")]
    if not os.path.exists(os.path.join(folders[0], "python")):
        folders.insert(0, TOOLS)
    folders += ["/usr/local/bin", "/usr/bin", "/bin"]
    return list(dict.fromkeys(os.path.normpath(folder) for folder in folders))


def _path_variable() -> str:
    """Return PATH of the sandbox, which has this interpreter under the names `python` and `python3`."""
    folders = program_folders()
    if folders[0] == TOOLS:
        os.makedirs(TOOLS, 0o755)
        os.symlink(sys.executable, os.path.join(TOOLS, "python"))
    return ":".join(folders)


def add_writable(template: Template, disk_bytes: int, max_files: int, workdir: str) -> None:
    """Inside a sandbox: mount its own file system, with one size and file limit for all writable directories."""
    data = f"mode=755,size={disk_bytes},nr_inodes={max_files}"
    mount("tmpfs", "/rw", "tmpfs", MS_NOSUID | MS_NODEV, data)
    for mount_point, mode in (("/box", 0o755), ("/tmp", 0o1777), ("/dev/shm", 0o1777)):
        folder = "/rw/" + mount_point.rpartition("/")[2]
        os.mkdir(folder)
        os.chmod(folder, mode)
        mount(folder, mount_point, None, MS_BIND)
    for index, mount_point in enumerate(template.folders):
        folder = f"/rw/{index}"
        os.mkdir(folder, 0o755)
        mount(folder, mount_point, None, MS_BIND)
    for hidden_place, mount_point in template.rebind:
        os.makedirs(mount_point, 0o755)
        # Recursive: includes the empty directories that hide packages.
        mount(hidden_place, mount_point, None, MS_BIND | MS_REC)
    if workdir != "/box":
        os.makedirs(workdir, 0o755, exist_ok=True)
    # The mounts stay. Through /rw, code could remove or rename the directories themselves.
    mount(_EMPTY, "/rw", None, MS_BIND)
