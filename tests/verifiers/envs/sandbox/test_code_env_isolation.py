"""`CodeEnv`: what a program does to its surroundings is its own failure, and no test sees another."""

from typing import Any

import pytest
from code_programs import RIGHT, SQUARES, block, made, played

from verifiers.envs.code_env import CodeEnv
from verifiers.testing import ScriptedClient, run


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        ("print(", "error"),
        ("1/0", "error"),
        ("raise SystemExit(3)", "error"),
        ("import sys\nsys.exit('no')", "error"),
        ("import os\nos.abort()", "error"),
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(100)", "timeout"),
        (
            "import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
        ),
        ("x = bytearray(1 << 30)", "error"),
        ("while True: print('x' * 1000)", "output_limit"),
        # The limit of processes ends it, or, on a busy machine, the time limit before that.
        ("import os\nwhile True: os.fork()", "error or timeout"),
        ("import os\nos.kill(os.getppid(), 9)", "ended_worker"),
        ("import os\nos.kill(-1, 9)", "ended_worker"),
    ],
)
async def test_whatever_a_program_does_is_its_own_failure(program: str, verdict: str):
    async with made(SQUARES[:1]) as env:
        output, verdicts = await played(env, program)
        again, _ = await played(env, RIGHT)
    assert len(verdicts) == 1
    assert verdicts[0] in verdict.split(" or ")
    assert (output["reward"], output["error"], output["errors"]) == (0.0, None, [])
    assert again["reward"] == 1.0


async def test_an_endless_program_costs_the_tests_time_limits_and_no_more():
    async with made(SQUARES[:2], test_limits={"time_s": 0.1, "wall_time_s": 5}) as env:
        output, verdicts = await played(env, "while True: pass")
    assert verdicts == ["timeout", "timeout"]
    assert output["metrics"]["test_time"] < 3.0


async def test_what_a_program_leaves_running_is_ended_before_the_next_test(env: CodeEnv):
    program = (
        "import os, time, glob\n"
        "others = [p for p in glob.glob('/proc/[0-9]*/cmdline') if b'left-behind' in open(p, 'rb').read()]\n"
        "assert not others\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.execvp('sh', ['left-behind', '-c', 'while :; do sleep 1; done'])\n"
        "    os._exit(0)\n"
        "os.wait()\n" + RIGHT
    )
    _, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5


FORGED = '[{"status": "ok", "wait_status": 0, "cpu_s": 0.0, "stdout": "RIGHT", "value": "1", "error": ""}]'
WORKER = "sandbox_guest.case_runner"


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        # descriptors: only its own three are open to it
        (
            "import os\n"
            "for fd in range(3, 256):\n"
            f"    try: os.write(fd, {FORGED!r}.encode())\n"
            "    except OSError: continue\n"
            "    print('wrote to', fd)\n",
            "wrong",
        ),
        (f"print({FORGED!r})\nimport sys\nprint({FORGED!r}, file=sys.stderr)", "wrong"),
        ("import os\nprint(0)\nos.close(0); os.close(2); os.close(1)", "error"),
        ("import os\nos._exit(0)", "wrong"),
        ("import os\nos.truncate('/proc/self/fd/1', 1 << 20)", "output_limit"),
        # the worker's memory, descriptors and limits
        (
            "import os\n"
            "for name in ('mem', 'fd', 'environ', 'maps'):\n"
            "    path = f'/proc/{os.getppid()}/{name}'\n"
            "    try: open(path, 'rb+' if name == 'mem' else 'rb') if name != 'fd' else os.listdir(path)\n"
            "    except OSError: continue\n"
            "    print('opened', path)\n",
            "wrong-nothing",
        ),
        (
            "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))\n",
            "any failure",
        ),
        # what judges: it is elsewhere, and the worker's functions here are copies
        (
            f"import json, sys\nworker = sys.modules[{WORKER!r}]\n"
            "worker._wait = lambda *_: True\n"
            f"worker._answer = json.dumps = lambda *_, **__: {FORGED!r}\n"
            "class Right(str):\n"
            "    __eq__ = lambda *_: True\n"
            "    __hash__ = str.__hash__\n"
            "print(Right('?'))\n",
            "wrong",
        ),
        # raising a limit
        (
            "import resource\n"
            "for which in (resource.RLIMIT_AS, resource.RLIMIT_CPU):\n"
            "    try: resource.setrlimit(which, (-1, -1))\n"
            "    except ValueError: continue\n"
            "    print('raised', which)\n",
            "wrong-nothing",
        ),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGINT)", "any failure"),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)", "ended_worker"),
    ],
)
async def test_no_program_passes_by_force(
    program: str, verdict: str, monkeypatch: pytest.MonkeyPatch
):
    from verifiers.envs import code_tests

    # A worker that stands still is waited for as long.
    monkeypatch.setattr(code_tests, "STARTUP_S", 1.0 if "SIGSTOP" in program else 3.0)
    async with made([{"input": "", "output": "RIGHT"}] * 2) as env:
        [output] = await run(env, ScriptedClient([block(program)]), state_columns=["test_report"])
    outcomes = output["test_report"]["outcomes"]
    assert (output["reward"], output["error"]) == (0.0, None)
    if verdict == "wrong-nothing":
        assert [(one["verdict"], one["detail"]) for one in outcomes] == [("wrong", "")] * 2
    elif verdict == "any failure":
        assert "passed" not in {one["verdict"] for one in outcomes}
    else:
        assert outcomes[0]["verdict"] == verdict
        assert "wrote" not in outcomes[0]["detail"]


async def test_what_one_test_writes_anywhere_is_not_there_for_the_next(env: CodeEnv):
    program = (
        "import os\n"
        "places = ['/tmp', '/box', '/dev/shm', os.environ['HOME'], os.path.expanduser('~'), '..']\n"
        "for place in places:\n"
        "    assert not [n for n in os.listdir(place) if n.startswith('mark')], place\n"
        "for number, place in enumerate(places):\n"
        "    os.makedirs(f'{place}/mark-{number}/deep')\n"
        "    open(f'{place}/mark-{number}/deep/file', 'w').write('x' * 5000)\n"
        "    os.symlink('/', f'{place}/mark-link-{number}')\n" + RIGHT
    )
    _, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5


async def test_a_tests_memory_limit_holds_for_it_and_spares_the_next():
    program = (
        "n = int(input())\n"
        "if n == 1: held = bytearray(100 << 20)\n"
        "if n == 2: held = [bytearray(1 << 20) for _ in range(100)]\n"
        "print(n * n)\n"
    )
    async with made(test_limits={"memory_mb": 64}) as env:
        _, verdicts = await played(env, program)
    assert verdicts == ["passed", "error", "error", "passed", "passed"]


async def test_tests_share_no_memory_and_no_working_directory(env: CodeEnv):
    program = (
        "import os, sys, math\n"
        "assert not os.listdir('.')\n"
        "assert not hasattr(math, 'mark')\n"
        "math.mark = 1\n"
        "open('mark', 'w').close()\n" + RIGHT
    )
    _, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5


async def test_a_test_of_many_does_not_suffer_from_what_others_printed_or_were_given():
    """More tests than have their files open at once, and more input and output than is kept until the end."""
    tests = [
        {
            "input": f"{n} {'x' * (n % 5) * 100_000}\n",
            "output": f"{n * n} {'y' * (n % 7) * 50_000}\n",
        }
        for n in range(80)
    ]
    program = (
        "import sys\n"
        "n = int(input().split()[0])\n"
        "print('z' * 200_000, file=sys.stderr)\n"
        "if n == 9: print('flood' * 10_000_000)\n"
        "print(n * n, 'y' * (n % 7) * 50_000)\n"
    )
    limits = {"max_tests": 80, "time_s": 5, "wall_time_s": 20, "max_file_mb": 8}
    async with made(tests, test_limits=limits, sandbox_spec={"disk_mb": 24}) as env:
        _, verdicts = await played(env, program)
    assert verdicts[9] in ("error", "output_limit")
    assert verdicts[:9] + verdicts[10:] == ["passed"] * 79


async def test_a_test_that_ends_other_processes_spares_the_tests_after_it():
    program = (
        "import glob, os, signal\n"
        "n = int(input())\n"
        "if n == 1:\n"
        "    for place in glob.glob('/proc/[0-9]*'):\n"
        "        pid = int(place.rpartition('/')[2])\n"
        "        if pid not in (1, os.getpid(), os.getppid()):\n"
        "            os.kill(pid, signal.SIGKILL)\n"
        "if n == 2: os.killpg(0, signal.SIGKILL)\n"
        "print(n * n)\n"
    )
    async with made() as env:
        _, verdicts = await played(env, program)
    assert verdicts == ["passed", "passed", "error", "passed", "passed"]


async def test_a_test_that_removes_its_directory_or_puts_another_in_its_place_changes_no_other(
    env: CodeEnv,
):
    program = (
        "import os\n"
        "n = int(input())\n"
        "assert not os.listdir('.')\n"
        "assert not [name for name in os.listdir('/tmp') if name.startswith('mark')]\n"
        "here = os.getcwd()\n"
        "if n == 1: os.rmdir(here)\n"
        "if n == 2:\n"
        "    os.rmdir(here)\n"
        "    os.mkdir('/tmp/mark')\n"
        "if n == 3: os.chmod(here, 0)\n"
        "print(n * n)\n"
    )
    _, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5


@pytest.mark.parametrize("reward", ["fraction", "all"])  # one batch, and several
async def test_a_test_that_takes_rights_away_neither_leaves_anything_nor_breaks_the_sandbox(
    reward: Any,
):
    program = (
        "import os\n"
        "n = int(input())\n"
        "assert not [name for name in os.listdir('/tmp') if name.startswith('mark')]\n"
        "os.makedirs('/tmp/mark/deep/deeper')\n"
        "os.symlink('/', '/tmp/mark/link')\n"
        "open('/tmp/mark/deep/file', 'w').close()\n"
        "for place in ('/tmp/mark/deep', '/tmp/mark', '/tmp', '/box', '/dev/shm'): os.chmod(place, 0)\n"
        "print(n * n)\n"
    )
    async with made(reward=reward) as env:
        output, verdicts = await played(env, program)
    assert (verdicts, output["error"]) == (["passed"] * 5, None)


async def test_what_is_expected_cannot_be_found_in_the_sandbox():
    """The program searches its whole memory and every file that it can read for an answer that is no input."""
    secret = "rosebud" + "-4711"
    program = (
        "import ctypes, os, re\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)\n"  # else not even its own memory is open to it
        "wanted = b'rosebud' + b'-4711'\n"
        "found = 0\n"
        "for line in open('/proc/self/maps'):\n"
        "    where, rights, *rest = line.split()\n"
        "    if 'r' not in rights or 'vvar' in line or 'vsyscall' in line: continue\n"
        "    start, end = (int(part, 16) for part in where.split('-'))\n"
        "    with open('/proc/self/mem', 'rb') as memory:\n"
        "        memory.seek(start)\n"
        "        try: found += len(re.findall(b'rosebud[-]4711[!]', memory.read(end - start)))\n"
        "        except OSError: pass\n"
        "for folder, _, names in os.walk('/tmp'):\n"
        "    for name in names:\n"
        "        found += b'4711!' in open(os.path.join(folder, name), 'rb').read()\n"
        "print('found' if found else 'nothing')\n"
    )
    tests = [{"input": "", "output": f"{secret}!"}]
    async with made(tests, test_limits={"time_s": 5, "wall_time_s": 10}) as env:
        [output] = await run(env, ScriptedClient([block(program)]), state_columns=["test_report"])
    [outcome] = output["test_report"]["outcomes"]
    assert (outcome["verdict"], outcome["detail"]) == ("wrong", "nothing\n")


async def test_processor_time_of_children_counts_although_sigchld_is_ignored():
    program = (
        "import os, signal, time\n"
        "n = int(input())\n"
        "try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "except OSError: pass\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.4: pass\n"
        "    os._exit(0)\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.4: pass\n"
        "    os._exit(0)\n"
        "try:\n"
        "    while True: os.wait()\n"
        "except ChildProcessError: pass\n"
        "print(n * n)\n"
    )
    async with made(SQUARES[:1], test_limits={"time_s": 0.5, "wall_time_s": 20}) as env:
        _, verdicts = await played(env, program)
    assert verdicts == ["timeout"]


NOTES = {
    "times": (
        "for place in ('/tmp', '/box', '/dev/shm'):\n"
        "    assert os.stat(place).st_atime != 4711, place\n"
        "    os.utime(place, (4711, 4711))\n"
    ),
    "attributes": (
        "for place in ('/tmp', '/box', '/dev/shm'):\n"
        "    assert not os.listxattr(place), place\n"
        "    try: os.setxattr(place, 'user.note', b'x')\n"
        "    except OSError: pass\n"
    ),
    "System V objects": (
        "c = ctypes.CDLL(None)\n"
        "for made in (c.msgget(4711, 0), c.semget(4711, 1, 0), c.shmget(4711, 1, 0)): assert made < 0\n"
        "c.msgget(4711, 0o1666); c.semget(4711, 1, 0o1666); c.shmget(4711, 100, 0o1666)\n"
    ),
    "message queues": (
        "c = ctypes.CDLL('librt.so.1')\n"
        "assert c.mq_open(b'/note', 0) < 0\n"
        "c.mq_open(b'/note', 0o102, 0o600, None)\n"
    ),
    "the source of the places": (
        "for place in ('/rw', '/rw/tmp', '/proc'):\n"
        "    assert not os.path.exists(place + '/note')\n"
        "    try: open(place + '/note', 'w').close()\n"
        "    except OSError: pass\n"
    ),
}


@pytest.mark.parametrize("kind", NOTES)
async def test_a_test_leaves_no_note_for_the_next_one(env: CodeEnv, kind: str):
    _, verdicts = await played(env, "import ctypes, os\n" + NOTES[kind] + RIGHT)
    assert verdicts == ["passed"] * 5
