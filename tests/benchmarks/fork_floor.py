"""The floor of `CodeEnv`: forks of the prepared interpreter that run a program, without sandbox, limits or files.

    python tests/benchmarks/fork_floor.py

No figure is promised here: it says how much of what `bench_code_env.py` measures is the fork itself on this machine.
It imports little at its top: what a process has imported, its forks pay for.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import sys
from collections.abc import Callable

ZYGOTE = os.path.join(os.path.dirname(__file__), "../../verifiers/sandboxes/local/zygote")
PROGRAM = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"
FORKS, PROCESSES, ROUNDS = 300, 15, 5


def cost(run: Callable[[int], None], count: int) -> tuple[float, float]:
    """(milliseconds of processor time, page faults) of one of `count`, children included; the best of the rounds."""
    best = (float("inf"), float("inf"))
    for _ in range(ROUNDS):
        before = [resource.getrusage(who) for who in (0, -1)]
        run(count)
        after = [resource.getrusage(who) for who in (0, -1)]
        pairs = list(zip(before, after, strict=True))
        cpu_s = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in pairs)
        faults = sum(b.ru_minflt - a.ru_minflt for a, b in pairs)
        best = min(best, (1e3 * cpu_s / count, faults / count))
    return best


def processes(count: int) -> None:
    """One `python3` for each."""
    import subprocess

    for _ in range(count):
        command = [sys.executable, "-c", PROGRAM]
        subprocess.run(command, input=b"100\n", stdout=subprocess.DEVNULL, check=True)


def forks_that(play: Callable[[], None]) -> Callable[[int], None]:
    """One fork after the other, each of which does this and ends."""

    def run(count: int) -> None:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                play()
                os._exit(0)
            os.waitpid(pid, 0)

    return run


def prepared_forks() -> dict[str, tuple[float, float]]:
    """In an interpreter as the zygote prepares it."""
    sys.path.insert(0, os.path.abspath(ZYGOTE))
    import start  # pyright: ignore[reportMissingImports]

    start.make_packages()
    from sandboxes.guest import launch  # pyright: ignore[reportMissingImports]
    from sandboxes.local.zygote import linux, server  # noqa: F401  # pyright: ignore[reportMissingImports]

    launch.warm_up()
    given = os.memfd_create("stdin")
    os.write(given, b"100\n")
    code = compile(PROGRAM, "<program>", "exec")
    sys.stdin = io.TextIOWrapper(io.FileIO(given, closefd=False))

    def play() -> None:
        os.lseek(given, 0, os.SEEK_SET)
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()

    gc.collect()
    linux.trim_memory()
    gc.freeze()
    return {
        "a fork that ends at once": cost(forks_that(lambda: None), FORKS),
        "a fork that runs the program": cost(forks_that(play), FORKS),
    }


def main() -> None:
    """Print the table."""
    if len(sys.argv) > 1:
        os.write(int(sys.argv[1]), json.dumps(prepared_forks()).encode())
        return
    import subprocess

    out, into = os.pipe()
    command = [sys.executable, "-I", "-S", "-B", __file__, str(into)]
    environment = {"LD_BIND_NOW": "1"}
    subprocess.run(command, env=environment, pass_fds=[into], stdout=subprocess.DEVNULL, check=True)
    os.close(into)
    with open(out, "rb") as answer:
        figures = json.loads(answer.read())
    figures["a python3 process"] = cost(processes, PROCESSES)
    for name, (cpu_ms, faults) in figures.items():
        print(f"{name:32}{cpu_ms:8.2f} ms CPU{faults:8.0f} page faults")


if __name__ == "__main__":
    main()
