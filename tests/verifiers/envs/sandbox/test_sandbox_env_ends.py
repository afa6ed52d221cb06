"""Sandboxes of `SandboxEnv` end with their rollout, and one that is lost is no zero."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from sandbox_rollouts import SMALL, bash, told

import verifiers as vf
from verifiers.envs.sandbox_env import SandboxEnv
from verifiers.errors import ConfigError, SandboxError
from verifiers.rollouts.retries import is_retryable
from verifiers.sandboxes import SandboxDead, SandboxImageError
from verifiers.testing import Reply, ScriptedClient, run


@pytest.fixture
async def env():
    async with SandboxEnv(**SMALL) as env:
        yield env


# --------------------------------------------------------------------------------------- going away


async def test_nothing_is_left_after_success_error_and_timeout(env: SandboxEnv):
    await run(env, ScriptedClient([bash("sleep 100 &"), "done"]))
    [failed] = await run(env, ScriptedClient([bash("true"), RuntimeError("endpoint")]))
    env.timeout_seconds = 0.3
    [late] = await run(env, ScriptedClient([bash("true"), Reply("x", after=asyncio.Event())]))
    assert failed["stop_condition"] == "has_error"
    assert late["stop_condition"] == "timeout_reached"
    assert env.active_sandboxes == set()
    assert not env.sandbox_client._entries
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
    assert not env.sandbox_client._entries


async def test_a_sandbox_that_a_subclass_forgets_to_destroy_is_ended_all_the_same():
    class Forgetful(SandboxEnv):
        @vf.cleanup
        async def destroy_sandbox(self, state: vf.State) -> None:
            pass

    async with Forgetful(**SMALL) as env:
        await run(env, ScriptedClient([bash("true"), "done"]))
        assert env.active_sandboxes == set()
        assert not env.sandbox_client._entries


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
    assert not env.sandbox_client.has(ids[0])


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


# ------------------------------------------------------------------------- trouble of the machinery


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
    monkeypatch.setattr("verifiers.rollouts.retries.retry_wait_s", lambda *_, **__: 0.0)

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


async def test_post_rollout_of_generation_a_receives_the_conversation_too():
    seen: list[Any] = []

    class Older(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            return state  # this test needs no sandbox

        async def post_rollout(self, messages: Any, state: vf.State, **kwargs: Any) -> None:
            seen.append(([message["content"] for message in messages], state["question"]))

    async with Older(**SMALL) as env:
        [output] = await run(env, ScriptedClient(["done"]))
    assert output["error"] is None
    [(conversation, question)] = seen
    assert (conversation[-1], conversation[-2]) == ("done", question)


async def test_what_post_rollout_raises_fails_the_rollout_and_the_sandbox_goes():
    class Careless(SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            raise SandboxError("the check could not run")

    async with Careless(**SMALL) as env:
        [output] = await run(env, ScriptedClient(["done"]))
        assert env.active_sandboxes == set()
    assert output["error"]["error"] == "SandboxError"
