"""Reward functions that never return: each is ended, recorded, and leaves the event loop as it was."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import verifiers as vf
from verifiers.rubrics.watchdog import Watchdog
from verifiers.testing import ScriptedClient, run

LIMIT_S = 0.15


def loops_forever(completion: Any) -> float:
    while True:
        pass


def loops_and_catches_everything(completion: Any) -> float:
    while True:
        try:
            int("x")
        except Exception:
            continue


def loops_and_catches_even_more(completion: Any) -> float:
    caught = 0
    while True:
        try:
            time.time()
        except BaseException:
            caught += 1
            if caught > 3:
                raise


async def loops_inside_a_coroutine(completion: Any) -> float:
    await asyncio.sleep(0)
    while True:
        pass


async def waits_forever(completion: Any) -> float:
    await asyncio.Event().wait()
    return 1.0


@pytest.mark.parametrize(
    "func",
    [
        loops_forever,
        loops_and_catches_everything,
        loops_and_catches_even_more,
        loops_inside_a_coroutine,
        waits_forever,
    ],
)
async def test_a_reward_function_that_never_returns_is_ended_and_recorded(
    func: Callable[..., Any],
) -> None:
    rubric = vf.Rubric(funcs=[func, lambda completion: 1.0], scoring_timeout_s=LIMIT_S)
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=rubric)
    outputs = await run(env, ScriptedClient(then="4"), rollouts_per_example=2)
    for output in outputs:
        assert output["reward"] == 1.0
        [error] = output["errors"]
        assert error["error"] == "ScoringTimeout"
        assert f"'{func.__name__}' ran longer than 0.15 s" in error["message"]


def test_a_limit_that_strikes_as_the_call_ends_leaves_nothing_pending() -> None:
    watchdog = Watchdog()
    for _ in range(20):
        with suppress(vf.ScoringTimeout):  # whoever wins the race
            watchdog.call(_spins_until, {"end": time.monotonic() + 0.02}, "spins", 0.02)
        _spins_until(time.monotonic() + 0.002)  # a pending exception would be raised here


def _spins_until(end: float) -> float:
    while time.monotonic() < end:
        pass
    return 1.0


def test_calls_in_several_threads_are_watched_each_for_itself() -> None:
    watchdog = Watchdog()
    found: dict[str, Any] = {}

    def worker(name: str, func: Callable[..., Any], limit_s: float) -> None:
        try:
            found[name] = watchdog.call(func, {"completion": None}, name, limit_s)
        except BaseException as error:
            found[name] = type(error)

    def ends(completion: Any) -> float:
        _spins_until(time.monotonic() + 0.4)
        return 1.0

    threads = [
        threading.Thread(target=worker, args=("ends", ends, 30.0)),
        threading.Thread(target=worker, args=("loops", loops_forever, LIMIT_S)),
        threading.Thread(target=worker, args=("loops too", loops_forever, LIMIT_S)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert found == {"ends": 1.0, "loops": vf.ScoringTimeout, "loops too": vf.ScoringTimeout}


def test_a_call_within_a_call_is_watched_by_the_outer_limit() -> None:
    watchdog = Watchdog()

    def outer(completion: Any) -> float:
        return watchdog.call(loops_forever, {"completion": None}, "inner", 30.0)

    with pytest.raises(vf.ScoringTimeout, match="'outer' ran longer"):
        watchdog.call(outer, {"completion": None}, "outer", LIMIT_S)


def test_what_the_function_raises_itself_comes_through() -> None:
    watchdog = Watchdog()
    with pytest.raises(ZeroDivisionError):
        watchdog.call(lambda completion: 1 / 0, {"completion": None}, "divides", 10.0)
    assert watchdog.call(lambda completion: 5, {"completion": None}, "five", 10.0) == 5
