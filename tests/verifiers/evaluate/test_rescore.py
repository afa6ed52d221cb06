import math

import pytest

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.evaluate.rescore import agreement, load_rubric, rescore, state_of
from verifiers.runs.folders import RunLocked
from verifiers.runs.store import RunStore, load_metadata, load_outputs
from verifiers.testing import ScriptedClient

ROWS = [{"question": f"{n} + {n} =", "answer": str(2 * n), "info": {"n": n}} for n in range(4)]


def exact(completion, answer):
    return float(completion[-1]["content"] == answer)


def contains(completion, answer, info):
    assert isinstance(info["n"], int)
    return float(answer in completion[-1]["content"])


@pytest.fixture
async def folder(tmp_path):
    """A run of four examples with two rollouts each, whose replies are all "is 4"."""
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[exact]))
    client = ScriptedClient([], then="is 4")
    await env.evaluate(client, "m", rollouts_per_example=2, results_path=tmp_path / "run")
    return tmp_path / "run"


async def test_new_scores_are_added_to_the_history_and_change_nothing_else(folder):
    before = load_outputs(folder)
    metadata = load_metadata(folder)
    result = await rescore(
        folder, vf.Rubric(funcs=[contains]), author="ann", reason="looser", name="r.py:contains"
    )
    assert (result.scored, result.changed, result.failed, result.kept) == (8, 2, 0, 0)
    assert (result.old_mean, result.new_mean) == (0.0, 0.25)
    after = load_outputs(folder)
    for old, new in zip(before, after, strict=True):
        [entry] = new.pop("score_history")
        assert new == old
        assert entry["reward"] == float(new["answer"] == "4")
        assert entry["metrics"] == {"contains": entry["reward"]}
        assert (entry["author"], entry["reason"], entry["rubric"]) == (
            "ann",
            "looser",
            "r.py:contains",
        )
        assert entry["date"].startswith("20")
    assert load_metadata(folder) == metadata


async def test_overwriting_moves_the_old_scores_to_the_history_and_computes_the_metadata(folder):
    await rescore(folder, vf.Rubric(funcs=[contains]), overwrite=True, author="ann")
    await rescore(folder, vf.Rubric(funcs=[exact]), overwrite=True, author="bob")
    await rescore(folder, vf.Rubric(funcs=[contains]), overwrite=True, author="cy")
    metadata = load_metadata(folder)
    assert metadata["avg_reward"] == 0.25
    assert metadata["avg_metrics"] == {"exact": 0.0, "num_turns": 1.0, "contains": 0.25}
    assert metadata["model"] == "m"
    output = next(one for one in load_outputs(folder) if one["answer"] == "4")
    assert output["reward"] == output["contains"] == 1.0
    assert output["exact"] == 0.0
    assert output["scored_by"]["author"] == "cy"
    assert [(entry.get("author"), entry["reward"]) for entry in output["score_history"]] == [
        (None, 0.0),
        ("ann", 1.0),
        ("bob", 0.0),
    ]


async def test_measurements_of_the_rollout_keep_their_values(folder):
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[contains]))
    await rescore(folder, env.rubric, overwrite=True)
    assert {one["metrics"]["num_turns"] for one in load_outputs(folder)} == {1.0}
    assert load_metadata(folder)["avg_reward"] == 0.25


async def test_only_rollouts_whose_judge_failed_are_scored(tmp_path):
    replies = iter(["yes", "maybe", "maybe", "maybe", "no"] + ["broken"] * 3)
    rubric = vf.JudgeRubric(judge_client=ScriptedClient(lambda *_: next(replies)))

    async def judged(verdict, prompt, completion, answer, state):
        return await verdict(prompt, completion, answer, state)

    rubric.add_reward_func(judged)
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)
    folder = tmp_path / "run"
    client = ScriptedClient([], then="4")
    await env.evaluate(client, "m", max_concurrent=1, results_path=folder)
    rewards = [(one["reward"], len(one["errors"])) for one in load_outputs(folder)]
    assert sorted(rewards) == [(0.0, 0), (0.0, 1), (0.0, 1), (1.0, 0)]
    rubric.judge_client = ScriptedClient([], then="The answer is right.\nYes")
    result = await rescore(folder, rubric, which="failed", overwrite=True)
    assert (result.scored, result.kept, result.failed) == (2, 2, 0)
    assert sorted(one["reward"] for one in load_outputs(folder)) == [0.0, 1.0, 1.0, 1.0]
    assert load_metadata(folder)["num_reward_errors"] == 0
    assert math.isnan(result.old_mean) or result.old_mean == 0.0


async def test_a_crashed_rollout_keeps_its_void_reward(folder):
    with RunStore.open(folder) as store:
        crashed = dict(
            load_outputs(folder)[0], error={"error": "SandboxError", "voids_reward": True}
        )
        store.replace({0: crashed})
    result = await rescore(folder, vf.Rubric(funcs=[lambda: 1.0]), overwrite=True)
    assert (result.scored, result.kept) == (7, 1)
    assert load_outputs(folder)[0]["reward"] == 0.0


async def test_functions_that_score_an_example_together_get_all_of_its_rollouts(folder):
    seen = []

    def best(completions):
        seen.append(len(completions))
        return [float(place == 0) for place in range(len(completions))]

    result = await rescore(folder, vf.Rubric(funcs=[best]), overwrite=True)
    assert (result.new_mean, seen) == (0.5, [2, 2, 2, 2])
    with RunStore.open(folder) as store:
        store.replace({0: dict(load_outputs(folder)[0], reward=None)})
    with pytest.raises(ConfigError, match="in 1 examples only some scores failed"):
        await rescore(folder, vf.Rubric(funcs=[best]), which="failed")


async def test_repetitions_measure_the_agreement_of_a_judge_with_itself(folder):
    values = iter([1.0, 0.0, 0.0, 1.0] * 100)
    result = await rescore(folder, vf.Rubric(funcs=[lambda: next(values)]), repeat=2)
    assert result.repeats is not None
    assert result.repeats.rollouts == 8
    assert result.repeats.alpha < 0.2
    steady = await rescore(folder, vf.Rubric(funcs=[contains]), repeat=3)
    assert steady.repeats is not None
    assert steady.repeats.alpha == 1.0


async def test_a_failing_function_is_recorded_and_counted(folder):
    def broken(completion):
        raise ValueError("no")

    result = await rescore(folder, vf.Rubric(funcs=[broken]))
    assert result.failed == 8
    [entry] = load_outputs(folder)[0]["score_history"]
    assert entry["errors"][0]["function"] == "broken"


async def test_a_run_that_another_process_writes_is_left_alone(folder):
    with RunStore.open(folder), pytest.raises(RunLocked):
        await rescore(folder, vf.Rubric(funcs=[exact]))
    with pytest.raises(ConfigError, match="got 0"):
        await rescore(folder, vf.Rubric(funcs=[exact]), repeat=0)


def test_a_state_of_a_saved_rollout_has_messages_and_columns_and_no_scores():
    state = state_of(
        {
            "example_id": 3,
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}],
            "info": {"x": 1},
            "reward": 1.0,
            "metrics": {"m": 0.5, "note": 2.0},
            "m": 0.5,
            "note": "mine",
        }
    )
    assert state["completion"][-1].content == "a"
    assert state["note"] == "mine"
    assert (state.reward, state.get("m"), state["info"]) == (None, None, {"x": 1})


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]], (3, 1.0, 1.0, 1.0)),
        ([[1.0, None, 0.0], [1.0, 1.0, 0.0]], (2, 1.0, 1.0, 1.0)),
    ],
)
def test_agreement_leaves_out_missing_scores(rounds, expected):
    assert agreement(rounds) == pytest.approx(expected)


def test_a_rubric_is_found_by_file_and_name(tmp_path):
    path = tmp_path / "rubrics.py"
    path.write_text(
        "import verifiers as vf\n"
        "def right(completion): return 1.0\n"
        "ready = vf.Rubric(funcs=[right])\n"
        "def make(): return vf.Rubric(funcs=[right, right])\n"
        "number = 3\n"
    )
    assert load_rubric(f"{path}:ready").reward_calls()[0].name == "right"
    assert len(load_rubric(f"{path}:make").reward_calls()) == 2
    assert load_rubric(f"{path}:right").reward_calls()[0].name == "right"
    for place, message in (
        (f"{path}:number", "found int"),
        (f"{path}:missing", "found NoneType"),
        (f"{path}", "does not name a rubric|is not a Python file"),
        (f"{tmp_path}/none.py:x", "is not a Python file"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_rubric(place)
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_rubric(f"{path}:x")
