"""The system call filter decides as it should, on both architectures: run here by a small interpreter of BPF."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest

from verifiers.sandboxes.guest import seccomp

MACHINES = list(seccomp.AUDIT_ARCHITECTURE)
HEADERS = {
    "x86_64": ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h"],
    # Its own, from Debian's linux-libc-dev-arm64-cross or on such a machine; else the generic table it is made from.
    "aarch64": [
        "/usr/aarch64-linux-gnu/include/asm-generic/unistd.h",
        "/usr/include/asm-generic/unistd.h",
    ],
}
TABLES = (
    seccomp.DENIED,
    seccomp.UNBOUNDED_MEMORY,
    seccomp.AIMED_AT_PROCESS,
    seccomp.AIMED_BY_KIND,
    seccomp.SIGNALLING,
    seccomp._CHECKED,
)
ALL = {name: numbers for table in TABLES for name, numbers in table.items()}


def decide(
    machine: str, number: int, *arguments: int, architecture: int | None = None, **options: Any
) -> int:
    """What the kernel would do with a system call."""
    options = {"deny_unbounded_memory": False, **options}
    program = seccomp.instructions(machine, **options)
    return run(program, machine, number, *arguments, architecture=architecture)


def run(
    program: list[seccomp.Instruction],
    machine: str,
    number: int,
    *arguments: int,
    architecture: int | None = None,
) -> int:
    """Interpret a filter as the kernel would."""
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
    number = ALL[name][MACHINES.index(machine)]
    assert number is not None
    return number


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_call_is_denied_and_all_others_are_not(machine: str):
    column = MACHINES.index(machine)
    denied = {numbers[column] for numbers in seccomp.DENIED.values()}
    # Each has tests of its own, since its arguments decide.
    by_arguments = {
        numbers[column]
        for table in (seccomp.AIMED_AT_PROCESS, seccomp.AIMED_BY_KIND, seccomp._CHECKED)
        for numbers in table.values()
    }
    assert not denied & by_arguments - {None}
    for number in range(seccomp.NEWEST_KNOWN + 1):
        if number not in by_arguments:
            wanted = fails(1) if number in denied else seccomp.ALLOW
            assert decide(machine, number) == wanted, number


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str):
    headers = [Path(path) for path in HEADERS[machine] if Path(path).exists()]
    if not headers:
        pytest.skip(f"no kernel headers of {machine} here")
    numbers = dict(re.findall(r"#define __NR3?2?4?_?(\w+)\s+(\d+)", headers[0].read_text()))
    checked = 0
    for name, columns in ALL.items():
        number = columns[MACHINES.index(machine)]
        if name in numbers:
            assert number == int(numbers[name]), name
            checked += 1
        else:
            # Newer than these headers, or not on this architecture.
            assert number is None or number >= 440 or name in ("nfsservctl",), name
    assert checked > 75


def test_both_architectures_have_the_same_numbers_since_linux_5_1():
    for name, (x86_64, aarch64) in ALL.items():
        if x86_64 is not None and x86_64 >= 424:
            assert x86_64 == aarch64, name


@pytest.mark.parametrize("machine", MACHINES)
def test_no_jump_leaves_the_filter_and_every_way_ends_in_an_answer(machine: str):
    for options in (
        {},
        {"deny_unbounded_memory": True, "allow_sockets": False},
        {"protection": seccomp.Protection(77, forbids_signals=True)},
    ):
        program = seccomp.instructions(machine, **{"deny_unbounded_memory": False, **options})
        assert len(program) < 4096  # the kernel's limit
        for position, (code, if_true, if_false, _) in enumerate(program):
            if code != 0x06:
                assert max(if_true, if_false) < 256
                assert position + 1 + max(if_true, if_false) < len(program)
        assert program[-1].code == 0x06


AGENT = seccomp.Protection(77, forbids_signals=True)
FIRST = seccomp.Protection(1, forbids_signals=True)


@pytest.mark.parametrize("machine", MACHINES)
def test_commands_cannot_limit_or_starve_the_guest(machine: str):
    for program in (
        seccomp.instructions(machine, deny_unbounded_memory=False, protection=AGENT),
        seccomp.protection_alone(machine, AGENT),
    ):
        for name in seccomp.AIMED_AT_PROCESS:
            call = number_of(machine, name)
            assert run(program, machine, call, 77) == fails(1)
            assert run(program, machine, call, 77 | 1 << 32) == fails(1)
            for target in (0, 78, 1):
                assert run(program, machine, call, target) == seccomp.ALLOW
        for name, user_kind in (("setpriority", 2), ("ioprio_set", 3)):
            call = number_of(machine, name)
            assert run(program, machine, call, 0, 77) == fails(1)
            assert run(program, machine, call, user_kind, 1000) == fails(1)
            assert run(program, machine, call, 0, 0) == seccomp.ALLOW
            assert run(program, machine, call, 0, 78) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_signals_to_the_guest_are_refused_where_the_kernel_does_not_do_it(machine: str):
    minus = 2**64
    for protection, refused, allowed in (
        (AGENT, (77, minus - 77, minus - 1), (0, 78, 1)),
        # Process 1 uses kill(-1) itself to end all others.
        (FIRST, (1,), (0, 2, minus - 1)),
        (seccomp.Protection(), (), (1, minus - 1)),
    ):
        program = seccomp.instructions(machine, deny_unbounded_memory=False, protection=protection)
        for name in seccomp.SIGNALLING:
            call = number_of(machine, name)
            for target in refused:
                assert run(program, machine, call, target, 9) == fails(1)
            for target in allowed:
                assert run(program, machine, call, target, 9) == seccomp.ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_protection_alone_forbids_nothing_else(machine: str):
    program = seccomp.protection_alone(machine, AGENT)
    aimed = {**seccomp.AIMED_AT_PROCESS, **seccomp.AIMED_BY_KIND, **seccomp.SIGNALLING}
    by_arguments = {numbers[MACHINES.index(machine)] for numbers in aimed.values()}
    for number in (*range(600), 0x40000000 | 165):
        if number not in by_arguments:
            assert run(program, machine, number) == seccomp.ALLOW
    assert run(program, machine, 62, 77, architecture=0x40000003) == seccomp.ALLOW


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
