"""Subclasses written as those in public environments are, word for word in v0's names, run unchanged."""

import asyncio
import inspect
import json
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.python_env import PythonEnv
from verifiers.envs.sandbox_env import AdvancedConfigs, CreateSandboxRequest, SandboxEnv
from verifiers.testing import ScriptedClient, call, run

ROWS = [
    {"question": "Make main.py print 7.", "answer": "7", "info": {"files": {"main.py": "print(6)"}}}
]
SMALL: dict[str, Any] = {"memory_gb": 0.125, "disk_size_gb": 0.03}


class RepairEnv(vf.SandboxEnv):
    """A repository is put in, the model edits it through a tool of its own, tests run at the end."""

    def __init__(self, max_turns: int = 6, **kwargs: Any) -> None:
        super().__init__(
            sandbox_name="repair",
            start_command="tail -f /dev/null",
            timeout_minutes=10,
            labels=["repair"],
            advanced_configs=AdvancedConfigs(),
            max_turns=max_turns,
            **kwargs,
        )
        self.remove_tool(self.bash)
        self.add_tool(self.run_command, args_to_skip=["state"])
        self.add_tool(self.submit, args_to_skip=["state"])
        self.destroyed: list[str] = []

    async def _prepare_runtime(self, state: vf.State) -> None:
        sandbox_id = state["sandbox_id"]
        await self.sandbox_client.wait_for_creation(sandbox_id)
        await self.sandbox_client.execute_command(sandbox_id, "mkdir -p /tmp/repo", timeout=10)
        for name, text in state["info"]["files"].items():
            path = f"/tmp/repo/{name}"
            await self.sandbox_client.upload_bytes(sandbox_id, path, text.encode(), name)

    async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
        state = await super().setup_state(state, **kwargs)
        state["working_dir"] = "/tmp/repo"
        state["bash_commands_used"] = 0
        state["sandbox_closed"] = False
        await self._prepare_runtime(state)
        return state

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: vf.Messages,
        state: vf.State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        updated = super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
        if tool_name in ("run_command", "submit"):
            updated["state"] = state
        return updated

    async def run_command(self, command: str, state: vf.State) -> str:
        """Run a command in the repository."""
        state["bash_commands_used"] += 1
        return await self.bash(
            command,
            sandbox_id=state["sandbox_id"],
            sandbox_state=state["sandbox_state"],
            working_dir=state["working_dir"],
        )

    async def submit(self, state: vf.State) -> str:
        """Hand in."""
        state["done"] = True
        return "Submitted."

    @vf.stop
    async def is_submitted(self, state: vf.State) -> bool:
        return bool(state.get("done"))

    async def post_rollout(self, state: vf.State) -> None:
        result = await self.sandbox_client.execute_command(
            state["sandbox_id"], "python3 main.py", working_dir="/tmp/repo", timeout=10
        )
        state["test_output"] = {"stdout": result.stdout.strip(), "code": result.exit_code}

    @vf.cleanup
    async def destroy_sandbox(self, state: vf.State) -> None:
        if state.get("sandbox_closed"):
            return
        state["sandbox_closed"] = True
        self.destroyed.append(state["sandbox_id"])
        await super().destroy_sandbox(state)


def prints_answer(state: vf.State, answer: str, **kwargs: Any) -> float:
    return float(state["test_output"] == {"stdout": answer, "code": 0})


async def test_an_environment_that_repairs_a_repository():
    rubric = vf.Rubric(funcs=[prints_answer])
    async with RepairEnv(dataset=ROWS, rubric=rubric, **SMALL) as env:
        assert [tool.name for tool in env.tool_defs] == ["run_command", "submit"]
        for tool in env.tool_defs:
            assert "state" not in tool.parameters["properties"]
        replies = [
            [call("run_command", command="cat main.py; pwd")],
            [call("run_command", command="echo 'print(7)' > main.py")],
            [call("submit")],
            "Done.",  # v0 asks once more: conditions are looked at after the model's turn
        ]
        [output] = await run(env, ScriptedClient(replies))
        assert (output["error"], output["reward"]) == (None, 1.0)
        assert output["stop_condition"] in ("is_submitted", "no_tools_called")
        told = [m["content"] for m in output["completion"] if m["role"] == "tool"]
        assert told == ["print(6)/tmp/repo", "(no output)", "Submitted."]
        assert len(env.destroyed) == 1
        assert env.active_sandboxes == set()


async def test_a_hook_that_ends_the_rollouts_sandbox_by_hand_is_no_trouble():
    class Early(vf.SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            await self.bulk_delete_sandboxes([state["sandbox_id"]])

        def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
            return CreateSandboxRequest(
                name="early",
                docker_image="python:3.11-slim",
                start_command="tail -f /dev/null",
                cpu_cores=1,
                memory_gb=0.125,
                disk_size_gb=0.03,
                gpu_count=0,
                timeout_minutes=5,
                environment_vars={"ROW": state["answer"]},
                team_id=None,
                advanced_configs=None,
            )

    async with Early(dataset=ROWS) as env:
        [output] = await run(env, ScriptedClient([[call("bash", command="echo $ROW")], "done"]))
        assert output["error"] is None
        assert output["completion"][1]["content"] == "7"
        assert env.active_sandboxes == set()


async def test_a_python_environment_with_a_second_tool_and_a_stricter_python():
    class Math(PythonEnv):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(pip_install_packages="", **kwargs)
            self.remove_tool(self.python)
            self.add_tool(self.calculate, args_to_skip=["state"])

        def update_tool_args(
            self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
        ) -> Any:
            return {**tool_args, "state": state}

        async def calculate(self, code: str, state: vf.State) -> str:
            """Run Python that keeps its variables."""
            return await self.python(
                code, state["sandbox_id"], state["sandbox_state"], state["python_state"]
            )

        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            state["cells"] = 0
            return state

        @vf.cleanup
        async def note(self, state: vf.State) -> None:
            state["cells"] = len(state["sandbox_state"]["command_execution_times"])

    async with Math(dataset=ROWS, **SMALL) as env:
        replies = [[call("calculate", code="x = 3")], [call("calculate", code="x + 4")], "7"]
        [output] = await run(env, ScriptedClient(replies), state_columns=["cells"])
    told = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert told == ["(no output)", "Out[2]: 7"]
    assert json.dumps(output["cells"])


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        # As the published 0.1.14 has them, up to what callers can tell apart.
        (SandboxEnv.bash, ["command", "sandbox_id", "sandbox_state", "working_dir"]),
        (SandboxEnv.post_rollout, ["state"]),
        (SandboxEnv.destroy_sandbox, ["state"]),
        (SandboxEnv.get_sandbox_request, ["state"]),
        (SandboxEnv.bulk_delete_sandboxes, ["global_ids"]),
        (SandboxEnv.teardown_sandboxes, []),
        (SandboxEnv.setup_state, ["state", "kwargs"]),
        (
            SandboxEnv.update_tool_args,
            ["tool_name", "tool_args", "messages", "state", "kwargs"],
        ),
        (PythonEnv.python, ["code", "sandbox_id", "sandbox_state", "python_state"]),
    ],
)
def test_what_subclasses_call_and_override_has_v0s_parameters(method: Any, wanted: list[str]):
    assert list(inspect.signature(method).parameters)[1:] == wanted


async def test_two_subclasses_of_one_program_share_nothing():
    async with RepairEnv(dataset=ROWS, **SMALL) as one, vf.SandboxEnv(dataset=ROWS, **SMALL) as two:
        replies = [[call("bash", command="ls /tmp")], "done"]
        first, second = await asyncio.gather(
            run(one, ScriptedClient([[call("submit")], "Done."])), run(two, ScriptedClient(replies))
        )
    assert first[0]["error"] is None
    assert second[0]["completion"][1]["content"] == "(no output)"
