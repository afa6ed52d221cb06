"""`CodeEnv`: whatever a program does is its score; whatever the machinery does is not."""

import asyncio
import json
import os
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.code_env import CodeEnv
from verifiers.errors import ConfigError
from verifiers.sandboxes import SandboxDead, SandboxSpec
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.local.zygote import landlock
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend
from verifiers.testing import Reply, ScriptedClient, run
from verifiers.testing.environment_contract import environment_problems
from verifiers.training.samples import failure_of, samples_of

SQUARES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(5)]
RIGHT = "n = int(input())\nprint(n * n)\n"


def rows(tests: Any = SQUARES, count: int = 1) -> list[dict[str, Any]]:
    return [
        {"question": f"Square {n}?", "answer": "", "info": {"tests": json.dumps(tests)}}
        for n in range(count)
    ]


def made(tests: Any = SQUARES, **options: Any) -> CodeEnv:
    limits = {"time_s": 0.5, "wall_time_s": 1.0, "memory_mb": 64, **options.pop("test_limits", {})}
    return CodeEnv(dataset=rows(tests), test_limits=limits, **options)


def block(program: str) -> str:
    return f"Here it is.\n```python\n{program}\n```\n"


async def played(env: CodeEnv, program: str) -> tuple[Any, list[str]]:
    """The output and the verdicts of its tests."""
    [output] = await run(env, ScriptedClient([block(program)]), state_columns=["test_report"])
    report = output.get("test_report")
    return output, [one["verdict"] for one in report["outcomes"]] if report else []


@pytest.fixture
async def env():
    async with made() as env:
        yield env


# -------------------------------------------------------------------------------------------------- programs


async def test_a_right_program_passes_every_test(env: CodeEnv):
    output, verdicts = await played(env, RIGHT)
    assert verdicts == ["passed"] * 5
    assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])
    assert output["metrics"]["tests_run"] == 5.0


async def test_the_reward_is_the_share_of_tests_passed(env: CodeEnv):
    output, verdicts = await played(env, "n = int(input())\nprint(n + n)\n")
    assert verdicts == ["passed", "wrong", "passed", "wrong", "wrong"]
    assert output["reward"] == pytest.approx(0.4)


async def test_all_or_nothing_stops_after_the_wave_of_the_first_failure():
    async with made(reward="all") as env:
        output, verdicts = await played(env, "n = int(input())\nprint(n + n)\n")
        right, _ = await played(env, RIGHT)
    assert verdicts == ["passed", "wrong", "passed", "not_run", "not_run"]
    assert (output["reward"], right["reward"]) == (0.0, 1.0)


async def test_all_or_nothing_can_run_every_test_all_the_same():
    async with made(reward="all", stop_at_first_failure=False) as env:
        output, verdicts = await played(env, "print(0)")
    assert verdicts == ["passed", *["wrong"] * 4]
    assert output["metrics"]["pass_fraction"] == pytest.approx(0.2)


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
        ("import os\nwhile True: os.fork()", "error"),
        ("import os\nos.kill(os.getppid(), 9)", "ended_worker"),
        ("import os\nos.kill(-1, 9)", "ended_worker"),
    ],
)
async def test_whatever_a_program_does_is_its_own_failure(program: str, verdict: str):
    async with made(SQUARES[:1]) as env:
        output, verdicts = await played(env, program)
        again, _ = await played(env, RIGHT)
    assert verdicts == [verdict]
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
WORKER = "sandbox_agent.program_tests"


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
            "    except PermissionError: continue\n"
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
    from verifiers.envs.code_tests import runner

    monkeypatch.setattr(runner, "STARTUP_S", 3.0)
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


async def test_text_of_any_alphabet_goes_in_and_out():
    async with made([{"input": "zażółć 漢字\n", "output": "字漢 ćłóżaz\n"}]) as env:
        _, verdicts = await played(env, "print(input()[::-1])")
    assert verdicts == ["passed"]


async def test_functions_are_called_and_their_values_compared():
    tests = [
        {"function": "pair", "arguments": [n], "expected": [n, {"twice": 2 * n}]} for n in (1, 2)
    ]
    async with made(tests) as env:
        programs = {
            "def pair(n):\n    print('noise')\n    return n, {'twice': 2 * n}": ["passed"] * 2,
            "class Solution:\n    def pair(self, n):\n        return [n, {'twice': 2.0 * n}]": [
                "passed"
            ]
            * 2,
            "def pair(n): return n": ["wrong"] * 2,
            "def other(n): return n": ["error"] * 2,
            "def pair(n): return object()": ["error"] * 2,
            "def pair(n): return pair(n)": ["error"] * 2,
            "if __name__ == '__main__':\n    input()\ndef pair(n): return [n, {'twice': 2 * n}]": [
                "passed"
            ]
            * 2,
        }
        for program, expected in programs.items():
            _, verdicts = await played(env, program)
            assert verdicts == expected, program


async def test_only_so_many_tests_of_a_row_are_used():
    many = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(40)]
    async with made(many) as env:
        output, _ = await played(env, RIGHT)
        assert output["metrics"]["tests_run"] == 15.0
    async with made(many, test_limits={"max_tests": 3}) as env:
        output, _ = await played(env, RIGHT)
        assert output["metrics"]["tests_run"] == 3.0


async def test_a_completion_without_a_program_scores_zero_and_starts_nothing(env: CodeEnv):
    [output] = await run(env, ScriptedClient(["I cannot."]))
    assert (output["reward"], output["error"]) == (0.0, None)
    assert (output["metrics"]["has_code"], output["metrics"]["tests_run"]) == (0.0, 0.0)


async def test_a_rubric_of_ones_own_reads_the_report():
    def half(state: vf.State) -> float:
        return state["test_report"]["passed"] / 2 if state["test_report"] else 0.0

    async with made(rubric=vf.Rubric(funcs=[half])) as env:
        output, _ = await played(env, RIGHT)
    assert output["reward"] == 2.5
    assert output["metrics"]["passes_tests"] == 1.0


# ------------------------------------------------------------------------------------ trouble of the machinery


class Fragile(LocalBackend):
    """Sandboxes that are lost as soon as they are up, the first `losses` of them."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses
        self.made = 0

    async def create(self, spec: SandboxSpec, **kwargs: Any) -> Any:
        sandbox = await super().create(spec, **kwargs)
        self.made += 1
        if self.made <= self.losses:
            start = sandbox.run_python

            async def lost(*args: Any, **options: Any) -> Any:
                error = SandboxDead(f"Sandbox {sandbox.id} is gone.", "crashed")
                asyncio.get_running_loop().call_soon(sandbox._end, error)
                return await start(*args, **options)

            sandbox.run_python = lost  # type: ignore[method-assign]
        return sandbox


async def test_a_sandbox_that_is_lost_once_does_not_matter():
    async with Fragile(1) as backend, made(backend=backend) as env:
        output, _ = await played(env, RIGHT)
    assert (output["reward"], output["error"], backend.made) == (1.0, None, 2)


async def test_a_broken_sandbox_masks_the_completion_instead_of_scoring_zero():
    async with Fragile(99) as backend, made(backend=backend) as env:
        [output] = await run(
            env, ScriptedClient([block(RIGHT)], token_ids=True), state_columns=["trajectory"]
        )
    assert output["error"]["error"] == "SandboxDead"
    assert output["stop_condition"] == "has_error"
    assert backend.made == 2
    assert "SandboxDead" in (failure_of(output) or "")
    assert samples_of(output) == []


async def test_an_interpreter_without_the_worker_is_given_its_source(
    monkeypatch: pytest.MonkeyPatch,
):
    from verifiers.envs.code_tests import runner

    code = runner.worker_code

    def foreign(batch: bytes | None, *, as_source: bool = False) -> str:
        text = code(batch, as_source=as_source)
        return text if as_source else text.replace("sandbox_agent", "no_agent")

    monkeypatch.setattr(runner, "worker_code", foreign)
    async with made() as env:
        _, right = await played(env, RIGHT)
        _, wrong = await played(env, "n = int(input())\nprint(n + n)\n")
    assert right == ["passed"] * 5
    assert wrong == ["passed", "wrong", "passed", "wrong", "wrong"]


async def test_a_worker_that_fails_by_itself_is_trouble_of_the_machinery(
    monkeypatch: pytest.MonkeyPatch,
):
    from verifiers.envs.code_tests import runner

    broken = runner.worker_source().replace("os.mkdir(folder)", "os.mkdir('/no/such/folder')")
    assert broken != runner.worker_source()
    code = runner.worker_code
    monkeypatch.setattr(runner, "worker_source", lambda: broken)
    monkeypatch.setattr(runner, "worker_code", lambda batch, **_: code(batch, as_source=True))
    async with made() as env:
        output, verdicts = await played(env, RIGHT)
    assert (output["error"]["error"], verdicts) == ("SandboxError", [])


async def test_filling_the_disk_is_the_programs_own_failure():
    program = (
        "import itertools, tempfile\n"
        "for n in itertools.count():\n"
        "    with open(f'{tempfile.gettempdir()}/fill-{n}', 'wb') as file:\n"
        "        file.write(bytes(1 << 20))\n"
    )
    async with made(sandbox_spec={"disk_mb": 8}) as env:
        output, verdicts = await played(env, program)
    assert set(verdicts) <= {"error", "ended_worker", "not_run"}
    assert (output["reward"], output["error"]) == (0.0, None)


# Root's interpreter may be unreadable for the users that sandboxes become.
PYTHON = "/usr/bin/python3" if os.getuid() == 0 else None
HAS_RESTRICTED = landlock.abi() >= landlock.MIN_ABI and os.path.exists(PYTHON or "/")


@pytest.mark.parametrize("level", ["restricted", "none"])
async def test_it_works_at_the_weaker_levels_too(level: Any):
    if level == "restricted" and not HAS_RESTRICTED:
        pytest.skip("this machine cannot have the level 'restricted'")
    backend = (
        LocalBackend(LocalConfig(level="restricted")) if level != "none" else UnsafeLocalBackend()
    )
    spec = {"isolation_min": level, "python": PYTHON if level == "restricted" else None}
    async with backend, made(SQUARES[:2], backend=backend, sandbox_spec=spec) as env:
        _, right = await played(env, RIGHT)
        _, wrong = await played(env, "import os\nos.kill(os.getppid(), 9)")
    assert right == ["passed"] * 2
    assert wrong[0] == "ended_worker"


async def test_nothing_is_left_when_a_run_is_cancelled(env: CodeEnv):
    client = ScriptedClient(then=Reply("x", after=asyncio.Event()))
    running = asyncio.create_task(run(env, client, rollouts_per_example=4, max_concurrent=4))
    await client.asked(4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not env._sandboxes
    assert not env.backends.here()._sandboxes


async def test_the_sandbox_comes_up_while_the_model_writes(env: CodeEnv):
    async def answer(prompt: Any) -> str:
        [sandbox] = env._sandboxes.values()
        await sandbox.ready()
        return block(RIGHT)

    [output] = await run(env, ScriptedClient([answer]))
    assert output["metrics"]["sandbox_ready_wait_time"] < 0.002


# ----------------------------------------------------------------------------------------------- many at once


async def test_no_more_programs_are_tested_at_once_than_allowed(monkeypatch: pytest.MonkeyPatch):
    from verifiers.envs import code_env

    running = most = 0
    play = code_env.run_program

    async def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return await play(*args, **kwargs)
        finally:
            running -= 1

    monkeypatch.setattr(code_env, "run_program", counted)
    async with CodeEnv(dataset=rows(count=12), max_concurrent_programs=8) as env:
        for concurrency, allowed in ((2, 2), (100, 8)):
            most = 0
            env.set_concurrency(concurrency)
            outputs = await run(env, ScriptedClient(then=block(RIGHT)), n=12, max_concurrent=12)
            assert all(output["reward"] == 1.0 for output in outputs)
            assert 0 < most <= allowed


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "some"}, "reward must be"),
        ({"stop_at_first_failure": True}, "unknown"),
        ({"sandbox_attempts": 0}, "sandbox_attempts"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        CodeEnv(dataset=rows(), **options)


async def test_a_row_without_tests_is_found_before_the_model_is_asked():
    client = ScriptedClient()
    async with CodeEnv(dataset=[{"question": "q", "answer": ""}]) as env:
        with pytest.raises(ConfigError, match="has no info"):
            await run(env, client)
    assert client.requests == []


async def test_it_keeps_every_promise_of_an_environment(env: CodeEnv):
    assert await environment_problems(env) == []
