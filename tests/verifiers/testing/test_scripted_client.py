import asyncio
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import (
    ContractBroken,
    Reply,
    ScriptedClient,
    ScriptExhausted,
    call,
    check_client,
    run,
)

PROMPT = [{"role": "user", "content": "hi"}]


async def ask(client: ScriptedClient, **kwargs: Any) -> vf.Response:
    return await client.get_response(PROMPT, "m", {"temperature": 0.5}, **kwargs)  # type: ignore[arg-type]


async def test_replies_of_every_kind() -> None:
    async def later(prompt: Any) -> str:
        return f"heard {prompt[-1]['content']}"

    made = vf.Response(id="own", created=1, model="m", message=vf.ResponseMessage(content="own"))
    one = call("f", a=1)
    client = ScriptedClient(
        ["text", one, [one, call("g")], later, Reply("r", reasoning="why"), made]
    )
    messages = [(await ask(client)).message for _ in range(6)]
    assert [message.content for message in messages] == ["text", None, None, "heard hi", "r", "own"]
    assert [c.name for c in messages[2].tool_calls or []] == ["f", "g"]
    assert (messages[1].finish_reason, messages[4].reasoning_content) == ("tool_calls", "why")


async def test_requests_are_recorded_as_they_came() -> None:
    client = ScriptedClient(["a"])
    tool = vf.Tool(name="f", description="", parameters={})
    await ask(client, tools=[tool], state="the state")
    [request] = client.requests
    assert request == (
        [vf.UserMessage(content="hi")],
        "m",
        {"temperature": 0.5},
        [tool],
        "the state",
    )
    assert client.replies_left == 0


async def test_errors_come_as_they_would_from_a_real_client() -> None:
    client = ScriptedClient([vf.RateLimitError("slow down"), ConnectionError("gone"), KeyError])
    for kind in (vf.RateLimitError, vf.EndpointUnavailable, vf.ModelError):
        with pytest.raises(kind):
            await ask(client)


async def test_an_exhausted_script_reports_the_number_of_requests() -> None:
    client = ScriptedClient(["only one"])
    await ask(client)
    with pytest.raises(ScriptExhausted, match="received 2 requests, but its script has 1 replies"):
        await ask(client)
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}])
    [output] = await run(env, ScriptedClient())
    assert output["error"]["error"] == "ScriptExhausted"


async def test_a_reply_waits_for_its_event_and_cancellation_passes() -> None:
    gate = asyncio.Event()
    client = ScriptedClient(then=Reply("a", after=gate))
    waiting = [asyncio.ensure_future(ask(client)) for _ in range(3)]
    await client.asked(3)
    assert (client.in_flight, client.most_in_flight) == (3, 3)
    waiting[0].cancel()
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [r.message.content for r in results[1:]] == ["a", "a"]  # type: ignore[union-attr]
    assert client.in_flight == 0


async def test_token_ids_of_a_later_turn_begin_with_those_before() -> None:
    client = ScriptedClient(then="ä", token_ids=True)
    first = (await ask(client)).message.tokens
    assert first is not None
    longer = [*PROMPT, {"role": "assistant", "content": "ä"}, {"role": "user", "content": "more"}]
    second = (await client.get_response(longer, "m", {})).message.tokens  # type: ignore[arg-type]
    assert second is not None
    seen = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(seen)] == seen
    assert bytes(first.completion_ids).decode() == "ä</>"


@pytest.mark.parametrize("wrong", [5, ["a"], object()])
async def test_what_is_no_reply_is_refused(wrong: Any) -> None:
    with pytest.raises(vf.ModelError, match="A scripted reply must be text"):
        await ask(ScriptedClient([wrong]))


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="a list of replies; got the text 'yes'"):
        ScriptedClient("yes")


def test_the_scripted_client_keeps_the_promises_of_a_client() -> None:
    check_client(ScriptedClient(then="hi", token_ids=True))


class Careless(ScriptedClient):
    async def get_response(self, prompt: Any, *args: Any, **kwargs: Any) -> vf.Response:
        response = await super().get_response(prompt, *args, **kwargs)
        prompt.append({"role": "assistant", "content": "changed"})
        return response


class Plain(ScriptedClient):
    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        return "text"


@pytest.mark.parametrize(
    ("client", "sentence"),
    [
        (Plain(), "must return a vf.Response; it returned a str"),
        (Careless(then="hi"), "changed the prompt"),
        (ScriptedClient(then=Reply("a", finish_reason="odd")), "finish_reason must be one of"),
        (ScriptedClient(then=vf.ModelError("down")), "ModelError was raised: down"),
    ],
)
def test_a_broken_promise_of_a_client_is_a_sentence(client: Any, sentence: str) -> None:
    with pytest.raises(ContractBroken) as broken:
        check_client(client)
    assert sentence in str(broken.value)
