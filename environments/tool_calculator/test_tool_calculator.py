import pytest
from tool_calculator import Refused, calculate, gold_completion, load_environment

from verifiers.testing import ScriptedClient, call, run


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * -4", "-20"),
        ("7 / 2", "7/2 (about 3.5)"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("2 ** -2", "1/4 (about 0.25)"),
        ("0.1 + 0.2", "3/10 (about 0.3)"),
        (" 1 ", "1"),
    ],
)
def test_arithmetic_is_exact(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "9 ** 9 ** 9",
        "10 ** 10000",
        "2 ** 0.5",
        "9" * 300,
        "1e400",
        "1 / 0",
        "5 % 0",
        "0 ** -1",
        "__import__('os').system('true')",
        "(lambda: 1)()",
        "[1, 2]",
        "'a' * 3",
        "1 if True else 2",
        "True + 1",
        "1 +",
        "",
        "(" * 400 + "1" + ")" * 400,
        "1 + " * 200 + "1",
    ],
)
def test_everything_else_is_refused_quickly(expression):
    with pytest.raises(Refused):
        calculate(expression)


def test_numbers_that_grow_step_by_step_are_stopped():
    with pytest.raises(Refused, match="200 digits"):
        calculate(" * ".join(["9" * 60] * 6))


async def test_the_tool_is_called_and_the_boxed_value_scores():
    env = load_environment(num_eval_examples=1)
    [row] = env.get_eval_dataset()
    [output] = await run(env, ScriptedClient(gold_completion(row)))
    assert (output["reward"], output["metrics"]["used_calculator"]) == (1.0, 1.0)
    [result] = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert result == row["answer"]


async def test_a_refusal_is_told_to_the_model_and_the_rollout_goes_on():
    env = load_environment(num_eval_examples=1)
    replies = [[call("calculate", expression="9 ** 9 ** 9")], "\\boxed{1}"]
    [output] = await run(env, ScriptedClient(replies))
    [told] = [m["content"] for m in output["completion"] if m["role"] == "tool"]
    assert "Exponents must be whole numbers" in told
    assert (output["reward"], output["error"]) == (0.0, None)


def test_difficulty_is_the_number_of_operations():
    for operations in (1, 6):
        row = load_environment(num_operations=operations).get_dataset(n=1)[0]
        signs = sum(row["info"]["expression"].count(f" {sign} ") for sign in "+-*")
        assert signs == operations
