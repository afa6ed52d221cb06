"""Which processes belong to which job, how to end them, and how much memory they take. Reads /proc only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import NamedTuple

JOB_VARIABLE = "SANDBOX_JOB"
"""Set for every job, inherited by what it starts: the only trace a process leaves that detaches itself twice."""

_MAX_ROUNDS = 64
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFacts(NamedTuple):
    """What /proc tells about one process."""

    pid: int
    parent: int
    session: int
    state: str


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
        facts = ProcessFacts(int(name), int(fields[1]), int(fields[3]), fields[0].decode())
        if facts.state not in "ZX":
            found[facts.pid] = facts
    return found


def family(
    leaders: Iterable[int], marks: Iterable[bytes], processes: dict[int, ProcessFacts]
) -> set[int]:
    """Leaders, their sessions, all their descendants, and whoever carries one of the marks in its environment."""
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


def mark_of(pid: int) -> bytes | None:
    """The job that a process says it belongs to."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read(1 << 18)
    except OSError:
        return None
    key = JOB_VARIABLE.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :]
    return None


def kill_all_but(protected_leaders: set[int], protected_marks: set[bytes], is_init: bool) -> None:
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


def kill_family(leader: int, mark: bytes) -> None:
    """End a job's processes where the processes of others are in sight."""
    for _ in range(_MAX_ROUNDS):
        doomed = family({leader}, {mark}, own_descendants())
        if not doomed:
            return
        _stop_then_kill(doomed)


def kill_descendants() -> None:
    """End all processes that come from this one."""
    for _ in range(_MAX_ROUNDS):
        doomed = set(own_descendants())
        if not doomed:
            return
        _stop_then_kill(doomed)


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
