"""Mistakes that are reported before the first model call: rows without answer, no rubric, no end."""

import functools
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset

import verifiers as vf
from verifiers.testing import ScriptedClient, run


def found_in_text(completion: Any, answer: str) -> float:
    return float(answer in completion[-1]["content"])


def helped(completion: Any, answer: str, **kwargs: Any) -> float:
    return found_in_text(completion, answer)


def parsed(completion: Any, answer: str, parser: vf.Parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def searched(completion: Any, answer: str) -> float:
    return float(re.search(answer, completion[-1]["content"]) is not None)


def in_nested(completion: Any, answer: str) -> float:
    return float(any(answer in message["content"] for message in completion))


def of_group(completions: Any, answers: list[str]) -> list[float]:
    return [float(a in c[-1]["content"]) for a, c in zip(answers, completions, strict=True)]


@functools.wraps(found_in_text)
def wrapped(*args: Any, **kwargs: Any) -> float:
    return found_in_text(*args, **kwargs)


class Scorer:
    def __call__(self, completion: Any, answer: str) -> float:
        return float(answer in completion[-1]["content"])

    def method(self, completion: Any, answer: str) -> float:
        return float(answer in completion[-1]["content"])


NEEDING: dict[str, Callable[..., Any]] = {
    "searches": found_in_text,
    "helper": helped,
    "equals": parsed,
    "regular expression": searched,
    "generator": in_nested,
    "group": of_group,
    "wrapped": wrapped,
    "lambda": lambda completion, answer: float(answer in completion[-1]["content"]),
    "object": Scorer(),
    "method": Scorer().method,
    "partial": functools.partial(found_in_text),
}


def env_of(func: Any, rows: Any, **kwargs: Any) -> vf.SingleTurnEnv:
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[func]), **kwargs)


@pytest.mark.parametrize("rows", [[{"question": "q", "answer": "a"}, {"question": "p"}], "arrow"])
@pytest.mark.parametrize("func", NEEDING.values(), ids=NEEDING)
async def test_a_row_without_the_answer_that_a_function_uses_ends_the_run_before_any_call(
    func: Any, rows: Any
) -> None:
    if rows == "arrow":
        rows = Dataset.from_list(
            [{"question": "q", "answer": "a"}, {"question": "p", "answer": None}]
        )
    client = ScriptedClient(then="reply")
    with pytest.raises(vf.DatasetError, match=r"Row 1 has no 'answer', and the reward function '"):
        await run(env_of(func, rows), client, n=-1, save_results=True)
    assert client.prompts == []


async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: vf.State) -> float:
    return float(await judge(prompt, completion, answer, state) == "yes")


def names_it_only(completion: Any, answer: str, **kwargs: Any) -> float:
    return 1.0


def drops_it(completion: Any, answer: str) -> float:
    del answer
    return 1.0


def checks_it(completion: Any, answer: str) -> float:
    return float(answer in completion[-1]["content"]) if answer else 1.0


def optional(completion: Any, answer: str = "") -> float:
    return float(answer in completion[-1]["content"])


def shows_it(completion: Any, answer: str) -> float:
    logging.getLogger("test").debug("answer %s", f"{answer!r}")
    return 1.0


def hands_it_on(prompt: Any, completion: Any, answer: str) -> float:
    return names_it_only(completion, answer)


@pytest.mark.parametrize(
    "func", [names_it_only, drops_it, checks_it, optional, shows_it, hands_it_on]
)
async def test_a_function_that_can_do_without_an_answer_receives_an_empty_one(func: Any) -> None:
    [output] = await run(env_of(func, [{"question": "q"}]), ScriptedClient(["reply"]))
    assert (output["error"], output["errors"], output["reward"]) == (None, [], 1.0)


async def test_a_judge_may_be_asked_without_an_answer() -> None:
    rubric = vf.JudgeRubric(judge_client=ScriptedClient(["yes"]), judge_prompt="Good? {response}")
    rubric.add_reward_func(judged)
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=rubric)
    [output] = await run(env, ScriptedClient(["reply"]))
    assert output["reward"] == 1.0


async def test_metrics_and_an_answer_of_the_rubric_itself_need_no_answer_in_the_row() -> None:
    metric = vf.Rubric(funcs=[names_it_only])
    metric.add_metric(found_in_text)
    given = vf.Rubric(funcs=[found_in_text])
    given.add_class_object("answer", "reply")
    for rubric in (metric, given):
        env = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=rubric)
        [output] = await run(env, ScriptedClient(["reply"]))
        assert (output["errors"], output["reward"]) == ([], 1.0)


class Game(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: vf.State) -> Any:
        state["final_env_response"] = "over"
        return "over"


class GivesAtSetup(Game):
    async def setup_state(self, state: vf.State) -> None:
        if state["question"] == "q":
            state["answer"] = "reply"


class GivesLater(Game):
    async def env_response(self, messages: Any, state: vf.State) -> Any:
        state["answer"] = "reply"
        return await super().env_response(messages, state)


@pytest.mark.parametrize("kind", [GivesAtSetup, GivesLater])
async def test_the_answer_may_come_while_the_rollout_is_played(kind: Any) -> None:
    env = kind(dataset=[{"question": "q"}], rubric=vf.Rubric(funcs=[in_nested]))
    [output] = await run(env, ScriptedClient(["reply"]))
    assert (output["error"], output["reward"]) == (None, 1.0)


async def test_a_rollout_that_set_up_no_answer_ends_before_its_first_call() -> None:
    rows = [{"question": "q"}, {"question": "p"}]
    env, client = (
        GivesAtSetup(dataset=rows, rubric=vf.Rubric(funcs=[in_nested])),
        ScriptedClient(then="reply"),
    )
    with pytest.raises(vf.errors.MissingAnswer, match="function 'in_nested' uses the answer"):
        await run(env, client, n=2)
    assert len(client.prompts) == 1  # of the row that has an answer


async def test_a_single_rollout_without_its_answer_is_an_error_too() -> None:
    client = ScriptedClient(then="reply")
    output = await env_of(found_in_text, [{"question": "q"}]).run_rollout(
        {"question": "q", "example_id": 0}, client, "m"
    )
    assert (output["error"]["error"], client.prompts) == ("MissingAnswer", [])


async def test_members_of_a_group_are_looked_at_with_their_own_rows() -> None:
    with_answers = env_of(found_in_text, [{"question": "q", "answer": "reply"}])
    without = env_of(names_it_only, [{"question": "p"}])
    group = vf.EnvGroup([with_answers, vf.EnvGroup([without])])
    assert [o["reward"] for o in await run(group, ScriptedClient(then="reply"), n=2)] == [1.0, 1.0]
    wrong = vf.EnvGroup([with_answers, vf.EnvGroup([env_of(found_in_text, [{"question": "p"}])])])
    with pytest.raises(vf.DatasetError, match="Row 1 has no 'answer'"):
        await run(wrong, ScriptedClient(then="reply"), n=2)


async def test_nothing_is_looked_at_when_nothing_is_scored() -> None:
    env = env_of(found_in_text, [{"question": "q"}], score_rollouts=False)
    [output] = await run(env, ScriptedClient(["reply"]))
    assert (output["error"], output["reward"]) == (None, 0.0)


# ------------------------------------------------------------------------------------------------ no rubric, no end


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "has no" in record.message]


async def test_an_environment_without_a_rubric_says_once_that_nothing_is_scored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}] * 3, env_id="mine")
    await run(env, ScriptedClient(then="a"), n=3)
    await run(env, ScriptedClient(then="a"), n=3)
    [said] = warnings_of(caplog)
    assert said.startswith("SingleTurnEnv (mine) has no rubric, so every reward is 0.0.")


async def test_an_empty_rubric_and_one_that_came_later_are_no_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    later = vf.SingleTurnEnv(dataset=[{"question": "q"}])
    later.add_rubric(vf.Rubric(funcs=[names_it_only]))
    replaced = vf.SingleTurnEnv(dataset=[{"question": "q"}])
    replaced.rubric = vf.Rubric(funcs=[names_it_only])
    unscored = vf.SingleTurnEnv(dataset=[{"question": "q"}], score_rollouts=False)
    empty = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=vf.Rubric())
    for env in (later, replaced, unscored, empty, vf.EnvGroup([later, empty])):
        await run(env, ScriptedClient(then="a"))
    assert warnings_of(caplog) == []


class Endless(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: vf.State) -> Any:
        return "go on"


TOO_LONG = vf.OverlongPromptError("too long")


async def test_an_environment_that_nothing_ends_says_so_at_its_first_rollout(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Endless(dataset=[{"question": "q"}], rubric=vf.Rubric())
    assert warnings_of(caplog) == []
    await env.rollout({"question": "q"}, ScriptedClient(["a", TOO_LONG]), "m")
    [said] = warnings_of(caplog)
    assert said.startswith("Endless has no max_turns and nothing else that ends a rollout")


async def test_whatever_can_end_a_rollout_is_enough(caplog: pytest.LogCaptureFixture) -> None:
    class Stops(Endless):
        @vf.stop
        async def is_over(self, state: vf.State) -> bool:
            return False

    class Completes(Endless):
        async def is_completed(self, state: vf.State) -> bool:  # type: ignore[override]  # as in 0.1.8
            return False

    options: dict[str, Any] = {"dataset": [{"question": "q"}], "rubric": vf.Rubric()}
    timed = Endless(timeout_seconds=60, **options)
    limited = Endless(**options)
    limited.set_max_total_completion_tokens(100)
    late = Endless(**options)
    late.set_kwargs(max_turns=2)
    envs = [timed, limited, late, Stops(**options), Completes(**options), Game(**options)]
    for env in [*envs, vf.ToolEnv(tools=[], max_turns=-1, **options)]:
        await run(env, ScriptedClient(["a", TOO_LONG]))
    await run(Endless(**options), ScriptedClient(["a", TOO_LONG]), rollout_timeout_s=60)
    assert warnings_of(caplog) == []
