import asyncio
import functools
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient, run


def state(reply: str = "4", **fields: Any) -> vf.State:
    row = {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "example_id": 0,
        "answer": "4",
        "info": {"level": 3},
        "topic": "sums",
        **fields,
    }
    made = vf.State.for_row(row)
    made.update(
        completion=[vf.AssistantMessage(content=reply)], trajectory=[], model="m", error=None
    )
    return made


def returns(value: Any, name: str = "returns") -> Callable[..., Any]:
    def function(completion: Any) -> Any:
        return value

    function.__name__ = name
    return function


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def function(completion: Any) -> float:
        raise error("broken")

    return function


async def scored(rubric: vf.Rubric, *states: vf.State) -> list[vf.State]:
    made = list(states) or [state()]
    await rubric.score_group(made)
    return made


# ------------------------------------------------------------------------------------------------- values


async def test_the_reward_is_the_weighted_sum_and_every_value_is_a_metric() -> None:
    rubric = vf.Rubric(funcs=[returns(1.0, "right"), returns(0.5, "short")], weights=[1.0, 0.2])
    [found] = await scored(rubric)
    assert found["reward"] == pytest.approx(1.1)
    assert found["metrics"] == {"right": 1.0, "short": 0.5}


async def test_functions_may_be_sync_async_partial_objects_and_lambdas() -> None:
    async def waits(completion: Any) -> float:
        await asyncio.sleep(0)
        return 0.25

    class Judge:
        def __call__(self, answer: str) -> float:
            return float(answer == "4")

    def scaled(completion: Any, factor: float) -> float:
        return factor

    rubric = vf.Rubric(
        funcs=[waits, Judge(), functools.partial(scaled, factor=0.5), lambda completion: 0.125]
    )
    [found] = await scored(rubric)
    assert found["metrics"] == {"waits": 0.25, "Judge": 1.0, "scaled": 0.5, "<lambda>": 0.125}


@pytest.mark.parametrize("value", [True, 1, 1.0, "1", pytest.param(__import__("numpy").float32(1))])
async def test_what_is_a_number_counts_as_one(value: Any) -> None:
    [found] = await scored(vf.Rubric(funcs=[returns(value)]))
    assert found["reward"] == 1.0
    assert type(found["reward"]) is float


async def test_a_function_is_given_what_it_names() -> None:
    seen: dict[str, Any] = {}

    def looks(
        prompt: Any,
        completion: Any,
        answer: Any,
        state: Any,
        task: Any,
        info: Any,
        parser: Any,
        topic: Any,
        *,
        extra: Any,
    ) -> float:
        seen.update(locals())
        return 1.0

    rubric = vf.Rubric(funcs=[looks])
    rubric.add_class_object("extra", 7)
    [found] = await scored(rubric)
    assert found["reward_errors"] is None
    assert (seen["answer"], seen["topic"], seen["extra"]) == ("4", "sums", 7)
    assert seen["state"] is found
    assert seen["info"] == {"level": 3}
    assert seen["parser"] is rubric.parser


async def test_a_function_with_kwargs_is_given_everything() -> None:
    seen: dict[str, Any] = {}

    def takes_all(completion: Any, **kwargs: Any) -> float:
        seen.update(kwargs)
        return 1.0

    await scored(vf.Rubric(funcs=[takes_all]))
    assert {"prompt", "answer", "state", "task", "info", "parser", "topic"} <= set(seen)


async def test_an_optional_argument_keeps_its_default_unless_the_row_has_a_field_of_that_name() -> (
    None
):
    seen: dict[str, Any] = {}

    def defaults(completion: Any, model: str = "own", turn: int = -1, topic: str = "own") -> float:
        seen.update(model=model, turn=turn, topic=topic)
        return 1.0

    await scored(vf.Rubric(funcs=[defaults]))
    assert seen == {"model": "own", "turn": -1, "topic": "sums"}


async def test_a_row_without_answer_or_info_offers_empty_ones() -> None:
    seen: dict[str, Any] = {}

    def looks(answer: Any, info: Any) -> float:
        seen.update(answer=answer, info=info)
        return 0.0

    bare = state()
    del bare["answer"], bare["info"]
    await scored(vf.Rubric(funcs=[looks]), bare)
    assert seen == {"answer": "", "info": {}}


# ----------------------------------------------------------------------------------------------- mistakes


async def test_an_unknown_argument_is_an_error_that_names_the_legal_ones() -> None:
    def broken(anwser: str) -> float:
        return 1.0

    [found] = await scored(vf.Rubric(funcs=[broken, returns(1.0)]))
    assert found["reward"] == 1.0
    [error] = found["reward_errors"]
    assert error["error"] == "RewardArgumentError"
    assert "Did you mean 'answer'?" in error["message"]
    assert "asks for 'anwser'" in error["message"]
    for legal in ("answer", "completion", "info", "parser", "prompt", "state", "task", "topic"):
        assert legal in error["message"]


@pytest.mark.parametrize("wrong", [None, "high", math.nan, math.inf, [1.0], {"reward": 1.0}])
async def test_what_is_not_a_finite_number_counts_zero_and_is_recorded(wrong: Any) -> None:
    [found] = await scored(vf.Rubric(funcs=[returns(wrong, "odd")]))
    assert (found["reward"], found["metrics"]) == (0.0, {"odd": 0.0})
    assert "'odd' returned" in found["reward_errors"][0]["message"]


@pytest.mark.parametrize("kind", [ZeroDivisionError, TimeoutError, vf.ToolError, StopIteration])
async def test_a_failing_reward_function_is_recorded_and_scores_zero(
    kind: type[Exception],
) -> None:
    env = vf.SingleTurnEnv(
        dataset=[{"question": "q"}], rubric=vf.Rubric(funcs=[raises(kind), returns(1.0)])
    )
    [output] = await run(env, ScriptedClient(["4"]))
    assert (output["reward"], output["error"]) == (1.0, None)
    [error] = output["errors"]
    assert (error["error"], error["function"]) == ("RewardError", "function")
    assert kind.__name__ in error["error_chain_str"]


async def test_cancellation_passes_through_a_reward_function() -> None:
    with pytest.raises(asyncio.CancelledError):
        await scored(vf.Rubric(funcs=[raises(asyncio.CancelledError)]))


async def test_scoring_a_failed_rollout_adds_no_errors_of_its_own() -> None:
    failed = state()
    failed["error"] = vf.ModelError("gone")
    await scored(vf.Rubric(funcs=[raises(IndexError)]), failed)
    assert (failed["reward"], failed["reward_errors"]) == (0.0, None)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(vf.ConfigError, match="must be callable; got float"):
        vf.Rubric(funcs=[0.5])  # type: ignore[list-item]


def test_numbers_of_weights_and_functions_must_match() -> None:
    with pytest.raises(ValueError, match=r"weights \(2\) must match number of functions \(1\)"):
        vf.Rubric(funcs=[returns(1.0)], weights=[1.0, 2.0])


async def test_equal_names_get_a_number_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rubric = vf.Rubric(funcs=[returns(1.0, "score"), returns(2.0, "score")])
    with caplog.at_level(logging.WARNING, "verifiers"):
        [found] = await scored(rubric)
    assert (found["reward"], found["metrics"]) == (3.0, {"score": 1.0, "score_2": 2.0})
    assert "reported as 'score_2'" in caplog.text


def test_the_callers_lists_are_not_changed() -> None:
    funcs, weights = [returns(1.0)], [1.0]
    rubric = vf.Rubric(funcs=funcs, weights=weights)
    rubric.add_reward_func(returns(2.0), 0.5)
    assert (len(funcs), weights) == (1, [1.0])


# ------------------------------------------------------------------------------------------------- groups


async def test_plural_names_make_a_group_function() -> None:
    def longest_wins(completions: Any, answers: Any) -> list[float]:
        assert answers == ["4", "4"]
        lengths = [len(completion[-1]["content"]) for completion in completions]
        return [float(length == max(lengths)) for length in lengths]

    rubric = vf.Rubric(funcs=[longest_wins])
    one, other = await scored(rubric, state("four"), state("4"))
    assert (one["reward"], other["reward"]) == (1.0, 0.0)
    assert (one["advantage"], other["advantage"]) == (0.5, -0.5)
    assert rubric.has_group_rewards


async def test_a_mark_makes_a_group_function_whatever_its_arguments() -> None:
    @vf.reward(stage="group", weight=2.0)
    def rank(completion: Any) -> list[float]:
        assert len(completion) == 2
        return [1.0, 0.0]

    one, other = await scored(vf.Rubric(funcs=[rank]), state(), state())
    assert (one["reward"], other["reward"]) == (2.0, 0.0)


async def test_an_annotation_makes_a_group_function() -> None:
    def both(state: Any) -> list[float]:
        return [1.0] * len(state)

    rubric = vf.Rubric(funcs=[both])
    assert rubric._is_group_func(both)
    one, _ = await scored(rubric, state(), state())
    assert one["reward"] == 1.0


@pytest.mark.parametrize("wrong", [[1.0], 1.0, None, "11", [1.0, math.nan]])
async def test_a_group_function_must_return_one_number_for_each(wrong: Any) -> None:
    def odd(completions: Any) -> Any:
        return wrong

    for found in await scored(vf.Rubric(funcs=[odd]), state(), state()):
        assert found["reward"] == 0.0
        assert found["reward_errors"][0]["function"] == "odd"


async def test_group_and_individual_functions_are_summed_and_advantages_average_to_zero() -> None:
    def ranks(states: Any) -> list[float]:
        return [float(index) for index in range(len(states))]

    found = await scored(vf.Rubric(funcs=[ranks, returns(10.0)]), state(), state(), state())
    assert [one["reward"] for one in found] == [10.0, 11.0, 12.0]
    assert [one["advantage"] for one in found] == [-1.0, 0.0, 1.0]


async def test_a_step_without_its_own_reward_takes_that_of_the_rollout() -> None:
    one = state()
    one["trajectory"] = [{"reward": None, "advantage": None}, {"reward": 5.0, "advantage": 6.0}]
    await scored(vf.Rubric(funcs=[returns(1.0)]), one, state())
    assert one["trajectory"] == [
        {"reward": 1.0, "advantage": 0.0},
        {"reward": 5.0, "advantage": 6.0},
    ]


async def test_equal_rewards_have_advantages_of_exactly_zero() -> None:
    states = [state() for _ in range(3)]
    await vf.Rubric(funcs=[returns(0.1)]).score_group(states)
    assert [one.advantage for one in states] == [0.0, 0.0, 0.0]


async def test_a_marked_method_gives_the_advantages_of_a_group() -> None:
    class Normalised(vf.Rubric):
        @vf.advantage
        async def scaled(self, states: list[vf.State]) -> list[float]:
            return [10.0 * one["reward"] for one in states]

    rubric = Normalised(funcs=[lambda state: float(state["completion"][0]["content"])])
    assert rubric.has_advantages
    found = await scored(rubric, state("1"), state("3"))
    assert [one["advantage"] for one in found] == [10.0, 30.0]


async def test_advantages_of_a_wrong_number_are_an_error() -> None:
    class Short(vf.Rubric):
        @vf.advantage
        def one_only(self, states: list[vf.State]) -> list[float]:
            return [1.0]

    with pytest.raises(vf.RewardError, match="'one_only' returned 1 numbers for 2 rollouts"):
        await scored(Short(funcs=[returns(1.0)]), state(), state())


# --------------------------------------------------------------------------------------- marks and the end


async def test_marked_methods_of_a_rubric_and_of_an_environment_score() -> None:
    class Strict(vf.Rubric):
        @vf.reward(weight=2.0)
        async def right(self, completion: Any, answer: str) -> float:
            return float(completion[-1]["content"] == answer)

        @vf.metric
        def length(self, completion: Any) -> float:
            return float(len(completion[-1]["content"]))

    class Env(vf.SingleTurnEnv):
        @vf.reward(weight=0.5)
        def polite(self, completion: Any) -> float:
            return 1.0

    rubric = Strict()
    for _ in range(2):  # a second environment with the same rubric must not add to the first one's
        env = Env(dataset=[{"question": "q", "answer": "4"}], rubric=rubric)
        [output] = await run(env, ScriptedClient(["4"]))
        assert output["reward"] == 2.5
        assert output["metrics"] == {"right": 1.0, "length": 1.0, "polite": 1.0, "num_turns": 1.0}


async def test_cleanup_handlers_run_after_scoring_and_a_failing_one_stops_no_other() -> None:
    seen: list[str] = []

    class Tidy(vf.Rubric):
        @vf.cleanup(priority=5)
        async def fails(self, state: vf.State) -> None:
            raise ValueError("cleaning failed")

        @vf.cleanup
        def notes(self, state: vf.State) -> None:
            seen.append(state["answer"])

    env = vf.SingleTurnEnv(
        dataset=[{"question": "q", "answer": "4"}], rubric=Tidy(funcs=[returns(1.0)])
    )
    [output] = await run(env, ScriptedClient(["4"]))
    assert (seen, output["reward"]) == (["4"], 1.0)


async def test_cleanup_handlers_of_a_rubric_receive_what_they_name() -> None:
    seen: dict[str, Any] = {}

    class Tidy(vf.Rubric):
        @vf.cleanup
        async def all_of(
            self, prompt: Any, completion: Any, answer: str, info: Any, task: Any
        ) -> None:
            seen["values"] = (prompt[-1]["content"], completion[-1]["content"], answer, info)
            seen["task"] = task["question"]

        @vf.cleanup
        def own_name(self, s: vf.State) -> None:
            seen["own name"] = s["answer"]

        @vf.cleanup
        def objects(self, parser: Any, database: str, state: vf.State) -> None:
            seen["objects"] = (parser is self.parser, database)

    rubric = Tidy(funcs=[returns(1.0)])
    rubric.add_class_object("database", "db")
    env = vf.SingleTurnEnv(dataset=[{"question": "q", "answer": "4"}], rubric=rubric)
    [output] = await run(env, ScriptedClient(["5"]))
    assert output["errors"] == []
    assert seen == {
        "values": ("q", "5", "4", {}),
        "task": "q",
        "own name": "4",
        "objects": (True, "db"),
    }


async def test_a_cleanup_handler_that_cannot_be_called_is_recorded() -> None:
    class Tidy(vf.Rubric):
        @vf.cleanup
        def wrong(self, state: vf.State, nothing_of_the_kind: Any) -> None:
            raise AssertionError("never called")

    env = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=Tidy(funcs=[returns(1.0)]))
    [output] = await run(env, ScriptedClient(["4"]))
    assert output["reward"] == 1.0
    [error] = output["errors"]
    assert error["function"] == "wrong"
    assert "'wrong' asks for 'nothing_of_the_kind'" in error["message"]


async def test_a_rubric_of_ones_own_that_raises_is_recorded_and_spares_its_siblings() -> None:
    class Own(vf.Rubric):
        async def score_rollout(self, state: vf.State) -> None:
            if state["completion"][-1]["content"] == "bad":
                raise ValueError("cannot score this")
            state["reward"] = 1.0

    env = vf.SingleTurnEnv(dataset=[{"question": "a"}, {"question": "b"}], rubric=Own())
    outputs = await run(env, ScriptedClient(["bad", "good"]), n=2)
    assert [output["reward"] for output in outputs] == [0.0, 1.0]
    assert "cannot score this" in outputs[0]["errors"][0]["message"]
    assert outputs[1]["errors"] == []


async def test_the_semaphore_of_older_callers_is_held_while_scoring() -> None:
    limit = asyncio.Semaphore(1)

    def held(completion: Any) -> float:
        return float(limit.locked())

    one = state()
    await vf.Rubric(funcs=[held]).score_rollout(one, score_sem=limit)
    assert one["reward"] == 1.0
    assert not limit.locked()


async def test_a_disabled_rubric_gives_zero_and_runs_nothing() -> None:
    env = vf.SingleTurnEnv(
        dataset=[{"question": "q"}],
        rubric=vf.Rubric(funcs=[raises(AssertionError)]),
        score_rollouts=False,
    )
    [output] = await run(env, ScriptedClient(["4"]))
    assert (output["reward"], output["metrics"], output["errors"]) == (0.0, {}, [])
