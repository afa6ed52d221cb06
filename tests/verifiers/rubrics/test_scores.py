"""A reward function may return a `vf.Score`: the reward with its reasons, saved beside the number."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.rubrics.reward_call import is_group_function
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": "2 + 2?", "answer": "4"}]
ENTRY = {
    "value": 0.5,
    "answer": "4",
    "explanation": "right, but no steps",
    "metadata": {"steps": [1, None]},
}


def graded(completion: Any) -> float:
    return vf.Score(
        0.5, answer="4", explanation="right, but no steps", metadata={"steps": (1, None)}
    )


def plain(completion: Any) -> float:
    return 1.0


def lengths(completions: Any) -> list[vf.Score | float]:
    """A `Score` for the first rollout of a group, numbers for the others."""
    return [
        vf.Score(len(completions), explanation="the first") if index == 0 else 0.25
        for index, _ in enumerate(completions)
    ]


async def played(rubric: vf.Rubric, n: int = 1, **options: Any) -> list[vf.RolloutOutput]:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)
    return await run(env, ScriptedClient(["4"] * n), rollouts_per_example=n, **options)


def test_a_score_is_a_float_that_survives_pickling() -> None:
    score = vf.Score(0.5, answer=[1], explanation="half", metadata={"a": 1})
    assert isinstance(score, float)
    assert score == 0.5
    assert 2 * score == 1.0
    copied = pickle.loads(pickle.dumps(score))
    assert (copied, copied.reasons()) == (0.5, score.reasons())
    assert vf.Score(1).reasons() == {}
    with pytest.raises(TypeError, match="got None"):
        vf.Score(None)  # type: ignore[arg-type]


async def test_callers_see_floats_and_the_reasons_beside_them() -> None:
    [output] = await played(vf.Rubric(funcs=[graded, plain], weights=[2.0, 1.0]))
    assert output["reward"] == 2.0
    assert output["metrics"]["graded"] == output["graded"] == 0.5
    assert {type(output["reward"]), type(output["graded"])} == {float}
    assert output["score_details"] == {"graded": ENTRY}


async def test_without_reasons_nothing_is_added() -> None:
    [output] = await played(vf.Rubric(funcs=[plain, lambda completion: vf.Score(1.0)]))
    assert output["reward"] == 2.0
    assert "score_details" not in output


async def test_a_group_function_may_mix_scores_and_numbers() -> None:
    first, second = await played(vf.Rubric(funcs=[lengths, graded]), 2, max_concurrent=1)
    assert [first["reward"], second["reward"]] == [2.5, 0.75]
    assert first["score_details"]["lengths"] == {"value": 2.0, "explanation": "the first"}
    assert second["score_details"] == {"graded": ENTRY}


def test_a_return_annotation_with_scores_marks_a_group_function() -> None:
    def by_class(state: Any) -> list[vf.Score]: ...
    def by_text(state: Any) -> "list[float | vf.Score]": ...
    def other(state: Any) -> "list[str]": ...

    assert [is_group_function(func) for func in (by_class, by_text, other)] == [True, True, False]


async def test_rubrics_of_a_group_keep_their_own_reasons() -> None:
    rubric = vf.RubricGroup([vf.Rubric(funcs=[graded]), vf.Rubric(funcs=[graded])])
    [output] = await played(rubric)
    assert output["metrics"]["graded"] == 1.0
    assert output["score_details"] == {"graded": ENTRY, "graded_2": ENTRY}
    rubric.add_score_object_provider(lambda state: {})  # scored rubric by rubric
    [output] = await played(rubric)
    assert output["score_details"] == {"graded": ENTRY, "graded_2": ENTRY}


async def test_a_rubric_that_scores_in_its_own_way_keeps_the_reasons_of_its_functions() -> None:
    class Own(vf.Rubric):
        async def score_rollout(self, state: Any, score_sem: Any = None) -> None:
            await super().score_rollout(state)
            state["reward"] *= 2

    [output] = await played(vf.RubricGroup([Own(funcs=[graded]), vf.Rubric(funcs=[plain])]))
    assert output["reward"] == 2.0
    assert output["score_details"] == {"graded": ENTRY}


async def test_an_environment_group_keeps_the_reasons() -> None:
    inner = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[graded]))
    other = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[plain]))
    env = vf.EnvGroup([inner, other], env_names=["inner", "other"])
    outputs = (await env.evaluate(ScriptedClient(["4", "4"]), "m"))["outputs"]
    assert [output.get("score_details") for output in outputs] == [{"graded": ENTRY}, None]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"value": float("nan")}, r"'wrong' returned nan; it must be finite"),
        ({"explanation": 3}, r"'wrong' returned a Score of 1 with the explanation 3; .* text"),
        ({"metadata": [1]}, r"'wrong' returned a Score of 1 with the metadata \[1\]; .* a dict"),
        ({"metadata": {"a": object}}, r"the metadata \{'a': <class 'object'>\}; it must be JSON"),
        ({"answer": float("inf")}, r"the answer inf; it must be JSON"),
        ({"value": None}, r"'wrong' raised TypeError: Score takes a number; got None"),
    ],
)
async def test_a_score_that_cannot_be_saved_names_the_function_and_the_value(
    wrong: dict[str, Any], message: str
) -> None:
    def wrong_score(completion: Any) -> float:
        return vf.Score(**{"value": 1.0, **wrong})

    wrong_score.__name__ = "wrong"
    [output] = await played(vf.Rubric(funcs=[wrong_score, plain]))
    assert output["reward"] == 1.0
    [error] = output["errors"]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(error["message"])
    assert "score_details" not in output


async def test_the_reasons_are_saved_and_a_resumed_run_reads_them(tmp_path: Path) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[graded]), env_id="graded")
    folder = tmp_path / "run"
    for replies in (["4"], []):
        results = await env.evaluate(
            ScriptedClient(replies), "m", results_path=folder, save_results=True
        )
        assert results["outputs"][0]["score_details"] == {"graded": ENTRY}
    [line] = (folder / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["score_details"] == {"graded": ENTRY}


def judged(judge: ScriptedClient) -> vf.JudgeRubric:
    return vf.JudgeRubric(judge_client=judge, judge_model="j")


async def test_the_judges_text_is_the_explanation() -> None:
    rubric = judged(ScriptedClient(["Yes, because it adds up."]))

    async def is_right(judge: Any, prompt: Any, completion: Any, answer: Any) -> float:
        return float("Yes" in await judge(prompt, completion, answer))

    rubric.add_reward_func(is_right)
    rubric.add_metric(plain)
    [output] = await played(rubric)
    assert output["score_details"] == {
        "is_right": {"value": 1.0, "explanation": "Yes, because it adds up."}
    }


async def test_a_judged_function_may_explain_itself() -> None:
    class Own(vf.JudgeRubric):
        @vf.reward
        async def own_words(self, prompt: Any, completion: Any, answer: Any) -> float:
            await self.judge(prompt, completion, answer)
            return vf.Score(0.5, explanation="mine")

        @vf.reward
        async def with_data(self, prompt: Any, completion: Any, answer: Any) -> float:
            await self.judge(prompt, completion, answer)
            return vf.Score(0.5, metadata={"n": 1})

    [output] = await played(Own(judge_client=ScriptedClient(["a", "b"]), judge_model="j"))
    assert output["score_details"] == {
        "own_words": {"value": 0.5, "explanation": "mine"},
        "with_data": {"value": 0.5, "explanation": "b", "metadata": {"n": 1}},
    }


async def test_rollouts_scored_at_the_same_time_keep_their_own_verdicts() -> None:
    rubric = judged(ScriptedClient(lambda prompt: prompt[0]["content"][-200:]))

    async def says(judge: Any, prompt: Any, completion: Any, answer: Any) -> float:
        await judge(prompt, completion, answer)
        return 1.0

    def together(completions: Any) -> list[float]:
        return [0.0 for _ in completions]

    rubric.add_reward_func(says)
    rubric.add_reward_func(together)
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)
    outputs = await run(env, ScriptedClient(["one", "two"]), rollouts_per_example=2)
    for output in outputs:
        reply = output["completion"][0]["content"]
        other = "two" if reply == "one" else "one"
        text = output["score_details"]["says"]["explanation"]
        assert reply in text
        assert other not in text
