"""System calls that the standard library lacks, through ctypes. Linux on x86-64 and aarch64."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 1, 4, 8
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 22, 24, 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

MACHINE = os.uname().machine
_NUMBERS = {
    "x86_64": {"clone": 56, "pivot_root": 155},
    "aarch64": {"clone": 220, "pivot_root": 41},
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc_under_lock = ctypes.PyDLL(None, use_errno=True)
_libc_under_lock.syscall.restype = ctypes.c_long
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]
_libc.sethostname.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.syscall.restype = ctypes.c_long


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def is_supported_machine() -> bool:
    """Whether this module has the system call numbers of this processor."""
    return MACHINE in _NUMBERS


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *arguments: int | bytes | None, what: str) -> int:
    """Make a raw system call. Numbers are passed as 64 bits. Raises OSError."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *converted), what)


def clone(flags: int) -> int:
    """Fork into new namespaces. Only in a process with one thread."""
    SIGCHLD = 17
    # The same steps as os.fork. PyDLL, because the call must keep the interpreter lock.
    ctypes.pythonapi.PyOS_BeforeFork()
    number = ctypes.c_long(_NUMBERS[MACHINE]["clone"])
    zero = ctypes.c_long(0)
    pid = _libc_under_lock.syscall(number, ctypes.c_long(flags | SIGCHLD), zero, zero, zero, zero)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    ctypes.set_errno(error)
    return _check(pid, f"clone(flags={flags:#x})")


def mount(
    source: str, target: str, fs_type: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (fs_type, data)]
    result = _libc.mount(os.fsencode(source), os.fsencode(target), encoded[0], flags, encoded[1])
    _check(result, f"mount {fs_type or source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount and all mounts below it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), f"unshare(flags={flags:#x})")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of this mount namespace."""
    number = _NUMBERS[MACHINE]["pivot_root"]
    syscall(number, os.fsencode(new_root), os.fsencode(put_old), what="pivot_root")


def prctl(option: int, second: int = 0, third: int = 0) -> int:
    """prctl(2)."""
    return _check(_libc.prctl(option, second, third, 0, 0), f"prctl({option})")


def set_hostname(name: str) -> None:
    """sethostname(2)."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def trim_memory() -> None:
    """Return unused memory of the C library's allocator to the kernel, where possible."""
    trim = getattr(_libc, "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)


def drop_bounding_set() -> None:
    """Prevent programs that are executed later from gaining capabilities. Does nothing without CAP_SETPCAP."""
    for capability in range(64):
        # EINVAL follows the last capability of this kernel, EPERM means there are none to drop. The capset below
        # removes them in any case.
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break


def drop_capabilities() -> None:
    """Give up every capability, for this process and for programs that are executed later."""
    drop_bounding_set()
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


class SystemCallFilter:
    """An assembled seccomp program, kept in memory so that many children can install it."""

    def __init__(self, program: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._program = _FilterProgram(len(program) // 8, ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Apply the filter to this process and all its descendants, permanently."""
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        address = ctypes.addressof(self._program)
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, address)
