# ruff: noqa: ASYNC240 - /proc does not block
"""Who caused a failure: what happens after a sandbox is ready is the doing of its code, and of no other sandbox."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from verifiers.sandboxes import (
    ProxyNetwork,
    Sandbox,
    SandboxCreationError,
    SandboxDead,
    SandboxSpec,
)
from verifiers.sandboxes import proxy as proxy_module
from verifiers.sandboxes.guest import processes
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.local.machine import Assignment, LocalMachine
from verifiers.sandboxes.local.zygote import landlock
from verifiers.sandboxes.local.zygote_process import Exit

SYSTEM_PYTHON = "/usr/bin/python3"
LEVELS = ["container"]
if landlock.abi() >= landlock.MIN_ABI and (os.getuid() != 0 or os.path.exists(SYSTEM_PYTHON)):
    LEVELS.append("restricted")


async def guest_of(sandbox: Sandbox) -> int:
    """The number that the guest of a sandbox has on this machine."""
    mark = f"4711.{os.getpid()}{id(sandbox) % 100_000}"
    await sandbox.spawn(["sleep", mark], discard_output=True)
    while True:
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (path / "cmdline").read_bytes():
                    fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                    return int(fields[1])
            except OSError:
                continue
        await sandbox.exec("true")


async def test_a_command_whose_sandbox_ends_with_it_has_an_outcome():
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        running = asyncio.create_task(sandbox.exec("echo begun; sleep 1000"))
        session = await sandbox.python()
        cell = asyncio.create_task(session.run("import time; time.sleep(1000)"))
        os.kill(await guest_of(sandbox), signal.SIGKILL)
        result = await running
        assert (result.exit_code, result.ok, result.oom) == (137, False, False)
        assert b"The code inside ended the sandbox" in result.stderr
        assert (await cell).restarted
        with pytest.raises(SandboxDead) as caught:
            await sandbox.exec("true")
        assert (caught.value.reason, caught.value.by_program) == ("program", True)


async def test_the_end_of_the_zygote_is_not_the_programs_doing():
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1000"))
        await sandbox.exec("true")
        [[zygote]] = backend._zygotes.values()
        assert zygote._executing is not None
        (await zygote._executing).kill()
        with pytest.raises(SandboxDead) as caught:
            await running
        assert not caught.value.by_program


class LateZygote:
    """Reports the end of a sandbox after its stream has ended."""

    is_dead = False

    def __init__(self, ended: Exit) -> None:
        self.ended = ended
        self.killed = asyncio.Event()

    def kill(self, number: int) -> None:
        self.killed.set()

    async def exited(self, number: int) -> Exit:
        await self.killed.wait()
        return self.ended


@pytest.mark.parametrize(("oom", "reason"), [(True, "oom"), (False, "program")])
async def test_the_reason_is_chosen_after_the_report_of_the_zygote(oom: bool, reason: str):
    zygote: Any = LateZygote(Exit(-9, oom))
    machine = LocalMachine(SandboxSpec(), Assignment("local", 1, 1, "python", False, zygote))
    machine._zygote, machine._is_up = zygote, True
    error = await machine.why_dead(SandboxDead("The sandbox hung up", "crashed"))
    assert isinstance(error, SandboxDead)
    assert error.reason == reason


# --- requests that cannot be met are results


@pytest.mark.parametrize(
    ("command", "options", "code"),
    [
        ("echo \ud800", {}, 126),
        (["echo", "\udfff"], {}, 126),
        ("true", {"env": {"A": "\ud800"}}, 126),
        ("true", {"cwd": "/\ud800"}, 126),
        ("true", {"timeout_s": 1e12}, 0),
        ("true", {"timeout_s": float("inf")}, 0),
        ("true", {"max_output_bytes": 1 << 62}, 0),
        ("true", {"memory_mb": 1 << 39}, 0),
        ("true", {"cpu_time_s": 1e9}, 0),
        (["x" * 5000], {}, 127),
        (["echo", "x" * 300_000], {}, 126),
    ],
)
async def test_a_command_that_cannot_be_run_is_a_result(command: Any, options: Any, code: int):
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        assert (await sandbox.exec(command, **options)).exit_code == code
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


@pytest.mark.parametrize(
    "options",
    [
        {"memory_mb": 0},
        {"memory_mb": 1 << 60},
        {"cpu_time_s": float("nan")},
        {"cpu_time_s": float("inf")},
        {"timeout_s": float("nan")},
        {"timeout_s": 0},
    ],
)
async def test_a_limit_that_is_not_a_limit_is_refused(options: Any):
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        with pytest.raises(ValueError, match=next(iter(options))):
            await sandbox.exec("true", **options)
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


async def test_a_cell_with_half_a_character_is_an_error_of_the_cell():
    async with (
        LocalBackend() as backend,
        await backend.create(SandboxSpec()) as sandbox,
        await sandbox.python() as session,
    ):
        cell = await session.run("x = '\ud800'")
        assert (cell.restarted, cell.error and cell.error.type) == (False, "UnicodeEncodeError")
        shown = (await session.run("raise ValueError('\\ud800')")).error
        assert shown is not None
        assert (shown.message.encode(), shown.traceback.encode()[-8:]) == (b"?", b"rror: ?\n")


async def test_a_snapshot_of_sparse_files_takes_no_memory_and_a_large_one_is_whole():
    spec = SandboxSpec(disk_mb=16)
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        await sandbox.exec("for i in 1 2 3 4; do truncate -s 16M sparse$i; done; echo kept > file")
        snapshot = await sandbox.snapshot()
        assert snapshot.size_bytes < 1 << 20
        async with await backend.create(spec, snapshot=snapshot) as second:
            result = await second.exec("cat file; stat -c %s sparse4")
            assert result.text == f"kept\n{16 << 20}\n"
        many = "import os\nfor n in range(12):\n open(f'f{n}', 'wb').write(os.urandom(1 << 20))"
        await sandbox.exec(["python3", "-c", many])
        snapshot = await sandbox.snapshot()  # in a temporary file by now
        async with await backend.create(spec, snapshot=snapshot) as second:
            sums = "cat f? f1? | sha256sum"
            assert (await second.exec(sums)).text == (await sandbox.exec(sums)).text


SEARCH = """
import re
found = 0
for line in open('/proc/self/maps'):
    where, rights, *rest = line.split()
    if 'r' not in rights or 'vvar' in line or 'vsyscall' in line: continue
    start, end = (int(part, 16) for part in where.split('-'))
    with open('/proc/self/mem', 'rb', buffering=0) as memory:
        memory.seek(start)
        try: found += len(re.findall(b'rosebud[-][0-9]{4}[!]', memory.read(end - start)))
        except OSError: pass
print(found)
"""


@pytest.mark.parametrize("times", [1, 3, 200, 50_000])
async def test_the_input_of_a_command_is_not_in_the_memory_of_a_later_program(times: int):
    secret = b"rosebud-%d!" % 4711 * times
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        assert (await sandbox.exec(["wc", "-c"], stdin=secret)).text == f"{len(secret)}\n"
        await sandbox.write("file", secret)
        await sandbox.exec("rm file")
        result = await sandbox.run_python(SEARCH)
        assert (result.text, result.error_text) == ("0\n", "")


# --- time limits


async def processes_named(sandbox: Sandbox, text: str) -> int:
    return int((await sandbox.exec(f"pgrep -fc '^{text}'")).text)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_daemon_with_another_jobs_mark_ends_with_its_own_job(level: Any):
    name = f"4712{os.getpid()}"
    daemon = (
        "import os, sys, resource\n"
        "for job in range(1, 9):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        for limit, amount in ((10, (1 << 40) + job), (15, (1 << 40) - job)):\n"
        "            try: resource.setrlimit(limit, (amount, amount))\n"
        "            except (ValueError, OSError): pass\n"
        f"        os.execve('/bin/sleep', ['sleep', '{name}'], {{'SANDBOX_JOB': str(job)}})\n"
        "import time\ntime.sleep(1000)"
    )
    spec = SandboxSpec(isolation_min=level, python=SYSTEM_PYTHON if level == "restricted" else None)
    async with (
        LocalBackend(LocalConfig(level=level)) as backend,
        await backend.create(spec) as sandbox,
    ):
        others = [await sandbox.spawn("sleep 1000") for _ in range(3)]
        assert (await sandbox.run_python(daemon, timeout_s=1.0)).timed_out
        assert await processes_named(sandbox, f"sleep {name}") == 0
        assert not any(other.ended.done() for other in others)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_twice_detached_daemon_without_a_mark_ends_with_its_job(level: Any):
    name = f"4713{os.getpid()}"
    line = f"env -i /usr/bin/setsid /bin/sh -c '/usr/bin/setsid /bin/sleep {name} &'; sleep 1000"
    spec = SandboxSpec(isolation_min=level, python=SYSTEM_PYTHON if level == "restricted" else None)
    async with (
        LocalBackend(LocalConfig(level=level)) as backend,
        await backend.create(spec) as sandbox,
    ):
        assert (await sandbox.exec(line, timeout_s=0.5)).timed_out
        assert await processes_named(sandbox, f"sleep {name}") == 0


def test_a_process_with_a_busy_thread_is_busy_though_its_first_thread_sleeps():
    code = "import threading, time\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()\n"
    with subprocess.Popen([sys.executable, "-c", code + "time.sleep(1000)"]) as busy:
        try:
            while True:
                facts = processes.running_processes()[busy.pid]
                if facts.threads == 2 and facts.state == "S" and processes.is_runnable(facts):
                    break
        finally:
            busy.kill()


def test_the_address_space_is_measured_in_bytes_whatever_the_size_of_a_page():
    status = Path("/proc/self/status").read_text()
    [kernel_kb] = [int(line.split()[1]) for line in status.splitlines() if "VmSize" in line]
    assert abs(processes.address_space_bytes() - (kernel_kb << 10)) < 64 << 20


# --- no sandbox ends another

IN_FLIGHT = (
    "import array, os, socket, time\n"
    "kept = []\n"
    "def fill():\n"
    "    try:\n"
    "        while True:\n"
    "            a, b = socket.socketpair()\n"
    "            a.setblocking(False); kept.append((a, b))\n"
    "            try:\n"
    "                while True: a.sendmsg([b'x'], [(1, 1, array.array('i', [0] * 250))])\n"
    "            except BlockingIOError: pass\n"
    "    except OSError as error: return error.errno\n"
    "print(fill(), flush=True)\n"
    "time.sleep(1000)"
)
MANY_IN_FLIGHT = f"""
    import asyncio, resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, int(sys.argv[1])))
    from verifiers.sandboxes import SandboxCreationError, SandboxSpec
    from verifiers.sandboxes.local import LocalBackend

    async def main():
        spec = SandboxSpec(python="/usr/bin/python3")
        async with LocalBackend() as backend:
            innocent = [await backend.create(spec) for _ in range(5)]
            for each in innocent:
                await each.ready()
            attacker = await backend.create(spec)
            process = await attacker.spawn(["python3", "-c", {IN_FLIGHT!r}])
            async for _, data in process.output():
                assert data == b"109\\n", data  # ETOOMANYREFS
                break
            made = 0
            for _ in range(5):
                try:
                    sandbox = await backend.create(spec)
                    made += (await sandbox.exec("true")).ok
                except SandboxCreationError as error:
                    print(error)
            print("made", made)
            print("alive", sum([(await each.exec("true")).ok for each in innocent]))

    asyncio.run(main())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become an ordinary user")
@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason="needs a system interpreter")
@pytest.mark.parametrize("hard_limit", [1024, 4096])
async def test_descriptors_in_flight_in_one_sandbox_end_no_other(hard_limit: int):
    version = [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"]
    found = await asyncio.to_thread(subprocess.check_output, version, text=True)
    if found.strip() != str(sys.version_info[:2]):
        pytest.skip("the system's interpreter cannot import this environment's packages")
    import pydantic

    user = (
        60_000 + os.getpid() % 5000
    )  # the kernel counts per user: other tests must not be the same one
    repository, packages = Path(__file__).parents[3], Path(pydantic.__file__).parents[1]
    done = await asyncio.to_thread(
        subprocess.run,
        [SYSTEM_PYTHON, "-c", textwrap.dedent(MANY_IN_FLIGHT), str(hard_limit)],
        env={"PYTHONPATH": f"{repository}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=user,
        group=user,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "made 5\nalive 5\n", (done.stdout, done.stderr[-2000:])


async def test_a_program_without_free_descriptors_gets_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
):
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        await sandbox.ready()

        def none_left(*args: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", none_left)
            with pytest.raises(SandboxCreationError, match="ulimit -n"):
                await (await backend.create(SandboxSpec())).ready()
        assert (await sandbox.exec("echo alive")).ok


HOARD = (
    "import socket, time\nkept = []\nfor i in range(40):\n"
    "    kept.append(socket.create_connection(('127.0.0.1', 3128)))\n"
    "print('hoarded', flush=True)\ntime.sleep(1000)"
)
ASK = (
    "import socket\ns = socket.create_connection(('127.0.0.1', 3128), timeout=20)\n"
    "s.sendall(b'GET http://nowhere.test/ HTTP/1.1\\r\\n\\r\\n')\nprint(s.recv(100).split()[1].decode())"
)


async def test_connections_of_one_sandbox_take_nothing_from_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(proxy_module, "max_connections", lambda: 6)
    spec = SandboxSpec(network=ProxyNetwork(allow=("example.org",)))
    async with LocalBackend() as backend, await backend.create(spec) as greedy:
        process = await greedy.spawn(["python3", "-c", HOARD])
        async for _, data in process.output():
            assert data == b"hoarded\n"
            break
        async with await backend.create(spec) as other:
            answers = await asyncio.gather(*(other.run_python(ASK) for _ in range(4)))
        assert [answer.text for answer in answers] == ["403\n"] * 4
        assert len(os.listdir("/proc/self/fd")) < 200
    assert caplog.records == []
