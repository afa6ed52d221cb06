import itertools
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient, run


def rubric(**values: float) -> vf.Rubric:
    funcs = []
    for name, value in values.items():

        def function(completion: Any, value: float = value) -> float:
            return value

        function.__name__ = name
        funcs.append(function)
    return vf.Rubric(funcs=funcs)


def number() -> vf.Rubric:
    """Scores the number that the model said."""

    def said(completion: Any) -> float:
        return float(completion[-1]["content"])

    return vf.Rubric(funcs=[said])


class Writes(vf.Rubric):
    """A rubric in the old way: it writes into the states."""

    async def score_group(self, states: list[vf.State]) -> None:
        for state in states:
            state["reward"] = 100.0
            state["metrics"] = {"written": 1.0}
            state["noted"] = True
            for step in state["trajectory"]:
                step["reward"] = -1.0


ENV = {"dataset": [{"question": "q", "answer": "4"}]}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_the_order_of_rubrics_changes_nothing(order: tuple[int, ...]) -> None:
    parts = [number(), rubric(fixed=10.0), Writes(), vf.RubricGroup([rubric(inner=0.5)])]
    env = vf.SingleTurnEnv(**ENV, rubric=vf.RubricGroup([parts[index] for index in order]))
    states = await env._run_group_states(
        env.source("eval").inputs(1) * 2, ScriptedClient(["1", "2"]), "m", {}
    )
    assert [state["reward"] for state in states] == [111.5, 112.5]
    assert [state["advantage"] for state in states] == [-0.5, 0.5]
    assert [state["trajectory"][0]["reward"] for state in states] == [111.5, 112.5]
    assert [state["trajectory"][0]["advantage"] for state in states] == [-0.5, 0.5]
    assert all(state["noted"] for state in states)
    assert states[0]["metrics"] == {
        "said": 1.0,
        "fixed": 10.0,
        "written": 1.0,
        "inner": 0.5,
        "num_turns": 1.0,
    }


async def test_equal_metrics_of_several_rubrics_add_up() -> None:
    env = vf.SingleTurnEnv(**ENV, rubric=vf.RubricGroup([rubric(score=1.0), rubric(score=2.0)]))
    [output] = await run(env, ScriptedClient(["x"]))
    assert (output["reward"], output["metrics"]["score"]) == (3.0, 3.0)


async def test_a_group_given_to_two_environments_counts_turns_once() -> None:
    group = vf.RubricGroup([rubric(fixed=1.0)])
    envs = [vf.SingleTurnEnv(**ENV, rubric=group) for _ in range(2)]
    for env in envs:
        [output] = await run(env, ScriptedClient(["x"]))
        assert output["metrics"] == {"fixed": 1.0, "num_turns": 1.0}
    assert len(group.rubrics) == 1


def test_the_names_functions_and_weights_of_all_rubrics_are_listed() -> None:
    group = vf.RubricGroup([rubric(one=1.0, two=2.0), rubric(three=3.0)])
    assert group._get_reward_func_names() == ["one", "two", "three"]
    assert group._get_reward_weights() == [1.0, 1.0, 1.0]
    group.add_reward_func(lambda completion: 1.0, weight=0.5)
    assert group._get_reward_weights() == [1.0, 1.0, 0.5, 1.0]


def test_a_group_needs_a_rubric() -> None:
    with pytest.raises(ValueError, match="at least one rubric"):
        vf.RubricGroup([])


def test_a_group_that_a_caller_has_emptied_takes_no_functions() -> None:
    group = vf.RubricGroup([vf.Rubric()])
    group.rubrics = []
    for add in (group.add_reward_func, group.add_metric):
        with pytest.raises(AssertionError, match="at least one rubric"):
            add(lambda: 1.0)


async def test_class_objects_and_cleanup_reach_every_rubric() -> None:
    cleaned: list[str] = []
    parts = [rubric(one=1.0), rubric(two=2.0)]
    parts[1].add_reward_func(lambda completion, lexicon: float(lexicon))
    for name, part in zip("ab", parts, strict=True):
        part.add_cleanup_handler(lambda state, name=name: cleaned.append(name))
    group = vf.RubricGroup(parts)
    group.add_class_object("lexicon", 7)
    [output] = await run(vf.SingleTurnEnv(**ENV, rubric=group), ScriptedClient(["x"]))
    assert (output["reward"], cleaned) == (10.0, ["a", "b"])


async def test_a_rubric_written_for_0_1_8_takes_its_semaphore() -> None:
    class Old(vf.Rubric):
        async def score_rollout(self, state: vf.State, score_sem: Any) -> None:
            async with score_sem:
                state["reward"] = 2.0

    [output] = await run(vf.SingleTurnEnv(**ENV, rubric=Old()), ScriptedClient(["x"]))
    assert (output["reward"], output["errors"]) == (2.0, [])
