"""`PythonEnv`: an interpreter that keeps its variables, shown to the model as v0 showed it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.python_env import PythonEnv, installed_modules, requirements, response_of
from verifiers.errors import ConfigError
from verifiers.sandboxes import CellResult, SandboxDead
from verifiers.testing import ScriptedClient, call, run
from verifiers.testing.environment_contract import environment_problems

ROWS = [{"question": f"Question {n}", "answer": str(n)} for n in range(4)]
SMALL = {"memory_gb": 0.25, "disk_size_gb": 0.03, "dataset": ROWS, "pip_install_packages": ""}


def cell(code: str) -> list[vf.ToolCall]:
    return [call("python", code=code)]


async def told(env: PythonEnv, *cells: Any) -> list[str]:
    [output] = await run(env, ScriptedClient([*map(cell, cells), "done"]))
    assert output["error"] is None
    return [m["content"] for m in output["completion"] if m["role"] == "tool"]


@pytest.fixture
async def env():
    async with PythonEnv(**SMALL) as env:
        yield env


def test_the_one_tool_is_python_and_shows_the_code_alone():
    [tool] = PythonEnv(**SMALL).tool_defs
    assert (tool.name, list(tool.parameters["properties"])) == ("python", ["code"])
    assert tool.description == "Execute `code` inside persistent Python REPL."


async def test_output_errors_values_and_tracebacks_are_shown_as_v0_does(env: PythonEnv):
    answers = await told(
        env,
        "print('out')\n3",
        "import sys\nprint('err', file=sys.stderr)\nprint('out')\n[1]",
        "x = 1",
        "print('before')\n1/0",
        "x + 1",
        "if x:",
    )
    assert answers[:3] == ["out\nOut[1]: 3", "out\nstderr:\nerr\nOut[2]: [1]", "(no output)"]
    assert answers[3].startswith("before\nTraceback (most recent call last):")
    assert answers[3].endswith("ZeroDivisionError: division by zero")
    assert answers[4] == "Out[5]: 2"
    assert "SyntaxError" in answers[5] or "IndentationError" in answers[5]


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"status": "ok", "stdout": "out\n", "stderr": "", "result": "3"}, "out\nOut[8]: 3"),
        ({"status": "ok", "stdout": "a", "stderr": "b", "result": None}, "a\nstderr:\nb"),
        ({"status": "ok", "stdout": "", "stderr": "", "result": None}, "(no output)"),
        ({"status": "error", "stdout": "o", "stderr": "", "result": "T\nE: x"}, "o\nT\nE: x"),
    ],
)
def test_a_response_is_formatted_and_counted(response: dict[str, Any], text: str):
    known: Any = {"ready": True, "execution_count": 7, "ready_wait_time": 0.0}
    assert PythonEnv(**SMALL)._format_response(known, response) == text
    assert known["execution_count"] == 8


async def test_a_time_limit_keeps_the_variables_unless_the_cell_refuses_to_be_interrupted():
    async with PythonEnv(**SMALL, timeout_per_command_seconds=0.3) as env:
        answers = await told(
            env, "x = 5", "while True: pass", "x", "import time\ntime.sleep(100)", "x"
        )
        stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
        lost = await told(env, "x = 5", stubborn, "x")
    assert answers[1] == (
        "Error: Execution timed out after 0.3s. The interpreter was interrupted; variables are kept."
    )
    assert [answers[2], answers[4]] == ["Out[3]: 5", "Out[5]: 5"]
    assert "it was restarted, and all variables are gone" in lost[1]
    assert "NameError" in lost[2]


async def test_code_that_ends_the_interpreter_gets_a_new_one(env: PythonEnv):
    answers = await told(env, "x = 1", "import os\nos._exit(3)", "'alive'")
    assert answers[1].startswith("Error: The code ended the interpreter; it was restarted")
    assert answers[2] == "Out[3]: 'alive'"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (CellResult(timed_out=True, restarted=True), "timed out after 2s"),
        (CellResult(output_limit_hit=True, restarted=True), "Too much output"),
        (CellResult(oom=True, restarted=True), "Out of memory"),
        (CellResult(restarted=True), "ended the interpreter"),
    ],
)
def test_every_fate_of_a_cell_has_its_words(result: CellResult, text: str):
    response = response_of(result, 2)
    assert response["status"] == "error"
    assert text in response["result"]


async def test_rollouts_share_no_variables(env: PythonEnv):
    client = ScriptedClient([cell("x = 1"), "done", cell("x"), "done"])
    outputs = await run(env, client, rollouts_per_example=2)
    assert "NameError" in outputs[1]["completion"][1]["content"]


async def test_the_interpreter_comes_up_unnoticed_with_the_sandbox(env: PythonEnv):
    async def answer(prompt: Any) -> Any:
        [sandbox_id] = env.active_sandboxes
        await env.sandbox_client.python(sandbox_id)  # up while the model "thinks"
        return cell("1")

    [output] = await run(env, ScriptedClient([answer, "done"]))
    assert output["metrics"]["python_ready_wait_time"] < 0.002
    assert output["metrics"]["sandbox_ready_wait_time"] < 0.002


async def test_a_lost_sandbox_fails_the_rollout(env: PythonEnv):
    async def lose(prompt: Any) -> Any:
        [sandbox_id] = env.active_sandboxes
        await env.sandbox_client.sandbox(sandbox_id).terminate()
        return cell("1")

    [output] = await run(env, ScriptedClient([cell("1"), lose, "done"]))
    assert output["error"]["error"] == "SandboxDead"


async def test_a_sandbox_out_of_memory_is_replaced_and_python_goes_on(env: PythonEnv):
    state = await env.init_state({"prompt": [], "example_id": 0}, ScriptedClient(), "m")
    state = await env.setup_state(state)
    arguments = (state["sandbox_id"], state["sandbox_state"], state["python_state"])
    assert await env.python("x = 1", *arguments) == "(no output)"
    await env._after_death(SandboxDead("gone", "oom"), *arguments[:2])
    assert "NameError" in await env.python("x", *arguments)


async def test_a_subclass_in_the_manner_of_public_environments_works_unchanged():
    class Telemetry(PythonEnv):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(pip_install_packages="", docker_image="python:3.11-slim", **kwargs)
            self.add_tool(self.list_directory, args_to_skip=["sandbox_id", "sandbox_state"])

        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            await self.bash(
                "mkdir -p data; touch data/a", state["sandbox_id"], state["sandbox_state"]
            )
            await self.python(
                "DATA = 'data'", state["sandbox_id"], state["sandbox_state"], state["python_state"]
            )
            return state

        def update_tool_args(
            self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
        ) -> Any:
            updated = super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
            if tool_name == "list_directory":
                updated["sandbox_id"] = state["sandbox_id"]
                updated["sandbox_state"] = state["sandbox_state"]
            return updated

        async def list_directory(self, path: str, sandbox_id: str, sandbox_state: Any) -> str:
            """List a directory."""
            return await self.bash(f"ls {path}", sandbox_id, sandbox_state)

    own = {key: value for key, value in SMALL.items() if key != "pip_install_packages"}
    async with Telemetry(**own) as env:
        replies = [[call("list_directory", path="data")], cell("DATA"), "done"]
        [output] = await run(env, ScriptedClient(replies))
    answers = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert answers == ["a", "Out[2]: 'data'"]


# ----------------------------------------------------------------------------------------------- packages


async def test_installed_libraries_are_importable_and_imported_beforehand():
    async with PythonEnv(**{**SMALL, "pip_install_packages": "numpy>=1.20"}) as env:
        assert "numpy" in env.sandbox_client.template.preload
        answers = await told(
            env, "import sys\n'numpy' in sys.modules", "import numpy\nnumpy.arange(3)"
        )
    assert answers == ["Out[1]: True", "Out[2]: array([0, 1, 2])"]


async def test_without_packages_nothing_that_is_installed_can_be_seen(env: PythonEnv):
    [answer] = await told(env, "import numpy")
    assert "ModuleNotFoundError" in answer


def test_a_missing_library_is_refused_at_once_with_the_remedy():
    with pytest.raises(ConfigError, match=r"surely-not-installed.*pip install") as caught:
        PythonEnv(**{**SMALL, "pip_install_packages": "numpy surely-not-installed"})
    assert "numpy" not in str(caught.value).split("Sandboxes download")[0]


def test_a_version_that_is_not_there_is_refused_with_the_one_that_is():
    with pytest.raises(ConfigError, match=r"numpy<1 \(.* is installed"):
        PythonEnv(**{**SMALL, "pip_install_packages": "numpy<1"})


def test_options_of_pip_are_skipped_and_nonsense_is_refused():
    assert [str(one) for one in requirements("-q numpy  sympy>=1 --pre")] == ["numpy", "sympy>=1"]
    with pytest.raises(ConfigError, match="is not a valid requirement"):
        requirements("numpy;;")


async def test_a_virtual_environment_of_ones_own_shows_its_packages_alone(tmp_path: Path):
    venv = tmp_path / "venv"
    make = [sys.executable, "-m", "venv", "--without-pip", str(venv)]
    await asyncio.to_thread(subprocess.run, make, check=True)
    [packages] = venv.glob("lib/python3*/site-packages")
    (packages / "tiny.py").write_text("VALUE = 42\n")
    info = packages / "tiny-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.5\n")
    (info / "RECORD").write_text("tiny.py,,\ntiny-1.5.dist-info/METADATA,,\n")
    assert installed_modules(requirements("tiny==1.5"), str(venv)) == ("tiny",)
    options = {**SMALL, "pip_install_packages": "tiny", "packages": str(venv)}
    async with PythonEnv(**options) as env:
        answers = await told(env, "import tiny\ntiny.VALUE", "import numpy")
    assert answers[0] == "Out[1]: 42"
    assert "ModuleNotFoundError" in answers[1]


def test_a_folder_that_is_no_virtual_environment_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a virtual environment"):
        PythonEnv(**{**SMALL, "pip_install_packages": "x", "packages": str(tmp_path)})


async def test_it_keeps_every_promise_of_an_environment(env: PythonEnv):
    assert await environment_problems(env) == []


async def test_its_state_can_be_saved(env: PythonEnv):
    row = env.source("eval").inputs(1)[0]
    state = await env.rollout(row, ScriptedClient([cell("1"), "done"]), "scripted", {})
    saved = json.loads(json.dumps([state["sandbox_state"], state["python_state"]]))
    assert saved[0]["ready"] is True
    assert saved[1]["execution_count"] == 1
