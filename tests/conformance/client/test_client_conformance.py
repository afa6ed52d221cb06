"""What every model client promises, over real HTTP on loopback. A new client passes this by adding its dialect."""

from __future__ import annotations

import asyncio
import copy
import gc
import socket
import types
from email.utils import formatdate
from time import time

import pytest
from dialects import DIALECTS
from loopback import DROP, SILENCE, Answer, loopback_endpoint

from verifiers.clients import resolve_client
from verifiers.clients.connect import client_class
from verifiers.configs import ClientConfig
from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    ConfigError,
    EmptyModelResponseError,
    EndpointUnavailable,
    InvalidModelResponseError,
    ModelError,
    OverlongPromptError,
    RateLimitError,
)
from verifiers.state import State
from verifiers.types import (
    AssistantMessage,
    Response,
    SystemMessage,
    TextMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

KEY = "sk-very-secret-key"
PROMPT = [SystemMessage(content="Be brief."), UserMessage(content="2+2?")]
TOOL = Tool(
    name="add",
    description="Adds.",
    parameters={"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
)


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.client_type)
def dialect(request):
    return request.param


async def ask(client, prompt=PROMPT, sampling_args=None, **options):
    return await client.get_response(prompt, "m", sampling_args or {}, **options)


# ------------------------------------------------------------------------------------------ what goes, what comes


async def test_an_answer_comes_back_in_the_librarys_shape(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    response = await ask(make_client(dialect.client_type))

    assert isinstance(response, Response)
    assert (response.id, response.model) == ("answer-1", "m")
    assert (response.message.role, response.message.content) == ("assistant", "four")
    assert (response.message.finish_reason, response.message.is_truncated) == ("stop", False)
    assert response.message.tool_calls is None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (5, 2)
    assert response.usage.total_tokens == 7


async def test_the_request_carries_model_prompt_key_and_headers(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type, extra_headers={"X-Team": "red"}))

    [request] = endpoint.requests
    assert (request.method, request.path) == ("POST", dialect.path)
    assert KEY in request.headers[dialect.key_header]
    assert request.headers["x-team"] == "red"
    assert request.headers["content-type"] == "application/json"
    assert request.body["model"] == "m"
    assert dialect.prompt_texts(request.body) == ["Be brief.", "2+2?"]


async def test_sampling_arguments_reach_the_endpoint_under_its_names(
    dialect, endpoint, make_client
):
    endpoint.script(dialect.answer())
    sampling_args = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": None,
        "some_new_option": [1],
        "extra_body": {"min_p": 0.1},
        "extra_headers": {"X-Run": "7"},
    }
    before = copy.deepcopy(sampling_args)
    await ask(make_client(dialect.client_type), sampling_args=sampling_args)

    [request] = endpoint.requests
    assert request.body[dialect.length_key] == 9
    assert request.body["temperature"] == 0.5
    assert request.body["some_new_option"] == [1]
    assert request.body["min_p"] == 0.1
    assert request.headers["x-run"] == "7"
    assert {"top_p", "extra_body", "extra_headers"}.isdisjoint(request.body)
    assert sampling_args == before, "the caller's arguments must not change"


async def test_both_names_of_the_length_limit_work(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type), sampling_args={"max_completion_tokens": 9})
    assert endpoint.requests[0].body[dialect.length_key] == 9


async def test_sampling_arguments_may_be_none(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    response = await make_client(dialect.client_type).get_response(PROMPT, "m", None)
    assert response.message.content == "four"


async def test_headers_can_come_from_the_rollouts_state(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(
        dialect.client_type,
        extra_headers_from_state={"X-Session": "trajectory_id"},
    )
    state = State(input={"prompt": PROMPT}, trajectory_id="t-1", trajectory=[], model="m")
    await ask(client, state=state)

    assert endpoint.requests[0].headers["x-session"] == "t-1"


async def test_a_header_from_a_key_that_no_state_has_is_told_before_any_request(
    dialect, endpoint, make_client
):
    client = make_client(
        dialect.client_type, extra_headers_from_state={"X-Session": "trajectry_id"}
    )
    state = State(input={"prompt": PROMPT}, trajectory_id="t-1", trajectory=[], model="m")
    with pytest.raises(ConfigError, match=r"X-Session.*Did you mean 'trajectory_id'"):
        await ask(client, state=state)
    assert endpoint.requests == []


async def test_a_cut_answer_says_so(dialect, endpoint, make_client):
    endpoint.script(dialect.answer("cut"))
    message = (await ask(make_client(dialect.client_type))).message
    assert (message.content, message.finish_reason, message.is_truncated) == ("fou", "length", True)


async def test_tool_calls_go_out_and_come_back(dialect, endpoint, make_client):
    client = make_client(dialect.client_type)
    if not dialect.has_tools:
        with pytest.raises(BadRequestError, match="no tools"):
            await ask(client, tools=[TOOL])
        return
    endpoint.script(dialect.answer("calls"))
    message = (await ask(client, tools=[TOOL])).message

    assert message.finish_reason == "tool_calls"
    assert [dict(call) for call in message.tool_calls] == [
        {"id": "a", "name": "add", "arguments": '{"x": 1}'},
        {"id": "b", "name": "neg", "arguments": "{}"},
    ]
    [offered] = endpoint.requests[0].body["tools"]
    described = offered.get("function", offered)
    assert (described["name"], described["description"]) == ("add", "Adds.")
    assert (described.get("parameters") or described["input_schema"]) == TOOL.parameters


async def test_no_tools_means_no_tools_in_the_request(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(dialect.client_type)
    await ask(client, tools=[])
    await ask(client, tools=None)
    assert all("tools" not in request.body for request in endpoint.requests)


async def test_a_conversation_with_tool_results_can_be_continued(dialect, endpoint, make_client):
    if not dialect.has_tools:
        pytest.skip("no tools in this API")
    endpoint.script(dialect.answer())
    prompt = [
        *PROMPT,
        AssistantMessage(
            content=None,
            tool_calls=[
                ToolCall(id="a", name="add", arguments='{"x": 1}'),
                ToolCall(id="b", name="neg", arguments="not json"),
            ],
        ),
        ToolMessage(tool_call_id="a", content="one"),
        ToolMessage(tool_call_id="b", content="two"),
        AssistantMessage(content="so", finish_reason="stop", is_truncated=False),
        UserMessage(content="go on"),
    ]
    before = copy.deepcopy(prompt)
    await ask(make_client(dialect.client_type), prompt)

    sent = str(endpoint.requests[0].body)
    assert all(word in sent for word in ("'a'", "'b'", "add", "neg", "one", "two", "so", "go on"))
    assert "is_truncated" not in sent
    assert prompt == before, "the prompt must not change"


async def test_plain_dict_messages_are_accepted(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    await ask(make_client(dialect.client_type), prompt)
    assert dialect.prompt_texts(endpoint.requests[0].body) == ["Be brief.", "2+2?"]


async def test_a_text_message_is_sent_as_the_users(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type), [TextMessage(content="Once upon")])
    assert dialect.prompt_texts(endpoint.requests[0].body) == ["Once upon"]


async def test_reasoning_is_kept_apart_from_content(dialect, endpoint, make_client):
    if not dialect.has_reasoning:
        pytest.skip("no reasoning in this API")
    endpoint.script(dialect.answer("reasoning"))
    message = (await ask(make_client(dialect.client_type))).message
    assert (message.content, message.reasoning_content) == ("four", "2+2")


async def test_an_empty_answer_is_an_error_of_its_own(dialect, endpoint, make_client):
    endpoint.script(dialect.answer("empty"))
    client = make_client(dialect.client_type)
    if not dialect.refuses_empty:
        assert (await ask(client)).message.content == ""
        return
    with pytest.raises(EmptyModelResponseError):
        await ask(client)
    assert len(endpoint.requests) == 1, (
        "the model was heard; asking again is the rollout's business"
    )


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_name_variable_and_url_at_once(
    dialect, endpoint, make_client, status
):
    endpoint.script(Answer(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}}))
    with pytest.raises(AuthenticationError) as caught:
        await ask(make_client(dialect.client_type))
    assert "TEST_KEY" in str(caught.value)
    assert endpoint.url in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(endpoint.requests) == 1


async def test_a_missing_key_for_a_public_host_is_told_before_any_request(dialect, monkeypatch):
    monkeypatch.delenv("TEST_KEY")
    config = ClientConfig(
        client_type=dialect.client_type,
        api_base_url="https://api.example.com/v1?q=secret",
        api_key_var="TEST_KEY",
    )
    with pytest.raises(AuthenticationError, match=r"api\.example\.com.*TEST_KEY") as caught:
        await ask(client_class(dialect.client_type)(config))
    assert "secret" not in str(caught.value)


async def test_without_a_key_a_private_endpoint_is_still_asked(
    dialect, endpoint, make_client, monkeypatch
):
    monkeypatch.delenv("TEST_KEY")
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type))
    assert "EMPTY" in endpoint.requests[0].headers[dialect.key_header]


async def test_a_key_set_later_is_used(dialect, endpoint, make_client, monkeypatch):
    endpoint.script(dialect.answer())
    client = make_client(dialect.client_type)
    await ask(client)
    monkeypatch.setenv("TEST_KEY", "sk-another")
    await ask(client)
    assert "sk-another" in endpoint.requests[1].headers[dialect.key_header]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000."),
        (400, "The input (123 tokens) is longer than the model's context length (100 tokens)."),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_recognised(
    dialect, endpoint, make_client, status, text
):
    endpoint.script(Answer(status, {"error": {"message": text, "type": "invalid_request_error"}}))
    with pytest.raises(OverlongPromptError, match="too long"):
        await ask(make_client(dialect.client_type))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_a_malformed_request_is_not_repeated(dialect, endpoint, make_client, status):
    endpoint.script(Answer(status, {"error": {"message": "temperature must be below 2"}}))
    with pytest.raises(BadRequestError, match="temperature must be below 2"):
        await ask(make_client(dialect.client_type))
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_passing_refusal_is_tried_again(dialect, endpoint, make_client, waits, status):
    endpoint.script(Answer(status, {"error": {"message": "later"}}), dialect.answer())
    response = await ask(make_client(dialect.client_type))
    assert response.message.content == "four"
    assert len(endpoint.requests) == 2
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("headers", "least_s", "most_s"),
    [
        ({"Retry-After": "7"}, 7, 8),
        ({"retry-after-ms": "1500"}, 1.5, 2.5),
        ({"Retry-After": "in a minute"}, 55, 62),
        ({"Retry-After": "soon"}, 0, 0.5),
    ],
)
async def test_the_endpoint_says_how_long_to_wait(
    dialect, endpoint, make_client, waits, headers, least_s, most_s
):
    if headers == {"Retry-After": "in a minute"}:
        headers = {"Retry-After": formatdate(time() + 60, usegmt=True)}
    endpoint.script(Answer(429, {"error": {"message": "slow down"}}, headers), dialect.answer())
    await ask(make_client(dialect.client_type))
    [wait_s] = waits
    assert least_s <= wait_s <= most_s


async def test_retries_end(dialect, endpoint, make_client):
    endpoint.script(Answer(429, {"error": {"message": "slow down"}}))
    with pytest.raises(RateLimitError, match=r"after 4 attempts: slow down"):
        await ask(make_client(dialect.client_type, max_retries=3))
    assert len(endpoint.requests) == 4

    endpoint.script(Answer(503, "<html>down for <b>maintenance</b></html>"))
    with pytest.raises(EndpointUnavailable, match=r"503 after 3 attempts: <html>down for"):
        await ask(make_client(dialect.client_type, max_retries=2))


# --------------------------------------------------------------------------------------- connections that fail


async def test_a_refused_connection_is_an_endpoint_unavailable(dialect, make_client):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        client = make_client(dialect.client_type, api_base_url=url, max_retries=2)
        with pytest.raises(EndpointUnavailable, match=r"Cannot connect.*after 3 attempts"):
            await ask(client)


async def test_an_unknown_host_is_an_endpoint_unavailable(dialect, make_client, monkeypatch):
    def getaddrinfo(*_args, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    client = make_client(
        dialect.client_type, api_base_url="http://no-such-host.invalid/v1", max_retries=0
    )
    with pytest.raises(EndpointUnavailable, match=r"no-such-host\.invalid"):
        await ask(client)


async def test_a_request_that_may_have_been_worked_on_is_repeated_once_under_one_key(
    dialect, endpoint, make_client
):
    endpoint.script(DROP)
    with pytest.raises(EndpointUnavailable, match=r"closed the connection.*after 2 attempts"):
        await ask(make_client(dialect.client_type, max_retries=10))
    first, second = (request.headers["idempotency-key"] for request in endpoint.requests)
    assert first == second

    endpoint.script(DROP, dialect.answer())
    assert (await ask(make_client(dialect.client_type))).message.content == "four"
    assert endpoint.requests[-1].headers["idempotency-key"] != first


async def test_an_answer_cut_off_by_the_network_is_not_taken_for_whole(
    dialect, endpoint, make_client
):
    half = Answer(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [')
    endpoint.script(half)
    with pytest.raises(EndpointUnavailable, match="closed the connection before its answer"):
        await ask(make_client(dialect.client_type))
    assert len(endpoint.requests) == 2


async def test_an_endpoint_that_never_answers_meets_a_time_limit(dialect, endpoint, make_client):
    endpoint.script(SILENCE)
    with pytest.raises(EndpointUnavailable, match=r"did not answer within 0\.1 s"):
        await ask(make_client(dialect.client_type, timeout=0.1))
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, "<html><title>Welcome to nginx</title></html>"),
        Answer(200, [1, 2]),
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{'a': 1}"),
        Answer(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        Answer(200, {"choices": "none", "content": 3, "output": 4}),
    ],
    ids=["html", "list", "no-json", "nothing", "wrong-types"],
)
async def test_nonsense_is_an_invalid_response_that_shows_itself(
    dialect, endpoint, make_client, answer
):
    endpoint.script(answer)
    with pytest.raises(InvalidModelResponseError) as caught:
        await ask(make_client(dialect.client_type))
    assert len(str(caught.value)) < 700
    assert len(endpoint.requests) == 1


async def test_garbage_instead_of_http_is_a_clear_error(dialect, endpoint, make_client):
    endpoint.script(Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n\r\n"))
    with pytest.raises(EndpointUnavailable, match=r"127\.0\.0\.1"):
        await ask(make_client(dialect.client_type, max_retries=0))


async def test_a_redirect_says_where_to(dialect, endpoint, make_client):
    endpoint.script(Answer(308, {}, {"Location": "https://elsewhere.example/v1?key=secret"}))
    with pytest.raises(ModelError, match=r"https://elsewhere\.example/v1") as caught:
        await ask(make_client(dialect.client_type))
    assert "secret" not in str(caught.value)


async def test_an_answer_beyond_all_measure_is_refused(dialect, endpoint, make_client, monkeypatch):
    monkeypatch.setattr("verifiers.clients.transport.MOST_RESPONSE_BYTES", 100)
    endpoint.script(Answer(200, {"padding": "x" * 200}))
    with pytest.raises(InvalidModelResponseError, match="more than 100 bytes"):
        await ask(make_client(dialect.client_type))

    chunks = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"40\r\n" + b"x" * 64 + b"\r\n"
    )
    endpoint.script(Answer(raw=chunks + b"40\r\n" + b"x" * 64 + b"\r\n0\r\n\r\n"))
    with pytest.raises(InvalidModelResponseError, match="more than 100 bytes"):
        await ask(make_client(dialect.client_type))


async def test_cancellation_passes_and_is_not_retried(dialect, endpoint, make_client):
    endpoint.script(SILENCE)
    task = asyncio.ensure_future(ask(make_client(dialect.client_type)))
    await endpoint.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(endpoint.requests) == 1


# ---------------------------------------------------------------------------------- event loops and sharing


def test_a_client_works_in_one_event_loop_after_another_and_leaves_nothing_open(dialect):
    client = None

    async def once():
        nonlocal client
        async with loopback_endpoint() as endpoint:
            endpoint.script(dialect.answer())
            config = ClientConfig(client_type=dialect.client_type, api_key_var="TEST_KEY")
            if client is None:
                config.api_base_url = endpoint.url
                client = client_class(dialect.client_type)(config)
            else:  # the same client, whose endpoint has moved
                client._channel.endpoints[0] = type(client)(
                    config.model_copy(update={"api_base_url": endpoint.url})
                )._channel.endpoints[0]
            return (await ask(client)).message.content

    # No aclose on purpose: sessions end with their loop. A ResourceWarning would fail the test.
    assert [asyncio.run(once()) for _ in range(2)] == ["four", "four"]
    gc.collect()


async def test_connections_are_kept_and_reused(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(dialect.client_type)
    for _ in range(5):
        await ask(client)
    assert endpoint.connections == 1


async def test_equal_configurations_share_a_client(dialect, endpoint):
    config = {
        "client_type": dialect.client_type,
        "api_base_url": endpoint.url,
        "api_key_var": "TEST_KEY",
    }
    first = resolve_client(ClientConfig(**config))
    assert resolve_client(ClientConfig(**config)) is first
    assert resolve_client(config) is first
    assert resolve_client(first) is first
    assert resolve_client(ClientConfig(**config, timeout=7)) is not first


async def test_hundreds_of_requests_can_start_at_once(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(dialect.client_type, timeout=60)
    responses = await asyncio.gather(*[ask(client) for _ in range(400)])
    assert {response.message.content for response in responses} == {"four"}
    assert endpoint.most_in_flight > 50


# -------------------------------------------------------------------------- hooks, and objects of other people


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
