"""Processes of a sandbox: which job they belong to, how to kill them, their memory, and a fair share of CPU time.

Each job has a mark that its processes inherit and cannot forge: the hard limits of two resources that Linux does
not use. Job n has the limits BASE + n and BASE - n. A process can lower a hard limit and never raise it, so no
process can turn its own pair into the pair of another job. Where limits cannot be set (gVisor), the mark is an
environment variable, which a process can change.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

JOB_VARIABLE = "SANDBOX_JOB"
"""Variable of every job, inherited by its processes."""
_RLIMIT_LOCKS, _RLIMIT_RTTIME = 10, 15
"""Limits of file locks (unused since Linux 2.4) and of real-time CPU time (no job may have a real-time priority)."""
_MARK_BASE = 1 << 40
_MAX_ROUNDS = 64
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFacts(NamedTuple):
    """Fields of one process in /proc."""

    pid: int
    parent: int
    session: int
    state: str
    """State of the first thread."""
    threads: int = 1


def running_processes() -> dict[int, ProcessFacts]:
    """Return all visible processes except zombies."""
    by_pid = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) < 18:
            continue  # the process has just ended
        facts = ProcessFacts(
            int(name), int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[17])
        )
        if facts.state not in "ZX":
            by_pid[facts.pid] = facts
    return by_pid


def family(
    leaders: Iterable[int], marks: Iterable[int], processes: dict[int, ProcessFacts]
) -> set[int]:
    """Return leaders, their sessions, all their descendants, and every process that has one of the marks."""
    leaders, wanted_marks = set(leaders), set(marks)
    members = {
        pid
        for pid, facts in processes.items()
        if pid in leaders
        or facts.session in leaders
        or (wanted_marks and mark_of(pid) in wanted_marks)
    }
    has_grown = True
    while has_grown:
        more = {pid for pid, f in processes.items() if f.parent in members and pid not in members}
        members |= more
        has_grown = bool(more)
    return members


def set_mark(pid: int, job: int) -> None:
    """Mark a process (0 = this one) as part of a job, before it starts others."""
    try:
        for limit, amount in (
            (_RLIMIT_LOCKS, _MARK_BASE + job),
            (_RLIMIT_RTTIME, _MARK_BASE - job),
        ):
            resource.prlimit(pid, limit, (amount, amount))
    except (OSError, ValueError):
        pass  # the process has ended, or such limits cannot be set here: `mark_of` then reads the environment


def mark_of(pid: int) -> int | None:
    """Return the job that a process belongs to, or None if its mark is not genuine."""
    try:
        above = resource.prlimit(pid, _RLIMIT_LOCKS)[1]
        below = resource.prlimit(pid, _RLIMIT_RTTIME)[1]
    except (OSError, ValueError):
        return _mark_in_environment(pid)
    if above == below == resource.RLIM_INFINITY:
        return _mark_in_environment(pid)
    job = above - _MARK_BASE
    return job if below == _MARK_BASE - job else None


def _mark_in_environment(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read(1 << 18)
    except OSError:
        return None
    key = JOB_VARIABLE.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(key):
            value = entry[len(key) :]
            return int(value) if value.isdigit() and len(value) < 12 else None
    return None


def kill_all_but(protected_leaders: set[int], protected_marks: set[int], is_init: bool) -> None:
    """Kill every process in this pid namespace except this one and the protected families.

    If processes of others are visible (`is_init` is false): kill every descendant of this process.
    """
    if is_init and not protected_leaders:
        # One call kills all. On Linux no fork escapes it; on gVisor forks can, so several rounds may be needed.
        for _ in range(_MAX_ROUNDS):
            _kill(-1, signal.SIGKILL)
            if not running_processes().keys() - {os.getpid()}:
                return
        return
    for _ in range(_MAX_ROUNDS):
        processes = running_processes() if is_init else own_descendants()
        processes.pop(os.getpid(), None)
        victims = set(processes) - family(protected_leaders, protected_marks, processes)
        if not victims:
            return
        _stop_then_kill(victims)


def own_descendants() -> dict[int, ProcessFacts]:
    """Return all descendants of this process, which must be a subreaper, so that detached ones stay below it."""
    processes = running_processes()
    members = family({os.getpid()}, (), processes) - {os.getpid()}
    return {pid: processes[pid] for pid in members}


def _stop_then_kill(victims: set[int]) -> None:
    for pid in victims:  # stop them first, so that none forks while the others die
        _kill(pid, signal.SIGSTOP)
    for pid in victims:
        _kill(pid, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def own_memory_bytes(pid: int) -> int:
    """Return the anonymous and shared memory of a process, without mapped files if the kernel counts them apart.

    Returns 0 for a process that has ended.
    """
    total, with_files = 0, 0
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith((b"RssAnon:", b"RssShmem:")):
                    total += int(line.split()[1]) << 10
                elif line.startswith(b"VmRSS:"):
                    with_files = int(line.split()[1]) << 10
    except OSError:
        return 0
    return total or with_files


def address_space_bytes() -> int:
    """Return the size of the address space of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * PAGE_BYTES


def count_descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process; 0 if it has ended or cannot be inspected."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def is_runnable(facts: ProcessFacts) -> bool:
    """Whether any thread of a process is runnable. The first thread may sleep while others are busy."""
    if facts.state == "R" or facts.threads == 1:
        return facts.state == "R"
    try:
        for thread in os.listdir(f"/proc/{facts.pid}/task"):
            with open(f"/proc/{facts.pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split(None, 1)[0] == b"R":
                    return True
    except (OSError, IndexError):
        pass  # the process has just ended
    return False


BUSY_PER_CORE = 4
"""Number of runnable processes per core above which they take turns."""
RUNNING_PER_CORE = 1
"""Number of processes per core that run at the same time when they take turns."""


class Throttle:
    """Shares CPU time fairly without a control group: lets busy processes take turns.

    Linux gives every session (`setsid`) an equal share of CPU time, so 60 busy sessions in one sandbox would starve
    a sandbox with one. The throttle lets a few processes run at a time and stops the others, in rotation. Call
    `tick` a few times per second with the sandbox's processes.
    """

    def __init__(self, cores: int) -> None:
        self._busy_limit = BUSY_PER_CORE * cores
        self._running_limit = RUNNING_PER_CORE * cores
        self._stopped: set[int] = set()
        self._turn = 0

    def tick(self, running: dict[int, ProcessFacts]) -> None:
        """Choose the processes that run until the next tick."""
        self._stopped &= running.keys()
        busy = sorted(p for p, f in running.items() if p in self._stopped or is_runnable(f))
        allowed: set[int] = set(busy)
        if len(busy) > self._busy_limit:
            start = self._turn % len(busy)
            allowed = set((busy + busy)[start : start + self._running_limit])
            self._turn += self._running_limit
        for pid in busy:
            if pid in allowed and pid in self._stopped:
                self._stopped.discard(pid)
                _kill(pid, signal.SIGCONT)
            elif pid not in allowed and pid not in self._stopped:
                self._stopped.add(pid)
                _kill(pid, signal.SIGSTOP)


_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_UNIX_MEMORY, _INET_MEMORY = 5, 7
_HEADER, _ATTRIBUTE, _MEMORY = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=9I")
_REQUESTS = (
    # (request, length of a reply before its attributes, attribute with the memory)
    (struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0, 0), 16, _UNIX_MEMORY),
    *(
        (struct.pack("=BBBBI48x", family, protocol, 1 << 6, 0, 0xFFFFFFFF), 72, _INET_MEMORY)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    ),
)
ASSUMED_SOCKET_BYTES = 208 << 10
"""Assumed memory of one socket if the kernel does not report it: the usual size of its buffer."""
MAX_SOCKET_BYTES = 1 << 20
"""Approximate maximum memory of one socket. If the number of sockets times this size is far below the limit, the
sockets are not inspected.
"""


class SocketMemory:
    """Measures the kernel memory of the sockets in this network namespace, which no process limit and no RSS counts.

    Make it while sockets may still be opened; use it afterwards.
    """

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._netlink.settimeout(1.0)
        self._statistics = open("/proc/net/sockstat", "rb", buffering=0)  # noqa: SIM115 - open until the guest ends

    def used_bytes(self, limit_bytes: int) -> int:
        """Return the memory of all sockets; 0 while their number is too low to reach a quarter of the limit."""
        count = self._count()
        if 4 * count * MAX_SOCKET_BYTES < limit_bytes:
            return 0
        try:
            return sum(_used(*each) for request in _REQUESTS for each in self._dump(*request))
        except OSError:  # this kernel cannot list sockets
            return count * ASSUMED_SOCKET_BYTES

    def _count(self) -> int:
        self._statistics.seek(0)
        first = self._statistics.readline().split()
        return int(first[2]) if len(first) > 2 else 0

    def _dump(
        self, request: bytes, fixed_bytes: int, kind: int
    ) -> Iterator[tuple[bytes, int, int]]:
        header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0)
        self._netlink.send(header + request)
        while True:
            data = self._netlink.recv(1 << 18)
            position = 0
            while position + _HEADER.size <= len(data):
                length, reply_kind, _, _, _ = _HEADER.unpack_from(data, position)
                if reply_kind == _DONE:
                    return
                if reply_kind == _ERROR or length < _HEADER.size:
                    raise OSError("the kernel cannot list sockets of this kind")
                yield data[position : position + length], _HEADER.size + fixed_bytes, kind
                position += (length + 3) & ~3


def _used(message: bytes, start: int, kind: int) -> int:
    while start + _ATTRIBUTE.size <= len(message):
        length, number = _ATTRIBUTE.unpack_from(message, start)
        if number == kind and length >= _ATTRIBUTE.size + _MEMORY.size:
            received, _, written, _, forward, queued, options, backlog, _ = _MEMORY.unpack_from(
                message, start + _ATTRIBUTE.size
            )
            return received + max(written, queued) + forward + options + backlog
        start += max(4, (length + 3) & ~3)
    return 0


def add_socket_shares(sizes: dict[int, int], socket_bytes: int) -> None:
    """Add the memory of sockets to the processes that hold descriptors, in proportion to their number."""
    if not socket_bytes:
        return
    descriptors = {pid: count_descriptors(pid) for pid in sizes}
    total = sum(descriptors.values()) or 1
    for pid, count in descriptors.items():
        sizes[pid] += socket_bytes * count // total
