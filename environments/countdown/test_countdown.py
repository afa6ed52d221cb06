from fractions import Fraction

import pytest
from countdown import InvalidExpression, evaluated, load_environment, solution_value

from verifiers.testing import ScriptedClient, run


async def play(*answers: str):
    env = load_environment(num_eval_examples=1)
    client = ScriptedClient([f"<answer>{answer}</answer>" for answer in answers])
    return await run(env, client, rollouts_per_example=len(answers))


async def test_the_reward_is_graded_by_the_distance():
    [row] = load_environment(num_eval_examples=1).get_eval_dataset()
    given, target = row["info"]["numbers"], row["info"]["target"]
    solved, missed, foreign, said = await play(
        row["answer"], str(given[0]), f"{target} * 1", f"{target}"
    )
    distance = abs(given[0] - target)
    assert solved["reward"] == 1.0
    assert missed["reward"] == pytest.approx(0.1 + 0.3 / (1 + distance))
    assert [foreign["reward"], said["reward"]] == [0.0, 0.0]
    assert [o["metrics"]["is_valid"] for o in (solved, missed, foreign)] == [1.0, 1.0, 0.0]


def test_values_are_exact_fractions():
    assert evaluated("(1 / 3) * 3") == (Fraction(1), [1, 3, 3])
    assert evaluated("7 / 2")[0] == Fraction(7, 2)


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 9",
        "__import__('os')",
        "1 / 0",
        "1 +",
        "",
        "(" * 150 + "1",
        "1.5",
        "-1",
        "1 " * 200,
        "True",
        "4 + 4 + 4",
    ],
)
def test_everything_else_is_no_solution(text):
    with pytest.raises(InvalidExpression):
        solution_value(text, [4, 4])


def test_every_problem_has_a_solution_and_splits_never_meet():
    env = load_environment(num_train_examples=200, num_eval_examples=100, num_numbers=5)
    train, evaluation = list(env.get_dataset()), list(env.get_eval_dataset())
    for row in train + evaluation:
        info = row["info"]
        assert solution_value(row["answer"], info["numbers"]) == info["target"]
        assert len(info["numbers"]) == 5
    assert not {row["question"] for row in train} & {row["question"] for row in evaluation}
