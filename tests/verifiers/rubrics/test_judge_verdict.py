import pytest

import verifiers as vf
from verifiers.errors import NoVerdict
from verifiers.rubrics.judge_rubric import choice_in
from verifiers.testing import ScriptedClient

CALL = ([{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}], "a")


def judge(*replies):
    return vf.JudgeRubric(judge_client=ScriptedClient(list(replies)))


async def test_a_verdict_is_a_score_with_the_reply_as_its_reason():
    score = await judge("It is right.\nYES.").verdict(*CALL)
    assert (score, score.answer, score.explanation) == (1.0, "yes", "It is right.\nYES.")
    assert await judge("no").verdict(*CALL) == 0.0


async def test_a_reply_without_a_decision_is_asked_again_and_never_counts_as_wrong():
    assert await judge("hm", "yes or no?", "yes").verdict(*CALL) == 1.0
    with pytest.raises(NoVerdict, match=r"no verdict in 3 attempts.*'perhaps'"):
        await judge("", "hm", "perhaps").verdict(*CALL)


async def test_own_choices_have_own_values():
    choices = {"fully correct": 1.0, "partly": 0.5, "wrong": 0.0}
    assert await judge("Partly.").verdict(*CALL, choices=choices) == 0.5
    assert await judge("fully correct").verdict(*CALL, choices=choices) == 1.0


async def test_a_repeated_question_of_a_rollout_keeps_its_verdict():
    rubric, state = judge("hm", "yes"), vf.State()
    assert await rubric.verdict(*CALL, state) == 1.0
    assert await rubric.verdict(*CALL, state) == 1.0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("yes", "yes"),
        ("No, it is not.", "no"),
        ("yes\n\nno", "no"),
        ("yes, no", None),
        ("Not known", None),
        ("nobody", None),
        ("", None),
        ("**Yes**", "yes"),
    ],
)
def test_the_last_line_with_a_choice_decides(reply, expected):
    assert choice_in(reply, ["yes", "no"]) == expected
