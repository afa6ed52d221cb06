import json
import random
from itertools import islice

import pytest
from code_problems import LEVELS, NUM_TESTS, run_reference
from code_tests import gold_completion, load_environment, problems

from verifiers.testing import ScriptedClient, run


@pytest.mark.parametrize("level", LEVELS)
def test_there_are_hundreds_of_different_problems_of_each_level(level):
    numbers = random.Random(0)
    statements = {numbers.choice(LEVELS[level])(numbers).statement for _ in range(1500)}
    assert len(statements) >= 400


@pytest.mark.parametrize(
    "template", [t for made in LEVELS.values() for t in made], ids=lambda t: t.__name__
)
def test_reference_solutions_answer_every_test_and_tests_tell_answers_apart(template):
    numbers = random.Random(1)
    for _ in range(10):
        problem = template(numbers)
        assert len(problem.inputs) == NUM_TESTS
        printed = [run_reference(problem.solution, text) for text in problem.inputs]
        assert all(text.strip() for text in printed)
        assert len(set(printed)) >= 3


def test_reference_solutions_are_right_on_examples_worked_out_by_hand():
    numbers = random.Random(0)
    intervals = next(
        problem
        for problem in (LEVELS[3][2](numbers) for _ in range(200))
        if "gap of at most 1 " in problem.statement and "number of blocks" in problem.statement
    )
    assert run_reference(intervals.solution, "4\n1 3\n4 6\n8 9\n20 21\n") == "3\n"
    knapsack = next(
        problem
        for problem in (LEVELS[3][1](numbers) for _ in range(200))
        if "at most once" in problem.statement and "worth" not in problem.statement
    )
    assert run_reference(knapsack.solution, "3 5\n3 4\n2 3\n4 5\n") == "7\n"
    expression = next(
        problem
        for problem in (LEVELS[3][3](numbers) for _ in range(200))
        if "'+' binds more tightly than '*'" in problem.statement
    )
    assert run_reference(expression.solution, "2 * 3 + 4\n").strip() == "14"


async def test_gold_passes_every_test_at_every_level():
    async with load_environment(num_eval_examples=15) as env:
        rows = env.source("eval").inputs(15)
        client = ScriptedClient([gold_completion(row) for row in rows])
        outputs = await run(env, client, n=15)
    assert [(o["reward"], o["error"], o["metrics"]["tests_run"]) for o in outputs] == [
        (1.0, None, 12.0)
    ] * 15
    assert {row["info"]["level"] for row in rows} == {1, 2, 3}


async def test_a_program_that_knows_only_the_example_gets_little_and_a_broken_one_nothing():
    async with load_environment(num_eval_examples=3) as env:
        rows = env.source("eval").inputs(3)
        replies = []
        for row in rows:
            example = json.loads(row["info"]["tests"])[0]["output"]
            replies.append(f"```python\nprint({example!r}, end='')\n```")
        outputs = await run(env, ScriptedClient(replies), n=3)
        broken = await run(env, ScriptedClient(then="```python\nprint(\n```"), n=3)
    assert all(0.0 < output["reward"] <= 0.6 for output in outputs)
    assert [output["reward"] for output in broken] == [0.0] * 3


async def test_all_or_nothing_stops_at_the_first_failure():
    async with load_environment(num_eval_examples=1, reward="all") as env:
        [output] = await run(env, ScriptedClient(["```python\nprint('no')\n```"]))
    assert output["reward"] == 0.0
    assert output["metrics"]["tests_run"] == 1.0


def test_a_level_has_its_own_problems_and_an_unknown_one_is_refused():
    assert {row["info"]["level"] for row in islice(problems("train", (2,), 0), 20)} == {2}
    with pytest.raises(ValueError, match="level"):
        load_environment(level=4)
