"""`CodeEnv`: programs and their tests, beside one `python3` process for each test.

    python tests/benchmarks/bench_code_env.py [PROGRAMS] [--rounds N] [--json FILE]

The floor runs the same programs on the same inputs without any isolation, as many at once, in rounds that alternate
with ours: a ratio of the same minute means something on a machine that also does other things. CPU is user and system
time of everything together, sandboxes, their making and their end included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple

from cpu_meter import CpuMeter

import verifiers as vf
from verifiers.testing import ScriptedClient

TESTS = [
    {"input": f"{n}\n", "output": f"{sum(i * i for i in range(n))}\n"} for n in range(100, 115)
]
PLAIN = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"
IMPORTING = (
    "import sys\nimport heapq\nimport random\nfrom collections import defaultdict, deque\n"
    "from functools import lru_cache\nfrom typing import List\n"
    "n = int(sys.stdin.readline())\nheap = []\n"
    "for i in range(n):\n    heapq.heappush(heap, i * i)\n"
    "print(sum(heap))\n"
)
HARNESS = (
    "bisect collections copy datetime functools heapq io itertools json math operator random re statistics "
    "string sys typing"
)
"""What harnesses of code benchmarks import before each program (LiveCodeBench's `import_string` names these)."""
WITH_HARNESS = "".join(f"from {name} import *\n" for name in HARNESS.split()) + PLAIN
NUMPY = "import numpy\n" + PLAIN


class Case(NamedTuple):
    """Programs of one kind."""

    name: str
    program: str
    spec: dict
    ratio_needed: float
    floor_share: int
    """The floor runs one program where we run so many: it would take minutes."""


CASES = (
    # Forks of an interpreter end below ten where a process imports nothing: fork_floor.py, docs/decisions/0009.
    Case("program without an import", PLAIN, {}, 4.0, 8),
    Case("program that imports 6 modules", IMPORTING, {}, 7.0, 8),
    Case("program with a harness's imports", WITH_HARNESS, {}, 8.0, 16),
    Case(
        "the same, with them preloaded", WITH_HARNESS, {"preload": tuple(HARNESS.split())}, 10.0, 16
    ),
    Case(
        "program that imports numpy", NUMPY, {"packages": "host", "preload": ("numpy",)}, 10.0, 32
    ),
)


class Cost(NamedTuple):
    """Of one test."""

    wall_s: float
    cpu_s: float | None


async def measured(meter: CpuMeter, work: Awaitable[object], tests: int) -> Cost:
    """What a test costs when `work` runs so many of them."""
    cpu_s, started_s = meter.seconds(), time.perf_counter()
    await work
    wall_s, cpu_after_s = time.perf_counter() - started_s, meter.seconds()
    if cpu_s is None or cpu_after_s is None:
        return Cost(wall_s / tests, None)
    return Cost(wall_s / tests, (cpu_after_s - cpu_s) / tests)


async def in_sandboxes(env: vf.CodeEnv, program: str, count: int, at_once: int) -> None:
    """`count` rollouts, sandboxes and scoring included."""
    client = ScriptedClient(then=f"```python\n{program}```")
    results = await env.evaluate(client, "scripted", num_examples=count, max_concurrent=at_once)
    wrong = [output for output in results.outputs if output["reward"] != 1.0]
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {count} programs did not pass: {wrong[0]}")


async def in_processes(program: str, count: int, at_once: int) -> None:
    """The same tests with a process for each."""
    slots = asyncio.Semaphore(at_once)

    async def one(test: dict[str, str]) -> None:
        async with slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdin=-1, stdout=-1
            )
            printed, _ = await process.communicate(test["input"].encode())
            if printed.decode() != test["output"]:
                raise RuntimeError(f"the floor printed {printed!r} instead of {test['output']!r}")

    await asyncio.gather(*(one(test) for _ in range(count) for test in TESTS))


async def run_case(case: Case, programs: int, rounds: int, meter: CpuMeter) -> tuple[list, list]:
    """The costs of each round, ours and the floor's."""
    at_once = 2 * (os.cpu_count() or 1)
    count = max(1, programs // rounds)
    rows = [{"question": "q", "answer": "", "info": {"tests": json.dumps(TESTS)}}] * count
    env = vf.CodeEnv(dataset=rows, sandbox_spec=case.spec)
    env.set_concurrency(at_once)
    ours, floor = [], []
    async with env:
        await in_sandboxes(env, case.program, 1, 1)  # starts what all share
        for _ in range(rounds):
            work = in_sandboxes(env, case.program, count, at_once)
            ours.append(await measured(meter, work, count * len(TESTS)))
            share = max(1, count // case.floor_share)
            work = in_processes(case.program, share, at_once)
            floor.append(await measured(meter, work, share * len(TESTS)))
    return ours, floor


def ratios(ours: list[Cost], floor: list[Cost]) -> tuple[float, float | None]:
    """(by the clock, in processor time): the medians of the rounds."""
    walls = [theirs.wall_s / mine.wall_s for mine, theirs in zip(ours, floor, strict=True)]
    cpus = [
        theirs.cpu_s / mine.cpu_s
        for mine, theirs in zip(ours, floor, strict=True)
        if mine.cpu_s and theirs.cpu_s
    ]
    return statistics.median(walls), statistics.median(cpus) if cpus else None


def shown(costs: list[Cost], field: str) -> str:
    """The median in milliseconds."""
    values = [getattr(cost, field) for cost in costs if getattr(cost, field) is not None]
    return f"{1e3 * statistics.median(values):.2f}" if values else "-"


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 if a ratio is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=int, nargs="?", default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--case", type=int, action="append", choices=range(len(CASES)))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    meter = CpuMeter().start()
    missed, figures = 0, {}
    print(
        f"{options.programs} programs x {len(TESTS)} tests; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, "
        f"Python {sys.version.split()[0]}; ms per test, medians of {options.rounds} rounds"
    )
    print(
        f"{'':32}{'wall':>8}{'python3':>9}{'ratio':>7}{'CPU':>9}{'python3':>9}{'ratio':>7}{'need':>6}"
    )
    try:
        for case in [CASES[number] for number in options.case or range(len(CASES))]:
            ours, floor = asyncio.run(run_case(case, options.programs, options.rounds, meter))
            wall, cpu = ratios(ours, floor)
            missed += wall < case.ratio_needed
            figures[case.name] = {"wall": wall, "cpu": cpu, "ours": ours, "floor": floor}
            print(
                f"{case.name:32}{shown(ours, 'wall_s'):>8}{shown(floor, 'wall_s'):>9}{wall:>7.1f}"
                f"{shown(ours, 'cpu_s'):>9}{shown(floor, 'cpu_s'):>9}{'-' if cpu is None else f'{cpu:.1f}':>7}"
                f"{case.ratio_needed:>6.0f}  {'ok' if wall >= case.ratio_needed else 'MISSED'}",
                flush=True,
            )
    finally:
        meter.close()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
