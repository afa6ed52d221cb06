import pytest
from judge_essay import UnreadableVerdict, load_environment, points_in

import verifiers as vf
from verifiers.testing import ScriptedClient, run

ESSAY = "Trees give shade and hold back the rain. " * 12


async def play(essay: str, *verdicts, **options):
    judge = ScriptedClient(verdicts)
    [output] = await run(load_environment(judge_client=judge, **options), ScriptedClient([essay]))
    return output, judge


async def test_the_judges_points_are_the_reward():
    output, judge = await play(ESSAY, "Clear but short. Points: 7")
    assert (output["reward"], output["error"]) == (0.7, None)
    asked = judge.requests[0].prompt[-1]["content"]
    assert "shade and cooler streets" in asked
    assert ESSAY.strip() in asked


@pytest.mark.parametrize("essay", ["", "Too short.", "word " * 300])
async def test_essays_of_another_length_get_nothing_and_are_not_judged(essay):
    output, judge = await play(essay)
    assert (output["reward"], judge.requests) == (0.0, [])
    assert output["metrics"]["has_asked_length"] == 0.0


@pytest.mark.parametrize(
    "verdict", ["Very nice.", "Points: 11", vf.EndpointUnavailable("no judge")]
)
async def test_a_judge_that_fails_is_an_error_and_not_a_bad_essay(verdict):
    output, _ = await play(ESSAY, verdict)
    assert [error["function"] for error in output["errors"]] == ["quality"]


def test_points_are_read_in_the_usual_forms():
    assert points_in("Good. Points: 7") == 7.0
    assert points_in("points 3 of ten at first, but **Points: 8.5**") == 8.5
    with pytest.raises(UnreadableVerdict):
        points_in("10 out of 10 for effort")


def test_loading_needs_no_key():
    env = load_environment(judge_base_url="http://localhost:1/v1", judge_api_key_var="NO_SUCH_KEY")
    assert len(env.get_eval_dataset()) == 4
    assert len(env.get_dataset()) == 12
