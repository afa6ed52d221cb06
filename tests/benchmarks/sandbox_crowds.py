"""Hundreds of sandboxes at once: making them, what they hold, ending them, and a host that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import signal
import subprocess
import sys
import time
from pathlib import Path

from sandbox_figures import Figure, local_process

from verifiers.sandboxes import SandboxSpec
from verifiers.sandboxes.local import LocalBackend

BOUNDS = {256: (1.5, 0.5), 1000: (10.0, None)}
"""Sandboxes → seconds until all are ready and have run a command, seconds until all are gone."""
GROUPS = "/sys/fs/cgroup/**/vf-*"
HOST = """
import asyncio
from verifiers.sandboxes import SandboxSpec
from verifiers.sandboxes.local import LocalBackend
async def main():
    async with LocalBackend() as backend:
        boxes = [await backend.create(SandboxSpec()) for _ in range(50)]
        await asyncio.gather(*(b.spawn("trap '' TERM; setsid sleep 987654 & sleep 987654") for b in boxes))
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
LEFT_BEHIND = b"sleep\x00987654"


async def crowd(count: int) -> list[Figure]:
    """So many sandboxes at once."""
    ready_bound_s, gone_bound_s = BOUNDS.get(count, (None, None))
    floor_s, floor_gone_s, floor_mib = await _local_crowd(count)
    async with LocalBackend() as backend:
        await backend.probe()
        before = _group_memory_bytes()
        started_s = time.perf_counter()
        sandboxes = [await backend.create(SandboxSpec()) for _ in range(count)]
        await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
        ready_s = time.perf_counter() - started_s
        held = _group_memory_bytes() - before
        started_s = time.perf_counter()
        await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
        again_s = time.perf_counter() - started_s
        started_s = time.perf_counter()
        await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))
        gone_s = time.perf_counter() - started_s
    figures = [
        Figure(f"{count} ready, first command done", ready_s, "s", ready_bound_s, floor_s),
        Figure(f"{count} more commands", again_s, "s", None, floor_s),
        Figure(f"{count} torn down", gone_s, "s", gone_bound_s, floor_gone_s),
    ]
    if held > 0:  # without control groups nobody keeps the account
        mib = held / count / 2**20
        figures.append(Figure(f"memory of an idle one of {count}", mib, "MiB", 3, floor_mib))
    return figures


async def _local_crowd(count: int) -> tuple[float, float, float]:
    """The floor: (seconds for so many `true`, seconds to end so many processes, MiB of an idle interpreter)."""
    slots = asyncio.Semaphore(16)

    async def one() -> None:
        async with slots:
            await local_process()

    started_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    took_s = time.perf_counter() - started_s
    idle = [await asyncio.create_subprocess_exec("sleep", "600") for _ in range(count)]
    started_s = time.perf_counter()
    for process in idle:
        process.kill()
    await asyncio.gather(*(process.wait() for process in idle))
    gone_s = time.perf_counter() - started_s
    waiting = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "print(flush=True); input()", stdin=-1, stdout=-1
    )
    assert waiting.stdout is not None
    await waiting.stdout.readline()
    own_mib = _private_mib(waiting.pid)
    await waiting.communicate(b"\n")
    return took_s, gone_s, own_mib


def _private_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return kib / 1024


async def killed_host() -> list[Figure]:
    """`kill -9` of a host with 50 sandboxes full of processes that ignore SIGTERM."""
    groups_before, mounts_before = _own_groups(), _mounts()
    host = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", HOST], stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    with host.stdout:
        await asyncio.to_thread(host.stdout.readline)
        host.send_signal(signal.SIGKILL)
        started_s = time.perf_counter()
        while _processes_with(LEFT_BEHIND) and time.perf_counter() - started_s < 30:
            pass
        gone_s = time.perf_counter() - started_s
        await asyncio.to_thread(host.wait)
    async with LocalBackend() as backend:
        await backend.probe()
    left = len(_own_groups() - groups_before)
    return [
        Figure("kill -9 of a host with 50: last process gone", gone_s, "s", 1, None),
        Figure("… mounts left", max(0, _mounts() - mounts_before), "", 0, None),
        Figure("… control groups left after the next start", left, "", 0, None),
    ]


def _group_memory_bytes() -> int:
    """Charged to the groups of all sandboxes of this machine, kernel memory included."""
    names = ("memory.usage_in_bytes", "memory.current")
    total = 0
    for path in (p for n in names for p in glob.glob(f"{GROUPS}/*/{n}", recursive=True)):
        with contextlib.suppress(OSError):  # of another program, which has just ended it
            total += int(Path(path).read_text())
    return total


def _own_groups() -> set[str]:
    return set(glob.glob(GROUPS, recursive=True))


def _mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def _processes_with(token: bytes) -> int:
    count = 0
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += token in Path(path).read_bytes()
    return count
