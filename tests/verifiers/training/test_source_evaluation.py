"""Evaluations on the endpoints of a source while it trains."""

import asyncio
import json

import numpy as np
import pytest
from sources import environment, half_right, source

from verifiers.testing import Reply, ScriptedClient


async def test_an_evaluation_runs_while_training_goes_on():
    env = environment(eval_dataset=[{"question": f"e{n}", "answer": "yes"} for n in range(4)])
    client = half_right()
    async with source(env, client) as rollouts:
        evaluation, batch = await asyncio.gather(
            rollouts.evaluate(3, 2, state_columns=["trajectory"]), rollouts.next_batch()
        )
        assert len(evaluation.outputs) == 6
        assert [output["example_id"] for output in evaluation.outputs] == [0, 0, 1, 1, 2, 2]
        assert evaluation.mean_reward == np.mean([o["reward"] for o in evaluation.outputs])
        assert evaluation.versions == (0, 0)
        assert evaluation.outputs[0]["prompt"][-1]["content"] == "e0"
        assert evaluation.outputs[0]["trajectory"]
        assert len(batch.entries) == 2
        assert not rollouts._evaluations


async def test_an_evaluation_that_is_cancelled_leaves_nothing_behind():
    never = asyncio.Event()
    count = iter(range(10**9))

    def reply(prompt):
        if prompt[-1]["content"].startswith("e"):
            return Reply("x", after=never)
        return "no" if next(count) % 2 else "yes"

    env = environment(eval_dataset=[{"question": "e0", "answer": "yes"}])
    client = ScriptedClient(reply, token_ids=True)
    async with source(env, client) as rollouts:
        task = asyncio.create_task(rollouts.evaluate(rollouts_per_example=3))
        await rollouts.next_batch()
        await rollouts.next_batch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not rollouts._evaluations
        assert (await rollouts.next_batch()).entries
    assert client.in_flight == 0


@pytest.mark.parametrize("answered", [0, 3, 5])
async def test_an_evaluation_under_way_is_continued_after_resuming(answered):
    """Neither what it has is played again, nor is it lost."""
    evaluation = [{"question": f"e{n}", "answer": "yes"} for n in range(3)]
    fast = half_right()

    def client(limit, asked):
        async def reply(prompt):
            if prompt[-1]["content"].startswith("e"):
                asked.append(prompt[-1]["content"])
                if len(asked) > limit:
                    await asyncio.Event().wait()
                return f"yes {len(asked)} of {limit}"
            return (await fast.get_response(prompt, "m", {})).message.content

        return ScriptedClient(reply, token_ids=True)

    first: list[str] = []
    env = environment(eval_dataset=evaluation)
    async with source(env, client(answered, first), max_in_flight=6, version=4) as rollouts:
        task = asyncio.create_task(rollouts.evaluate(3, 2, sampling_args={"temperature": 0.0}))
        while len(first) < min(6, answered + 1) or finished(rollouts) < answered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        saved = json.loads(json.dumps(rollouts.state_dict()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    second: list[str] = []
    async with source(env, client(99, second), max_in_flight=6, state=saved, version=5) as resumed:
        again = json.loads(json.dumps(resumed.state_dict()))["evaluations"]
        assert again == saved["evaluations"]  # saved once more before it is asked for again
        result = await resumed.evaluate(3, 2, sampling_args={"temperature": 0.0})
        assert resumed.state_dict()["evaluations"] == []
    assert len(second) == 6 - answered
    assert result.versions == (4, 5)
    assert [output["example_id"] for output in result.outputs] == [0, 0, 1, 1, 2, 2]
    kept = [o for o in result.outputs if f"of {answered}" in o["completion"][-1]["content"]]
    assert len(kept) == answered
    assert result.mean_reward == 1.0


def finished(rollouts):
    """Rollouts of evaluations that have a result."""
    return sum(
        result is not None
        for saved in rollouts.state_dict()["evaluations"]
        for _, results in saved["groups"]
        for result in results
    )


async def test_another_evaluation_than_the_saved_one_begins_anew():
    env = environment(eval_dataset=[{"question": "e0", "answer": "yes"}])
    async with source(env) as rollouts:
        saved = rollouts.state_dict()
    request = {"examples": 1, "rollouts_per_example": 2, "sampling_args": {}, "state_columns": []}
    saved["evaluations"] = [{"request": request, "version": 0, "groups": [[0, [None, None]]]}]
    async with source(env, state=saved) as resumed:
        assert len((await resumed.evaluate(1, 3)).outputs) == 3
        assert resumed.state_dict()["evaluations"] == saved["evaluations"]
