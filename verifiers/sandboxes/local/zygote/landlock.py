"""Landlock restricts which files a process and its descendants may use, without namespaces. Linux 6.7 or newer."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence

from . import linux

MIN_ABI = 4
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _RULE_PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_ALL_UP_TO_ABI_4 = (1 << 15) - 1
_TCP_BIND_AND_CONNECT = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _EXECUTE | _READ_FILE | _READ_DIR
READ_AND_WRITE_FILE = _READ_FILE | _WRITE_FILE | _TRUNCATE


def abi() -> int:
    """Return the kernel's version of Landlock; 0 if it has none."""
    try:
        return linux.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG, what="landlock")
    except OSError:
        return 0


def restrict(
    readable: list[str], writable: list[str], devices: list[str], hidden: Sequence[str] = ()
) -> None:
    """Allow only these paths from now on, and no TCP. With ABI 6, signals and abstract sockets are confined too.

    In directories of `hidden`, which are below readable ones, file names can be listed but no file can be read.
    Paths that do not exist are skipped. Needs no_new_privs.
    """
    version = abi()
    handled = _ALL_UP_TO_ABI_4 | (_IOCTL_DEV if version >= 5 else 0)
    attributes = struct.pack("QQ", handled, _TCP_BIND_AND_CONNECT)
    if version >= 6:
        attributes += struct.pack("Q", _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS)
    ruleset = linux.syscall(
        _CREATE_RULESET, attributes, len(attributes), 0, what="landlock_create_ruleset"
    )
    for paths, rights in (
        (readable, _READ_DIR),
        (all_but(readable, [os.path.realpath(path) for path in hidden]), READ),
        (writable, handled),
        (devices, READ_AND_WRITE_FILE | _IOCTL_DEV),
    ):
        for path in paths:
            _allow(ruleset, path, rights & handled)
    linux.syscall(_RESTRICT_SELF, ruleset, 0, what="landlock_restrict_self")
    os.close(ruleset)


def all_but(folders: list[str], hidden: Sequence[str]) -> list[str]:
    """Return paths that cover the same files without the hidden directories: Landlock rules can only add rights."""
    paths: dict[str, None] = {}
    visited: set[str] = set()
    pending = list(folders)
    while pending:
        # A rule applies to the target of links: "/lib" is "/usr/lib" on most machines.
        path = os.path.realpath(pending.pop())
        if path in visited or any(path == each or path.startswith(each + "/") for each in hidden):
            continue
        visited.add(path)
        if any(each.startswith(path.rstrip("/") + "/") for each in hidden):
            pending += [os.path.join(path, name) for name in _names(path)]
        else:
            paths[path] = None
    return list(paths)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _FILE_RIGHTS
    if rights:
        rule = struct.pack("=Qi", rights, descriptor)
        what = f"landlock rule for {path}"
        linux.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0, what=what)
    os.close(descriptor)
