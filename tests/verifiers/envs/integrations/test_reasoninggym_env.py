import inspect

import pytest

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import import_reasoning_gym
from verifiers.errors import ConfigError
from verifiers.testing import ScriptedClient, check_environment, run

WITHOUT_STORED_ANSWER = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")


@pytest.fixture(autouse=True, scope="module")
def _reasoning_gym():
    pytest.importorskip("numpy")
    try:
        import_reasoning_gym()
    except ConfigError:  # pragma: no cover
        pytest.skip("reasoning-gym is not installed")


def rows(env, split="eval", n=-1):
    return env.source(split).inputs(n)


async def test_the_stored_answer_scores_full_a_wrong_one_and_none_score_nothing():
    env = vf.ReasoningGymEnv("chain_sum", num_train_examples=4, num_eval_examples=3)
    right = rows(env)[0]["answer"]
    outputs = await run(
        env, ScriptedClient([f"<answer>{right}</answer>", "<answer>x</answer>", ""]), n=3
    )
    assert [output["reward"] for output in outputs] == [1.0, 0.0, 0.0]
    assert outputs[0]["metrics"]["format_reward_func"] == 1.0


def test_problems_depend_on_seed_and_number_and_splits_do_not_overlap():
    def questions(split, **options):
        options = {"num_train_examples": 20, "num_eval_examples": 10, "seed": 3, **options}
        return [r["question"] for r in rows(vf.ReasoningGymEnv("chain_sum", **options), split)]

    assert questions("eval") == questions("eval")
    assert questions("eval") != questions("eval", seed=4)
    assert not set(questions("eval")) & set(questions("train"))
    assert questions("train", num_eval_examples=50) == questions("train")


def test_problems_are_made_when_they_are_taken():
    env = vf.ReasoningGymEnv("chain_sum", num_train_examples=10**9, num_eval_examples=10**9)
    assert len(rows(env, n=2)) == 2


async def test_generators_are_mixed_by_weight_and_scored_by_their_own():
    mix = [
        "chain_sum",
        {"name": "leg_counting", "weight": 3, "config": {"min_animals": 2, "max_animals": 2}},
    ]
    env = vf.ReasoningGymEnv(mix, num_train_examples=1, num_eval_examples=60)
    found = rows(env)
    sources = [row["info"]["source_dataset"] for row in found]
    assert 30 < sources.count("leg_counting") < 60
    outputs = await run(env, ScriptedClient(lambda p: answer_of(found, p)), n=60)
    assert {output["reward"] for output in outputs} == {1.0}


def answer_of(found, prompt):
    [row] = [row for row in found if row["question"] == prompt[-1]["content"]]
    return f"<answer>{row['answer']}</answer>"


async def test_an_answer_that_breaks_the_scorer_counts_nothing_and_is_counted():
    env = vf.ReasoningGymEnv("prime_factorization", num_train_examples=1, num_eval_examples=1)
    [output] = await run(env, ScriptedClient(["<answer>banana</answer>"]))
    assert (output["reward"], output["metrics"]["unscorable_answer"]) == (0.0, 1.0)
    assert output["error"] is None


@pytest.mark.parametrize("name", ["chain_sum", "caesar_cipher", "tower_of_hanoi", "zebra_puzzles"])
async def test_generators_score_their_stored_answers_full(name):
    env = vf.ReasoningGymEnv(name, num_train_examples=1, num_eval_examples=2)
    found = rows(env)
    outputs = await run(env, ScriptedClient(lambda p: answer_of(found, p)), n=2)
    assert [output["reward"] for output in outputs] == [1.0, 1.0]


@pytest.mark.long
# A package of tasks leaves its data files open.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_every_generator_works_offline_and_scores_its_stored_answer_full():
    import_reasoning_gym()
    from reasoning_gym.factory import DATASETS

    for name in sorted(set(DATASETS) - {"composite"}):
        env = vf.ReasoningGymEnv(name, num_train_examples=1, num_eval_examples=1)
        [row] = rows(env)
        if name in WITHOUT_STORED_ANSWER:
            assert "answer" not in row
            continue
        [output] = await run(env, ScriptedClient([f"<answer>{row['answer']}</answer>"]))
        assert output["reward"] == 1.0, name
        [output] = await run(env, ScriptedClient(["I do not know."]))
        assert output["reward"] < 0.1, name


async def test_problems_without_a_stored_answer_are_scored_by_what_they_ask():
    env = vf.ReasoningGymEnv("propositional_logic", num_train_examples=1, num_eval_examples=1)
    [row] = rows(env)
    assert "answer" not in row
    [output] = await run(env, ScriptedClient(["<answer>nonsense</answer>"]))
    assert output["error"] is None
    assert 0.0 <= output["reward"] < 1.0


@pytest.mark.parametrize(
    ("gym", "message"),
    [
        ("chain_sun", "Did you mean 'chain_sum'"),
        (["chain_sum", "nope"], "'nope' is not a generator"),
        ([3], "Invalid dataset config: 3"),
        ([], "at least one"),
        (["chain_sum", "chain_sum"], "each only once"),
        ([{"name": "chain_sum", "wieght": 2}], "wieght"),
        ([{"name": "chain_sum", "config": {"no_such": 1}}], "reasoning-gym refuses"),
    ],
)
def test_wrong_generators_are_refused_with_what_to_write(gym, message):
    with pytest.raises(ConfigError, match=message):
        vf.ReasoningGymEnv(gym, num_train_examples=1, num_eval_examples=1)


def test_the_default_system_prompt_is_the_packages_own():
    env = vf.ReasoningGymEnv("chain_sum", num_train_examples=1, num_eval_examples=1)
    assert "<answer>answer here</answer>" in env.system_prompt
    assert vf.ReasoningGymEnv("chain_sum", 1, 1, system_prompt=None).system_prompt is None


def test_the_contract_of_environments_is_kept():
    check_environment(vf.ReasoningGymEnv("chain_sum", num_train_examples=3, num_eval_examples=3))


def test_the_signature_and_the_import_path_are_v0s():
    from verifiers.envs.reasoninggym_env import ReasoningGymEnv

    names = list(inspect.signature(ReasoningGymEnv.__init__).parameters)[1:7]
    assert " ".join(names) == ("gym num_train_examples num_eval_examples system_prompt parser seed")
