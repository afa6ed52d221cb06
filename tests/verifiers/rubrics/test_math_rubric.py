"""Mathematical equality in helper processes, with a time limit that ends what does not end by itself."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
import pytest_asyncio

import verifiers as vf
from verifiers.child_process import ChildProcess, python_command
from verifiers.rubrics import math_rubric

ENDLESS = "9^{9^{9^9}}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rubric() -> AsyncIterator[vf.MathRubric]:
    """One helper process for the whole module: starting it imports sympy."""
    made = vf.MathRubric(max_workers=1, timeout_seconds=1)
    yield made
    await made.teardown()


async def score(rubric: vf.MathRubric, reply: str, answer: Any) -> vf.State:
    state = vf.State.for_row({"prompt": [], "answer": answer, "example_id": 0})
    state.update(completion=[vf.AssistantMessage(content=reply)], trajectory=[], error=None)
    await rubric.score_rollout(state)
    return state


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("reply", "answer", "reward"),
    [
        (r"So \boxed{4}", "4", 1.0),
        (r"So \boxed{4.0}", "4", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        (r"<think>\boxed{5}</think> \boxed{4}", "4", 1.0),
        (r"\boxed{5}", "4", 0.0),
        ("4", "4", 0.0),
        ("", "4", 0.0),
        (r"\boxed{4}", "", 0.0),
        (r"\boxed{\notlatex{{}", "4", 0.0),
        (r"\boxed{4}", 4, 1.0),
    ],
)
async def test_answers_are_compared_as_mathematics(
    rubric: vf.MathRubric, reply: str, answer: Any, reward: float
) -> None:
    state = await score(rubric, reply, answer)
    assert (state["reward"], state["reward_errors"]) == (reward, None)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_comparison_without_end_is_ended_and_the_next_one_works(
    rubric: vf.MathRubric,
) -> None:
    async with asyncio.timeout(120):
        state = await score(rubric, rf"\boxed{{{ENDLESS}}}", "4")
        assert state["reward"] == 0.0
        assert (await score(rubric, r"\boxed{2+2}", "4"))["reward"] == 1.0


@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_is_too_long_is_not_read(rubric: vf.MathRubric) -> None:
    assert (await score(rubric, rf"\boxed{{{'4' * 50_001}}}", "4"))["reward"] == 0.0


@pytest.mark.asyncio(loop_scope="module")
async def test_helper_processes_end_with_the_rubric_even_those_at_work(
    rubric: vf.MathRubric,
) -> None:
    checker = rubric._checker
    assert checker.equal("4", "2+2")
    raised: list[Exception] = []

    def compare() -> None:
        try:
            checker.equal("4", ENDLESS)
        except Exception as error:
            raised.append(error)

    working = threading.Thread(target=compare)
    working.start()
    while not checker._working:
        os.sched_yield()
    [helper] = checker._working
    await rubric.teardown()
    working.join(20.0)
    assert [type(error) for error in raised] == [vf.InfraError]
    assert helper.process.exit_code is not None


def test_a_rubric_that_is_only_made_starts_no_process() -> None:
    rubric = vf.MathRubric()
    assert rubric._checker._idle.empty()
    assert [func.__name__ for func in rubric.funcs] == ["correct_answer"]


def test_an_endless_comparison_ends_by_itself_without_a_parent() -> None:
    helper = ChildProcess(python_command("verifiers.rubrics.math_checker"))
    assert helper.read_line(60.0) == b"ready\n"
    for truth, response in (("4", "2+2"), ("4", ENDLESS)):
        helper.send(json.dumps([truth, response, 1.0]).encode() + b"\n")
    assert helper.read_line(60.0) == b"true\n"
    assert helper.read_line(60.0) == b""
    helper.close(60.0)
    assert helper.exit_code == -signal.SIGPROF


# -------------------------------------------------------------------------- functions that callers replace


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (r"\boxed{1/2}", "0.5", 1.0),
        ("43", "42", 0.0),
        ("x" * 2000, "x", 0.0),
        ("", "", 0.0),
        (ENDLESS, "1", 0.0),
    ],
)
def test_a_single_response_is_verified_with_its_time(
    response: str, answer: str, score: float
) -> None:
    found, seconds = math_rubric.verify_response(response, answer, 1000, timeout_seconds=1)
    assert found == score
    assert seconds >= 0


def test_a_response_is_verified_outside_the_main_thread_too() -> None:
    """There a helper process compares; its start takes a second."""
    found: list[float] = []
    thread = threading.Thread(
        target=lambda: found.append(math_rubric.verify_response("1/2", "0.5", 1000)[0])
    )
    thread.start()
    thread.join()
    assert found == [1.0]


@pytest.mark.parametrize("name", ["parse", "verify"])
def test_failures_of_a_replaced_function_count_0_and_interruptions_pass(name: str) -> None:
    from math_verify.errors import TimeoutException

    for failure in (ValueError("x"), TimeoutException()):
        with mock.patch.object(math_rubric, name, side_effect=failure):
            assert math_rubric.verify_response("42.5", "42.0", 1000)[0] == 0.0
    for interruption in (asyncio.CancelledError, KeyboardInterrupt):
        with (
            mock.patch.object(math_rubric, name, side_effect=interruption),
            pytest.raises(interruption),
        ):
            math_rubric.verify_response("42.5", "42.0", 1000)


def test_replaced_functions_receive_boxed_answers_and_limits() -> None:
    with (
        mock.patch("verifiers.rubrics.math_rubric.parse") as parse,
        mock.patch("verifiers.rubrics.math_rubric.verify", return_value=True) as verify,
    ):
        parse.side_effect = lambda text, parsing_timeout: text
        assert math_rubric.verify_response("a", "b", 1000)[0] == 1.0
    assert [call.args for call in parse.call_args_list] == [(r"\boxed{b}",), (r"\boxed{a}",)]
    verify.assert_called_once_with(r"\boxed{b}", r"\boxed{a}", timeout_seconds=5)


async def test_the_rubric_uses_a_replaced_function_while_it_is_replaced() -> None:
    rubric = vf.MathRubric(timeout_seconds=7, max_verify_chars=99)
    with mock.patch.object(math_rubric, "verify_response", return_value=(0.25, 0.1)) as verify:
        assert (await score(rubric, r"\boxed{5}", "42")).reward == 0.25
    verify.assert_called_once_with("5", "42", 99, 7)
    with mock.patch.object(math_rubric, "verify", return_value=True):
        assert (await score(rubric, r"\boxed{5}", "42")).reward == 1.0
    assert (await score(rubric, r"\boxed{42}", "42")).reward == 1.0
    await rubric.teardown()
