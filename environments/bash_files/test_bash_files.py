import json
import random

import pytest
from bash_file_tasks import TEMPLATES
from bash_files import gold_completion, load_environment

from verifiers.testing import ScriptedClient, call, run


def row_of(task) -> dict:
    info = {
        "before": json.dumps(task.before),
        "after": json.dumps(task.after),
        "gold": task.gold,
    }
    return {"question": task.instruction, "answer": "", "info": info}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.__name__)
async def test_the_gold_command_does_every_kind_of_task(template):
    numbers = random.Random(0)
    rows = [row_of(template(numbers)) for _ in range(4)]
    async with load_environment(num_eval_examples=1) as env:
        for row in rows:
            client = ScriptedClient(gold_completion(row))
            results = await env.generate([{**row, "example_id": 0}], client, "scripted")
            [output] = results.outputs
            assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])


async def test_doing_nothing_or_leaving_something_behind_scores_zero():
    async with load_environment(num_eval_examples=1) as env:
        [row] = env.source("eval").inputs(1)
        [idle] = await run(env, ScriptedClient(["Done."]))
        [work, done] = gold_completion(row)
        untidy = ScriptedClient([work, [call("bash", command="touch left-over")], done])
        [output] = await run(env, untidy)
        [right] = await run(env, ScriptedClient([work, done]))
    assert idle["reward"] == 0.0
    assert output["reward"] == 0.0
    assert output["metrics"]["share_of_files"] < 1.0
    assert right["reward"] == 1.0


async def test_what_is_expected_is_not_in_the_sandbox():
    async with load_environment(num_eval_examples=1) as env:
        [row] = env.source("eval").inputs(1)
        search = [call("bash", command="find /box -type f | sort")]
        [output] = await run(env, ScriptedClient([search, "Done."]))
    [told] = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert told.split() == sorted(f"/box/{path}" for path in json.loads(row["info"]["before"]))


async def test_every_rollout_has_files_of_its_own():
    async with load_environment(num_eval_examples=1) as env:
        [row] = env.source("eval").inputs(1)
        wreck = [[call("bash", command="rm -rf /box/*")], "Done."]
        client = ScriptedClient([*wreck, *gold_completion(row)])
        outputs = await run(env, client, rollouts_per_example=2)
    assert sorted(output["reward"] for output in outputs) == [0.0, 1.0]
