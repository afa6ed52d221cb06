"""Which client comes of what callers pass, where keys and proxies come from."""

from __future__ import annotations

import json
import traceback
import types

import openai
import pytest
from dialects import CHAT_FORMS, DIALECTS
from loopback import Answer, loopback_endpoint

from verifiers.clients import Client, OpenAIChatCompletionsClient, close_all_clients, resolve_client
from verifiers.clients.connect import (
    CLIENT_CLASSES,
    KEYLESS,
    PROVIDERS,
    api_key_of,
    client_class,
    is_private,
    load_prime_config,
    proxy_of,
    resolve_client_config,
    resolve_client_configs,
)
from verifiers.clients.sdk_setup import setup_http_client, setup_openai_client
from verifiers.configs import CLIENT_TYPES, ClientConfig
from verifiers.errors import AuthenticationError, ConfigError, ModelError
from verifiers.types import Response, ResponseMessage, UserMessage

PROMPT = [UserMessage(content="2+2?")]
ANSWER = Answer(body=CHAT_FORMS["text"])


# ------------------------------------------------------------------------------------------- what callers pass


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


# --------------------------------------------------------------------------------------------- configurations


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


# ------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("10.1.2.3", True),
        ("192.168.0.9", True),
        ("vllm", True),
        ("box.local", True),
        ("api.openai.com", False),
        ("8.8.8.8", False),
        ("localhost.evil.com", False),
        ("10.evil.com", False),
        ("", False),
    ],
)
def test_private_hosts_are_told_apart(host, expected):
    assert is_private(host) is expected


def test_keys_come_from_the_environment_or_prime_or_are_not_needed(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    assert load_prime_config() == {}
    prime = ClientConfig(
        api_base_url="https://api.pinference.ai/api/v1", api_key_var="PRIME_API_KEY"
    )
    with pytest.raises(AuthenticationError, match="PRIME_API_KEY"):
        api_key_of(prime)

    (tmp_path / ".prime").mkdir()
    (tmp_path / ".prime" / "config.json").write_text(json.dumps({"api_key": "pk", "team_id": "t"}))
    assert api_key_of(prime) == "pk"
    monkeypatch.setenv("PRIME_API_KEY", " from-env\n")
    assert api_key_of(prime) == "from-env", "a line break in a key would be a header of its own"

    (tmp_path / ".prime" / "config.json").write_text("{broken")
    assert load_prime_config() == {}
    local = ClientConfig(api_base_url="http://127.0.0.1:8000/v1", api_key_var="NOT_SET")
    assert api_key_of(local) == KEYLESS


async def test_a_prime_key_goes_with_its_team(monkeypatch, endpoint):
    monkeypatch.setenv("PRIME_API_KEY", "pk")
    monkeypatch.setenv("PRIME_TEAM_ID", "team-1")
    endpoint.script(ANSWER)
    config = ClientConfig(api_base_url=endpoint.url, api_key_var="PRIME_API_KEY")
    await resolve_client(config).get_response(PROMPT, "m", {})
    assert endpoint.requests[0].headers["x-prime-team-id"] == "team-1"


def test_every_provider_makes_a_client():
    assert {
        "prime",
        "openrouter",
        "openai",
        "anthropic",
        "minimax",
        "deepseek",
        "glm",
        "local",
        "vllm",
    } == set(PROVIDERS)
    for provider in PROVIDERS.values():
        config = ClientConfig(
            api_base_url=provider.base_url,
            api_key_var=provider.key_var,
            client_type=provider.client_type,
        )
        assert isinstance(resolve_client(config), Client)


# ---------------------------------------------------------------------------------------------------- base URLs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("localhost:8000/v1", "Did you mean 'http://localhost:8000/v1'?"),
        ("gpu-node/v1", "Did you mean 'http://gpu-node/v1'?"),
        ("ftp://user:pw@host/v1", "'host/v1' is not the URL of an endpoint"),
        ("http://", "'http://' is not"),
        ("http://host:99999/v1", "'http://host:99999/v1' is not"),
        ("http://[::1/v1", "is not"),
        ("http://user:pw@host/v1", "http://host/v1 holds a user name or password"),
    ],
)
def test_what_is_no_base_url_is_refused_before_anything_is_sent(text: str, said: str):
    with pytest.raises(ConfigError) as caught:
        resolve_client(ClientConfig(api_base_url=text))
    assert said in str(caught.value)
    assert "pw" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- proxies


def test_the_environment_decides_about_proxies(monkeypatch):
    assert proxy_of("https://api.example.com/v1") is None
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "internal.example.com")
    assert proxy_of("https://api.example.com/v1") == "http://proxy:3128"
    assert proxy_of("https://internal.example.com/v1") is None
    assert proxy_of("https://localhost/v1") is None
    monkeypatch.setenv("https_proxy", "proxy:3128")
    assert proxy_of("https://api.example.com/v1") == "http://proxy:3128"
    monkeypatch.setenv("https_proxy", "socks5://user:pw@proxy:1080")
    with pytest.raises(ConfigError, match=r"socks5://proxy:1080.*NO_PROXY") as caught:
        proxy_of("https://api.example.com/v1")
    assert "pw" not in str(caught.value)


async def test_requests_go_through_the_proxy(monkeypatch, endpoint):
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{endpoint.port}")
    monkeypatch.setenv("TEST_KEY", "sk-k")
    endpoint.script(ANSWER)
    config = ClientConfig(api_base_url="http://model.example/v1", api_key_var="TEST_KEY")
    response = await resolve_client(config).get_response(PROMPT, "m", {})
    assert response.message.content == "four"
    assert endpoint.requests[0].path == "http://model.example/v1/chat/completions"


# ------------------------------------------------------------------------------------------- several endpoints


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
