"""The time limit of a rollout: also for code that never gives way to the event loop."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.time_limits import ends_in_time
from verifiers.testing import ScriptedClient, call, run

LIMIT_S = 0.3
ROWS = [{"question": name, "answer": name} for name in ("spin", "well", "well", "well")]


def spin() -> str:
    """Never return."""
    while True:
        try:
            int("x")
        except Exception:
            continue


async def spin_later() -> str:
    """Never give way after a first pause."""
    await asyncio.sleep(0)
    while True:
        pass


def well() -> str:
    """Answer."""
    return "done"


class SpinningEnv(vf.MultiTurnEnv):
    def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:  # type: ignore[override]
        return spin() if state["answer"] == "spin" else "on"

    @vf.stop
    async def enough(self, state: vf.State) -> bool:
        return len(state["trajectory"]) > 2


class SpinningSetup(SpinningEnv):
    async def setup_state(self, state: vf.State) -> vf.State:
        if state["answer"] == "spin":
            spin()
        return state


def with_tool(tool: Callable[..., Any]) -> vf.Environment:
    def model(prompt: Any) -> Any:
        if prompt[-1]["role"] == "tool":
            return "the end"
        return call(tool.__name__ if prompt[0]["content"] == "spin" else "well")

    env = vf.ToolEnv(dataset=ROWS, tools=[tool, well], rubric=vf.Rubric(funcs=[one]))
    env.model = model  # type: ignore[attr-defined]
    return env


def one(completion: Any) -> float:
    return 1.0


def playing(kind: type[vf.MultiTurnEnv]) -> vf.Environment:
    return kind(dataset=ROWS, rubric=vf.Rubric(funcs=[one]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: with_tool(spin),
        lambda: with_tool(spin_later),
        lambda: playing(SpinningEnv),
        lambda: playing(SpinningSetup),
    ],
)
async def test_code_that_never_returns_ends_its_rollout_and_no_other(
    make: Callable[[], vf.Environment],
) -> None:
    env = make()
    client = ScriptedClient(getattr(env, "model", lambda prompt: "go on"))
    outputs = await run(env, client, n=-1, rollout_timeout_s=LIMIT_S)

    assert [one["stop_condition"] == "timeout_reached" for one in outputs] == [
        True,
        False,
        False,
        False,
    ]
    assert [one["reward"] for one in outputs] == [1.0] * 4  # scored as it is, like any timeout
    assert all(one["error"] is None for one in outputs)


async def test_time_lost_to_another_rollout_does_not_count() -> None:
    """One rollout holds the loop for longer than the whole limit of the other, which waits for it."""
    held = asyncio.Event()

    async def holds() -> None:
        await asyncio.sleep(0)
        end = time.monotonic() + 2 * LIMIT_S
        while time.monotonic() < end:
            pass
        held.set()

    async def waits() -> None:
        await held.wait()

    ended = await asyncio.gather(
        ends_in_time(holds(), 60.0, "long"), ends_in_time(waits(), LIMIT_S, "short")
    )
    assert ended == [True, True]


async def test_what_waits_is_cancelled_and_may_put_things_away() -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            sum(range(1000))
            seen.append("put away")

    assert await ends_in_time(waits(), 0.01, "0") is False
    assert seen == ["put away"]


async def test_errors_values_and_cancellation_pass() -> None:
    async def raises(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    for error in (TimeoutError("own"), ValueError("x")):
        with pytest.raises(type(error), match=str(error)):
            await ends_in_time(raises(error), 60.0, "0")
    task = asyncio.create_task(ends_in_time(asyncio.Event().wait(), 60.0, "0"))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
