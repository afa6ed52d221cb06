import pytest
from addition import boxed_number, load_environment

from verifiers.testing import ScriptedClient, run


async def test_only_the_boxed_sum_scores():
    env = load_environment(num_eval_examples=1)
    answer = env.get_eval_dataset()[0]["answer"]
    replies = [f"7+5=12. \\boxed{{{answer}}}", answer, f"\\boxed{{{answer}1}}", ""]
    outputs = await run(env, ScriptedClient(replies), rollouts_per_example=4)
    assert [output["reward"] for output in outputs] == [1.0, 0.0, 0.0, 0.0]
    assert [output["metrics"]["is_boxed"] for output in outputs] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("text", "number"),
    [("\\boxed{007}", "7"), ("\\boxed{1,234}", "1234"), ("\\boxed{x}", ""), ("\\boxed{²}", "")],
)
def test_numbers_are_read_in_one_form(text, number):
    assert boxed_number(text) == number


def test_training_can_be_endless_and_splits_never_meet():
    env = load_environment(num_train_examples=-1, num_eval_examples=200, max_digits=2)
    train = {row["question"] for row in env.get_dataset(n=2000)}
    assert not train & {row["question"] for row in env.get_eval_dataset()}


def test_the_numbers_have_so_many_digits():
    questions = [row["question"] for row in load_environment(max_digits=5).get_dataset(n=200)]
    assert max(len(word.rstrip("?")) for q in questions for word in q.split()[2::2]) == 5
