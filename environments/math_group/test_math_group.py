import pytest
from math_group import load_environment, value_of

from verifiers.testing import ScriptedClient, run


async def test_every_row_is_scored_by_its_own_environment():
    env = load_environment(num_eval_examples=3)
    answers = {row["prompt"][-1]["content"]: row["answer"] for row in env.get_eval_dataset()}
    client = ScriptedClient(lambda prompt: f"\\boxed{{{answers[prompt[-1]['content']]}}}")
    outputs = await run(env, client, n=9)
    assert [output["reward"] for output in outputs] == [1.0] * 9
    assert [output["task"] for output in outputs] == ["sums"] * 3 + ["words"] * 3 + ["target"] * 3
    assert "target_reached" in outputs[-1]["metrics"]
    assert "target_reached" not in outputs[0]["metrics"]


async def test_a_target_needs_all_numbers_and_any_right_expression_counts():
    env = load_environment(num_eval_examples=1).get_env_for_name("target")
    [row] = env.get_eval_dataset()
    value = value_of(row["answer"])[0]
    swapped = f"({row['answer']})"
    replies = [f"\\boxed{{{swapped}}}", f"\\boxed{{{value}}}", "\\boxed{2 ** 3}", "no box"]
    outputs = await run(env, ScriptedClient(replies), rollouts_per_example=4)
    assert [output["reward"] for output in outputs] == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("text", ["", "2 ** 3", "1 / 2", "f(2)", "1 +", "1" * 101])
def test_only_plain_expressions_have_a_value(text):
    with pytest.raises(ValueError, match=r"."):
        value_of(text)
