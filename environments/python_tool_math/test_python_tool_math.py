import random

import pytest
from python_tool_math import boxed_number, gold_completion, load_environment
from python_tool_problems import TEMPLATES, coins, digits, lattice, remainders, solved

from verifiers.testing import ScriptedClient, call, run


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("size", [0, 3])
def test_every_template_has_a_whole_answer_and_varies(template, size):
    numbers = random.Random(0)
    made = [template(numbers, size) for _ in range(5)]
    assert len({problem.question for problem in made}) == 5
    for problem in made:
        int(solved(problem))


def test_answers_agree_with_slower_ways_of_counting():
    numbers = random.Random(4)
    problem = remainders(numbers, 0)
    pairs = eval(problem.program.split(" in ")[1].split("):")[0])
    answer = int(solved(problem))
    assert [answer % modulus for modulus, _ in pairs] == [rest for _, rest in pairs]
    assert solved(digits(random.Random(1), 0)).isdigit()
    free = lattice(random.Random(2), 0)
    assert int(solved(free)) > 0
    assert int(solved(coins(random.Random(3), 0))) >= 0


async def test_the_gold_program_computes_the_answer_in_the_sandbox():
    async with load_environment(num_eval_examples=6) as env:
        for row in env.get_eval_dataset():
            [output] = await run(env, ScriptedClient(gold_completion(row)), n=1)
            break
        results = [
            await env.rollout(dict(row), ScriptedClient(gold_completion(row)), "scripted", {})
            for row in env.get_eval_dataset()
        ]
    assert output["reward"] == 1.0
    for state in results:
        [told] = [m["content"] for m in state["completion"] if m["role"] == "tool"]
        assert told == f"Out[1]: {state['answer']}"


async def test_variables_stay_and_an_endless_loop_is_survived():
    calls = [
        [call("python", code="x = 41")],
        [call("python", code="while True: pass")],
        [call("python", code="x + 1")],
        "\\boxed{42}",
    ]
    async with load_environment(num_eval_examples=1, seconds_per_call=0.2) as env:
        [output] = await run(env, ScriptedClient(calls))
    told = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert "timed out after 0.2s" in told[1]
    assert told[2] == "Out[3]: 42"
    assert (output["reward"], output["error"]) == (0.0, None)


async def test_the_environment_itself_cannot_be_imported_in_the_sandbox():
    calls = [[call("python", code="import python_tool_problems")], "\\boxed{1}"]
    async with load_environment(num_eval_examples=1) as env:
        [output] = await run(env, ScriptedClient(calls))
    [told] = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert "ModuleNotFoundError" in told


def test_boxed_numbers_are_read_with_separators():
    assert boxed_number("so \\boxed{1,234,567}") == "1234567"
    assert boxed_number("so 12") == ""


def test_a_difficulty_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="difficulty"):
        load_environment(difficulty=4)
