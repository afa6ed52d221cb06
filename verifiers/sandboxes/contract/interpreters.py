"""Promises of `Sandbox.python` and `PythonSession`."""

# ruff: noqa: D103 - the name of a behaviour is the promise
from __future__ import annotations

import asyncio

from verifiers.sandboxes.contract.bench import Bench, Collection, expect, expect_error, expect_true

BEHAVIOURS = Collection()
promise, promise_if = BEHAVIOURS.promise, BEHAVIOURS.promise_if


@promise
async def variables_stay_from_cell_to_cell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        expect((await session.run("import math\nx = 20\ndef f(y):\n    return x + y")).ok, True)
        result = await session.run("f(22)")
        expect((result.value, result.stdout, result.error), ("42", b"", None))


@promise
async def the_last_expression_is_the_value(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        expect((await session.run("1\n'two'")).value, "'two'")
        expect((await session.run("x = 1")).value, None)
        expect((await session.run("None")).value, None)
        expect((await session.run("")).value, None)
        expect((await session.run("# only a comment")).ok, True)


@promise
async def what_a_cell_prints_is_its_own(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        first = await session.run(
            "import os, sys, subprocess\nprint('out')\nprint('err', file=sys.stderr)\n"
            "os.write(1, b'raw\\n')\nsubprocess.run(['echo', 'child'])\n7"
        )
        expect((first.stdout, first.stderr, first.value), (b"out\nraw\nchild\n", b"err\n", "7"))
        expect((await session.run("print('next', end='')")).stdout, b"next")


@promise
async def an_exception_is_data_and_the_session_goes_on(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run("x = 5\ndef f():\n    raise KeyError('missing')")
        result = await session.run("print('before')\nf()\nprint('never')")
        error = result.error
        expect_true(error is not None, "no error was reported")
        assert error is not None
        expect((error.type, error.message, result.stdout), ("KeyError", "'missing'", b"before\n"))
        expect_true("raise KeyError('missing')" in error.traceback, error.traceback)
        expect_true("interpreter.py" not in error.traceback, f"our own frames: {error.traceback}")
        expect(result.ok, False, "ok")
        expect((await session.run("x")).value, "5")


@promise
async def a_syntax_error_is_data(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        error = (await session.run("for")).error
        expect(error and error.type, "SyntaxError")
        expect((await session.run("1 + 1")).value, "2")


@promise
async def an_exception_that_cannot_be_shown_is_data(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        result = await session.run(
            "class Bad(Exception):\n    def __str__(self): raise ValueError\nraise Bad()"
        )
        expect(result.error and result.error.type, "Bad")
        result = await session.run("class R:\n    def __repr__(self): 1/0\nR()")
        expect(result.error and result.error.type, "ZeroDivisionError")


@promise
async def a_cell_over_its_time_is_interrupted_and_variables_survive(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run("x = 1")
        result = await session.run("print('on')\nwhile True: pass", timeout_s=0.3)
        expect((result.timed_out, result.restarted, result.stdout), (True, False, b"on\n"))
        expect((await session.run("x")).value, "1")
        result = await session.run("import time; time.sleep(1000)", timeout_s=0.3)
        expect((result.timed_out, result.restarted), (True, False), "a sleeping cell")
        expect((await session.run("x")).value, "1")


@promise
async def a_cell_that_ignores_the_interrupt_costs_the_interpreter_only(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run("x = 1")
        code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        result = await session.run(code, timeout_s=0.3)
        expect((result.timed_out, result.restarted), (True, True))
        result = await session.run("'x' in globals()")
        expect(result.value, "False", "a fresh interpreter")


@promise
async def a_cell_that_ends_the_interpreter_leaves_a_fresh_one(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        for code in (
            "import os; os._exit(3)",
            "import sys; sys.exit()",
            "import os; os.kill(os.getpid(), 9)",
        ):
            result = await session.run("x = 1; print('last words')\n" + code)
            expect((result.restarted, result.timed_out), (True, False), code)
            expect(result.stdout, b"last words\n", code)
            expect((await session.run("'x' in globals()")).value, "False")


@promise
async def reset_forgets_everything(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run(
            "x = 1; import threading; threading.Thread(target=lambda: exec('while 1: pass'), daemon=True).start()"
        )
        await session.reset()
        expect((await session.run("'x' in globals()")).value, "False")


@promise
async def reset_ends_a_running_cell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        running = asyncio.create_task(session.run("open('started', 'w')\nwhile True: pass"))
        while b"started" not in (await sandbox.exec("ls")).stdout:
            pass
        await session.reset()
        expect((await running).restarted, True)
        expect((await session.run("2")).value, "2")


@promise
async def interrupt_raises_keyboard_interrupt_in_the_cell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.interrupt()  # no cell is running, so nothing happens
        await session.run("x = 1")
        running = asyncio.create_task(session.run("open('started', 'w')\nwhile True: pass"))
        while b"started" not in (await sandbox.exec("ls")).stdout:
            pass
        await session.interrupt()
        result = await running
        expect((result.error and result.error.type, result.timed_out), ("KeyboardInterrupt", False))
        expect((await session.run("x")).value, "1")


@promise
async def long_output_of_a_cell_loses_its_middle(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        result = await session.run("print('a' * 100000)\nprint('b' * 100000)", max_output_bytes=100)
        expect_true(result.stdout.startswith(b"a" * 50), "the beginning")
        expect_true(result.stdout.endswith(b"b" * 49 + b"\n"), "the end")
        expect(result.dropped_bytes, 200_002 - 100)
        expect((await session.run("print('short')")).dropped_bytes, 0)


@promise
async def a_large_cell_runs(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        code = f"x = '{'y' * 3_000_000}'\nlen(x)"
        expect((await session.run(code)).value, "3000000")
        exactly = "x = 1" + " " * ((1 << 20) - 5)
        expect((await session.run(exactly)).ok, True, "a cell of exactly one frame")
        expect((await session.run("'ü😀' * 2")).value, "'ü😀ü😀'")


@promise
async def a_huge_value_is_cut(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        value = (await session.run("'\\x00' * 10_000_000")).value
        expect_true(value is not None and 1000 < len(value) < 1_000_000, "the length of the value")


@promise
async def cells_of_one_session_run_in_order(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run("n = 0")
        results = await asyncio.gather(*(session.run("n += 1; n") for _ in range(10)))
        expect([r.value for r in results], [str(i) for i in range(1, 11)])


@promise
async def sessions_are_independent(bench: Bench) -> None:
    async with (
        bench.sandbox() as sandbox,
        await sandbox.python() as one,
        await sandbox.python() as two,
    ):
        await one.run("x = 1")
        expect((await two.run("'x' in globals()")).value, "False")
        stuck = asyncio.create_task(one.run("while True: pass", timeout_s=1.0))
        expect((await two.run("2")).value, "2")
        expect((await stuck).timed_out, True)


@promise
async def a_closed_session_refuses_cells(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        session = await sandbox.python()
        await session.close()
        await session.close()
        await expect_error(RuntimeError, session.run("1"), "a cell after close")


@promise
async def a_cancelled_cell_leaves_the_session_usable(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        running = asyncio.create_task(session.run("open('started', 'w')\nwhile True: pass"))
        while b"started" not in (await sandbox.exec("ls")).stdout:
            pass
        running.cancel()
        await expect_error(asyncio.CancelledError, running, "the cancelled cell")
        expect((await session.run("3")).value, "3")


@promise
async def main_module_features_work_in_cells(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await session.run(
            "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n    x: int"
        )
        expect((await session.run("pickle.loads(pickle.dumps(P(3)))")).value, "P(x=3)")
        expect((await session.run("__name__")).value, "'__main__'")
        result = await session.run("input()")
        expect(result.error and result.error.type, "EOFError", "stdin is empty")
