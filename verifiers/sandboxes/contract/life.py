"""Promises about the lifetime of a sandbox: readiness, independence, limits, end."""

# ruff: noqa: D103 - the name of a behaviour is the promise
from __future__ import annotations

import asyncio
import time

from verifiers.errors import InfraError
from verifiers.sandboxes.contract.bench import Bench, Collection, expect, expect_error, expect_true
from verifiers.sandboxes.errors import SandboxDead
from verifiers.sandboxes.spec import SandboxSpec

BEHAVIOURS = Collection()
promise, promise_if = BEHAVIOURS.promise, BEHAVIOURS.promise_if


@promise
async def create_returns_before_the_sandbox_is_up(bench: Bench) -> None:
    sandbox = await bench.backend.create(bench.spec)
    try:
        expect_true(sandbox.id.replace("-", "").isalnum(), f"the id {sandbox.id!r} is not plain")
        first_s = await sandbox.ready()
        expect_true(first_s > 0, "the first ready() did not have to wait")
        expect_true(await sandbox.ready() < first_s + 0.05, "the second ready() waited again")
    finally:
        await sandbox.terminate()


@promise
async def time_passed_meanwhile_is_not_waited_for_again(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        usual_s = await sandbox.ready()
    async with bench.sandbox() as sandbox:
        await asyncio.sleep(max(1.0, 4 * usual_s))  # the first turn of a model
        waited_s = await sandbox.ready()
        expect_true(waited_s < 0.01, f"ready() still waited {waited_s} s")


@promise
async def what_is_enforced_is_told(bench: Bench) -> None:
    async with bench.sandbox(memory_mb=300) as sandbox:
        await sandbox.ready()
        expect(sandbox.info.backend, bench.backend.name)
        expect_true(sandbox.info.workdir.startswith("/"), "workdir is absolute")
        expect_true("memory" in sandbox.info.limits, "limits say how memory is limited")


@promise
async def sandboxes_have_files_and_processes_of_their_own(bench: Bench) -> None:
    async with bench.sandbox() as one, bench.sandbox() as two:
        await one.ready()
        await one.exec("echo x > file; echo x > /tmp/file; sleep 1000 &")
        seen = await two.exec("ls -A . /tmp/file 2>/dev/null")
        expect_true("file" not in seen.text, f"files of another sandbox: {seen.text!r}")
        expect_true(one.id != two.id, "two sandboxes have the same id")


@promise
async def files_stay_between_commands(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.exec("echo 1 > file; cd /tmp; export X=1")
        result = await sandbox.exec("cat file; pwd; echo [$X]")
        expect(result.text, f"1\n{sandbox.info.workdir}\n[]\n", "files stay, shell state does not")


@promise
async def terminate_ends_everything_and_can_be_repeated(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1000"))
        waiting = asyncio.create_task((await sandbox.python()).run("while True: pass"))
        await sandbox.exec("true")
        await asyncio.gather(sandbox.terminate(), sandbox.terminate())
        for task in (running, waiting):
            error = await expect_error(SandboxDead, task, "what still ran")
            expect(error.reason, "terminated")
        error = await expect_error(SandboxDead, sandbox.exec("true"), "a command afterwards")
        expect_true(isinstance(error, InfraError), "it is an infrastructure error")
        await expect_error(SandboxDead, sandbox.read("x"), "a read afterwards")
        await sandbox.terminate()
        sandbox.kill_sync()


@promise
async def terminate_before_readiness_leaves_nothing(bench: Bench) -> None:
    sandboxes = [await bench.backend.create(bench.spec) for _ in range(5)]
    await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))
    for sandbox in sandboxes:
        await expect_error(SandboxDead, sandbox.ready(), "ready() after terminate()")


@promise
async def a_cancelled_wait_for_readiness_does_not_harm_the_sandbox(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        waiting = asyncio.create_task(sandbox.ready())
        await asyncio.sleep(0)
        waiting.cancel()
        await expect_error(asyncio.CancelledError, waiting, "the cancelled wait")
        expect((await sandbox.exec("echo up")).stdout, b"up\n")


@promise
async def a_cancelled_terminate_goes_on(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.ready()
        ending = asyncio.create_task(sandbox.terminate())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
        await sandbox.terminate()
        await expect_error(SandboxDead, sandbox.exec("true"), "a command afterwards")


@promise
async def kill_sync_ends_it_without_awaiting(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1000"))
        await sandbox.exec("true")
        sandbox.kill_sync()
        await expect_error(SandboxDead, running, "what still ran")


@promise
async def the_lifetime_ends_a_busy_sandbox(bench: Bench) -> None:
    async with bench.sandbox(ttl_s=0.5) as sandbox:
        started_s = time.monotonic()
        error = await expect_error(SandboxDead, sandbox.exec("sleep 1000"), "a long command")
        expect(error.reason, "ttl")
        expect_true(time.monotonic() - started_s < 20, "it took more than 20 s")


@promise
async def a_command_that_wants_too_much_memory_dies_alone(bench: Bench) -> None:
    async with bench.sandbox(memory_mb=128) as sandbox:
        code = "x = []\nwhile True: x.append(bytearray(8 << 20))"
        result = await sandbox.exec(["python3", "-c", code], timeout_s=30)
        expect_true(not result.ok and not result.timed_out, f"it ended as follows: {result}")
        told = result.oom or b"MemoryError" in result.stderr
        expect_true(told, f"neither oom nor MemoryError: {result}")
        expect((await sandbox.exec("echo alive")).stdout, b"alive\n")


@promise
async def the_number_of_processes_is_limited(bench: Bench) -> None:
    async with bench.sandbox(max_processes=32) as sandbox:
        code = (
            "import os, time\nn = 0\n"
            "try:\n"
            "    while n < 200:\n"
            "        if os.fork() == 0: time.sleep(100); os._exit(0)\n"
            "        n += 1\n"
            "except OSError: pass\n"
            "print(n); os.kill(0, 9)"
        )
        result = await sandbox.exec(["python3", "-c", code], timeout_s=30)
        expect((await sandbox.exec("echo alive", timeout_s=30)).stdout, b"alive\n")
        expect_true(result.text == "" or int(result.text) < 40, f"{result.text} processes")


@promise
async def leftovers_that_hold_all_processes_make_room_for_the_next_command(bench: Bench) -> None:
    async with bench.sandbox(max_processes=32) as sandbox:
        code = (
            "import os, time\n"
            "try:\n"
            "    for _ in range(200):\n"
            "        if os.fork() == 0: os.setsid(); time.sleep(1000); os._exit(0)\n"
            "except OSError: pass"
        )
        for _ in range(2):
            await sandbox.exec(["python3", "-c", code], timeout_s=30)
            expect((await sandbox.exec("echo alive", timeout_s=30)).stdout, b"alive\n")


@promise
async def disk_space_is_limited(bench: Bench) -> None:
    async with bench.sandbox(disk_mb=16) as sandbox:
        result = await sandbox.exec("head -c 100M /dev/zero > big; stat -c %s big")
        expect_true(int(result.text) <= 16 << 20, f"{result.text} bytes fitted into 16 MiB")


@promise_if("file_count_limit")
async def the_number_of_files_is_limited(bench: Bench) -> None:
    async with bench.sandbox(max_files=500) as sandbox:
        result = await sandbox.exec("for i in $(seq 600); do : > f$i || break; done; ls | wc -l")
        expect_true(int(result.text) <= 500, f"{result.text} files")


@promise
async def one_backend_serves_many_sandboxes_at_once(bench: Bench) -> None:
    async def one(number: int) -> str:
        async with bench.sandbox() as sandbox:
            return (await sandbox.exec(["echo", str(number)], timeout_s=40)).text

    texts = await asyncio.gather(*(one(number) for number in range(24)))
    expect(texts, [f"{number}\n" for number in range(24)])


@promise
async def a_sandbox_cancelled_while_it_is_made_leaves_the_backend_usable(bench: Bench) -> None:
    async def use() -> None:
        async with bench.sandbox() as sandbox:
            await sandbox.exec("sleep 1000")

    tasks = [asyncio.create_task(use()) for _ in range(8)]
    for delay_s, task in zip((0, 0, 0.001, 0.002, 0.004, 0.008, 0.05, 0.2), tasks, strict=True):
        await asyncio.sleep(delay_s)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with bench.sandbox() as sandbox:
        expect((await sandbox.exec("echo up")).stdout, b"up\n")


@promise
async def impossible_demands_are_refused_in_words(bench: Bench) -> None:
    spec = SandboxSpec.model_validate({**bench.spec.model_dump(), "isolation_min": "vm"})
    error = await expect_error(InfraError, bench.backend.create(spec), "a virtual machine")
    expect_true("vm" in str(error), f"the message names the level: {error}")
