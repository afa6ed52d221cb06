"""A run that cannot succeed ends before, or at, its first rollout."""

from typing import Any

import pytest

import verifiers as vf
from verifiers.clients.failures import NoSuchRoute
from verifiers.errors import MissingAnswer, RewardArgumentError
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": f"{n}?", "answer": "4", "level": 1} for n in range(20)]


def misspelt(completion: Any, anwser: str) -> float:
    return 1.0


def fine(completion: Any, answer: str, level: int, parser: Any) -> float:
    return 1.0


def together(completions: Any, answers: Any, levels: Any, level: Any, states: Any) -> list[float]:
    return [1.0 for _ in completions]


def misspelt_together(completions: Any, anwsers: Any) -> list[float]:
    return [1.0 for _ in completions]


def single(*funcs: Any, **kwargs: Any) -> vf.SingleTurnEnv:
    rows = kwargs.pop("dataset", ROWS)
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=list(funcs)), **kwargs)


@pytest.mark.parametrize("func", [misspelt, misspelt_together])
@pytest.mark.parametrize("in_group", [False, True])
async def test_a_misspelt_reward_argument_stops_before_the_first_model_call(
    func: Any, in_group: bool
) -> None:
    client = ScriptedClient(then="a")
    env: vf.Environment = single(fine, func)
    if in_group:
        env = vf.EnvGroup([env, single(fine)])
    with pytest.raises(RewardArgumentError, match=r"Did you mean 'answers?'"):
        await run(env, client, n=20, max_concurrent=-1)
    assert client.prompts == []


async def test_functions_that_can_be_called_are_not_refused() -> None:
    env = single(fine, together)
    outputs = await run(env, ScriptedClient(then="a"), n=3, rollouts_per_example=2)
    assert [output["reward"] for output in outputs] == [2.0] * 6


async def test_a_field_that_only_some_rows_have_is_no_reason_to_stop() -> None:
    rows = [{"question": "q"}, {"question": "q", "extra": 1}]
    outputs = await run(
        single(lambda completion, extra: 1.0, dataset=rows), ScriptedClient(then="a"), n=2
    )
    assert [output["reward"] for output in outputs] == [0.0, 1.0]


class Prepares(vf.SingleTurnEnv):
    async def setup_state(self, state: vf.State) -> None:
        state["input"]["drawn"] = 7


async def test_an_argument_that_the_environment_adds_is_offered() -> None:
    env = Prepares(dataset=ROWS, rubric=vf.Rubric(funcs=[lambda completion, drawn: drawn]))
    outputs = await run(env, ScriptedClient(then="a"), n=20, max_concurrent=-1)
    assert [output["reward"] for output in outputs] == [7.0] * 20


async def test_an_argument_that_the_environment_might_add_costs_one_rollout() -> None:
    client = ScriptedClient(then="a")
    env = Prepares(dataset=ROWS, rubric=vf.Rubric(funcs=[lambda completion, drawm: drawm]))
    with pytest.raises(RewardArgumentError, match="drawm"):
        await run(env, client, n=20, rollouts_per_example=2, max_concurrent=-1)
    assert len(client.prompts) == 1


async def test_a_missing_answer_that_shows_in_a_rollout_ends_the_run() -> None:
    class Removes(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State) -> None:
            state["answer"] = None

    def contains(completion: Any, answer: str) -> float:
        return float(answer in completion[-1]["content"])

    client = ScriptedClient(then="a")
    rows = [{"question": "q"}] * 5
    env = Removes(dataset=rows, rubric=vf.Rubric(funcs=[contains]))
    with pytest.raises(MissingAnswer):
        await run(env, client, n=5, max_concurrent=1)
    assert len(client.prompts) <= 1


async def test_an_unknown_model_ends_the_run_at_the_first_answer() -> None:
    client = ScriptedClient(then=NoSuchRoute("no model 'x'"))
    with pytest.raises(NoSuchRoute, match="no model"):
        await run(single(fine), client, n=20, max_concurrent=1)
    assert len(client.prompts) == 1


async def test_a_404_after_an_answer_is_an_error_of_its_rollout() -> None:
    client = ScriptedClient(["a", NoSuchRoute("gone"), "b"])
    outputs = await run(single(fine), client, n=3)
    assert [output["error"] is None for output in outputs] == [True, False, True]


async def test_a_judge_with_an_unknown_model_ends_the_run() -> None:
    judge = vf.JudgeRubric(
        judge_client=ScriptedClient(then=NoSuchRoute("no judge")), judge_model="x"
    )

    async def asks(judge: Any, prompt: Any, completion: Any, answer: Any, state: Any) -> float:
        return float(len(await judge(prompt, completion, answer, state)))

    judge.add_reward_func(asks)
    client = ScriptedClient(then="a")
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=judge)
    with pytest.raises(NoSuchRoute, match="no judge"):
        await run(env, client, n=20, max_concurrent=1)
    assert len(client.prompts) < 20


async def test_an_object_that_depends_on_the_rollout_is_offered_and_a_slip_still_ends_the_run() -> (
    None
):
    def made(func: Any) -> vf.SingleTurnEnv:
        rubric = vf.Rubric(funcs=[func])
        rubric.add_score_object_provider(lambda state: {"tools_used": 3.0})
        return vf.SingleTurnEnv(dataset=ROWS, rubric=rubric)

    client = ScriptedClient(then="a")
    outputs = await run(made(lambda tools_used: tools_used), client, n=20, max_concurrent=-1)
    assert [output["reward"] for output in outputs] == [3.0] * 20
    client = ScriptedClient(then="a")
    with pytest.raises(RewardArgumentError, match="tools_usde"):
        await run(made(lambda tools_usde: tools_usde), client, n=20, max_concurrent=1)
    assert len(client.prompts) < 20


async def test_a_source_does_not_start_with_a_misspelt_reward_argument() -> None:
    from verifiers.training.policy import PolicyEndpoint
    from verifiers.training.source import RolloutSource
    from verifiers.training.source_config import SourceConfig

    client = ScriptedClient(then="a")
    config = SourceConfig(groups_per_batch=1, rollouts_per_group=2)
    source = RolloutSource(single(misspelt), [PolicyEndpoint(client)], config, model="m")
    with pytest.raises(RewardArgumentError):
        async with source:
            raise AssertionError("the source was opened")
    assert client.prompts == []
