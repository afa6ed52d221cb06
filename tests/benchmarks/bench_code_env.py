"""`CodeEnv`: programs and their tests for each minute, beside one `python3` process for each test.

    python tests/benchmarks/bench_code_env.py [programs] [--numpy]

The comparison runs the same programs on the same inputs, without any isolation, as many at once. With `--numpy` the
programs begin with `import numpy`, which the sandboxes have imported beforehand.
"""

import argparse
import asyncio
import json
import os
import sys
import time

import verifiers as vf
from verifiers.testing import ScriptedClient

TESTS = [
    {"input": f"{n}\n", "output": f"{sum(i * i for i in range(n))}\n"} for n in range(100, 115)
]
PROGRAM = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"


async def in_sandboxes(program: str, count: int, at_once: int, packages: str | None) -> float:
    """Seconds for `count` rollouts, sandboxes and scoring included."""
    spec = {"packages": packages, "preload": ("numpy",)} if packages else {}
    rows = [{"question": "q", "answer": "", "info": {"tests": json.dumps(TESTS)}}] * count
    env = vf.CodeEnv(dataset=rows, sandbox_spec=spec)
    env.set_concurrency(at_once)
    client = ScriptedClient(then=f"```python\n{program}```")
    async with env:
        await env.evaluate(client, "scripted", num_examples=1)  # starts what all share
        started = time.perf_counter()
        results = await env.evaluate(client, "scripted", num_examples=count, max_concurrent=at_once)
        took_s = time.perf_counter() - started
    assert all(output["reward"] == 1.0 for output in results.outputs)
    return took_s


async def in_processes(program: str, count: int, at_once: int) -> float:
    """Seconds for the same tests with a process for each."""
    slots = asyncio.Semaphore(at_once)

    async def one(test: dict[str, str]) -> None:
        async with slots:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdin=-1, stdout=-1
            )
            printed, _ = await process.communicate(test["input"].encode())
            assert printed.decode() == test["output"]

    started = time.perf_counter()
    await asyncio.gather(*(one(test) for _ in range(count) for test in TESTS))
    return time.perf_counter() - started


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=int, nargs="?", default=256)
    parser.add_argument("--numpy", action="store_true")
    options = parser.parse_args()
    program = "import numpy\n" * options.numpy + PROGRAM
    at_once = 2 * (os.cpu_count() or 1)
    tests = options.programs * len(TESTS)
    ours_s = await in_sandboxes(
        program, options.programs, at_once, "host" if options.numpy else None
    )
    share = 16  # of the comparison, which would take minutes
    theirs_s = share * await in_processes(program, options.programs // share, at_once)
    sys.stdout.write(
        f"{options.programs} programs x {len(TESTS)} tests, {at_once} at once\n"
        f"CodeEnv                    {ours_s:7.2f} s   {60 * tests / ours_s:9.0f} tests a minute\n"
        f"one process for each test  {theirs_s:7.2f} s   {60 * tests / theirs_s:9.0f} tests a minute\n"
        f"ratio                      {theirs_s / ours_s:7.1f}\n"
    )


if __name__ == "__main__":
    asyncio.run(main())
