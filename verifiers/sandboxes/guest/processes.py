"""Which processes belong to which job, how to end them, and how much memory they take.

Each job has a mark that its processes inherit and cannot forge: the hard limits of two resources that Linux does not
use. Job n has the limits BASE + n and BASE - n. A process can lower a hard limit and never raise it, so no process can
turn its own pair into the pair of another job. Where limits cannot be set (gVisor), the mark is an environment
variable, which a process can change.
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
"""Set for every job, inherited by what it starts."""
_RLIMIT_LOCKS, _RLIMIT_RTTIME = 10, 15
"""Limits of file locks (unused since Linux 2.4) and of real-time processor time (no job may have a priority for it)."""
_MARK_BASE = 1 << 40
_MAX_ROUNDS = 64
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFacts(NamedTuple):
    """What /proc tells about one process."""

    pid: int
    parent: int
    session: int
    state: str
    """Of its first thread."""
    threads: int = 1


def running_processes() -> dict[int, ProcessFacts]:
    """All processes in sight but zombies."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if len(fields) < 18:
            continue  # it has just ended
        facts = ProcessFacts(
            int(name), int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[17])
        )
        if facts.state not in "ZX":
            found[facts.pid] = facts
    return found


def family(
    leaders: Iterable[int], marks: Iterable[int], processes: dict[int, ProcessFacts]
) -> set[int]:
    """Leaders, their sessions, all their descendants, and every process that has one of the marks."""
    leaders, wanted = set(leaders), set(marks)
    members = {
        pid
        for pid, facts in processes.items()
        if pid in leaders or facts.session in leaders or (wanted and mark_of(pid) in wanted)
    }
    grown = True
    while grown:
        more = {pid for pid, f in processes.items() if f.parent in members and pid not in members}
        members |= more
        grown = bool(more)
    return members


def set_mark(pid: int, job: int) -> None:
    """Mark a process (0 = this one) as one of a job, before it starts others."""
    try:
        for limit, amount in (
            (_RLIMIT_LOCKS, _MARK_BASE + job),
            (_RLIMIT_RTTIME, _MARK_BASE - job),
        ):
            resource.prlimit(pid, limit, (amount, amount))
    except (OSError, ValueError):
        pass  # it has ended already, or such limits cannot be set here: `mark_of` looks at the environment then


def mark_of(pid: int) -> int | None:
    """The job that a process belongs to, if its mark is genuine."""
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
    """End every process in this pid namespace except this one and the protected families.

    Where the processes of others are in sight (not `is_init`): every process that comes from this one.
    """
    if is_init and not protected_leaders:
        # One sweep by the kernel. Linux lets no fork slip through; gVisor does, so that a few rounds may be needed.
        for _ in range(_MAX_ROUNDS):
            _kill(-1, signal.SIGKILL)
            if not running_processes().keys() - {os.getpid()}:
                return
        return
    for _ in range(_MAX_ROUNDS):
        processes = running_processes() if is_init else own_descendants()
        processes.pop(os.getpid(), None)
        doomed = set(processes) - family(protected_leaders, protected_marks, processes)
        if not doomed:
            return
        _stop_then_kill(doomed)


def own_descendants() -> dict[int, ProcessFacts]:
    """All processes that come from this one. It must be a subreaper, so that detached ones stay below it."""
    processes = running_processes()
    members = family({os.getpid()}, (), processes) - {os.getpid()}
    return {pid: processes[pid] for pid in members}


def _stop_then_kill(doomed: set[int]) -> None:
    for pid in doomed:  # stopped first, so that none forks while the others die
        _kill(pid, signal.SIGSTOP)
    for pid in doomed:
        _kill(pid, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def own_memory_bytes(pid: int) -> int:
    """Anonymous and shared memory of one process, without mapped files where they are told apart. 0 if it is gone."""
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
    """How many descriptors a process has open; 0 if it is gone or does not let itself be looked at."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def is_runnable(facts: ProcessFacts) -> bool:
    """Whether any thread of a process wants to run. The first one may sleep while the others are busy."""
    if facts.state == "R" or facts.threads == 1:
        return facts.state == "R"
    try:
        for thread in os.listdir(f"/proc/{facts.pid}/task"):
            with open(f"/proc/{facts.pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split(None, 1)[0] == b"R":
                    return True
    except (OSError, IndexError):
        pass  # it has just ended
    return False


BUSY_PER_CORE = 4
"""More runnable processes than this, and they take turns."""
RUNNING_PER_CORE = 1
"""How many of them run at a time."""


class Throttle:
    """Call `tick` a few times a second with the sandbox's processes."""

    def __init__(self, cores: int) -> None:
        self._busy_limit = BUSY_PER_CORE * cores
        self._running_limit = RUNNING_PER_CORE * cores
        self._stopped: set[int] = set()
        self._turn = 0

    def tick(self, running: dict[int, ProcessFacts]) -> None:
        """Decide anew who runs until the next tick."""
        self._stopped &= running.keys()
        busy = sorted(p for p, f in running.items() if p in self._stopped or is_runnable(f))
        go: set[int] = set(busy)
        if len(busy) > self._busy_limit:
            start = self._turn % len(busy)
            go = set((busy + busy)[start : start + self._running_limit])
            self._turn += self._running_limit
        for pid in busy:
            if pid in go and pid in self._stopped:
                self._stopped.discard(pid)
                _kill(pid, signal.SIGCONT)
            elif pid not in go and pid not in self._stopped:
                self._stopped.add(pid)
                _kill(pid, signal.SIGSTOP)


_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_UNIX_MEMORY, _INET_MEMORY = 5, 7
_HEADER, _ATTRIBUTE, _MEMORY = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=9I")
_REQUESTS = (
    # (request, length of an answer before its attributes, attribute with the memory)
    (struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0, 0), 16, _UNIX_MEMORY),
    *(
        (struct.pack("=BBBBI48x", family, protocol, 1 << 6, 0, 0xFFFFFFFF), 72, _INET_MEMORY)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    ),
)
ASSUMED_BYTES = 208 << 10
"""Of one socket, where the kernel does not tell: the usual size of its buffer."""
LARGEST_BYTES = 1 << 20
"""One socket may take about as much; fewer sockets than would reach a limit with that are not looked at."""


class SocketMemory:
    """Ask for it while sockets may still be opened; use it afterwards."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._netlink.settimeout(1.0)
        self._statistics = open("/proc/net/sockstat", "rb", buffering=0)  # noqa: SIM115 - for the agent's whole life

    def used_bytes(self, limit_bytes: int) -> int:
        """Of all sockets together. 0 while there are too few for a quarter of the limit."""
        count = self._count()
        if 4 * count * LARGEST_BYTES < limit_bytes:
            return 0
        try:
            return sum(_used(*each) for request in _REQUESTS for each in self._dump(*request))
        except OSError:  # this kernel cannot list them
            return count * ASSUMED_BYTES

    def _count(self) -> int:
        self._statistics.seek(0)
        first = self._statistics.readline().split()
        return int(first[2]) if len(first) > 2 else 0

    def _dump(self, request: bytes, fixed: int, kind: int) -> Iterator[tuple[bytes, int, int]]:
        header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0)
        self._netlink.send(header + request)
        while True:
            data = self._netlink.recv(1 << 18)
            position = 0
            while position + _HEADER.size <= len(data):
                length, answer, _, _, _ = _HEADER.unpack_from(data, position)
                if answer == _DONE:
                    return
                if answer == _ERROR or length < _HEADER.size:
                    raise OSError("the kernel cannot list sockets of this kind")
                yield data[position : position + length], _HEADER.size + fixed, kind
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
    """Count the memory of sockets for the processes that hold descriptors, as many as each holds."""
    if not socket_bytes:
        return
    descriptors = {pid: count_descriptors(pid) for pid in sizes}
    total = sum(descriptors.values()) or 1
    for pid, count in descriptors.items():
        sizes[pid] += socket_bytes * count // total
