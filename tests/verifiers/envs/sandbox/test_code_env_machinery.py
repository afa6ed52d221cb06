"""`CodeEnv`: trouble of the machinery is no score."""

import asyncio
import os
from typing import Any

import pytest
from code_programs import RIGHT, SQUARES, block, made, played

from verifiers.envs.code_env import CodeEnv
from verifiers.sandboxes import SandboxDead, SandboxSpec
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.local.zygote import landlock
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend
from verifiers.testing import Reply, ScriptedClient, run
from verifiers.training.samples import failure_of, samples_of


class Fragile(LocalBackend):
    """Sandboxes that are lost as soon as they are up, the first `losses` of them."""

    def __init__(self, losses: int) -> None:
        super().__init__()
        self.losses = losses
        self.made = 0

    async def create(self, spec: SandboxSpec, **kwargs: Any) -> Any:
        sandbox = await super().create(spec, **kwargs)
        self.made += 1
        if self.made <= self.losses:
            start = sandbox.run_python

            async def lost(*args: Any, **options: Any) -> Any:
                error = SandboxDead(f"Sandbox {sandbox.id} is gone.", "crashed")
                asyncio.get_running_loop().call_soon(sandbox._end, error)
                return await start(*args, **options)

            sandbox.run_python = lost  # type: ignore[method-assign]
        return sandbox


async def test_a_sandbox_that_is_lost_once_does_not_matter():
    async with Fragile(1) as backend, made(backend=backend) as env:
        output, _ = await played(env, RIGHT)
    assert (output["reward"], output["error"], backend.made) == (1.0, None, 2)


async def test_a_broken_sandbox_masks_the_completion_instead_of_scoring_zero():
    async with Fragile(99) as backend, made(backend=backend) as env:
        [output] = await run(
            env, ScriptedClient([block(RIGHT)], token_ids=True), state_columns=["trajectory"]
        )
    assert output["error"]["error"] == "SandboxDead"
    assert output["stop_condition"] == "has_error"
    assert backend.made == 3  # twice with the program, once with an empty one
    assert "SandboxDead" in (failure_of(output) or "")
    assert samples_of(output) == []


async def test_an_interpreter_without_the_worker_is_given_its_source(
    monkeypatch: pytest.MonkeyPatch,
):
    from verifiers.envs import code_tests

    code = code_tests.worker_code

    def foreign(batch: bytes | None, *, as_source: bool = False) -> str:
        text = code(batch, as_source=as_source)
        return text if as_source else text.replace("sandbox_guest", "no_agent")

    monkeypatch.setattr(code_tests, "worker_code", foreign)
    async with made() as env:
        _, right = await played(env, RIGHT)
        _, wrong = await played(env, "n = int(input())\nprint(n + n)\n")
    assert right == ["passed"] * 5
    assert wrong == ["passed", "wrong", "passed", "wrong", "wrong"]


async def test_a_worker_that_fails_by_itself_is_trouble_of_the_machinery(
    monkeypatch: pytest.MonkeyPatch,
):
    from verifiers.envs import code_tests

    broken = code_tests.worker_source().replace("os.mkdir(folder)", "os.mkdir('/no/such/folder')")
    assert broken != code_tests.worker_source()
    code = code_tests.worker_code
    monkeypatch.setattr(code_tests, "worker_source", lambda: broken)
    monkeypatch.setattr(code_tests, "worker_code", lambda batch, **_: code(batch, as_source=True))
    async with made() as env:
        output, verdicts = await played(env, RIGHT)
    assert (output["error"]["error"], verdicts) == ("SandboxError", [])


async def test_filling_the_disk_is_the_programs_own_failure():
    program = (
        "import itertools, tempfile\n"
        "for n in itertools.count():\n"
        "    with open(f'{tempfile.gettempdir()}/fill-{n}', 'wb') as file:\n"
        "        file.write(bytes(1 << 20))\n"
    )
    async with made(sandbox_spec={"disk_mb": 8}) as env:
        output, verdicts = await played(env, program)
    assert set(verdicts) <= {"error", "ended_worker", "not_run"}
    assert (output["reward"], output["error"]) == (0.0, None)


# Root's interpreter may be unreadable for the users that sandboxes become.
PYTHON = "/usr/bin/python3" if os.getuid() == 0 else None
HAS_RESTRICTED = landlock.abi() >= landlock.MIN_ABI and os.path.exists(PYTHON or "/")


@pytest.mark.parametrize("level", ["restricted", "none"])
async def test_it_works_at_the_weaker_levels_too(level: Any):
    if level == "restricted" and not HAS_RESTRICTED:
        pytest.skip("this machine cannot have the level 'restricted'")
    backend = (
        LocalBackend(LocalConfig(level="restricted")) if level != "none" else UnsafeLocalBackend()
    )
    spec = {"isolation_min": level, "python": PYTHON if level == "restricted" else None}
    async with backend, made(SQUARES[:2], backend=backend, sandbox_spec=spec) as env:
        _, right = await played(env, RIGHT)
        _, wrong = await played(env, "import os\nos.kill(os.getppid(), 9)")
    assert right == ["passed"] * 2
    assert wrong[0] == "ended_worker"


async def test_nothing_is_left_when_a_run_is_cancelled(env: CodeEnv):
    client = ScriptedClient(then=Reply("x", after=asyncio.Event()))
    running = asyncio.create_task(run(env, client, rollouts_per_example=4, max_concurrent=4))
    await client.asked(4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not env._sandboxes
    assert not env.backends.here()._sandboxes


async def test_the_sandbox_comes_up_while_the_model_writes(env: CodeEnv):
    async def answer(prompt: Any) -> str:
        [sandbox] = env._sandboxes.values()
        await sandbox.ready()
        return block(RIGHT)

    [output] = await run(env, ScriptedClient([answer]))
    assert output["metrics"]["sandbox_ready_wait_time"] < 0.002
