"""Promises of `Sandbox.spawn` and `Process`."""

# ruff: noqa: D103 - the name of a behaviour is the promise
from __future__ import annotations

import asyncio
import signal

from verifiers.sandboxes.contract.bench import (
    Bench,
    Collection,
    expect,
    expect_ends,
    expect_error,
    expect_true,
)
from verifiers.sandboxes.sandbox import Process

BEHAVIOURS = Collection()
promise = BEHAVIOURS.promise


async def _read_until(process: Process, wanted: bytes) -> bytes:
    seen = b""
    async for _, data in process.output():
        seen += data
        if wanted in seen:
            break
    return seen


@promise
async def a_dialogue_over_stdin_and_stdout(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.spawn("cat", stdin=True) as process:
        for word in (b"one\n", b"two\n"):
            await process.write(word)
            expect(await _read_until(process, word), word)
        await process.close_stdin()
        await process.close_stdin()
        expect((await process.wait()).exit_code, 0)


@promise
async def both_streams_come_with_their_names(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("echo out; echo err >&2; exit 4")
        seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        async for stream, data in process.output():
            seen[stream] += data
        expect(seen, {"stdout": b"out\n", "stderr": b"err\n"})
        expect((await process.wait()).exit_code, 4)


@promise
async def output_comes_while_the_command_still_runs(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.spawn("echo first; sleep 1000") as process:
        expect(await _read_until(process, b"first\n"), b"first\n")


@promise
async def a_slow_reader_gets_everything_and_blocks_nobody_else(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("seq 1 500000")
        for _ in range(5):
            expect((await sandbox.exec("echo other")).stdout, b"other\n")
        received = b"".join([data async for _, data in process.output()])
        expect(received, "".join(f"{i}\n" for i in range(1, 500001)).encode()[:], "what it printed")


@promise
async def output_nobody_reads_is_dropped_by_wait(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("seq 1 300000; exit 7")
        expect((await process.wait()).exit_code, 7)


@promise
async def discarded_output_never_blocks(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("seq 1 300000; exit 6", discard_output=True)
        expect([part async for part in process.output()], [])
        expect((await process.wait()).exit_code, 6)


@promise
async def a_signal_reaches_the_whole_process_group(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn(
            "trap 'echo got it; exit 9' USR1; echo ready; while :; do sleep 0.02; done"
        )
        await _read_until(process, b"ready\n")
        await process.signal(signal.SIGUSR1)
        await _read_until(process, b"got it\n")
        expect((await process.wait()).exit_code, 9)
        await process.signal(signal.SIGUSR1)  # harmless after its end
        await expect_error(ValueError, process.signal(0), "signal 0")


@promise
async def kill_ends_detached_children_too(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn(
            "setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.1; echo ready; sleep 1000"
        )
        await _read_until(process, b"ready\n")
        await process.kill()
        await process.kill()
        await expect_ends(sandbox, "sleep 1000")


@promise
async def writing_to_a_finished_command_is_a_broken_pipe(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("true", stdin=True)
        await process.wait()
        await expect_error(BrokenPipeError, process.write(b"x"), "a write after its end")
        without = await sandbox.spawn("sleep 1000")
        await expect_error(BrokenPipeError, without.write(b"x"), "a write without stdin")
        await without.kill()


@promise
async def large_writes_arrive_in_order(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("sleep 0.1; wc -c", stdin=True)
        for _ in range(20):
            await process.write(bytes(100_000))
        await process.close_stdin()
        expect(b"".join([d async for _, d in process.output()]).strip(), b"2000000")


@promise
async def a_spawned_command_can_have_a_time_limit(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn("sleep 1000", timeout_s=0.2)
        result = await process.wait()
        expect((result.timed_out, result.exit_code), (True, None))


@promise
async def leaving_the_block_kills_the_command(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        async with await sandbox.spawn("sleep 1000") as process:
            pass
        expect((await process.wait()).exit_code, 137)


@promise
async def a_server_in_the_background_answers_later_commands(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        code = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.bind('server'); s.listen()\n"
            "while True: c, _ = s.accept(); c.sendall(b'hello'); c.close()"
        )
        await sandbox.spawn(["python3", "-c", code], discard_output=True)
        ask = (
            "import socket, time\n"
            "for _ in range(500):\n"
            "    try:\n"
            "        s = socket.socket(socket.AF_UNIX); s.connect('server'); break\n"
            "    except OSError: time.sleep(0.01)\n"
            "print(s.recv(100).decode())"
        )
        expect((await sandbox.exec(["python3", "-c", ask])).stdout, b"hello\n")


@promise
async def a_missing_program_ends_the_process_with_127(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        process = await sandbox.spawn(["no-such-program"])
        text = b"".join([data async for _, data in process.output()])
        expect((await process.wait()).exit_code, 127)
        expect_true(b"no-such-program" in text, f"the reason is missing: {text!r}")


@promise
async def only_one_reader_at_a_time(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.spawn("sleep 1000") as process:
        first = asyncio.create_task(_first(process))
        await asyncio.sleep(0.05)
        await expect_error(RuntimeError, _first(process), "a second reader")
        first.cancel()


async def _first(process: Process) -> object:
    return await anext(process.output())


@promise
async def ending_all_processes_leaves_files_and_a_sandbox_that_works(bench: Bench) -> None:
    async with bench.sandbox() as sandbox, await sandbox.python() as session:
        await sandbox.exec("echo kept > file; setsid sh -c 'sleep 7654321 & sleep 7654321' & true")
        await sandbox.exec(
            [
                "python3",
                "-c",
                "import os\nif not os.fork():\n os.setsid()\n if not os.fork():\n"
                "  os.environ.clear(); os.execv('/bin/sleep', ['sleep', '7654322'])",
            ]
        )
        running = await sandbox.spawn("sleep 7654323")
        await sandbox.end_processes()
        expect((await running.wait()).exit_code, 137, "a command of the caller")
        for line in ("sleep 7654321", "sleep 7654322"):
            await expect_ends(sandbox, line)
        expect((await sandbox.exec("cat file")).text, "kept\n")
        await session.run("1")  # may report that it was restarted
        expect((await session.run("1 + 1")).value, "2", "the session")


@promise
async def variables_set_later_are_seen_by_everything_that_is_started(bench: Bench) -> None:
    async with bench.sandbox(env={"FIRST": "a", "SECOND": "b"}) as sandbox:
        sandbox.set_variables({"SECOND": "c"})
        expect((await sandbox.exec("echo $FIRST$SECOND")).text, "ac\n")
        expect((await sandbox.exec("echo $FIRST$SECOND", env={"SECOND": "d"})).text, "ad\n")
        show = "import os; print(os.environ['FIRST'] + os.environ['SECOND'])"
        expect((await sandbox.run_python(show)).text, "ac\n")
        async with await sandbox.python() as session:
            expect((await session.run(show)).text, "ac\n")
        sandbox.set_variables({})
        expect((await sandbox.exec("echo $FIRST$SECOND")).text, "ab\n")
