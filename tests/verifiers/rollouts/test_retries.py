import asyncio
from typing import Any

import pytest

import verifiers as vf
from verifiers.errors import RETRYABLE
from verifiers.rollouts import retries
from verifiers.rollouts.retries import is_retryable, retry_wait_s, with_retries
from verifiers.testing import ScriptedClient, run
from verifiers.v0.utilities import maybe_retry

ROWS = [{"question": "q"}]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr(retries, "retry_wait_s", lambda attempt, **_: waited.append(attempt) or 0.0)
    return waited


@pytest.mark.parametrize("error", [kind("x") for kind in RETRYABLE], ids=lambda e: type(e).__name__)
async def test_a_failure_of_the_machinery_is_tried_again(error: Exception) -> None:
    env = vf.SingleTurnEnv(dataset=ROWS, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    client = ScriptedClient([error, "4"])
    [output] = await run(env, client, max_retries=2)
    assert (output["error"], output["reward"], len(client.requests)) == (None, 1.0, 2)


@pytest.mark.parametrize(
    "error",
    [vf.ToolCallError("x"), vf.EnvironmentCodeError("x"), vf.RewardError("x"), vf.ModelError("x")],
    ids=lambda e: type(e).__name__,
)
async def test_mistakes_are_not_tried_again(error: Exception) -> None:
    client = ScriptedClient([error, "4"])
    [output] = await run(vf.SingleTurnEnv(dataset=ROWS), client, max_retries=2)
    assert output["error"]["error"] == type(error).__name__
    assert len(client.requests) == 1


async def test_the_last_failure_is_kept_and_each_wait_is_longer(waits: list[float]) -> None:
    client = ScriptedClient(then=vf.InfraError("down"))
    [output] = await run(vf.SingleTurnEnv(dataset=ROWS), client, max_retries=3)
    assert output["error"]["error"] == "InfraError"
    assert (len(client.requests), waits) == (4, [1, 2, 3])


async def test_an_infrastructure_error_hidden_in_a_chain_counts() -> None:
    error = vf.ToolCallError("the tool failed")
    error.__cause__ = vf.SandboxError("gone")
    assert is_retryable(error)
    assert not is_retryable(None)
    assert not is_retryable({"error": "InfraError"})


def test_backoff_grows_and_is_bounded() -> None:
    for attempt in (1, 3, 50):
        longest = min(60.0, 2.0 ** (attempt - 1))
        assert all(0.0 <= retry_wait_s(attempt) <= longest for _ in range(50))


async def test_cancellation_is_not_an_attempt() -> None:
    calls = 0

    async def attempt() -> Any:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await with_retries(attempt, lambda value: value, 5)
    assert calls == 1


async def test_v0s_wrapper_retries_what_is_raised_and_what_is_returned() -> None:
    script: list[Any] = [
        vf.InfraError("raised"),
        vf.State(error=vf.InfraError("returned")),
        [vf.State(error=None), vf.State(error=vf.InfraError("one of a group"))],
        vf.State(error=vf.ToolError("kept")),
    ]

    async def func(value: str, *, option: int) -> Any:
        assert (value, option) == ("v", 1)
        item = script.pop(0)
        if isinstance(item, Exception):
            raise item
        return item

    kept = await maybe_retry(func, max_retries=5, initial=0.0)("v", option=1)
    assert (str(kept["error"]), script) == ("kept", [])


async def test_v0s_wrapper_raises_the_last_error_and_others_at_once() -> None:
    async def fails(kind: type[Exception]) -> None:
        raise kind("x")

    with pytest.raises(vf.InfraError):
        await maybe_retry(fails, max_retries=2, initial=0.0)(vf.InfraError)
    with pytest.raises(KeyError):
        await maybe_retry(fails, max_retries=2)(KeyError)
