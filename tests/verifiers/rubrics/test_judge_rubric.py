from functools import partial
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest
from openai.types.chat import ChatCompletion

import verifiers as vf
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": "Who wrote it?", "answer": "Ada"}]


def judged(rubric: vf.JudgeRubric, weight: float = 1.0) -> vf.JudgeRubric:
    async def said_yes(judge: Any, prompt: Any, completion: Any, answer: Any, state: Any) -> float:
        return float("yes" in await judge(prompt, completion, answer, state))

    rubric.add_reward_func(said_yes, weight=weight)
    return rubric


async def play(rubric: vf.Rubric, reply: str = "It was Ada.", **kwargs: Any) -> vf.RolloutOutput:
    [output] = await run(
        vf.SingleTurnEnv(dataset=ROWS, rubric=rubric), ScriptedClient([reply]), **kwargs
    )
    return output


async def test_the_judge_is_asked_with_question_answer_and_response() -> None:
    judge = ScriptedClient(["yes, it is"])
    output = await play(
        judged(
            vf.JudgeRubric(
                judge_client=judge,
                judge_model="j",
                judge_sampling_args={"temperature": 0, "seed": None},
            )
        )
    )
    [request] = judge.requests
    assert (request.model, request.sampling_args) == ("j", {"temperature": 0})
    for part in ("Who wrote it?", "Ada", "It was Ada."):
        assert part in request.prompt[0]["content"]
    assert (output["reward"], output["metrics"]["said_yes"]) == (1.0, 1.0)


async def test_equal_questions_of_one_rollout_are_asked_once() -> None:
    judge = ScriptedClient(["yes"])
    rubric = judged(judged(vf.JudgeRubric(judge_client=judge)), weight=2.0)
    output = await play(rubric, state_columns=["judge_response"])
    assert (output["reward"], len(judge.requests)) == (3.0, 1)
    assert list(output["judge_response"].values()) == ["yes"]


async def test_replies_are_stored_under_the_prompt_of_the_judge() -> None:
    prompt = "Rate: {question} {answer} {response}"
    first, second = ScriptedClient(["yes"]), ScriptedClient(["no"])
    rubrics = [
        judged(vf.JudgeRubric(judge_client=client, judge_model=model, judge_prompt=prompt))
        for client, model in ((first, "one"), (second, "two"))
    ]
    output = await play(vf.RubricGroup(rubrics), "Ada")
    asked = "Rate: Who wrote it? Ada Ada"
    assert output["judge_response"] == {asked: "yes", f"two: {asked}": "no"}
    assert output["reward"] == 1.0


async def test_verdicts_are_saved_without_naming_a_state_column() -> None:
    rubric = judged(vf.JudgeRubric(judge_client=ScriptedClient(["yes, because it says so"])))

    output = await play(rubric)

    [(question, verdict)] = output["judge_response"].items()
    assert verdict == "yes, because it says so"
    assert "Who wrote it?" in question


async def test_a_rollout_without_a_judge_has_no_verdict() -> None:
    assert "judge_response" not in await play(vf.Rubric())


async def test_another_rollout_is_asked_anew() -> None:
    judge = ScriptedClient(["yes", "no"])
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=judged(vf.JudgeRubric(judge_client=judge)))
    outputs = await run(env, ScriptedClient(then="same"), rollouts_per_example=2)
    assert sorted(output["reward"] for output in outputs) == [0.0, 1.0]


async def test_the_prompt_and_the_parser_can_be_ones_own() -> None:
    judge = ScriptedClient(["yes"])
    parser = vf.XMLParser(["answer"])
    rubric = vf.JudgeRubric(
        judge_client=judge, judge_prompt="{question}|{answer}|{response}", parser=parser
    )
    await play(judged(rubric), "<answer>Ada</answer>")
    assert judge.requests[0].prompt[0]["content"] == "Who wrote it?|Ada|Ada"


async def test_a_judge_that_fails_is_recorded_and_not_a_silent_zero() -> None:
    judge = ScriptedClient([vf.EndpointUnavailable("judge is down")])
    output = await play(judged(vf.JudgeRubric(judge_client=judge)))
    assert output["reward"] == 0.0
    assert "judge is down" in output["errors"][0]["message"]


async def test_an_environment_with_a_judge_loads_without_a_key_and_says_which_is_missing() -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=judged(vf.JudgeRubric(judge_model="gpt-x")))
    with pytest.raises(vf.AuthenticationError, match="'gpt-x' needs a key: set OPENAI_API_KEY"):
        await run(env, ScriptedClient(["a"]))


async def test_a_wrong_key_of_the_judge_ends_the_run() -> None:
    judge = ScriptedClient(then=vf.AuthenticationError("wrong judge key"))
    with pytest.raises(vf.AuthenticationError, match="wrong judge key"):
        await play(judged(vf.JudgeRubric(judge_client=judge)))


async def test_reward_functions_may_ask_for_the_judges_parts() -> None:
    seen: dict[str, Any] = {}

    def looks(
        judge_client: Any, judge_model: str, judge_prompt: str, judge_sampling_args: Any
    ) -> float:
        seen.update(locals())
        return 1.0

    judge = ScriptedClient()
    rubric = vf.JudgeRubric(judge_client=judge, judge_model="j", judge_sampling_args={"n": 1})
    rubric.add_reward_func(looks)
    assert (await play(rubric))["reward"] == 1.0
    assert (seen["judge_client"], seen["judge_model"], seen["judge_sampling_args"]) == (
        judge,
        "j",
        {"n": 1},
    )


async def test_a_subclass_may_override_the_judge() -> None:
    class Own(vf.JudgeRubric):
        async def judge(
            self, prompt: Any, completion: Any, answer: Any, state: Any = None, **_: Any
        ) -> str:
            return "yes"

    assert (await play(judged(Own())))["reward"] == 1.0


@pytest.mark.parametrize("kind", [MagicMock, Mock, partial(MagicMock, spec=ChatCompletion)])
async def test_a_judge_may_be_a_mock_of_which_only_the_content_is_set(kind: Any) -> None:
    response = kind()
    response.choices = [kind()]
    response.choices[0].message = MagicMock()
    response.choices[0].message.content = "yes"
    client = MagicMock()
    client.chat.completions.create = AsyncMock(return_value=response)
    judge = vf.JudgeRubric(judge_client=client, judge_model="m")
    assert await judge.judge("q", "4", "4", {}) == "yes"
    assert await judge.judge("q", "4", "4") == "yes"
