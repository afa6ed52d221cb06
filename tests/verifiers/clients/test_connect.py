"""Configurations of clients, of one endpoint and of several."""

from __future__ import annotations

import traceback

import openai
import pytest
from dialects import CHAT_FORMS
from loopback import Answer, loopback_endpoint

from verifiers.clients import OpenAIChatCompletionsClient, close_all_clients, resolve_client
from verifiers.clients.connect import (
    client_class,
    resolve_client_config,
    resolve_client_configs,
    setup_http_client,
    setup_openai_client,
)
from verifiers.configs import ClientConfig
from verifiers.errors import AuthenticationError, ModelError
from verifiers.types import UserMessage

PROMPT = [UserMessage(content="2+2?")]
ANSWER = Answer(body=CHAT_FORMS["text"])


def test_endpoints_of_a_configuration_inherit_what_they_do_not_say():
    config = ClientConfig(
        api_key_var="A",
        timeout=7,
        extra_headers={"a": "1"},
        endpoint_configs=[
            {"api_base_url": "http://x/v1"},
            {"api_base_url": "http://y/v1", "extra_headers": {"b": "2"}, "client_idx": 7},
            {"api_base_url": "http://z/v1", "api_key_var": "B", "timeout": 9},
        ],
    )
    x, y, z = resolve_client_configs(config)
    assert (x.api_base_url, x.api_key_var, x.timeout, x.extra_headers) == (
        "http://x/v1",
        "A",
        7,
        {"a": "1"},
    )
    assert (y.api_base_url, y.extra_headers, y.client_idx) == ("http://y/v1", {"b": "2"}, 7)
    assert (z.api_key_var, z.timeout, z.endpoint_configs) == ("B", 9, [])
    for index, expected in enumerate(["x", "y", "z", "x", "y"]):
        one = resolve_client_config(config.model_copy(update={"client_idx": index}))
        assert one.api_base_url == f"http://{expected}/v1"


def test_sdk_objects_for_a_configuration(monkeypatch):
    monkeypatch.setenv("K", "sk-k")
    config = ClientConfig(
        api_key_var="K", api_base_url="http://x/v1", timeout=7, extra_headers={"a": "1"}
    )
    sdk = setup_openai_client(config)
    assert (sdk.api_key, str(sdk.base_url), sdk.timeout.read) == ("sk-k", "http://x/v1/", 7)
    assert sdk.default_headers["a"] == "1"
    assert OpenAIChatCompletionsClient(config).client.api_key == "sk-k"
    assert setup_http_client(config).timeout.read == 7


async def test_an_endpoint_has_the_time_limit_of_its_own():
    async with loopback_endpoint() as quick, loopback_endpoint() as patient:
        quick.script(Answer(is_silent=True))
        patient.script(ANSWER)
        client = client_class("openai_chat_completions")(
            ClientConfig(
                api_key_var="TEST_KEY",
                timeout=600,
                endpoint_configs=[
                    {"api_key_var": "TEST_KEY", "api_base_url": quick.url, "timeout": 0.05},
                    {"api_key_var": "TEST_KEY", "api_base_url": patient.url},
                ],
            )
        )

        answer = await client.get_response(PROMPT, "m", {})  # at 600 s this test would not end

        assert answer.message.content == "four"
        assert (len(quick.requests), len(patient.requests)) == (1, 1)
        await client.close()


@pytest.mark.parametrize(("kept", "connections"), [(0, 2), (10, 1)])
async def test_no_kept_connections_means_a_new_one_for_each_request(endpoint, kept, connections):
    endpoint.script(ANSWER)
    client = client_class("openai_chat_completions")(
        ClientConfig(
            api_key_var="TEST_KEY", api_base_url=endpoint.url, max_keepalive_connections=kept
        )
    )
    for _ in range(2):
        await client.get_response(PROMPT, "m", {})
    assert endpoint.connections == connections
    await client.close()


async def test_a_key_in_an_answer_or_in_an_error_of_the_sdk_is_left_out(endpoint):
    secret = "sk-very-secret-key"
    client = client_class("openai_chat_completions")(
        ClientConfig(api_key_var="TEST_KEY", api_base_url=endpoint.url)
    )
    odd = {"error": f"key {secret}"}
    for answer in (Answer(body=odd), Answer(body={"choices": [{"message": secret}]})):
        endpoint.script(answer)
        with pytest.raises(ModelError) as caught:
            await client.get_response(PROMPT, "m", {})
        assert secret not in str(caught.value)
    await client.close()

    sdk = openai.AsyncOpenAI(base_url=endpoint.url, api_key=secret, max_retries=0)
    endpoint.script(Answer(401, {"error": {"message": f"no such key {secret}"}}))

    class Adapted(OpenAIChatCompletionsClient):
        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            return await sdk.chat.completions.create(model=model, messages=prompt)

    with pytest.raises(AuthenticationError) as refused:
        await Adapted(sdk).get_response(PROMPT, "m", {})
    assert secret not in "".join(traceback.format_exception(refused.value))
    await sdk.close()


async def test_an_error_with_fields_of_its_own_keeps_them_when_a_key_is_taken_out():
    class Refused(ModelError):
        def __init__(self, status: int, said: str) -> None:
            super().__init__(f"{status}: {said}")
            self.status = status

    class Own(OpenAIChatCompletionsClient):
        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            raise Refused(418, "no such key sk-very-secret-key")

    sdk = openai.AsyncOpenAI(api_key="sk-very-secret-key")
    with pytest.raises(Refused, match=r"418: no such key \[key\]") as caught:
        await Own(sdk).get_response(PROMPT, "m", {})
    assert caught.value.status == 418
    await sdk.close()


async def test_a_dead_endpoint_is_passed_over_and_found_again_when_it_lives():
    async with loopback_endpoint() as first, loopback_endpoint() as second:
        config = ClientConfig(
            api_key_var="TEST_KEY",
            endpoint_configs=[{"api_base_url": first.url}, {"api_base_url": second.url}],
        )
        client = resolve_client(config)
        now_s = [0.0]
        client._channel._clock = lambda: now_s[0]
        first.script(ANSWER)
        second.script(ANSWER)
        for _ in range(4):
            await client.get_response(PROMPT, "m", {})
        assert (len(first.requests), len(second.requests)) == (2, 2), "round robin"

        first.script(Answer(503, {"error": {"message": "down"}}))
        second.script(ANSWER)
        for _ in range(4):
            await client.get_response(PROMPT, "m", {})
        assert (len(first.requests), len(second.requests)) == (1, 4), "one failure is enough"

        first.script(ANSWER)
        now_s[0] += 60
        for _ in range(4):
            await client.get_response(PROMPT, "m", {})
        assert len(first.requests) == 2
        await close_all_clients()
