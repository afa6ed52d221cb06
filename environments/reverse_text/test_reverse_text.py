from reverse_text import common_subsequence_length, is_for_evaluation, load_environment, rows

from verifiers.testing import ScriptedClient, run


async def test_the_reversed_text_scores_full_and_nearly_right_ones_by_what_they_share():
    env = load_environment(num_eval_examples=4)
    answer = env.get_eval_dataset()[0]["answer"]
    replies = [
        f"<reversed_text>{answer}</reversed_text>",
        f"<reversed_text>{answer[1:]}</reversed_text>",
        answer,
        "",
    ]
    outputs = await run(env, ScriptedClient(replies), rollouts_per_example=4)
    rewards = [output["reward"] for output in outputs]
    assert rewards == [1.0, (len(answer) - 1) / len(answer), 0.0, 0.0]
    assert [output["metrics"]["exact_match"] for output in outputs] == [1.0, 0.0, 0.0, 0.0]


def test_the_longest_common_subsequence_is_found():
    assert common_subsequence_length("stone", "tone") == 4
    assert common_subsequence_length("abc", "cba") == 1
    assert common_subsequence_length("", "abc") == 0


def test_splits_never_meet_and_begin_the_same_for_every_count():
    train, evaluation = (rows(split, 300, 4, 6, seed=1) for split in ("train", "eval"))
    assert all(is_for_evaluation(row["question"]) for row in evaluation)
    assert not any(is_for_evaluation(row["question"]) for row in train)
    assert rows("train", 20, 4, 6, seed=1) == train[:20]
    assert {len(row["question"]) for row in train} == {4, 5, 6}
