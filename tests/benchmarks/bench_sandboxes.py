"""Figures of the local sandboxes, with the local-process floor beside them.

usage: python tests/benchmarks/bench_sandboxes.py [--boxes 256,1000] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import glob
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from verifiers.sandboxes import SandboxPool, SandboxSpec
from verifiers.sandboxes.local import LocalBackend

FIGURES: dict[str, float] = {}
GROUPS = "/sys/fs/cgroup/**/vf-*"


def row(name: str, value: float, need: float | None, unit: str = "ms", note: str = "") -> None:
    FIGURES[name] = value
    verdict = "" if need is None else "ok" if value <= need else "OVER"
    wanted = "" if need is None else f"<= {need:g}"
    print(f"{name:58} {value:10.3f} {unit:8} {wanted:12} {verdict:5} {note}", flush=True)


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


async def times_ms(action: Callable[[], Awaitable[object]], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started_s = time.perf_counter()
        await action()
        times.append((time.perf_counter() - started_s) * 1e3)
    return times


async def local_process() -> None:
    process = await asyncio.create_subprocess_exec(
        "true", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await process.communicate()


async def single(backend: LocalBackend) -> None:
    async def create() -> None:
        sandbox = await backend.create(SandboxSpec())
        await sandbox.ready()
        created.append(sandbox)

    created: list = []
    await times_ms(create, 5)
    creating = await times_ms(create, 60)
    row("create p50", quantile(creating, 0.5), 6)
    row("create p99", quantile(creating, 0.99), None)
    await asyncio.gather(*(sandbox.terminate() for sandbox in created))

    async with await backend.create(SandboxSpec()) as sandbox:
        await sandbox.exec(["true"])
        floor, inside = [], []
        for _ in range(10):  # side by side, so that other load on the machine hits both alike
            floor += await times_ms(local_process, 40)
            inside += await times_ms(lambda: sandbox.exec(["true"]), 40)
        row("local asyncio subprocess `true` p50 (floor)", quantile(floor, 0.5), None)
        row("local asyncio subprocess `true` p99 (floor)", quantile(floor, 0.99), None)
        row("exec `true` p50", quantile(inside, 0.5), None)
        row("exec `true` p50 / floor", quantile(inside, 0.5) / quantile(floor, 0.5), 1.5, "x")
        row("exec `true` p99", quantile(inside, 0.99), 15)
        async with await sandbox.python() as session:
            await session.run("1")
            row(
                "REPL cell p50",
                quantile(await times_ms(lambda: session.run("1 + 1"), 400), 0.5),
                0.5,
            )
        row(
            "write 1 kB p50",
            quantile(await times_ms(lambda: sandbox.write("f", bytes(1000)), 50), 0.5),
            None,
        )
        row("read 1 kB p50", quantile(await times_ms(lambda: sandbox.read("f"), 50), 0.5), None)
        started_s = time.perf_counter()
        await sandbox.exec("head -c 200M /dev/zero", max_output_bytes=1000)
        row("drained stdout", 200 / (time.perf_counter() - started_s), None, "MB/s")

    async with SandboxPool(backend, SandboxSpec(), size=8) as pool:
        acquiring, using = [], []
        for _ in range(30):
            while pool.ready_count < 8:  # noqa: ASYNC110 - a benchmark may look now and then
                await asyncio.sleep(0.005)
            started_s = time.perf_counter()
            sandbox = await pool.acquire()
            acquiring.append((time.perf_counter() - started_s) * 1e3)
            await sandbox.exec(["true"])
            using.append((time.perf_counter() - started_s) * 1e3)
            await sandbox.terminate()
        row("acquire from warm pool p50", quantile(acquiring, 0.5), 0.1)
        row("acquire + first `true` p50", quantile(using, 0.5), None)


async def python_by_fork(backend: LocalBackend) -> None:
    async with await backend.create(SandboxSpec()) as sandbox:
        row(
            "python by fork p50",
            quantile(await times_ms(lambda: sandbox.run_python("1"), 60), 0.5),
            None,
        )
        fresh = await times_ms(lambda: sandbox.exec(["python3", "-c", "1"]), 20)
        row("fresh `python3 -c 1` p50 (floor)", quantile(fresh, 0.5), None)
    spec = SandboxSpec(packages="host", preload=("numpy",), memory_mb=1024)
    async with await backend.create(spec) as sandbox:
        code = "import numpy; numpy.arange(10).sum()"
        await sandbox.run_python(code)
        row(
            "python by fork, numpy ready, p50",
            quantile(await times_ms(lambda: sandbox.run_python(code), 60), 0.5),
            10,
        )


async def overlap(backend: LocalBackend) -> None:
    waits = []
    for _ in range(10):
        async with await backend.create(SandboxSpec()) as sandbox:
            await asyncio.sleep(0.05)  # the first turn of a model
            waits.append(await sandbox.ready() * 1e3)
    row("wait seen after a first turn of 50 ms, p50", quantile(waits, 0.5), 0.05)


def group_memory_bytes() -> int:
    """Charged to the groups of all sandboxes of this machine, kernel memory included."""
    names = ("memory.usage_in_bytes", "memory.current")
    paths = [path for name in names for path in glob.glob(f"{GROUPS}/*/{name}", recursive=True)]
    return sum(int(Path(path).read_text()) for path in paths)


def own_groups() -> set[str]:
    return set(glob.glob(GROUPS, recursive=True))


async def many(count: int, need_s: float, teardown_need_s: float | None) -> None:
    async with LocalBackend() as backend:
        await backend.probe()
        before = group_memory_bytes()
        started_s = time.perf_counter()
        sandboxes = [await backend.create(SandboxSpec()) for _ in range(count)]
        await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
        row(f"{count} ready and first command done", time.perf_counter() - started_s, need_s, "s")
        after = group_memory_bytes()
        if after:
            row(f"memory per idle box of {count}", (after - before) / count / 2**20, 3, "MiB")
        started_s = time.perf_counter()
        await asyncio.gather(*(sandbox.exec(["true"], timeout_s=60) for sandbox in sandboxes))
        row(
            f"{count} more commands at once",
            count / (time.perf_counter() - started_s),
            None,
            "exec/s",
        )
        started_s = time.perf_counter()
        await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))
        row(f"{count} torn down", time.perf_counter() - started_s, teardown_need_s, "s")


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


def count_of(token: bytes) -> int:
    count = 0
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            count += token in Path(path).read_bytes()
    return count


async def killed_host() -> None:
    groups_before = own_groups()
    host = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", HOST], stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    host.stdout.readline()
    host.send_signal(signal.SIGKILL)
    started_s = time.perf_counter()
    while count_of(b"sleep\x00987654"):
        pass
    row(
        "kill -9 of a host with 50 boxes: last process gone",
        time.perf_counter() - started_s,
        1,
        "s",
    )
    await asyncio.to_thread(host.wait)
    host.stdout.close()
    async with LocalBackend() as backend:
        await backend.probe()
    row("control groups left after the next start", len(own_groups() - groups_before), 0, "groups")


async def many_tests(backend: LocalBackend) -> None:
    """256 programs with 15 tests each: forks of one sandbox against one `python3` per test."""
    code = "a, b = map(int, input().split()); print(a + b)"
    sandboxes = [await backend.create(SandboxSpec()) for _ in range(16)]
    await asyncio.gather(*(sandbox.ready() for sandbox in sandboxes))

    async def forks(sandbox) -> None:
        for number in range(30):
            result = await sandbox.run_python(code, stdin=b"%d 1" % number)
            assert result.text == f"{number + 1}\n", result

    async def fresh(number: int) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        output, _ = await process.communicate(b"%d 1" % number)
        assert output == b"%d\n" % (number + 1)

    started_s = time.perf_counter()
    await asyncio.gather(*(forks(sandbox) for sandbox in sandboxes))
    per_fork_s = (time.perf_counter() - started_s) / (16 * 30)
    gate = asyncio.Semaphore(8)

    async def gated(number: int) -> None:
        async with gate:
            await fresh(number)

    started_s = time.perf_counter()
    await asyncio.gather(*(gated(number) for number in range(160)))
    per_process_s = (time.perf_counter() - started_s) / 160
    row("one test by fork", per_fork_s * 1e3, None)
    row("one test by a local python3 process (floor)", per_process_s * 1e3, None)
    row("fork tests per python3 process test", per_process_s / per_fork_s, None, "x")
    await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boxes", default="256,1000")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}"
    )
    async with LocalBackend() as backend:
        info = await backend.probe()
        print(info.limits)
        await single(backend)
        await python_by_fork(backend)
        await overlap(backend)
        await many_tests(backend)
    for count in map(int, options.boxes.split(",")):
        await many(count, *((1.5, 0.5) if count <= 256 else (10.0, None)))
    await killed_host()
    if options.json:
        options.json.write_text(json.dumps(FIGURES, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
