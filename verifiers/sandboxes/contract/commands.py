"""Promises of `Sandbox.exec`, `Sandbox.run_python`, `Sandbox.spawn` and `Process`."""

from __future__ import annotations

# ruff: noqa: D103 - the name of a behaviour is the promise
import asyncio

# ruff: noqa: D103 - the name of a behaviour is the promise
import signal
import time

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
promise, promise_if = BEHAVIOURS.promise, BEHAVIOURS.promise_if


@promise
async def a_command_gives_its_output_and_exit_code(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        expect((result.exit_code, result.stdout, result.stderr), (3, b"out\n", b"err\n"))
        expect(result.ok, False, "ok")
        expect((await sandbox.exec("true")).ok, True, "ok of `true`")


@promise
async def an_argument_vector_is_not_interpreted_by_a_shell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec(["printf", "%s|", "$HOME", "a b", "*", "'", ""])
        expect(result.stdout, b"$HOME|a b|*|'||")


@promise
async def a_text_is_a_shell_line(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("for i in 1 2 3; do echo $i; done | tail -n 1 && echo 'a\"b'")
        expect(result.text, '3\na"b\n')


@promise
async def the_shell_is_no_login_shell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write(".profile", b"echo profile was read")
        await sandbox.write(".bash_profile", b"echo profile was read")
        expect((await sandbox.exec("echo only this")).stdout, b"only this\n")


@promise
async def a_command_starts_in_the_work_directory(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.ready()
        expect((await sandbox.exec(["pwd"])).text.strip(), sandbox.info.workdir)


@promise
async def cwd_changes_the_directory_and_relative_ones_begin_at_the_work_directory(
    bench: Bench,
) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.exec("mkdir -p a/b")
        expect((await sandbox.exec(["pwd"], cwd="/usr")).text, "/usr\n")
        expect((await sandbox.exec(["pwd"], cwd="a/b")).text, f"{sandbox.info.workdir}/a/b\n")


@promise
async def a_missing_cwd_is_a_result_with_code_126(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec(["pwd"], cwd="/no/such/place")
        expect(result.exit_code, 126, "exit code")
        expect_true(b"/no/such/place" in result.stderr, f"stderr names it: {result.stderr!r}")


@promise
async def a_missing_program_is_a_result_with_code_127(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        for command in (["no-such-program"], "no-such-program", ["/no/such/program"]):
            result = await sandbox.exec(command)
            expect(result.exit_code, 127, f"exit code of {command!r}")
            expect_true(b"no" in result.stderr, f"stderr says why: {result.stderr!r}")


@promise
async def a_file_that_is_not_executable_is_a_result_with_code_126(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write("script", b"#!/bin/sh\necho hello\n", mode=0o644)
        expect((await sandbox.exec(["./script"])).exit_code, 126)
        await sandbox.exec("chmod +x script")
        expect((await sandbox.exec(["./script"])).stdout, b"hello\n")


@promise
async def a_script_without_interpreter_line_runs_as_from_a_shell(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write("script", b"echo plain $1\n", mode=0o755)
        expect((await sandbox.exec(["./script", "x"])).stdout, b"plain x\n")


@promise
async def a_signal_gives_128_plus_its_number(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        expect((await sandbox.exec("kill -TERM $$")).exit_code, 143)
        expect((await sandbox.exec("kill -KILL $$")).exit_code, 137)


@promise
async def stdin_is_empty_unless_given(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        expect((await sandbox.exec(["cat"])).stdout, b"")
        expect((await sandbox.exec(["cat"], stdin=b"")).stdout, b"")
        expect((await sandbox.exec(["cat"], stdin=b"a\0b\xff")).stdout, b"a\0b\xff")


@promise
async def a_large_stdin_arrives_whole(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        data = bytes(range(256)) * 12_000
        result = await sandbox.exec(["sha256sum"], stdin=data)
        import hashlib

        expect(result.text.split()[0], hashlib.sha256(data).hexdigest())


@promise
async def a_command_need_not_read_its_stdin(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        expect((await sandbox.exec(["true"], stdin=bytes(3_000_000))).exit_code, 0)
        expect((await sandbox.exec("head -c 5", stdin=b"abcdefgh" * 100_000)).stdout, b"abcde")


@promise
async def variables_of_the_specification_and_the_call_are_set(bench: Bench) -> None:
    async with bench.sandbox(env={"A": "spec", "B": "spec"}) as sandbox:
        result = await sandbox.exec('echo "$A $B $C"', env={"B": "call", "C": "ü \n'"})
        expect(result.text, "spec call ü \n'\n")
        expect((await sandbox.exec('echo "$B$C"')).text, "spec\n", "the next command's variables")


@promise
async def the_environment_of_the_host_is_invisible(bench: Bench) -> None:
    import os

    os.environ["CONTRACT_SECRET"] = "do-not-show-this"
    try:
        async with bench.sandbox() as sandbox:
            seen = await sandbox.exec("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
            expect_true("do-not-show-this" not in seen.text, "a host variable is visible inside")
            own = {line.split("=")[0] for line in (await sandbox.exec(["env"])).text.splitlines()}
            # The names of the host's accounts must not be visible either.
            expect(own & {"CONTRACT_SECRET", "VIRTUAL_ENV", "SSH_AUTH_SOCK"}, set())
    finally:
        del os.environ["CONTRACT_SECRET"]


@promise
async def an_unusable_call_is_refused_before_anything_runs(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await expect_error(ValueError, sandbox.exec(""), "an empty line")
        await expect_error(ValueError, sandbox.exec([]), "an empty vector")
        await expect_error(ValueError, sandbox.exec(["a\0b"]), "a zero byte")
        await expect_error(ValueError, sandbox.exec("true", env={"A=B": "x"}), "a bad variable")
        await expect_error(ValueError, sandbox.exec("true", timeout_s=0), "no time at all")
        await expect_error(ValueError, sandbox.exec("true", user="nobody-here"), "unknown user")


@promise
async def output_that_is_not_text_is_kept_as_bytes(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec(r"printf '\377\000\376ok'")
        expect(result.stdout, b"\xff\x00\xfeok")
        expect(result.text, "�\x00�ok")


@promise
async def the_time_limit_is_a_result_and_the_sandbox_lives_on(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.ready()  # startup must not count as run time
        started_s = time.monotonic()
        result = await sandbox.exec("echo before; sleep 60; echo after", timeout_s=1.0)
        expect((result.timed_out, result.exit_code), (True, None))
        expect(result.stdout, b"before\n", "output before the limit")
        expect_true(time.monotonic() - started_s < 20, "it took more than 20 s to end it")
        expect((await sandbox.exec("echo alive")).stdout, b"alive\n")


@promise
async def the_default_time_limit_comes_from_the_specification(bench: Bench) -> None:
    async with bench.sandbox(command_timeout_s=0.3) as sandbox:
        expect((await sandbox.exec("sleep 60")).timed_out, True)
        expect((await sandbox.exec("sleep 0.5", timeout_s=None)).timed_out, False, "no limit")


@promise
async def the_time_limit_ends_whatever_the_command_has_started(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        script = (
            "trap '' TERM INT HUP\n"
            "(trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 0.05; touch alive; done' &) \n"
            "sh -c 'sleep 1000' & sh -c 'sleep 1000 & sleep 1000' & \n"
            "sleep 1000"
        )
        result = await sandbox.exec(script, timeout_s=0.5)
        expect(result.timed_out, True, "timed_out")
        left = await sandbox.exec(
            "rm -f alive; sleep 0.3; ls alive 2>/dev/null; ps ax | grep -c '[s]leep 1000'"
        )
        expect(left.text.strip(), "0", "the detached child and sleepers left")


@promise
async def the_time_limit_of_one_command_spares_another(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        other = asyncio.create_task(sandbox.exec("(sleep 0.9; echo child) & wait; echo done"))
        await sandbox.exec("sleep 60 & sleep 60", timeout_s=0.3)
        expect((await other).stdout, b"child\ndone\n")


@promise
async def a_background_child_does_not_delay_the_result_and_lives_on(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        child = "(until test -e go; do sleep 0.05; done; touch later) &"
        result = await sandbox.exec(f"{child} echo now")
        # The child waits for an event after the result.
        expect((result.stdout, result.timed_out), (b"now\n", False), "the result without the child")
        result = await sandbox.exec("touch go; until test -e later; do sleep 0.05; done; ls")
        expect(result.stdout, b"go\nlater\n")


@promise
async def output_within_the_limit_is_kept_whole(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("head -c 1000000 /dev/zero | tr '\\0' x")
        expect((len(result.stdout), result.truncated), (1_000_000, False))
        result = await sandbox.exec("printf 0123456789", max_output_bytes=10)
        expect((result.stdout, result.truncated), (b"0123456789", False))


@promise
async def long_output_loses_its_middle(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        line = "seq -w 1 20000; seq -w 1 20000 >&2"
        result = await sandbox.exec(line, max_output_bytes=600)
        whole = "".join(f"{i:05}\n" for i in range(1, 20001)).encode()
        dropped = len(whole) - 600
        wanted = whole[:300] + b"\n[... %d bytes dropped ...]\n" % dropped + whole[-300:]
        expect(result.stdout, wanted, "stdout")
        expect(result.stderr, wanted, "stderr")
        expect((result.stdout_dropped_bytes, result.stderr_dropped_bytes), (dropped, dropped))
        expect((result.truncated, result.exit_code), (True, 0))


@promise
async def overflow_can_end_the_command_instead(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("yes", max_output_bytes=1000, on_overflow="kill", timeout_s=20)
        expect((result.output_limit_hit, result.exit_code, result.timed_out), (True, None, False))
        expect_true(result.stdout.startswith(b"y\ny\n"), "the first part is kept")
        expect_true(len(result.stdout) <= 1000, f"{len(result.stdout)} bytes were kept")


@promise
async def endless_output_ends_the_command(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("cat /dev/zero", timeout_s=40, max_output_bytes=1000)
        expect((result.output_limit_hit, result.timed_out), (True, False))
        expect((await sandbox.exec("echo alive")).stdout, b"alive\n")


@promise
async def no_output_is_kept_if_none_is_wanted(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("echo hello", max_output_bytes=0)
        expect((result.stdout_dropped_bytes, result.exit_code), (6, 0))


@promise
async def many_commands_run_at_once_in_one_sandbox(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        results = await asyncio.gather(*(sandbox.exec(["echo", str(i)]) for i in range(300)))
        expect([r.text for r in results], [f"{i}\n" for i in range(300)])


@promise
async def times_are_reported_apart(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.exec("sleep 0.2")
        expect_true(0.15 < result.run_s < 5, f"run_s = {result.run_s}")
        expect_true(0 <= result.queued_s < 30, f"queued_s = {result.queued_s}")


@promise
async def a_cancelled_command_is_killed_and_the_sandbox_stays_usable(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.ready()
        running = asyncio.create_task(sandbox.exec("touch started; sleep 1000", timeout_s=50))
        while b"started" not in (await sandbox.exec("ls")).stdout:
            pass
        running.cancel()
        await expect_error(asyncio.CancelledError, running, "the cancelled command")
        await expect_ends(sandbox, "sleep 1000")


@promise_if("per_command_limits")
async def memory_and_cpu_time_of_one_command_can_be_limited(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        hungry = "x = bytearray(300 << 20)"
        result = await sandbox.exec(["python3", "-c", hungry], memory_mb=100)
        expect_true(b"MemoryError" in result.stderr, f"no MemoryError: {result.stderr!r}")
        result = await sandbox.exec("while :; do :; done", cpu_time_s=1, timeout_s=20)
        expect_true(result.exit_code in (137, 152), f"exit code {result.exit_code}")
        result = await sandbox.run_python(hungry, memory_mb=100)
        expect_true(b"MemoryError" in result.stderr, f"no MemoryError: {result.stderr!r}")


@promise
async def a_python_program_runs_as_main(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        code = (
            "import sys\n"
            "def f():\n    return Point(2)\n"
            "class Point:\n    def __init__(self, x): self.x = x\n"
            "if __name__ == '__main__':\n"
            "    print(f().x, sys.argv[1:], sys.stdin.read())\n"
            "    import pickle; print(pickle.loads(pickle.dumps(f())).x)\n"
            "    sys.exit(5)\n"
        )
        result = await sandbox.run_python(code, argv=["a", "b c"], stdin=b"in")
        expect((result.text, result.exit_code), ("2 ['a', 'b c'] in\n2\n", 5), result.error_text)


@promise
async def a_failing_python_program_gives_a_traceback_with_its_own_lines(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.run_python("def f():\n    return 1 / 0\n\nf()\n")
        expect(result.exit_code, 1)
        expect_true("line 2, in f" in result.error_text, result.error_text)
        expect_true(
            result.error_text.endswith("ZeroDivisionError: division by zero\n"), "last line"
        )
        result = await sandbox.run_python("x = = 1")
        expect((result.exit_code, "SyntaxError" in result.error_text), (1, True))


@promise
async def python_programs_share_nothing(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.run_python("import builtins, os, sys\nbuiltins.x = 1\nos.environ['X'] = '1'")
        code = "import builtins, os, random; print(hasattr(builtins, 'x'), 'X' in os.environ, random.random())"
        first, second = await asyncio.gather(sandbox.run_python(code), sandbox.run_python(code))
        expect(first.text.split()[:2], ["False", "False"])
        expect_true(first.text != second.text, "two programs drew the same random numbers")


@promise
async def a_python_program_has_a_time_limit_and_exit_functions(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        result = await sandbox.run_python("while True: pass", timeout_s=0.3)
        expect((result.timed_out, result.exit_code), (True, None))
        result = await sandbox.run_python("import atexit; atexit.register(print, 'bye')")
        expect(result.stdout, b"bye\n", "what an exit function prints")


@promise_if("fork_python")
async def preloaded_modules_are_there_already(bench: Bench) -> None:
    async with bench.sandbox(preload=("fractions",)) as sandbox:
        result = await sandbox.run_python("import sys; print('fractions' in sys.modules)")
        expect(result.stdout, b"True\n")


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
async def a_dialogue_with_a_python_program(bench: Bench) -> None:
    code = "import os, sys\nfor line in sys.stdin:\n"
    code += "    print(os.getcwd(), sys.argv[1], os.environ['E'], line, end='', flush=True)"
    async with bench.sandbox() as sandbox:
        env = {"E": "x"}
        async with await sandbox.spawn_python(
            code, argv=["a"], cwd="/", env=env, stdin=True
        ) as process:
            for word in (b"one\n", b"two\n"):
                await process.write(word)
                expect(await _read_until(process, word), b"/ a x " + word)
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
