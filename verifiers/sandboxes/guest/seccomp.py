"""The system call filter of every back end, assembled by hand into classic BPF, so that libseccomp is not needed.

The filter allows every call except those listed here and those newer than `NEWEST_KNOWN`. The latter return ENOSYS,
as on an older kernel. Only the low 32 bits of an argument are compared where the kernel itself reads 32 bits
(CVE-2019-10063 was a 64-bit comparison of an ioctl number).
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
ALLOW, KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NEWEST_KNOWN = 462  # mseal, Linux 6.10; since 424 the numbers are the same on all architectures

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_GREATER, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT = 0x15, 0x25, 0x35, 0x45
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000

AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

DENIED: dict[str, tuple[int | None, int | None]] = {
    # name: (x86-64, aarch64); None where the architecture has no such call
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "unshare": (272, 97),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # large parts of the kernel that sandboxed code does not need
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "memfd_secret": (447, 447),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
UNBOUNDED_MEMORY: dict[str, tuple[int | None, int | None]] = {
    # memory that no process limit counts; denied where no control group counts it
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
}
AIMED_AT_PROCESS = {
    # name: (x86-64, aarch64). The first argument is a process, 0 the caller itself. Commands run as the same user as
    # the guest. If a command applied these calls to the guest, the sandbox would fail instead of the command.
    "prlimit64": (302, 261),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
}
AIMED_BY_KIND = {
    # the same for calls whose first argument gives the kind of the second one: a process, …, a user
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
}
OUTLIVES_PROCESS = {
    # objects of the kernel that outlive their process, with their content
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
SIGNALLING = {
    # the first argument is a process; needed where the kernel does not protect the guest from signals
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
}
_USER_KINDS = {"setpriority": 2, "ioprio_set": 3}
_CHECKED = {
    # name: (x86-64, aarch64)
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "ioctl": (16, 29),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
_ALL_PROCESSES = 0xFFFFFFFF  # kill(-1, …)
_NAMESPACE_FLAGS = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_FILE_TYPE, _CHARACTER_DEVICE, _BLOCK_DEVICE = 0xF000, 0x2000, 0x6000
_PR_SET_SECCOMP = 22
_RT_SIGACTION, _SIGCHLD = (13, 134), 17
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, NETLINK_ROUTE = 1, 2, 10, 16, 0


class Instruction(NamedTuple):
    """Return one instruction of classic BPF."""

    code: int
    if_true: int
    if_false: int
    operand: int


class Protection(NamedTuple):
    """Prevents commands, which run as the same user, from disturbing the guest."""

    guest_pid: int = 1
    forbids_signals: bool = False
    """For a guest that is not the first process of a pid namespace of Linux. There, the kernel forbids the signals."""


def _fail(errno: int) -> Instruction:
    return Instruction(_RETURN, 0, 0, _ERRNO | errno)


def _argument(index: int) -> Instruction:
    return Instruction(_LOAD, 0, 0, _AT_ARGUMENTS + 8 * index)  # the low half: little-endian


_ALLOWED = Instruction(_RETURN, 0, 0, ALLOW)


def _on_call(number: int | None, body: list[Instruction]) -> list[Instruction]:
    """Return `body` for one system call. `body` must return on every path."""
    if number is None:
        return []
    return [Instruction(_JUMP_EQUAL, 0, len(body), number), *body]


def _unless_argument(index: int, values: tuple[int, ...], errno: int) -> list[Instruction]:
    """Allow if the argument is one of the values, otherwise fail."""
    tests = [
        Instruction(_JUMP_EQUAL, len(values) - position, 0, value)
        for position, value in enumerate(values)
    ]
    return [_argument(index), *tests, _fail(errno), _ALLOWED]


def _if_argument(index: int, values: tuple[int, ...], errno: int, mask: int) -> list[Instruction]:
    """Fail if the masked argument is one of the values, otherwise allow."""
    tests = [
        Instruction(_JUMP_EQUAL, len(values) - position, 0, value)
        for position, value in enumerate(values)
    ]
    return [_argument(index), Instruction(_AND, 0, 0, mask), *tests, _ALLOWED, _fail(errno)]


def instructions(
    machine: str,
    *,
    deny_unbounded_memory: bool,
    allow_sockets: bool = True,
    protection: Protection | None = None,
) -> list[Instruction]:
    """Return the filter for one architecture.

    `allow_sockets=False` allows only socket pairs. It is for sandboxes that share the network namespace, where a
    socket file could belong to a container daemon.
    """
    column = list(AUDIT_ARCHITECTURE).index(machine)
    program = [
        Instruction(_LOAD, 0, 0, _AT_ARCHITECTURE),
        Instruction(_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURE[machine]),
        Instruction(_RETURN, 0, 0, KILL_PROCESS),
        Instruction(_LOAD, 0, 0, _AT_NUMBER),
        Instruction(_JUMP_GREATER_EQUAL, 0, 1, _X32_BIT),
        _fail(EPERM),
        Instruction(_JUMP_GREATER, 0, 1, NEWEST_KNOWN),
        _fail(ENOSYS),
    ]
    denied = {**DENIED, **(UNBOUNDED_MEMORY if deny_unbounded_memory else {})}
    for numbers in denied.values():
        program += _on_call(numbers[column], [_fail(EPERM)])

    def number(name: str) -> int | None:
        return _CHECKED[name][column]

    # ENOSYS, not EPERM: glibc then uses clone, whose flags a filter can read.
    program += _on_call(number("clone3"), [_fail(ENOSYS)])
    namespace_test = Instruction(_JUMP_ANY_BIT, 0, 1, _NAMESPACE_FLAGS)
    program += _on_call(number("clone"), [_argument(0), namespace_test, _fail(EPERM), _ALLOWED])
    netlink_or_fail = [
        Instruction(_JUMP_EQUAL, 1, 0, AF_NETLINK),
        _fail(EAFNOSUPPORT),
        *_unless_argument(2, (NETLINK_ROUTE,), EAFNOSUPPORT),
    ]
    families = (AF_UNIX, AF_INET, AF_INET6)
    if allow_sockets:
        body = [_argument(0)]
        for position, family in enumerate(families):
            skip = len(families) - 1 - position + len(netlink_or_fail)
            body.append(Instruction(_JUMP_EQUAL, skip, 0, family))
        body += [*netlink_or_fail, _ALLOWED]
    else:
        body = [_fail(EAFNOSUPPORT)]
    program += _on_call(number("socket"), body)
    program += _on_call(number("ioctl"), _if_argument(1, (_TIOCSTI, _TIOCLINUX), EPERM, 0xFFFFFFFF))
    program += _protect(column, protection or Protection())
    devices = (_CHARACTER_DEVICE, _BLOCK_DEVICE)
    program += _on_call(number("mknod"), _if_argument(1, devices, EPERM, _FILE_TYPE))
    program += _on_call(number("mknodat"), _if_argument(2, devices, EPERM, _FILE_TYPE))
    program.append(_ALLOWED)
    return program


def protection_alone(machine: str, protection: Protection) -> list[Instruction]:
    """Return a filter that protects the guest and allows everything else."""
    column = list(AUDIT_ARCHITECTURE).index(machine)
    return [
        Instruction(_LOAD, 0, 0, _AT_ARCHITECTURE),
        Instruction(_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURE[machine]),
        _ALLOWED,
        Instruction(_LOAD, 0, 0, _AT_NUMBER),
        *_protect(column, protection),
        _ALLOWED,
    ]


def of_tests(machine: str) -> list[Instruction]:
    """Return a filter for the test cases of a program, in addition to the sandbox's own filter.

    It denies objects that outlive a test, and changes of the action for SIGCHLD: if a process ignores that signal,
    the kernel does not count the CPU time of its children.
    """
    column = list(AUDIT_ARCHITECTURE).index(machine)
    program = [
        Instruction(_LOAD, 0, 0, _AT_ARCHITECTURE),
        Instruction(_JUMP_EQUAL, 1, 0, AUDIT_ARCHITECTURE[machine]),
        _ALLOWED,
        Instruction(_LOAD, 0, 0, _AT_NUMBER),
    ]
    for numbers in OUTLIVES_PROCESS.values():
        program += _on_call(numbers[column], [_fail(ENOSYS)])
    upper_half = Instruction(_LOAD, 0, 0, _AT_ARGUMENTS + 8 + 4)
    change_of_sigchld = [
        _argument(0),
        Instruction(_JUMP_EQUAL, 0, 4, _SIGCHLD),
        _argument(1),
        Instruction(_JUMP_EQUAL, 0, 3, 0),
        upper_half,
        Instruction(_JUMP_EQUAL, 0, 1, 0),
        _ALLOWED,
        _fail(EPERM),
    ]
    program += _on_call(_RT_SIGACTION[column], change_of_sigchld)
    program.append(_ALLOWED)
    return program


def _protect(column: int, protection: Protection) -> list[Instruction]:
    guest_pid = protection.guest_pid
    program: list[Instruction] = []
    for numbers in AIMED_AT_PROCESS.values():
        program += _on_call(numbers[column], _if_argument(0, (guest_pid,), EPERM, 0xFFFFFFFF))
    for name, numbers in AIMED_BY_KIND.items():
        # Also all processes of the user, who is the guest's too.
        program += _on_call(
            numbers[column],
            [
                _argument(0),
                Instruction(_JUMP_EQUAL, 2, 0, _USER_KINDS[name]),
                _argument(1),
                Instruction(_JUMP_EQUAL, 0, 1, guest_pid),
                _fail(EPERM),
                _ALLOWED,
            ],
        )
    if protection.forbids_signals:
        targets = (guest_pid,)
        if (
            guest_pid != 1
        ):  # kill(-1) spares the first process, which itself uses it to end everything
            targets += (-guest_pid & 0xFFFFFFFF, _ALL_PROCESSES)
        for numbers in SIGNALLING.values():
            program += _on_call(numbers[column], _if_argument(0, targets, EPERM, 0xFFFFFFFF))
    return program


def assemble(program: list[Instruction]) -> bytes:
    """Encode for the kernel: an array of `struct sock_filter`."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def install(program: list[Instruction]) -> None:
    """Apply the filter to this process and all its descendants, permanently.

    Raises OSError if the kernel refuses, as it does for users who may still gain privileges.
    """
    import ctypes

    code = assemble(program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, 2, header, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "PR_SET_SECCOMP")
