"""Every client as other people extend it: hooks, replaced methods, objects with only the SDK's method."""

from __future__ import annotations

import types

import pytest
from client_suite import PROMPT, ask

from verifiers.clients.connect import client_class
from verifiers.configs import ClientConfig
from verifiers.errors import (
    EmptyModelResponseError,
    ModelError,
)
from verifiers.state import State


async def test_an_overridden_hook_is_honoured(dialect, endpoint):
    base = client_class(dialect.client_type)
    seen = []

    class Mine(base):
        async def to_native_prompt(self, messages):
            native, extra = await super().to_native_prompt(messages)
            seen.append(("prompt", native))
            return native, extra

        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            seen.append(("call", model, sorted(kwargs)))
            return await super().get_native_response(prompt, model, sampling_args, tools, **kwargs)

        async def from_native_response(self, response):
            seen.append(("answer", response.model))  # the SDK's object: attributes
            answer = await super().from_native_response(response)
            answer.message.content = answer.message.content.upper()
            return answer

    endpoint.script(dialect.answer())
    client = Mine(
        ClientConfig(
            client_type=dialect.client_type, api_base_url=endpoint.url, api_key_var="TEST_KEY"
        )
    )
    response = await ask(client, state=State(input={"prompt": PROMPT}, trajectory=[], model="m"))
    assert response.message.content == "FOUR"
    assert [name for name, *_ in seen] == ["prompt", "call", "answer"]
    assert "state" in seen[1][2]
    assert len(endpoint.requests) == 1


async def test_a_hook_that_fails_is_a_model_error_with_its_cause(dialect, endpoint):
    base = client_class(dialect.client_type)

    class Broken(base):
        async def from_native_response(self, response):
            raise ZeroDivisionError("no")

    endpoint.script(dialect.answer())
    client = Broken(
        ClientConfig(
            client_type=dialect.client_type, api_base_url=endpoint.url, api_key_var="TEST_KEY"
        )
    )
    with pytest.raises(ModelError, match=r"Broken failed: ZeroDivisionError: no") as caught:
        await ask(client)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_hook_replaced_on_the_object_is_honoured(dialect, endpoint, make_client):
    client = make_client(dialect.client_type)
    endpoint.script(dialect.answer())

    async def raise_nothing(response):
        raise EmptyModelResponseError("mine")

    client.raise_from_native_response = raise_nothing
    with pytest.raises(EmptyModelResponseError, match="mine"):
        await ask(client)


def _as_namespace(value):
    if isinstance(value, dict):
        return types.SimpleNamespace(**{k: _as_namespace(v) for k, v in value.items()})
    return [_as_namespace(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("wrap", [dict, _as_namespace], ids=["dict", "attributes"])
async def test_an_object_with_only_the_sdks_method_is_called_through_it(dialect, wrap):
    calls = []

    async def create(**arguments):
        calls.append(arguments)
        return wrap(dialect.forms["text"])

    fake = create
    for name in reversed(dialect.sdk_path):
        fake = types.SimpleNamespace(**{name: fake})
    client = client_class(dialect.client_type)(fake)
    response = await ask(client, sampling_args={"max_tokens": 9, "extra_body": {"top_k": 3}})

    assert response.message.content == "four"
    assert (calls[0]["model"], calls[0][dialect.length_key]) == ("m", 9)
    assert calls[0]["extra_body"]["top_k"] == 3
    assert dialect.prompt_texts(calls[0]) == ["Be brief.", "2+2?"]
    assert client.client is fake
