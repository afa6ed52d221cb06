"""`SandboxEnv`: one sandbox for each rollout, from before its first turn to its very end."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.sandbox_client import CommandTimeoutError, SandboxClient
from verifiers.envs.sandbox_env import CreateSandboxRequest, SandboxEnv, SandboxState
from verifiers.errors import ConfigError, SandboxError
from verifiers.rollouts.retries import is_retryable
from verifiers.sandboxes import SandboxDead, SandboxImageError, SandboxSpec
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import Reply, ScriptedClient, call, run
from verifiers.testing.environment_contract import environment_problems

ROWS = [{"question": f"Question {n}", "answer": str(n)} for n in range(8)]
SMALL = {"memory_gb": 0.125, "disk_size_gb": 0.03, "dataset": ROWS}


def bash(command: str) -> list[vf.ToolCall]:
    return [call("bash", command=command)]


def told(output: Any) -> list[str]:
    return [message["content"] for message in output["completion"] if message["role"] == "tool"]


@pytest.fixture
async def env():
    async with SandboxEnv(**SMALL) as env:
        yield env


# ------------------------------------------------------------------------------------------------- the tool


async def test_bash_shows_output_and_errors_as_v0_does(env: SandboxEnv):
    commands = ["echo out; echo err >&2", "echo bad >&2; false", "true", "printf '  x \\n\\n'", ""]
    [output] = await run(env, ScriptedClient([*map(bash, commands), "done"]))
    assert told(output) == [
        "out\nstderr:\nerr",
        "stderr:\nbad",
        "(no output)",
        "x",
        "The command is empty.",
    ]
    assert output["error"] is None
    assert output["metrics"]["bash_calls"] == 5.0


def test_the_model_sees_the_command_and_nothing_of_the_machinery():
    [tool] = SandboxEnv(**SMALL).tool_defs
    assert (tool.name, list(tool.parameters["properties"])) == ("bash", ["command"])
    assert tool.description == "Execute `command` inside persistent sandbox container."


async def test_files_stay_between_calls_of_a_rollout_and_not_between_rollouts(env: SandboxEnv):
    replies = [bash("ls; echo 1 > file"), bash("cat file"), "done"]
    outputs = await run(env, ScriptedClient(replies * 2), rollouts_per_example=2)
    assert [told(output) for output in outputs] == [["(no output)", "1"]] * 2


async def test_a_command_that_takes_too_long_is_killed_and_the_rollout_goes_on():
    async with SandboxEnv(**SMALL, timeout_per_command_seconds=0.2) as env:
        replies = [bash("echo x > f; sleep 100"), bash("cat f"), "done"]
        [output] = await run(env, ScriptedClient(replies))
    assert told(output) == ["Error: Command timed out after 0.2s", "x"]
    assert output["metrics"]["sandbox_command_execution_time"] >= 0.1


async def test_working_dir_and_environment_variables_reach_the_command():
    class Below(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state)
            state["working_dir"] = "/tmp"
            return state

    async with Below(**SMALL, environment_vars={"COLOUR": "green"}) as env:
        [output] = await run(env, ScriptedClient([bash("pwd; echo $COLOUR"), "done"]))
    assert told(output) == ["/tmp\ngreen"]


async def test_a_sandbox_that_runs_out_of_memory_is_replaced_and_the_model_told(env: SandboxEnv):
    state = await env.init_state({"prompt": [], "example_id": 0}, ScriptedClient(), "m")
    state = await env.setup_state(state)
    sandbox_id, known = state["sandbox_id"], state["sandbox_state"]
    await env.bash("touch file", sandbox_id, known)
    answer = await env._after_death(SandboxDead("gone", "oom"), sandbox_id, known)
    assert "ran out of memory" in answer
    assert await env.bash("ls", sandbox_id, known) == "(no output)"
    with pytest.raises(SandboxDead):
        await env._after_death(SandboxDead("gone", "crashed"), sandbox_id, known)


# ------------------------------------------------------------------------------------------ coming up unnoticed


class Held(LocalBackend):
    """Starts no sandbox before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start = asyncio.Event()
        self.asked = 0

    async def zygote_for(self, spec: SandboxSpec) -> Any:
        self.asked += 1
        await self.may_start.wait()
        return await super().zygote_for(spec)


async def test_the_sandbox_comes_up_while_the_model_answers_and_nobody_waits_for_it():
    async with Held() as backend, SandboxEnv(**SMALL, backend=backend) as env:

        async def answer(prompt: Any) -> Any:
            # The model was asked although no sandbox could start yet; while it "thinks" one comes up.
            assert backend.asked == 1
            backend.may_start.set()
            [sandbox_id] = env.active_sandboxes
            await env.sandbox_client.sandbox(sandbox_id).ready()
            return bash("echo ready")

        [output] = await run(env, ScriptedClient([answer, "done"]))
    assert told(output) == ["ready"]
    assert output["metrics"]["sandbox_ready_wait_time"] < 0.002


async def test_a_model_that_is_faster_than_the_sandbox_waits_and_the_metric_says_so():
    async with Held() as backend, SandboxEnv(**SMALL, backend=backend) as env:
        client = ScriptedClient([bash("echo ready"), "done"])
        asyncio.get_running_loop().call_later(0.1, backend.may_start.set)
        [output] = await run(env, client)
    assert output["metrics"]["sandbox_ready_wait_time"] > 0.05


# ------------------------------------------------------------------------------------------------ going away


async def test_nothing_is_left_after_success_error_and_timeout(env: SandboxEnv):
    await run(env, ScriptedClient([bash("sleep 100 &"), "done"]))
    [failed] = await run(env, ScriptedClient([bash("true"), RuntimeError("endpoint")]))
    env.timeout_seconds = 0.3
    [late] = await run(env, ScriptedClient([bash("true"), Reply("x", after=asyncio.Event())]))
    assert failed["stop_condition"] == "has_error"
    assert late["stop_condition"] == "timeout_reached"
    assert env.active_sandboxes == set()
    assert not env.sandbox_client._boxes
    assert not env.sandbox_client.backends.here()._sandboxes


async def test_cancelling_a_run_ends_every_sandbox(env: SandboxEnv):
    client = ScriptedClient(then=Reply("x", after=asyncio.Event()))
    running = asyncio.create_task(run(env, client, n=6, max_concurrent=6))
    await client.asked(6)
    assert len(env.active_sandboxes) == 6
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert env.active_sandboxes == set()
    assert not env.sandbox_client.backends.here()._sandboxes


async def test_a_command_in_progress_is_cancelled_with_its_rollout(env: SandboxEnv):
    env.timeout_seconds = 0.5
    [output] = await run(env, ScriptedClient([bash("sleep 100"), "done"]))
    assert output["stop_condition"] == "timeout_reached"
    assert not env.sandbox_client._boxes


async def test_a_sandbox_that_a_subclass_forgets_to_destroy_is_ended_all_the_same():
    class Forgetful(SandboxEnv):
        @vf.cleanup
        async def destroy_sandbox(self, state: vf.State) -> None:
            pass

    async with Forgetful(**SMALL) as env:
        await run(env, ScriptedClient([bash("true"), "done"]))
        assert env.active_sandboxes == set()
        assert not env.sandbox_client._boxes


async def test_closing_the_environment_ends_sandboxes_that_are_left(env: SandboxEnv):
    state = await env.init_state({"prompt": [], "example_id": 0}, ScriptedClient(), "m")
    await env.setup_state(state)
    sandbox = env.sandbox_client.sandbox(state["sandbox_id"])
    await sandbox.ready()
    await env.aclose()
    with pytest.raises(SandboxDead):
        await sandbox.exec("true")
    assert env.active_sandboxes == set()


async def test_bulk_delete_sandboxes_ends_those_it_is_given(env: SandboxEnv):
    states = [
        await env.setup_state(
            await env.init_state({"prompt": [], "example_id": 0}, ScriptedClient(), "m")
        )
        for _ in range(3)
    ]
    ids = [state["sandbox_id"] for state in states]
    assert env.active_sandboxes == set(ids)
    await env.bulk_delete_sandboxes(ids[:2])
    assert env.active_sandboxes == {ids[2]}
    assert not env.sandbox_client.knows(ids[0])


SCRIPT = """
    import asyncio, sys
    import verifiers as vf
    from verifiers.testing import ScriptedClient, Reply, call

    async def main():
        env = vf.SandboxEnv(dataset=[{"question": "q", "answer": "a"}] * 4, memory_gb=0.125)
        marker = [call("bash", command="sleep 987654 & echo started")]

        async def told(prompt):
            sys.stdout.write("started\\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

        client = ScriptedClient([marker] * 4, then=told)
        await env.evaluate(client, "m", num_examples=4, max_concurrent=4)

    asyncio.run(main())
"""


def processes_with(text: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(name))
        except OSError:
            continue
    return found


def test_killing_the_program_leaves_no_process_of_any_sandbox():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        for _ in range(4):
            assert program.stdout.readline() == "started\n"
        inside = processes_with("987654")
        ours = [os.pidfd_open(pid) for pid in inside if pid != program.pid]
        program.send_signal(signal.SIGKILL)
    assert len(ours) >= 4
    import select

    poll = select.poll()
    for descriptor in ours:
        poll.register(descriptor, select.POLLIN)
    left = set(ours)
    while left:  # a process that is gone makes its descriptor readable
        events = poll.poll(5000)
        assert events, "processes outlived the program by 5 s"
        for descriptor, _ in events:
            poll.unregister(descriptor)
            left.discard(descriptor)
    for descriptor in ours:
        os.close(descriptor)


# --------------------------------------------------------------------------------- trouble of the machinery


async def kill_box(env: SandboxEnv) -> None:
    [sandbox_id] = env.active_sandboxes
    sandbox = env.sandbox_client.sandbox(sandbox_id)
    await sandbox.ready()
    await sandbox.terminate()


async def test_a_lost_sandbox_is_a_failed_rollout_that_can_be_repeated_not_a_zero(env: SandboxEnv):
    async def lose(prompt: Any) -> Any:
        await kill_box(env)
        return bash("true")

    state = await env.rollout(
        env.source("eval").inputs(1)[0], ScriptedClient([lose, "done"]), "scripted", {}
    )
    assert isinstance(state["error"], SandboxError)
    assert is_retryable(state["error"])
    assert state["stop_condition"] == "has_error"
    assert env.active_sandboxes == set()


async def test_a_rollout_whose_sandbox_was_lost_is_played_again_when_retries_are_allowed(
    env: SandboxEnv, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("verifiers.rollouts.retries.backoff_s", lambda *_, **__: 0.0)

    async def lose(prompt: Any) -> Any:
        await kill_box(env)
        return bash("true")

    replies = [lose, bash("echo again"), "done"]
    [output] = await run(env, ScriptedClient(replies), max_retries=1)
    assert (output["error"], told(output)) == (None, ["again"])


async def test_an_image_that_this_back_end_does_not_have_fails_the_rollout_with_its_name():
    async with SandboxEnv(**SMALL, docker_image="ubuntu:24.04") as env:
        state = await env.rollout(
            env.source("eval").inputs(1)[0], ScriptedClient(["x"]), "scripted", {}
        )
    assert isinstance(state["error"], SandboxImageError)
    assert "ubuntu:24.04" in str(state["error"])


async def test_a_gpu_ends_the_run_with_a_configuration_error():
    async with SandboxEnv(**SMALL, gpu_count=1) as env:
        with pytest.raises(ConfigError, match="gpu_count=1"):
            await run(env, ScriptedClient(["x"]))


async def test_what_post_rollout_raises_fails_the_rollout_and_the_sandbox_goes():
    class Careless(SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            raise SandboxError("the check could not run")

    async with Careless(**SMALL) as env:
        [output] = await run(env, ScriptedClient(["done"]))
        assert env.active_sandboxes == set()
    assert output["error"]["error"] == "SandboxError"


# ------------------------------------------------------------------------------------ reward functions with sandbox


async def wrote_file(sandbox: Any, answer: str) -> float:
    result = await sandbox.exec("cat answer.txt")
    return float(result.text.strip() == answer)


async def test_a_reward_function_gets_the_rollouts_own_sandbox_which_then_ends():
    async with SandboxEnv(**SMALL, rubric=vf.Rubric(funcs=[wrote_file])) as env:
        replies = [bash("echo 0 > answer.txt"), "done", bash("echo 7 > answer.txt"), "done"]
        outputs = await run(env, ScriptedClient(replies), rollouts_per_example=2)
        assert env.active_sandboxes == set()
        assert not env.sandbox_client._boxes
    assert [output["reward"] for output in outputs] == [1.0, 0.0]
    assert [output["errors"] for output in outputs] == [[], []]


async def test_a_sandbox_lost_while_scoring_is_an_error_of_the_rollout_not_a_zero():
    async def loses(sandbox: Any) -> float:
        await sandbox.terminate()
        return float((await sandbox.exec("true")).ok)

    async with SandboxEnv(**SMALL, rubric=vf.Rubric(funcs=[loses])) as env:
        [output] = await run(env, ScriptedClient(["done"]))
    assert output["error"]["error"] == "SandboxDead"


async def test_two_environments_may_share_a_rubric_that_asks_for_the_sandbox():
    rubric = vf.Rubric(funcs=[wrote_file])
    one, two = SandboxEnv(**SMALL, rubric=rubric), SandboxEnv(**SMALL, rubric=rubric)
    async with one, two:
        for env in (one, two, one):
            [output] = await run(env, ScriptedClient([bash("echo 0 > answer.txt"), "done"]))
            assert (output["reward"], output["errors"]) == (1.0, [])


async def test_the_sandbox_of_a_rollout_that_nobody_scores_ends_when_its_state_is_dropped():
    async with SandboxEnv(**SMALL, keep_sandbox_for_scoring=True) as env:
        row = env.source("eval").inputs(1)[0]
        state = await env.rollout(row, ScriptedClient([bash("true"), "x"]), "scripted", {})
        sandbox = env.sandbox_client.sandbox(state["sandbox_id"])
        assert (await sandbox.exec("true")).ok
        del state
        import gc

        gc.collect()
        with pytest.raises(SandboxDead):
            await sandbox.exec("sleep 100")


# -------------------------------------------------------------------------------------------------- v0's surface


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


async def test_an_environment_works_in_one_event_loop_after_another():
    env = SandboxEnv(**SMALL)

    def once() -> list[str]:
        results = env.evaluate_sync(
            ScriptedClient([bash("echo hi"), "done"]), "scripted", num_examples=1
        )
        return told(results.outputs[0])

    assert await asyncio.to_thread(once) == ["hi"]
    assert await asyncio.to_thread(once) == ["hi"]
    await env.aclose()


async def test_it_keeps_every_promise_of_an_environment(env: SandboxEnv):
    assert await environment_problems(env) == []


# --------------------------------------------------------------------------------------------- warm pool


async def filled(env: SandboxEnv, count: int) -> None:
    pool = env.sandbox_client._pools[asyncio.get_running_loop()].pool
    async with asyncio.timeout(20):
        while pool.ready_count < count:  # noqa: ASYNC110 - the pool has no event to wait for
            await asyncio.sleep(0.005)


async def test_a_warm_pool_gives_rollouts_sandboxes_that_are_up_and_refills():
    async with LocalBackend() as backend:
        async with SandboxEnv(**SMALL, backend=backend, warm_pool_size=2) as env:
            assert not backend._sandboxes  # nothing starts in the constructor
            replies = [bash("ls; echo 1 > file"), "done"]
            [first] = await run(env, ScriptedClient(replies))
            await filled(env, 2)
            waiting = {sandbox.id for sandbox in backend._sandboxes}
            outputs = await run(env, ScriptedClient(replies * 2), rollouts_per_example=2)
            await filled(env, 2)
            # Taken from those that waited, used once, and replaced.
            assert not waiting & {sandbox.id for sandbox in backend._sandboxes}
        assert not backend._sandboxes
    assert [told(output) for output in (first, *outputs)] == [["(no output)"]] * 3


async def test_a_rollout_that_wants_another_sandbox_gets_one_of_its_own():
    class Own(SandboxEnv):
        def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
            request = super().get_sandbox_request(state)
            request.environment_vars = {"ROW": state["answer"]}
            return request

    async with Own(**SMALL, warm_pool_size=1) as env:
        replies = [bash("echo row $ROW"), "done"]
        outputs = await run(env, ScriptedClient(replies * 2), rollouts_per_example=2)
        assert [told(output) for output in outputs] == [["row 0"]] * 2


def test_a_warm_pool_lives_through_several_event_loops_and_ends_with_each():
    env = SandboxEnv(**SMALL, warm_pool_size=1)

    async def once() -> list[str]:
        [output] = await run(env, ScriptedClient([bash("echo up"), "done"]))
        return told(output)

    assert [asyncio.run(once()) for _ in range(2)] == [["up"], ["up"]]


def test_a_warm_pool_of_less_than_nothing_is_refused():
    with pytest.raises(ConfigError, match="-1"):
        SandboxEnv(**SMALL, warm_pool_size=-1)
