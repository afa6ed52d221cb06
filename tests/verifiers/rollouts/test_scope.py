"""What a rollout holds open is closed when it ends, however it ends."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import verifiers as vf
from verifiers.rollouts.scope import RolloutScope, close_scope, scope_of, shielded
from verifiers.testing import Reply, ScriptedClient

ENDINGS: dict[str, Callable[[Any], Any]] = {
    "success": lambda prompt: "4",
    "error": lambda prompt: vf.ModelError("gone"),
    "timeout": lambda prompt: Reply("late", after=asyncio.Event()),
    "cancel": lambda prompt: Reply("late", after=asyncio.Event()),
}


class Holding(vf.SingleTurnEnv):
    """Opens two resources for each rollout."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=[{"question": "q"}], **kwargs)
        self.log: list[str] = []

    @asynccontextmanager
    async def resource(self, name: str) -> AsyncIterator[str]:
        self.log.append(f"open {name}")
        try:
            yield name
        finally:
            await asyncio.sleep(0)
            self.log.append(f"close {name}")

    async def setup_state(self, state: vf.State) -> None:
        scope = scope_of(state)
        assert await scope.enter(self.resource("a")) == "a"
        await scope.enter(self.resource("b"))
        scope.on_exit(self.log.append, "callback")

    @vf.cleanup
    async def tidy(self, state: vf.State) -> None:
        self.log.append(f"cleanup {state['stop_condition']}")


@pytest.mark.parametrize("ending", ENDINGS)
async def test_resources_close_in_reverse_order_after_the_cleanup_handlers(ending: str) -> None:
    env = Holding(timeout_seconds=0.03 if ending == "timeout" else None)
    client = ScriptedClient(ENDINGS[ending])
    playing = asyncio.ensure_future(env.rollout(env.get_dataset()[0], client, "m", {}))
    if ending == "cancel":
        await client.asked()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    else:
        state = await playing
        assert "scope" not in state
    stop = {
        "success": "max_turns_reached",
        "error": "has_error",
        "timeout": "timeout_reached",
        "cancel": "cancelled",
    }
    closed = ["callback", "close b", "close a"]
    assert env.log == ["open a", "open b", f"cleanup {stop[ending]}", *closed]


async def test_a_second_cancellation_does_not_cut_the_cleanup_short() -> None:
    env = Holding()
    slow = asyncio.Event()
    done = []

    async def close_slowly() -> None:
        await slow.wait()
        done.append("closed")

    class Slow(Holding):
        async def setup_state(self, state: vf.State) -> None:
            scope_of(state).on_exit(close_slowly)

    env = Slow()
    client = ScriptedClient(ENDINGS["cancel"])
    playing = asyncio.ensure_future(env.rollout(env.get_dataset()[0], client, "m", {}))
    await client.asked()
    for _ in range(3):
        playing.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
    assert not playing.done()
    slow.set()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert done == ["closed"]


async def test_a_resource_that_cannot_be_closed_fails_its_rollout_and_the_others_are_closed() -> (
    None
):
    class Bad(Holding):
        async def setup_state(self, state: vf.State) -> None:
            await scope_of(state).enter(self.resource("a"))
            scope_of(state).on_exit(self.fail)

        def fail(self) -> None:
            raise vf.SandboxError("still there")

    env = Bad()
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(["4"]), "m", {})
    assert env.log[-1] == "close a"
    assert (state["stop_condition"], str(state["error"])) == ("has_error", "still there")


async def test_cleanup_handlers_run_by_priority_and_a_failing_one_stops_no_other() -> None:
    order: list[str] = []

    class Env(vf.SingleTurnEnv):
        @vf.cleanup(priority=-1)
        async def last(self, state: vf.State) -> None:
            order.append("last")

        @vf.cleanup(priority=10)
        def first(self, state: vf.State) -> None:
            order.append("first")
            raise ValueError("the files could not be collected")

        @vf.cleanup
        async def middle(self, state: vf.State) -> None:
            order.append("middle")

    env = Env(dataset=[{"question": "q"}])
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(["4"]), "m", {})
    assert order == ["first", "middle", "last"]
    assert isinstance(state["error"], vf.EnvironmentCodeError), (
        "a crash of author code, as anywhere"
    )
    assert "the files could not be collected" in str(state["error"])


async def test_a_scope_without_resources_costs_nothing_and_closing_is_idempotent() -> None:
    state = vf.State()
    await close_scope(state)
    scope = scope_of(state)
    assert scope is scope_of(state)
    assert isinstance(scope, RolloutScope)
    await close_scope(state)
    await close_scope(state)
    assert "scope" not in state


async def test_shielded_work_that_fails_raises_its_error() -> None:
    async def fails() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await shielded(fails)
