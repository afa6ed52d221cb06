"""Which client comes of what callers pass: SDK objects, fakes, clients of their own."""

from __future__ import annotations

import pickle
import types

import openai
import pytest
from dialects import CHAT_FORMS, DIALECTS, text
from loopback import Answer

import verifiers as vf
from verifiers.clients import Client, OpenAIChatCompletionsClient, close_all_clients, resolve_client
from verifiers.clients.connect import (
    CLIENT_CLASSES,
    client_class,
)
from verifiers.configs import CLIENT_TYPES, ClientConfig
from verifiers.errors import AuthenticationError, ConfigError
from verifiers.types import Response, ResponseMessage, UserMessage

PROMPT = [UserMessage(content="2+2?")]
ANSWER = Answer(body=CHAT_FORMS["text"])


@pytest.mark.parametrize(
    "value", [None, 3, "http://x/v1", object(), ClientConfig, {"api_bse_url": "x"}]
)
def test_what_is_no_client_is_refused_with_advice(value):
    with pytest.raises(ConfigError, match=r"Unsupported client type|Did you mean 'api_base_url'"):
        resolve_client(value)


def test_every_type_of_client_has_a_class_or_says_why_not():
    for client_type in CLIENT_TYPES:
        if client_type in CLIENT_CLASSES:
            assert issubclass(client_class(client_type), Client)
        else:
            with pytest.raises(ConfigError, match=f"{client_type}.*openai_chat_completions_token"):
                client_class(client_type)
    assert {dialect.client_type for dialect in DIALECTS} == set(CLIENT_CLASSES)


async def test_a_plain_async_openai_is_served_by_our_transport(endpoint):
    endpoint.script(ANSWER)
    sdk = openai.AsyncOpenAI(
        base_url=endpoint.url,
        api_key="sk-mine",
        organization="org-1",
        default_headers={"X-Team": "red"},
        default_query={"api-version": "3"},
        timeout=7,
        max_retries=4,
    )
    client = resolve_client(sdk)
    assert resolve_client(sdk) is client
    assert client.client is sdk
    response = await client.get_response(PROMPT, "m", {})

    assert response.message.content == "four"
    [request] = endpoint.requests
    assert request.path == "/v1/chat/completions?api-version=3"
    assert request.headers["authorization"] == "Bearer sk-mine"
    assert (request.headers["x-team"], request.headers["openai-organization"]) == ("red", "org-1")
    assert "idempotency-key" in request.headers, "ours, not the SDK's"
    assert client._channel.max_retries == 4
    assert client._channel.transport._timeout.total == 7
    await close_all_clients()
    await sdk.close()


async def test_default_time_limits_of_the_sdk_do_not_break_a_large_start():
    sdk = openai.AsyncOpenAI(base_url="http://127.0.0.1:1/v1", api_key="k")
    timeout = resolve_client(sdk)._channel.transport._timeout
    assert (timeout.total, timeout.sock_connect) == (600, 60)
    await sdk.close()


async def test_a_synchronous_openai_is_accepted(endpoint):
    endpoint.script(ANSWER)
    with openai.OpenAI(base_url=endpoint.url, api_key="k") as sdk:
        response = await resolve_client(sdk).get_response(PROMPT, "m", {})
    assert response.message.content == "four"


class MyOpenAI(openai.AsyncOpenAI):
    """A subclass: whoever wrote it wants its methods to run."""


async def own_http_client(url):
    transport_client = openai.DefaultAsyncHttpxClient()
    return openai.AsyncOpenAI(base_url=url, api_key="k", http_client=transport_client)


async def subclass(url):
    return MyOpenAI(base_url=url, api_key="k")


async def patched_method(url):
    sdk = openai.AsyncOpenAI(base_url=url, api_key="k")
    original = sdk.chat.completions.create

    async def create(**arguments):
        return await original(**arguments)

    sdk.chat.completions.create = create
    return sdk


async def key_from_a_function(url):
    async def key():
        return "k"

    return openai.AsyncOpenAI(base_url=url, api_key=key)


@pytest.mark.parametrize(
    "make",
    [own_http_client, subclass, patched_method, key_from_a_function],
    ids=lambda m: m.__name__,
)
async def test_a_customised_async_openai_is_called_itself(endpoint, make):
    endpoint.script(ANSWER)
    sdk = await make(endpoint.url)
    client = resolve_client(sdk)
    sampling_args = {"max_tokens": 5, "top_p": None, "extra_body": {"min_p": 0.1}}
    if make is not patched_method:
        sampling_args["top_k"] = 3  # unknown to the SDK's method, which only its signature tells
    response = await client.get_response(PROMPT, "m", sampling_args)

    assert response.message.content == "four"
    [request] = endpoint.requests
    assert "x-stainless-lang" in request.headers, "the SDK sent it"
    assert request.body.get("top_k") == sampling_args.get("top_k")
    assert request.body["min_p"] == 0.1
    assert request.body["max_completion_tokens"] == 5
    await sdk.close()


async def test_a_blocking_sdk_object_runs_in_a_thread(endpoint):
    endpoint.script(ANSWER)

    class Mine(openai.OpenAI):
        pass

    with Mine(base_url=endpoint.url, api_key="k") as sdk:
        response = await resolve_client(sdk).get_response(PROMPT, "m", {})
    assert response.message.content == "four"


async def test_errors_of_the_sdk_become_ours(endpoint):
    endpoint.script(
        Answer(400, {"error": {"message": "This model's maximum context length is 5 tokens"}})
    )
    sdk = MyOpenAI(base_url=endpoint.url, api_key="sk-k", max_retries=0)
    with pytest.raises(Exception, match="too long") as caught:
        await resolve_client(sdk).get_response(PROMPT, "m", {})
    assert type(caught.value).__name__ == "OverlongPromptError"
    assert isinstance(caught.value.__cause__, openai.BadRequestError)

    endpoint.script(Answer(401, {"error": {"message": "no"}}))
    with pytest.raises(AuthenticationError, match="the client you passed"):
        await resolve_client(sdk).get_response(PROMPT, "m", {})
    await sdk.close()

    unreachable = MyOpenAI(base_url="http://127.0.0.1:1/v1", api_key="k", max_retries=0)
    with pytest.raises(Exception, match="APIConnectionError") as caught:
        await resolve_client(unreachable).get_response(PROMPT, "m", {})
    assert type(caught.value).__name__ == "EndpointUnavailable"
    await unreachable.close()


async def test_a_trainers_fake_with_real_sdk_answers_gives_token_ids():
    from openai.types.chat import ChatCompletion

    async def create(**arguments):
        answer = ChatCompletion.model_validate(CHAT_FORMS["text"])
        answer.prompt_token_ids = [1, 2]
        answer.choices[0].token_ids = [3]
        answer.choices[0].logprobs = {"content": [{"token": "four", "logprob": -0.5}]}
        return answer

    fake = types.SimpleNamespace(
        chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=create))
    )
    message = (await resolve_client(fake).get_response(PROMPT, "m", {})).message
    assert dict(message.tokens) == {
        "prompt_ids": [1, 2],
        "prompt_mask": [0, 0],
        "completion_ids": [3],
        "completion_mask": [1],
        "completion_logprobs": [-0.5],
    }


async def test_an_anthropic_sdk_object_is_recognised(endpoint):
    anthropic = pytest.importorskip("anthropic")
    [dialect] = [d for d in DIALECTS if d.client_type == "anthropic_messages"]
    endpoint.script(dialect.answer())
    sdk = anthropic.AsyncAnthropic(base_url=endpoint.url.removesuffix("/v1"), api_key="sk-a")
    response = await resolve_client(sdk).get_response(PROMPT, "m", {})
    assert response.message.content == "four"
    assert endpoint.requests[0].headers["x-api-key"] == "sk-a"
    assert endpoint.requests[0].path == "/v1/messages"
    await sdk.close()


def test_a_bare_object_can_be_meant_for_another_api():
    fake = types.SimpleNamespace(completions=types.SimpleNamespace(create=None), chat=None)
    chat = resolve_client(fake)
    text = resolve_client(fake, client_type="openai_completions")
    assert (type(chat).__name__, type(text).__name__) == (
        "OpenAIChatCompletionsClient",
        "OpenAICompletionsClient",
    )


async def test_a_client_of_somebody_elses_own_needs_only_the_hooks():
    class Parrot(Client):
        def setup_client(self, config):
            return "a parrot"

        async def to_native_tool(self, tool):
            return tool.name

        async def to_native_prompt(self, messages):
            return [m.content for m in messages], {"loud": True}

        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            assert (model, tools, kwargs) == ("m", None, {"loud": True})
            return prompt[-1]

        async def raise_from_native_response(self, response):
            assert response

        async def from_native_response(self, response):
            message = ResponseMessage(content=response, finish_reason="stop", is_truncated=False)
            return Response(id="1", created=0, model="m", message=message)

        async def close(self):
            pass

    parrot = Parrot(ClientConfig())
    assert resolve_client(parrot) is parrot
    assert parrot.client == "a parrot"
    assert (await parrot.get_response(PROMPT, "m", {})).message.content == "2+2?"


async def test_a_subclass_with_its_own_sdk_object_uses_it():
    seen = []

    async def create(**arguments):
        seen.append(arguments["model"])
        return CHAT_FORMS["text"]

    class Mine(OpenAIChatCompletionsClient):
        def setup_client(self, config):
            return types.SimpleNamespace(
                chat=types.SimpleNamespace(completions=types.SimpleNamespace(create=create))
            )

    response = await Mine(ClientConfig()).get_response(PROMPT, "m", {})
    assert (response.message.content, seen) == ("four", ["m"])


async def test_an_environment_asked_for_a_response_without_a_state_gives_the_sdks_object(endpoint):
    endpoint.script(ANSWER, Answer(body=text("upon")))
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=vf.Rubric())
    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key="k") as client:
        chat = await env.get_model_response(
            client=client, model="m", prompt=PROMPT, message_type="chat", sampling_args={"n": 1}
        )
        completion = await env.get_model_response(client, "m", "Once", message_type="completion")
    assert isinstance(chat, openai.types.chat.ChatCompletion)
    assert chat.choices[0].message.content == "four"
    assert (completion.choices[0].text, endpoint.requests[1].body["prompt"]) == ("upon", "Once")
    await close_all_clients()


@pytest.mark.parametrize(
    ("status", "name"), [(401, "AuthenticationError"), (403, "PermissionDeniedError")]
)
@pytest.mark.parametrize("is_subclass", [False, True], ids=["our transport", "the SDK's own"])
async def test_refused_credentials_of_a_passed_client_are_an_error_of_its_sdk_too(
    endpoint, status, name, is_subclass
):
    class Own(openai.AsyncOpenAI):
        pass

    endpoint.script(
        Answer(status=status, body={"error": {"message": "no such key", "code": "bad"}})
    )
    kind = Own if is_subclass else openai.AsyncOpenAI
    async with kind(base_url=endpoint.url, api_key="sk-secret", max_retries=0) as sdk:
        with pytest.raises(getattr(openai, name)) as caught:
            await resolve_client(sdk).get_response(PROMPT, "m", {})
        endpoint.script(Answer(status=status, body={"error": {"message": "no such key"}}))
        with pytest.raises(getattr(openai, name)):
            await vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=vf.Rubric()).generate(
                [{"question": "q"}], sdk, "m"
            )
    error = caught.value
    assert isinstance(error, AuthenticationError)
    assert (error.status_code, error.response.status_code, type(error).__name__) == (
        status,
        status,
        "AuthenticationError",
    )
    assert "no such key" in str(error)
    assert type(pickle.loads(pickle.dumps(error))) is AuthenticationError
    await close_all_clients()


async def test_refused_credentials_of_a_configuration_are_ours_alone(make_client, endpoint):
    endpoint.script(Answer(status=401, body={"error": {"message": "no"}}))
    with pytest.raises(AuthenticationError) as caught:
        await make_client().get_response(PROMPT, "m", {})
    assert not isinstance(caught.value, openai.OpenAIError)
