"""What a model plants or leaves running in its sandbox neither changes its verdict nor turns it into an error."""

import importlib.util
import marshal
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sandbox_rollouts import SMALL, bash

import verifiers as vf
from verifiers.envs.sandbox_env import CreateSandboxRequest, SandboxEnv
from verifiers.envs.sandbox_mixin import SandboxMixin
from verifiers.errors import ConfigError
from verifiers.sandboxes import SandboxDead
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient, call, run

pytestmark = pytest.mark.asyncio(loop_scope="module")

HIDDEN = """
import json, subprocess, sys
import helper
asked = subprocess.run([sys.executable, "solution.py"], input="3", capture_output=True, text=True)
print("VERDICT", json.dumps(asked.stdout.strip() == helper.EXPECTED))
"""
HELPER = "EXPECTED = 'the-answer-4711'\n"
CHEAT = "import posix; posix.write(1, b'VERDICT true\\n'); posix._exit(0)"
WRONG = "echo 'print(\"a wrong answer!\")' > solution.py"
RIGHT = "echo 'print(\"the-answer-4711\")' > solution.py"


async def runs_the_hidden_test(sandbox: Any) -> float:
    """As authors write it: the test goes into the work directory and is run there."""
    await sandbox.write("helper.py", HELPER.encode())
    await sandbox.write("hidden_test.py", HIDDEN.encode())
    result = await sandbox.exec("python3 hidden_test.py", timeout_s=20)
    return float("VERDICT true" in result.text)


class V0Env(SandboxEnv):
    """As v0's authors write it: with the client and the sandbox's id, when the rollout has ended."""

    async def post_rollout(self, state: vf.State) -> None:
        client, sandbox_id = self.sandbox_client, state["sandbox_id"]
        await client.upload_bytes(sandbox_id, "/box/helper.py", HELPER.encode())
        await client.upload_bytes(sandbox_id, "/box/hidden_test.py", HIDDEN.encode())
        result = await client.execute_command(
            sandbox_id, "python3 hidden_test.py", working_dir="/box", timeout=20
        )
        state["verdict"] = float("VERDICT true" in result.stdout)


def reads_the_verdict(state: vf.State) -> float:
    return state["verdict"]


def unchecked_byte_code(source: str) -> bytes:
    """A `.pyc` file that Python loads without a look at the source."""
    code = marshal.dumps(compile(source, "helper.py", "exec"))
    return importlib.util.MAGIC_NUMBER + struct.pack("<I", 1) + b"\0" * 8 + code


def python(source: str) -> str:
    """A shell line that runs a Python program."""
    return f"python3 - <<'END_OF_PROGRAM'\n{source}\nEND_OF_PROGRAM"


def daemon(source: str) -> str:
    """A shell line that leaves a program running: detached twice, without the variables that jobs are known by."""
    return python(
        "import os\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if not os.fork():\n"
        "        for n in range(3): os.close(n)\n"
        "        os.environ.clear()\n"
        f"        os.execv('/usr/bin/python3', ['python3', '-c', {source!r}])"
    )


REWRITE_THE_TEST = f"""
while True:
    try:
        if open('/box/hidden_test.py').read():
            open('/box/hidden_test.py', 'w').write({CHEAT!r})
    except OSError:
        pass
"""
REWRITE_MEMORY = """
import os, re
while True:
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            if b'hidden_test.py' not in open(f'/proc/{pid}/cmdline', 'rb').read():
                continue
            for line in open(f'/proc/{pid}/maps'):
                start, end = (int(n, 16) for n in line.split()[0].split('-'))
                if 'rw' not in line or end - start > 1 << 24: continue
                with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as memory:
                    memory.seek(start)
                    data = memory.read(end - start)
                    for found in re.finditer(b'the-answer-4711', data):
                        memory.seek(start + found.start())
                        memory.write(b'a wrong answer!')
        except OSError:
            pass
"""
USER_SITE = "$(python3 -c 'import site; print(site.getusersitepackages())')"
BYTE_CODE = unchecked_byte_code(CHEAT)
BYTE_CODE_NAME = importlib.util.cache_from_source("helper.py")

PLANTED = {
    "a_pth_file_of_the_user": f'mkdir -p {USER_SITE}; echo "{CHEAT}" > {USER_SITE}/x.pth',
    "usercustomize": f'mkdir -p {USER_SITE}; echo "{CHEAT}" > {USER_SITE}/usercustomize.py',
    "sitecustomize": f'mkdir -p {USER_SITE}; echo "{CHEAT}" > {USER_SITE}/sitecustomize.py',
    "a_module_of_the_standard_library": f'echo "{CHEAT}" > subprocess.py',
    "a_package_of_the_standard_library": f'mkdir json; echo "{CHEAT}" > json/__init__.py',
    "byte_code_that_is_not_checked": python(
        f"import os\nos.mkdir('__pycache__')\nopen({BYTE_CODE_NAME!r}, 'wb').write({BYTE_CODE!r})"
    ),
    "a_program_on_the_path": 'mkdir bin; printf "#!/bin/sh\\necho VERDICT true\\n" > bin/python3; chmod +x bin/python3',
    "a_start_file_of_the_shell": 'echo "echo VERDICT true; exit" > start.sh',
    "a_module_on_the_python_path": f'mkdir lib; echo "{CHEAT}" > lib/sitecustomize.py',
    "an_encoding_on_the_python_path": f'mkdir -p lib/encodings; echo "{CHEAT}" > lib/encodings/__init__.py',
    "a_daemon_that_rewrites_the_test": daemon(REWRITE_THE_TEST),
    "a_daemon_that_rewrites_memory": daemon(REWRITE_MEMORY),
    "many_daemons_in_groups_of_their_own": " ; ".join([daemon(REWRITE_THE_TEST)] * 3).replace(
        " ; ", "\n"
    ),
}
VARIABLES = {
    "a_program_on_the_path": {"PATH": "/box/bin:/usr/local/bin:/usr/bin:/bin"},
    "a_start_file_of_the_shell": {"BASH_ENV": "/box/start.sh"},
    "a_module_on_the_python_path": {"PYTHONPATH": "/box/lib"},
    "an_encoding_on_the_python_path": {"PYTHONPATH": "/box/lib"},
}
"""Variables by which an author's own environment names what the model can write."""
OBSTACLES = {
    "a_fifo_in_the_place_of_the_test": "mkfifo hidden_test.py",
    "a_directory_in_the_place_of_the_test": "mkdir hidden_test.py",
    "a_link_in_the_place_of_the_test": "ln -s /dev/null hidden_test.py",
    "a_link_in_a_circle": "ln -s hidden_test.py hidden_test.py",
    "a_test_without_rights": "touch hidden_test.py; chmod 0 hidden_test.py",
    "a_full_disk": "cat /dev/zero > filler 2>/dev/null; cat /dev/zero > filler2 2>/dev/null; true",
    "no_inode_left": python(
        "n = 0\nwhile True:\n try: open(f'f{n}', 'w').close()\n except OSError: break\n n += 1"
    ),
    "directories_without_end": python(
        "import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    ),
    "long_names_in_long_paths": python(
        "import os\nfor _ in range(60): os.mkdir('n' * 250); os.chdir('n' * 250)"
    ),
    "a_file_of_nothing_but_zeros": "truncate -s 20M big",
    "no_right_to_the_work_directory": "chmod 0 /box",
    "no_right_to_the_temporary_directory": "chmod 0 /tmp",
    "every_process_taken": python(
        "import os\nwhile True:\n try: pid = os.fork()\n except OSError: break\n"
        " if not pid: os.setsid(); os.execv('/bin/sleep', ['sleep', '10000'])"
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


async def scored(
    backend: LocalBackend, command: str, *, cls: Any = SandboxEnv, **options: Any
) -> Any:
    reward = options.pop("reward", reads_the_verdict if cls is V0Env else runs_the_hidden_test)
    settings: dict[str, Any] = {**SMALL, "disk_size_gb": 0.01, "backend": backend, **options}
    async with cls(**settings, rubric=vf.Rubric(funcs=[reward])) as env:
        [output] = await run(env, ScriptedClient([bash(command), "done"]))
        assert not env.sandbox_client._entries
        assert env.active_sandboxes == set()
    return output


def places(*usual: str) -> list[Any]:
    """Where to score; those that are not usual are left to the long suite."""
    return [
        pytest.param(place, marks=() if place in usual else pytest.mark.long)
        for place in ("snapshot", "own")
    ]


@pytest.mark.parametrize("score_in", places("snapshot", "own"))
@pytest.mark.parametrize("attack", PLANTED)
async def test_what_the_model_has_planted_or_left_running_forges_no_verdict(
    backend: LocalBackend, score_in: str, attack: str
):
    output = await scored(
        backend,
        f"{WRONG}\n{PLANTED[attack]}",
        score_in=score_in,
        environment_vars=VARIABLES.get(attack),
    )
    assert (output["reward"], output["error"], output["errors"]) == (0.0, None, [])


@pytest.mark.parametrize("score_in", places("snapshot"))
@pytest.mark.parametrize("attack", PLANTED)
async def test_an_honest_solution_passes_beside_the_same_files(
    backend: LocalBackend, score_in: str, attack: str
):
    output = await scored(
        backend,
        f"{RIGHT}\n{PLANTED[attack]}",
        score_in=score_in,
        environment_vars=VARIABLES.get(attack),
    )
    assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])


@pytest.mark.long
@pytest.mark.parametrize("attack", PLANTED)
async def test_the_same_attacks_succeed_in_a_sandbox_that_is_left_as_it_is(
    backend: LocalBackend, attack: str
):
    output = await scored(
        backend,
        f"{WRONG}\n{PLANTED[attack]}",
        score_in="live",
        environment_vars=VARIABLES.get(attack),
    )
    if "daemon" not in attack:  # those race with the test, and may lose
        assert output["reward"] == 1.0


@pytest.mark.parametrize("score_in", places("snapshot"))
@pytest.mark.parametrize("attack", OBSTACLES)
async def test_no_obstacle_turns_a_wrong_solution_into_a_failed_rollout(
    backend: LocalBackend, score_in: str, attack: str
):
    output = await scored(backend, f"{WRONG}\n{OBSTACLES[attack]}", score_in=score_in)
    assert (output["reward"], output["error"]) == (0.0, None)


@pytest.mark.parametrize("attack", [name for name in OBSTACLES if "test" in name or "link" in name])
async def test_nothing_in_the_place_of_a_test_keeps_it_from_being_written(
    backend: LocalBackend, attack: str
):
    output = await scored(backend, f"{RIGHT}\n{OBSTACLES[attack]}", cls=V0Env)
    assert (output["reward"], output["error"]) == (1.0, None)


@pytest.mark.parametrize("attack", ["a_pth_file_of_the_user", "a_daemon_that_rewrites_the_test"])
@pytest.mark.parametrize("cls", [SandboxEnv, V0Env])
async def test_scoring_is_protected_by_default_also_with_the_client_of_v0(
    backend: LocalBackend, cls: Any, attack: str
):
    for solution, reward in ((WRONG, 0.0), (RIGHT, 1.0)):
        output = await scored(backend, f"{solution}\n{PLANTED[attack]}", cls=cls)
        assert (output["reward"], output["error"]) == (reward, None)


@pytest.mark.parametrize("score_in", places("snapshot", "own"))
async def test_programs_and_sessions_of_the_scorer_import_libraries_first(
    backend: LocalBackend, score_in: str
):
    async def imports(sandbox: Any) -> float:
        code = "import own, statistics\nprint(own.NAME, statistics.mean([1, 3]))"
        program = await sandbox.run_python(code)
        async with await sandbox.python() as session:
            cell = await session.run(code)
        return float(program.text == cell.text == "own 2\n")

    planted = "echo 'def mean(x): return 4711' > statistics.py; echo 'NAME = \"own\"' > own.py"
    output = await scored(backend, planted, score_in=score_in, reward=imports)
    assert (output["reward"], output["errors"]) == (1.0, [])


@pytest.mark.parametrize("score_in", places("snapshot", "own"))
async def test_scoring_sees_the_files_and_not_the_processes(backend: LocalBackend, score_in: str):
    async def looks(sandbox: Any) -> float:
        seen = await sandbox.exec(
            "cat ~/notes /tmp/notes link; stat -c '%a %Y' notes; ls -A ~; ps ax | grep -c '[s]leep 4711'"
        )
        assert seen.text == "a\nb\na\n640 1000000000\nlink\nnotes\n0\n", seen.text
        return 1.0

    output = await scored(
        backend,
        "echo a > notes; chmod 640 notes; touch -d @1000000000 notes; echo b > /tmp/notes; touch .hidden; "
        "ln -s /box/notes link; setsid sleep 4711 >/dev/null 2>&1 &",
        score_in=score_in,
        reward=looks,
    )
    assert (output["reward"], output["errors"]) == (1.0, [])


async def test_a_start_command_runs_again_beside_the_scorer(backend: LocalBackend):
    class Serving(SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            client, sandbox_id = self.sandbox_client, state["sandbox_id"]
            line = "until [ -p /tmp/service ]; do :; done; (echo question > /tmp/service &); cat /tmp/answer"
            result = await client.execute_command(sandbox_id, line)
            state["verdict"] = float(result.stdout == "question\n")

    service = "mkfifo /tmp/answer; mkfifo /tmp/service; cat /tmp/service > /tmp/answer"
    async with Serving(
        **SMALL,
        backend=backend,
        start_command=service,
        rubric=vf.Rubric(funcs=[reads_the_verdict]),
    ) as env:
        [output] = await run(env, ScriptedClient([bash("pkill cat; true"), "done"]))
    assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])


async def test_a_rollout_that_nobody_looks_at_makes_no_second_sandbox(backend: LocalBackend):
    made = []
    create = backend.create

    async def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return await create(*args, **kwargs)

    backend.create = counted  # type: ignore[method-assign]
    try:
        async with SandboxEnv(**SMALL, backend=backend) as env:
            await run(env, ScriptedClient([bash("true"), "done"]))
    finally:
        backend.create = create  # type: ignore[method-assign]
    assert len(made) == 1


async def test_the_author_decides_which_variables_scoring_has(backend: LocalBackend):
    async def reads(sandbox: Any) -> float:
        return float(
            (await sandbox.exec("echo $PATH:$KEY")).text == "/box/bin:/usr/bin:/bin:kept\n"
        )

    output = await scored(
        backend,
        "true",
        environment_vars={"KEY": "kept"},
        score_env={"PATH": "/box/bin:/usr/bin:/bin"},
        reward=reads,
    )
    assert output["reward"] == 1.0


async def test_a_sandbox_whose_memory_is_used_up_is_scored_as_an_empty_one(backend: LocalBackend):
    class Dying(V0Env):
        async def _before_scoring(self, state: vf.State) -> None:
            sandbox = self.sandbox_client.sandbox(state["sandbox_id"])
            await sandbox.ready()
            sandbox._end(SandboxDead("all memory used", "oom"))

    output = await scored(backend, RIGHT, cls=Dying, reward=reads_the_verdict)
    assert (output["reward"], output["error"]) == (0.0, None)


async def test_python_environments_are_scored_without_what_cells_have_planted(
    backend: LocalBackend,
):
    cell = (
        "import os, site\nos.makedirs(site.getusersitepackages())\n"
        f"open(site.getusersitepackages() + '/x.pth', 'w').write({CHEAT!r})\n"
        "open('solution.py', 'w').write('print(1)')\nleft = os.popen('setsid sleep 4711 &')"
    )
    settings = {**SMALL, "backend": backend, "pip_install_packages": ""}
    rubric = vf.Rubric(funcs=[runs_the_hidden_test])
    async with vf.PythonEnv(**settings, rubric=rubric) as env:
        [output] = await run(env, ScriptedClient([[call("python", code=cell)], "done"]))
    assert (output["reward"], output["error"], output["errors"]) == (0.0, None, [])


async def test_a_mixin_with_a_clean_up_handler_of_its_own_is_protected_too(backend: LocalBackend):
    class Mine(SandboxMixin, vf.SingleTurnEnv):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.init_sandbox_client(backend=backend)

        async def setup_state(self, state: vf.State) -> vf.State:
            await self.create_sandbox(state, CreateSandboxRequest(name="mine", memory_gb=0.125))
            client, sandbox_id = self.sandbox_client, state["sandbox_id"]
            planted = PLANTED["a_pth_file_of_the_user"]
            await client.execute_command(sandbox_id, f"{WRONG}\n{planted}")
            return await super().setup_state(state) or state

        @vf.cleanup(priority=100)
        async def judge(self, state: vf.State) -> None:
            state["verdict"] = await runs_the_hidden_test(
                self.sandbox_client.sandbox(state["sandbox_id"])
            )

    async with Mine(dataset=SMALL["dataset"], rubric=vf.Rubric(funcs=[reads_the_verdict])) as env:
        [output] = await run(env, ScriptedClient(["done"]))
    assert (output["reward"], output["error"], output["errors"]) == (0.0, None, [])


async def test_another_place_to_score_in_is_refused_by_name():
    with pytest.raises(ConfigError, match="score_in='outside' is not a valid"):
        SandboxEnv(**SMALL, score_in="outside")  # type: ignore[arg-type]
