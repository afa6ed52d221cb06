"""`SandboxEnv` as v0 had it: arguments, hooks, the client, retries."""

from typing import Any

import pytest
from sandbox_rollouts import ROWS, SMALL, bash, told

import verifiers as vf
from verifiers.envs.sandbox_client import CommandTimeoutError, SandboxClient
from verifiers.envs.sandbox_env import CreateSandboxRequest, SandboxEnv, SandboxState
from verifiers.sandboxes import SandboxDead, SandboxSpec
from verifiers.testing import ScriptedClient, call, run


@pytest.fixture
async def env():
    async with SandboxEnv(**SMALL) as env:
        yield env


async def test_a_v0_subclass_works_unchanged():
    class Upload(vf.SandboxEnv):
        """In the manner of public environments: own tools, files put in before the first turn, tests at the end."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(sandbox_name="upload", docker_image="python:3.11-slim", **kwargs)
            self.remove_tool(self.bash)
            self.add_tool(self.look, args_to_skip=["sandbox_id", "sandbox_state"])

        def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
            return self.sandbox_request.model_copy(update={"labels": ["mine"], "memory_gb": 0.25})

        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            if not state["sandbox_state"]["ready"]:
                await self._wait_for_sandbox_ready(state["sandbox_state"], state["sandbox_id"])
            await self.sandbox_client.upload_bytes(
                state["sandbox_id"], "/tmp/data.txt", b"treasure", "data.txt"
            )
            return state

        def update_tool_args(
            self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
        ) -> Any:
            tool_args = super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
            tool_args["sandbox_id"] = state["sandbox_id"]
            tool_args["sandbox_state"] = state["sandbox_state"]
            return tool_args

        async def look(self, path: str, sandbox_id: str, sandbox_state: SandboxState) -> str:
            """Show a file."""
            return await self.bash(f"cat {path}", sandbox_id, sandbox_state)

        async def post_rollout(self, state: vf.State) -> None:
            execute = self.with_retry(self.sandbox_client.execute_command)
            result = await execute(state["sandbox_id"], "wc -c < /tmp/data.txt", timeout=5)
            state["size"] = int(result.stdout)

    def size_is_right(state: vf.State) -> float:
        return float(state["size"] == 8)

    async with Upload(**SMALL, rubric=vf.Rubric(funcs=[size_is_right])) as env:
        replies = [[call("look", path="/tmp/data.txt")], "done"]
        [output] = await run(env, ScriptedClient(replies))
    assert (told(output), output["reward"], output["error"]) == (["treasure"], 1.0, None)


async def test_the_sandbox_client_has_v0s_methods(env: SandboxEnv, tmp_path: Any):
    client: SandboxClient = env.sandbox_client
    sandbox = await client.create(env.sandbox_request)
    await client.wait_for_creation(sandbox.id)
    done = await client.execute_command(sandbox.id, "pwd; exit 3", working_dir="/tmp", timeout=5)
    assert (done.stdout, done.stderr, done.exit_code) == ("/tmp\n", "", 3)
    with pytest.raises(CommandTimeoutError, match=r"timed out after 0\.1s"):
        await client.execute_command(sandbox.id, "sleep 100", timeout=0.1)
    local = tmp_path / "local"
    local.write_text("from outside")
    await client.upload_file(sandbox.id, "/tmp/file", str(local))
    assert (await client.read_file(sandbox.id, "/tmp/file")).content == "from outside"
    await client.download_file(sandbox.id, "/tmp/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "from outside"
    job = await client.start_background_job(sandbox.id, "sleep 100")
    assert not (await client.get_background_job(sandbox.id, job)).completed
    job = await client.run_background_job(sandbox.id, "echo long")
    assert (job.completed, job.stdout) == (True, "long\n")
    await client.bulk_delete([sandbox.id, "unknown"])
    with pytest.raises(SandboxDead, match="was deleted"):
        await client.execute_command(sandbox.id, "true")


async def test_a_start_command_runs_in_the_background_before_the_first_command():
    async with SandboxEnv(**SMALL, start_command="mkfifo /tmp/go; cat /tmp/go > /box/seen") as env:
        wait = "until test -p /tmp/go; do :; done; echo hello > /tmp/go; until test -s seen; do :; done; cat seen"
        [output] = await run(env, ScriptedClient([bash(wait), "done"]))
    assert told(output) == ["hello"]


async def test_another_client_in_the_place_of_ours_is_used_for_everything():
    seen: list[str] = []

    class Theirs:
        async def create(self, request: Any) -> Any:
            seen.append(f"create {request.docker_image}")
            return type("Sandbox", (), {"id": "theirs-1"})()

        async def wait_for_creation(self, sandbox_id: str) -> None:
            seen.append(f"wait {sandbox_id}")

        async def execute_command(self, sandbox_id: str, command: str, **options: Any) -> Any:
            seen.append(f"execute {command} {options['timeout']}")
            if command == "break":
                raise ConnectionError("502")
            return type("Response", (), {"stdout": "out", "stderr": "", "exit_code": 0})()

        async def delete(self, sandbox_id: str) -> None:
            seen.append(f"delete {sandbox_id}")

        def teardown(self) -> None:
            seen.append("teardown")

    async with SandboxEnv(dataset=ROWS) as env:
        env.sandbox_client = Theirs()
        [fine] = await run(env, ScriptedClient([bash("echo"), "done"]))
        [broken] = await run(env, ScriptedClient([bash("break"), "done"]))
    each = ["create python:3.11-slim", "wait theirs-1"]
    assert seen == [
        *each,
        "execute echo 30",
        "delete theirs-1",
        *each,
        "execute break 30",
        "delete theirs-1",
        "teardown",
    ]
    assert told(fine) == ["out"]
    assert broken["error"]["error"] == "SandboxError"


async def test_with_retry_repeats_what_may_pass_and_nothing_else():
    env = SandboxEnv(**SMALL, max_retries=3, base_delay=0.0, jitter=0.0)
    tried: list[Exception] = []

    async def fails_with(error: Exception) -> None:
        tried.append(error)
        raise error

    with pytest.raises(ConnectionError):
        await env.with_retry(fails_with)(ConnectionError())
    assert len(tried) == 3
    with pytest.raises(SandboxDead):
        await env.with_retry(fails_with)(SandboxDead("gone"))
    assert len(tried) == 4


def test_v0s_arguments_become_the_specification():
    from verifiers.envs.sandbox_request import spec_of

    env = SandboxEnv(
        **{**SMALL, "memory_gb": 1.5, "disk_size_gb": 2},
        cpu_cores=2,
        timeout_minutes=3,
        timeout_per_command_seconds=7,
        environment_vars={"A": "1"},
        sandbox_spec={"network": "full", "env": {"B": "2"}, "max_processes": 9},
    )
    spec = spec_of(env.get_sandbox_request(vf.State()), env.sandbox_client.template, "local")
    assert spec == SandboxSpec(
        cpu_cores=2.0,
        memory_mb=1536,
        disk_mb=2048,
        ttl_s=180.0,
        command_timeout_s=7.0,
        env={"A": "1", "B": "2"},
        network="full",
        max_processes=9,
    )
