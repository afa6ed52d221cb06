import pytest
from reasoning_gym_env import load_environment

import verifiers as vf
from verifiers.testing import ScriptedClient, run


async def test_a_stored_answer_scores_full():
    env = load_environment("caesar_cipher", num_eval_examples=2)
    answers = [row["answer"] for row in env.get_eval_dataset()]
    client = ScriptedClient([f"<answer>{answer}</answer>" for answer in answers])
    assert [output["reward"] for output in await run(env, client, n=2)] == [1.0, 1.0]


def test_generators_can_be_mixed():
    mix = ["chain_sum", {"name": "leg_counting", "weight": 2}]
    rows = load_environment(mix, num_eval_examples=30).get_eval_dataset()
    assert {row["info"]["source_dataset"] for row in rows} == {"chain_sum", "leg_counting"}


def test_an_unknown_generator_is_named():
    with pytest.raises(vf.ConfigError, match="Did you mean 'chain_sum'"):
        load_environment("chain_sums")
