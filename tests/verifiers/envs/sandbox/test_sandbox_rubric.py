"""`SandboxRubric`: reward functions of any environment that run code."""

import asyncio
from typing import Any

import pytest

import verifiers as vf
from verifiers.rubrics.sandbox_rubric import SandboxRubric
from verifiers.sandboxes import SandboxDead
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": "Write a program.", "answer": "42"}]
SPEC = {"memory_mb": 128, "disk_mb": 16}


async def prints_answer(sandbox: Any, completion: Any, answer: str) -> float:
    result = await sandbox.run_python(completion[-1]["content"], timeout_s=5)
    await sandbox.write("mark", b"x")
    return float(result.text.strip() == answer)


async def is_clean(sandbox: Any) -> float:
    return float((await sandbox.exec("ls")).text == "mark\n")


async def test_each_rollout_is_scored_in_a_sandbox_of_its_own_that_ends_afterwards():
    async with LocalBackend() as backend:
        rubric = SandboxRubric(funcs=[prints_answer, is_clean], spec=SPEC, backend=backend)
        async with vf.SingleTurnEnv(dataset=ROWS, rubric=rubric) as env:
            client = ScriptedClient(["print(6 * 7)", "print(1)", "1/0"])
            outputs = await run(env, client, rollouts_per_example=3)
        assert not backend._sandboxes
    rewards = [output["metrics"]["prints_answer"] for output in outputs]
    assert rewards == [1.0, 0.0, 0.0]
    assert all(output["metrics"]["is_clean"] == 1.0 for output in outputs)
    assert all(output["errors"] == [] for output in outputs)


async def test_a_rubric_that_asks_for_no_sandbox_opens_none():
    def plain(completion: Any) -> float:
        return 1.0

    async with LocalBackend() as backend:
        rubric = SandboxRubric(funcs=[plain], backend=backend)
        async with vf.SingleTurnEnv(dataset=ROWS, rubric=rubric) as env:
            [output] = await run(env, ScriptedClient(["x"]))
        assert next(backend._numbers) == 1
    assert output["reward"] == 1.0


@pytest.mark.parametrize(("reason", "is_masked"), [("crashed", True), ("oom", False)])
async def test_trouble_of_the_machinery_masks_the_rollout_and_memory_hunger_does_not(
    reason: Any, is_masked: bool
):
    async def loses(sandbox: Any) -> float:
        await sandbox.ready()
        sandbox._end(SandboxDead("gone", reason))
        return float((await sandbox.exec("true")).ok)

    rubric = SandboxRubric(funcs=[loses], spec=SPEC)
    async with vf.SingleTurnEnv(dataset=ROWS, rubric=rubric) as env:
        [output] = await run(env, ScriptedClient(["x"]))
    assert output["reward"] == 0.0
    assert (output["error"] is not None) is is_masked
    assert bool(output["errors"]) is not is_masked


async def test_scoring_that_is_cancelled_ends_its_sandboxes():
    started = asyncio.Event()

    async def hangs(sandbox: Any) -> float:
        await sandbox.ready()
        started.set()
        await sandbox.exec("sleep 100")
        return 1.0

    async with LocalBackend() as backend:
        rubric = SandboxRubric(funcs=[hangs], spec=SPEC, backend=backend)
        async with vf.SingleTurnEnv(dataset=ROWS, rubric=rubric) as env:
            running = asyncio.create_task(run(env, ScriptedClient(["x"])))
            await started.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert not backend._sandboxes


async def test_without_a_sandbox_the_error_names_what_is_missing():
    async with vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[is_clean])) as env:
        with pytest.raises(vf.RewardError, match="asks for 'sandbox'"):
            await run(env, ScriptedClient(["x"]))
