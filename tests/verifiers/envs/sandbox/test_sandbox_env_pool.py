"""`SandboxEnv` with sandboxes that wait for rollouts."""

import asyncio

import pytest
from sandbox_rollouts import SMALL, bash, told

import verifiers as vf
from verifiers.envs.sandbox_env import CreateSandboxRequest, SandboxEnv
from verifiers.errors import ConfigError
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient, run


@pytest.fixture
async def env():
    async with SandboxEnv(**SMALL) as env:
        yield env


async def filled(env: SandboxEnv, count: int) -> None:
    pool = env.sandbox_client._pools[asyncio.get_running_loop()].pool
    async with asyncio.timeout(20):
        while pool.ready_count < count:  # noqa: ASYNC110 - the pool has no event to wait for
            await asyncio.sleep(0.005)


async def test_a_warm_pool_gives_rollouts_sandboxes_that_are_up_and_refills():
    async with LocalBackend() as backend:
        async with SandboxEnv(**SMALL, backend=backend, warm_pool_size=2) as env:
            assert not backend._sandboxes  # nothing starts in the constructor
            replies = [bash("ls; echo 1 > file"), "done"]
            [first] = await run(env, ScriptedClient(replies))
            await filled(env, 2)
            waiting = {sandbox.id for sandbox in backend._sandboxes}
            outputs = await run(env, ScriptedClient(replies * 2), rollouts_per_example=2)
            await filled(env, 2)
            # Taken from those that waited, used once, and replaced.
            assert not waiting & {sandbox.id for sandbox in backend._sandboxes}
        assert not backend._sandboxes
    assert [told(output) for output in (first, *outputs)] == [["(no output)"]] * 3


async def test_a_rollout_that_wants_another_sandbox_gets_one_of_its_own():
    class Own(SandboxEnv):
        def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
            request = super().get_sandbox_request(state)
            request.environment_vars = {"ROW": state["answer"]}
            return request

    async with Own(**SMALL, warm_pool_size=1) as env:
        replies = [bash("echo row $ROW"), "done"]
        outputs = await run(env, ScriptedClient(replies * 2), rollouts_per_example=2)
        assert [told(output) for output in outputs] == [["row 0"]] * 2


def test_a_warm_pool_lives_through_several_event_loops_and_ends_with_each():
    env = SandboxEnv(**SMALL, warm_pool_size=1)

    async def once() -> list[str]:
        [output] = await run(env, ScriptedClient([bash("echo up"), "done"]))
        return told(output)

    assert [asyncio.run(once()) for _ in range(2)] == [["up"], ["up"]]


def test_a_warm_pool_of_less_than_nothing_is_refused():
    with pytest.raises(ConfigError, match="-1"):
        SandboxEnv(**SMALL, warm_pool_size=-1)
