"""NeMo RL's endpoint returns token ids in the message; clients find them where vLLM puts them."""

from typing import Any
from unittest import mock

import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

import verifiers as vf

TOKENS = {
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3, 4],
    "generation_log_probs": [-0.5, -0.25],
}


def client_that_answers(**fields: Any) -> vf.NeMoRLChatCompletionsClient:
    message = {"role": "assistant", "content": "hi", **fields}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    payload = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
    sdk = AsyncOpenAI(api_key="k", base_url="http://127.0.0.1:9/v1")
    completion = ChatCompletion.model_validate({**payload, "choices": [choice]})
    sdk.chat.completions.create = mock.AsyncMock(return_value=completion)  # type: ignore[method-assign]
    return vf.NeMoRLChatCompletionsClient(sdk)


async def test_token_ids_move_from_the_message_to_the_response_and_its_choice() -> None:
    prompt = [{"role": "user", "content": "q"}]
    response = await client_that_answers(**TOKENS).get_native_response(prompt, "m", {})
    [choice] = response.choices
    assert response.prompt_token_ids == [1, 2]
    assert choice.token_ids == [3, 4]
    assert [each.logprob for each in choice.logprobs.content] == [-0.5, -0.25]
    assert choice.message.content == "hi"
    assert not set(TOKENS) & set(choice.message.model_dump())


async def test_a_response_without_token_ids_stays_as_it_is() -> None:
    prompt = [{"role": "user", "content": "q"}]
    response = await client_that_answers().get_native_response(prompt, "m", {})
    assert response.choices[0].message.content == "hi"
    assert response.choices[0].logprobs is None


@pytest.mark.parametrize("with_tokens", [True, False])
async def test_the_response_of_the_library_has_the_ids(with_tokens: bool) -> None:
    client = client_that_answers(**(TOKENS if with_tokens else {}))
    response = await client.get_response([vf.UserMessage(content="q")], "m", {})
    tokens = response.message.tokens
    if not with_tokens:
        assert tokens is None
        return
    assert tokens is not None
    assert (list(tokens.prompt_ids), list(tokens.completion_ids)) == ([1, 2], [3, 4])
    assert list(tokens.completion_logprobs) == [-0.5, -0.25]
