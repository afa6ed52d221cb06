"""The official client works against the endpoint."""

import openai
import pytest

from verifiers.endpoint import practice

MODEL = "embedded"
PROBLEM = [
    {"role": "system", "content": practice.REVERSE_SYSTEM_PROMPT},
    {"role": "user", "content": "hello you"},
]


@pytest.fixture
async def client(shipped):
    async with openai.AsyncOpenAI(
        base_url=shipped.endpoint.base_url, api_key="unused", max_retries=0
    ) as client:
        yield client


async def test_chat(client):
    answer = await client.chat.completions.create(
        model=MODEL, messages=PROBLEM, temperature=0, logprobs=True, top_logprobs=1,
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    [choice] = answer.choices
    assert choice.message.content == "<reversed_text>uoy olleh</reversed_text>"
    assert choice.finish_reason == "stop"
    assert len(choice.logprobs.content) == len(choice.token_ids) == answer.usage.completion_tokens
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens


async def test_streaming_chat(client):
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=PROBLEM,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == "<reversed_text>uoy olleh</reversed_text>"
    assert usage.completion_tokens == len(text) + 1


async def test_completions(client):
    prompt = "<|user|>What is 2 + 2?<|end|><|assistant|>"
    answer = await client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=40, logprobs=1
    )
    assert answer.choices[0].text.endswith("\\boxed{4}")
    stream = await client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=40, stream=True
    )
    assert "".join([chunk.choices[0].text async for chunk in stream]) == answer.choices[0].text


async def test_a_tool_call_and_its_answer(client):
    tools = [
        {
            "type": "function",
            "function": {
                "name": "add",
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                },
            },
        }
    ]
    messages = [{"role": "user", "content": "What is 12 + 34?"}]
    answer = await client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, temperature=0
    )
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "add"
    messages += [
        answer.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "46"},
    ]
    final = await client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, temperature=0
    )
    assert "\\boxed{" in final.choices[0].message.content


async def test_models(client):
    assert [model.id async for model in await client.models.list()] == [MODEL]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"model": "other"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"max_tokens": 10**6}, openai.BadRequestError),
    ],
)
async def test_errors_become_the_clients_own(client, options, error):
    with pytest.raises(error) as caught:
        await client.chat.completions.create(**{"model": MODEL, "messages": PROBLEM, **options})
    assert caught.value.body["message"]
