"""The system call filter decides as it should, on both architectures: run here by a small interpreter of BPF."""

import re
import struct
from pathlib import Path

import pytest

from verifiers.sandboxes.agent import seccomp

MACHINES = list(seccomp.AUDIT_ARCHITECTURE)
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
RENAMED = {"umount2": "umount2", "_sysctl": "_sysctl"}


def decide(
    machine: str, number: int, *arguments: int, architecture: int | None = None, **options: bool
) -> int:
    """What the kernel would do with a system call."""
    options = {"deny_unbounded_memory": False, **options}
    program = seccomp.instructions(machine, **options)
    padded = [a & (2**64 - 1) for a in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack(
        "<IIQ6Q", number, architecture or seccomp.AUDIT_ARCHITECTURE[machine], 0, *padded
    )
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == 0x20:
            [accumulator] = struct.unpack_from("<I", data, operand)
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x25: accumulator > operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[code]
            position += if_true if holds else if_false


def fails(errno: int) -> int:
    return 0x00050000 | errno


def number_of(machine: str, name: str) -> int:
    number = {**seccomp.DENIED, **seccomp.UNBOUNDED_MEMORY, **seccomp._CHECKED}[name][
        MACHINES.index(machine)
    ]
    assert number is not None
    return number


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_is_denied_and_its_neighbours_are_not(machine: str):
    column = MACHINES.index(machine)
    listed = {
        n[column] for n in (seccomp.DENIED | seccomp._CHECKED).values() if n[column] is not None
    }
    for number in range(seccomp.NEWEST_KNOWN + 1):
        wanted = fails(1) if number in listed else seccomp.ALLOW
        if number not in {n[column] for n in seccomp._CHECKED.values()}:
            assert decide(machine, number) == wanted, number


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str):
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers here")
    numbers = dict(re.findall(r"#define __NR3?2?4?_?(\w+)\s+(\d+)", HEADERS[machine].read_text()))
    tables = {**seccomp.DENIED, **seccomp.UNBOUNDED_MEMORY, **seccomp._CHECKED}
    checked = 0
    for name, columns in tables.items():
        number = columns[MACHINES.index(machine)]
        if name in numbers:
            assert number == int(numbers[name]), name
            checked += 1
        else:
            # Newer than these headers, or not on this architecture.
            assert number is None or number >= 440 or name in ("nfsservctl",), name
    assert checked > 60


@pytest.mark.parametrize("machine", MACHINES)
def test_a_foreign_architecture_is_killed(machine: str):
    assert decide(machine, 0, architecture=0x40000003) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
def test_x32_and_unknown_calls_are_refused(machine: str):
    assert decide(machine, 0x40000000 | 165) == fails(1)
    assert decide(machine, seccomp.NEWEST_KNOWN + 1) == fails(38)
    assert decide(machine, 512) == fails(38)


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_processes_and_threads_but_no_namespaces(machine: str):
    clone = number_of(machine, "clone")
    thread, fork = 0x3D0F00, 17 | 0x1200000
    assert decide(machine, clone, thread) == decide(machine, clone, fork) == seccomp.ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert decide(machine, clone, flag | 17) == fails(1)
        assert decide(machine, clone, flag | 17 | 1 << 40) == fails(1)
    # glibc falls back to clone only after ENOSYS.
    assert decide(machine, number_of(machine, "clone3")) == fails(38)


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_of_harmless_families(machine: str):
    call = number_of(machine, "socket")
    for family in (1, 2, 10):
        assert decide(machine, call, family, 1, 0) == seccomp.ALLOW
    assert decide(machine, call, 16, 3, 0) == seccomp.ALLOW  # route netlink: getifaddrs
    for family, protocol in ((16, 9), (16, 12), (17, 0), (40, 0), (38, 0), (31, 0), (44, 0)):
        assert decide(machine, call, family, 3, protocol) == fails(97)
    for family in (1, 2, 10, 16):
        assert decide(machine, call, family, 1, 0, allow_sockets=False) == fails(97)


@pytest.mark.parametrize("machine", MACHINES)
def test_terminals_cannot_be_fed_whatever_the_upper_half_says(machine: str):
    call = number_of(machine, "ioctl")
    for request in (0x5412, 0x541C, 0x5412 | 1 << 32):
        assert decide(machine, call, 0, request) == fails(1)
    assert decide(machine, call, 0, 0x5401) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_fifos_can_be_made_and_devices_cannot(machine: str):
    call = number_of(machine, "mknodat")
    assert decide(machine, call, 0, 0, 0o010644) == seccomp.ALLOW
    assert decide(machine, call, 0, 0, 0o020644) == fails(1)
    assert decide(machine, call, 0, 0, 0o060644) == fails(1)


@pytest.mark.parametrize("machine", MACHINES)
def test_memory_that_nothing_counts_is_refused_where_no_group_does(machine: str):
    for name in seccomp.UNBOUNDED_MEMORY:
        call = number_of(machine, name)
        assert decide(machine, call) == seccomp.ALLOW
        assert decide(machine, call, deny_unbounded_memory=True) == fails(1)
