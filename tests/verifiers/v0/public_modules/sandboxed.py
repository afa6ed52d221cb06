"""A tool environment with a sandbox whose client the caller has replaced."""

from types import SimpleNamespace
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.envs.experimental.sandbox_mixin import (
    is_retryable_sandbox_api_error,
    is_retryable_sandbox_read_error,
)
from verifiers.envs.sandbox_env import (
    AdvancedConfigs,
    CreateSandboxRequest,
    SandboxEnv,
    SandboxState,
)
from verifiers.testing import call
from verifiers.types import Messages, State

REPLIES = [[call("bash", command="ls")], "done"]
REWARDS = [1.0]
CALLED: list[str] = []
NAMES = (
    AdvancedConfigs,
    SandboxState,
    is_retryable_sandbox_api_error,
    is_retryable_sandbox_read_error,
)


class Provider:
    """The methods of a provider's client that the environment calls."""

    async def create(self, request: CreateSandboxRequest) -> Any:
        CALLED.append("create")
        assert (request.docker_image, request.labels) == ("python:3.12-slim", ["repair"])
        return SimpleNamespace(id="box-1")

    async def wait_for_creation(self, sandbox_id: str, **kwargs: Any) -> None:
        CALLED.append("wait_for_creation")

    async def execute_command(self, sandbox_id: str, command: str, **kwargs: Any) -> Any:
        CALLED.append("execute_command")
        assert (sandbox_id, kwargs["working_dir"]) == ("box-1", "/testbed")
        return SimpleNamespace(stdout=f"ran {command}", stderr="", exit_code=0)

    async def delete(self, sandbox_id: str) -> None:
        CALLED.append("delete")

    def teardown(self) -> None:
        CALLED.append("teardown")


class Repair(SandboxEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(sandbox_name="repair", docker_image="python:3.11-slim", **kwargs)
        self.sandbox_client = Provider()

    def get_sandbox_request(self, state: State) -> CreateSandboxRequest:
        CALLED.append("get_sandbox_request")
        update = {"docker_image": "python:3.12-slim", "labels": ["repair"]}
        return self.sandbox_request.model_copy(update=update)

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        CALLED.append("setup_state")
        state = await super().setup_state(state, **kwargs)
        state["working_dir"] = "/testbed"
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: dict, messages: Messages, state: State, **kwargs: Any
    ) -> dict:
        CALLED.append("update_tool_args")
        return super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)

    async def post_rollout(self, state: State) -> None:
        CALLED.append("post_rollout")
        state["solved"] = state["sandbox_id"] == "box-1"

    @vf.cleanup
    async def destroy_sandbox(self, state: State) -> None:
        CALLED.append("destroy_sandbox")
        await super().destroy_sandbox(state)


def solved(state: State, completion: Messages) -> float:
    CALLED.append("solved")
    assert completion[1]["content"] == "ran ls"
    return float(state["solved"])


def load_environment() -> vf.Environment:
    rows = Dataset.from_list([{"question": "q"}])
    return Repair(dataset=rows, rubric=vf.Rubric(funcs=[solved]), max_turns=3)
