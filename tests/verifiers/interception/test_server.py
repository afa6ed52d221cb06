"""The interception server, asked by the clients that real agents use."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

import verifiers as vf
from verifiers.errors import ModelError, OverlongPromptError
from verifiers.interception import server as server_module
from verifiers.interception.server import (
    InterceptionError,
    InterceptionServer,
    StreamInterrupted,
    deliver_response,
    synthesize_stream,
)
from verifiers.types import Response, ResponseMessage, ToolCall, Usage
from verifiers.utils.interception_utils import (
    create_empty_completion,
    serialize_intercept_response,
    serialize_tool_defs,
)

SECRET = "the secret"
ANSWER = Response(
    id="r1",
    created=5,
    model="m",
    usage=Usage(prompt_tokens=1, reasoning_tokens=0, completion_tokens=2, total_tokens=3),
    message=ResponseMessage(
        content="hi",
        reasoning_content="think",
        finish_reason="tool_calls",
        is_truncated=False,
        tool_calls=[ToolCall(id="c1", name="f", arguments='{"a":1}')],
    ),
)
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
ASK: Any = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def answering(
    server: InterceptionServer, answer: Response | BaseException, rollout_id: str = "r1"
) -> AsyncIterator[list[dict[str, Any]]]:
    """A rollout that gives every request the same answer; yields the requests."""
    seen: list[dict[str, Any]] = []
    queue = server.register_rollout(rollout_id, {"model": "m"})

    async def answer_all() -> None:
        while True:
            intercept = server.intercepts[await queue.get()]
            seen.append(intercept)
            error = answer if isinstance(answer, BaseException) else None
            response = None if isinstance(answer, BaseException) else answer
            if intercept["stream"]:
                await synthesize_stream(intercept, response, error)
            else:
                deliver_response(intercept, response, error)

    task = asyncio.create_task(answer_all())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
        server.unregister_rollout(rollout_id)


@pytest.fixture
async def server():
    server = InterceptionServer(0, SECRET)
    await server.start()
    yield server
    await server.stop()


def base_url(server: InterceptionServer) -> str:
    return f"http://127.0.0.1:{server.port}/rollout/r1"


@pytest.fixture
async def gpt(server: InterceptionServer):
    import openai

    url = base_url(server) + "/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=SECRET, max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(server: InterceptionServer):
    import anthropic

    url = base_url(server)
    async with anthropic.AsyncAnthropic(base_url=url, api_key=SECRET, max_retries=0) as client:
        yield client


async def test_chat_completions_whole_and_streamed(server: InterceptionServer, gpt: Any):
    async with answering(server, ANSWER) as seen:
        whole = await gpt.chat.completions.create(model="x", messages=ASK, tools=[TOOL])
        stream = await gpt.chat.completions.create(
            model="x", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    message = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("hi", "think")
    assert message.tool_calls[0].function.arguments == '{"a":1}'
    assert (whole.choices[0].finish_reason, whole.usage.total_tokens) == ("tool_calls", 3)
    assert chunks[0].choices[0].delta.content == "hi"
    assert chunks[0].choices[0].delta.tool_calls[0].function.name == "f"
    assert chunks[1].choices[0].finish_reason == "tool_calls"
    assert chunks[2].usage.completion_tokens == 2
    assert seen[0]["tools"] == [TOOL]
    assert seen[0]["protocol"] == "openai_chat_completions"


async def test_responses_whole_and_streamed(server: InterceptionServer, gpt: Any):
    async with answering(server, ANSWER) as seen:
        whole = await gpt.responses.create(model="x", input="hello", instructions="Be brief.")
        async with gpt.responses.stream(model="x", input="hello") as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
    for response in (whole, final):
        assert response.output_text == "hi"
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert (response.output[2].name, response.output[2].call_id) == ("f", "c1")
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert seen[0]["messages"][0] == {"role": "system", "content": "Be brief."}


async def test_anthropic_messages_whole_and_streamed(server: InterceptionServer, claude: Any):
    asked: dict[str, Any] = {"model": "x", "max_tokens": 9, "messages": ASK}
    async with answering(server, ANSWER):
        whole = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as stream:
            text = "".join([part async for part in stream.text_stream])
            final = await stream.get_final_message()
    assert text == "hi"
    for message in (whole, final):
        assert [block.type for block in message.content] == ["text", "tool_use"]
        assert message.content[1].input == {"a": 1}
        assert (message.stop_reason, message.usage.output_tokens) == ("tool_use", 2)


async def test_text_completions(server: InterceptionServer, gpt: Any):
    async with answering(server, ANSWER):
        whole = await gpt.completions.create(model="x", prompt="hello")
        stream = await gpt.completions.create(model="x", prompt="hello", stream=True)
        texts = [chunk.choices[0].text async for chunk in stream]
    assert (whole.choices[0].text, texts) == ("hi", ["hi"])


async def test_an_error_of_the_model_reaches_the_agent_with_its_status(
    server: InterceptionServer, gpt: Any, claude: Any
):
    import anthropic
    import openai

    async with answering(server, ModelError("the model broke")):
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="the model broke"):
                await gpt.chat.completions.create(model="x", messages=ASK, stream=stream)
        with pytest.raises(anthropic.InternalServerError, match="the model broke"):
            await claude.messages.create(model="x", max_tokens=9, messages=ASK)
    async with answering(server, OverlongPromptError("too long")):
        with pytest.raises(openai.BadRequestError) as caught:
            await gpt.chat.completions.create(model="x", messages=ASK)
    assert caught.value.code == "context_length_exceeded"


async def test_a_slow_model_keeps_the_stream_open_and_an_error_then_still_shows(
    server: InterceptionServer, gpt: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_module, "KEEPALIVE_INTERVAL_SECONDS", 0.01)
    queue = server.register_rollout("r1", {})
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as http:
        url = base_url(server) + "/v1/chat/completions"
        body = {"model": "x", "messages": ASK, "stream": True}
        async with http.post(url, json=body) as answer:
            intercept = server.intercepts[await queue.get()]
            assert await answer.content.readline() == b": keepalive\n"
            await synthesize_stream(intercept, None, ModelError("the model broke"))
            rest = await answer.content.read()
    assert b"the model broke" in rest
    assert b"[DONE]" not in rest


async def test_an_agent_that_hangs_up_is_no_turn(server: InterceptionServer):
    queue = server.register_rollout("r1", {})
    reader, writer = await server.open_connection()
    body = json.dumps({"messages": ASK}).encode()
    head = f"POST /rollout/r1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    intercept = server.intercepts[await queue.get()]
    writer.transport.abort()
    await asyncio.wait([intercept["response_future"]])
    assert intercept["response_future"].cancelled()
    deliver_response(intercept, ANSWER)  # too late, and harmless
    assert await reader.read() == b""


async def test_an_agent_may_hang_up_when_it_has_read_enough(server: InterceptionServer):
    state: dict[str, Any] = {}
    queue = server.register_rollout("r1", state)
    reader, writer = await server.open_connection()
    body = json.dumps({"messages": ASK, "stream": True}).encode()
    head = f"POST /rollout/r1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    intercept = server.intercepts[await queue.get()]
    await synthesize_stream(intercept, ANSWER)
    await reader.readuntil(b"finish_reason")
    writer.transport.abort()
    await server.stop()
    assert state == {}


async def test_a_stream_that_breaks_off_is_the_rollouts_error(server: InterceptionServer):
    state: dict[str, Any] = {}
    queue = server.register_rollout("r1", state)
    reader, writer = await server.open_connection()
    body = json.dumps({"messages": ASK, "stream": True}).encode()
    head = f"POST /rollout/r1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    intercept = server.intercepts[await queue.get()]
    deliver_response(intercept, ANSWER)
    intercept["chunk_queue"].put_nowait({"part": 1})  # the rest never comes
    await reader.readuntil(b"part")
    writer.transport.abort()
    while intercept["request_id"] in server.intercepts:  # noqa: ASYNC110 - what ends it is inside aiohttp
        await asyncio.sleep(0)
    assert isinstance(state["error"], StreamInterrupted)


async def test_who_may_ask_and_for_what(server: InterceptionServer):
    server.register_rollout("r1", {"model": "m1"})
    knows = {"Authorization": f"Bearer {SECRET}"}
    url = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as http:

        async def status(path: str, data: Any = b"{}", headers: Any = None) -> tuple[int, str]:
            async with http.post(url + path, data=data, headers=headers) as answer:
                return answer.status, await answer.text()

        chat = "/rollout/r1/v1/chat/completions"
        assert (await status(chat))[0] == 401
        assert (await status(chat, headers={"Authorization": "Bearer wröng"}))[0] == 401
        assert (await status("/rollout/r2/v1/chat/completions", headers=knows))[0] == 404
        assert "Invalid JSON" in (await status(chat, b"{no", knows))[1]
        assert (await status(chat, b"{no", knows))[0] == 400
        assert (await status(chat, b"[" * 100_000, knows))[0] == 400
        assert "no messages" in (await status(chat, b'{"messages": []}', knows))[1]
        async with http.get(f"{url}/rollout/r1/v1/models", headers=knows) as answer:
            assert (await answer.json())["data"][0]["id"] == "m1"
        async with http.get(f"{url}/health") as answer:
            assert await answer.json() == {"status": "ok"}


async def test_what_waits_of_one_rollout_is_bounded_and_others_are_not_hurt(
    server: InterceptionServer, gpt: Any, monkeypatch: pytest.MonkeyPatch
):
    import openai

    monkeypatch.setattr(server_module, "MAX_WAITING_BYTES", 1500)
    queue = server.register_rollout("r1", {})
    long: Any = [{"role": "user", "content": "x" * 1000}]
    first = asyncio.create_task(gpt.chat.completions.create(model="x", messages=long))
    intercept = server.intercepts[await queue.get()]
    with pytest.raises(openai.RateLimitError, match="retry later"):
        await gpt.chat.completions.create(model="x", messages=long)
    async with answering(server, ANSWER, "r2"):
        other = gpt.with_options(base_url=str(gpt.base_url).replace("r1", "r2"))
        await other.chat.completions.create(model="x", messages=long)
    deliver_response(intercept, ANSWER)
    await first
    async with answering(server, ANSWER):
        await gpt.chat.completions.create(model="x", messages=long)


async def test_the_end_of_a_rollout_ends_its_requests(server: InterceptionServer, gpt: Any):
    import openai

    queue = server.register_rollout("r1", {})
    for stream in (False, True):
        asking = asyncio.create_task(
            gpt.chat.completions.create(model="x", messages=ASK, stream=stream)
        )
        await queue.get()
        server.unregister_rollout("r1")
        with pytest.raises(openai.InternalServerError, match="rollout has ended"):
            await asking
        queue = server.register_rollout("r1", {})


async def test_a_taken_port_is_named(server: InterceptionServer):
    other = InterceptionServer(server.port)
    with pytest.raises(InterceptionError, match=rf"127\.0\.0\.1:{server.port}"):
        await other.start()
    await other.stop()


async def test_stop_cuts_what_waits_and_may_be_repeated():
    server = InterceptionServer(0, SECRET)
    queue = server.register_rollout("r1", {})
    reader, writer = await server.open_connection()
    body = json.dumps({"messages": ASK}).encode()
    head = f"POST /rollout/r1/v1/chat/completions HTTP/1.1\r\nHost: x\r\nx-api-key: {SECRET}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await queue.get()
    await server.stop()
    await server.stop()
    assert b"200" not in await reader.read()
    writer.close()
    assert server.intercepts == {}


def test_the_empty_completion_and_tools_are_those_of_v0():
    empty = create_empty_completion("m")
    assert (empty.id, empty.choices[0].message.content) == ("agent-completed", "")
    tool = vf.Tool(name="f", description="d", parameters={"type": "object"})
    inner = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert serialize_tool_defs([tool]) == [inner]
    assert serialize_tool_defs([tool], "openai_responses") == [{"type": "function", **inner}]
    assert serialize_tool_defs([tool], "openai_chat_completions") == [TOOL]
    [native] = serialize_tool_defs([tool], "anthropic_messages")
    assert native == {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    with pytest.raises(ValueError, match="openai_completions"):
        serialize_tool_defs([tool], "openai_completions")


def test_content_parts_of_a_response_become_one_text() -> None:
    parts = [vf.TextContentPart(text="a"), {"type": "text", "text": "b"}, {"type": "image_url"}]
    said = ResponseMessage(content=parts, finish_reason="stop", is_truncated=False)
    response = Response(id="r", created=1, model="m", usage=None, message=said)
    body = serialize_intercept_response(response)
    assert body["choices"][0]["message"]["content"] == "ab"
    json.dumps(body)
