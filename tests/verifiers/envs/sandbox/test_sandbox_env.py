"""`SandboxEnv`: one sandbox for each rollout, from before its first turn to its very end."""

import asyncio
from typing import Any

import pytest
from sandbox_rollouts import SMALL, bash, told

import verifiers as vf
from verifiers.envs.sandbox_env import SandboxEnv
from verifiers.sandboxes import SandboxDead, SandboxSpec
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient, run
from verifiers.testing.environment_contract import environment_problems


@pytest.fixture
async def env():
    async with SandboxEnv(**SMALL) as env:
        yield env


# ----------------------------------------------------------------------------------------- the tool


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


# ------------------------------------------------------------------------------ coming up unnoticed


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


# -------------------------------------------------------------------- reward functions with sandbox


async def wrote_file(sandbox: Any, answer: str) -> float:
    result = await sandbox.exec("cat answer.txt")
    return float(result.text.strip() == answer)


async def test_a_reward_function_gets_the_rollouts_own_sandbox_which_then_ends():
    async with SandboxEnv(**SMALL, rubric=vf.Rubric(funcs=[wrote_file])) as env:
        replies = [bash("echo 0 > answer.txt"), "done", bash("echo 7 > answer.txt"), "done"]
        outputs = await run(env, ScriptedClient(replies), rollouts_per_example=2)
        assert env.active_sandboxes == set()
        assert not env.sandbox_client._entries
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


# -------------------------------------------------------------------------------- as an environment


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
