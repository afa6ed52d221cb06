"""Every client when the network fails it, and in one event loop after another."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest
from client_suite import ask
from loopback import DROP, SILENCE, Answer, loopback_endpoint

from verifiers.clients import resolve_client
from verifiers.clients.connect import client_class
from verifiers.configs import ClientConfig
from verifiers.errors import (
    EndpointUnavailable,
    InvalidModelResponseError,
    ModelError,
)


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
    with pytest.raises(EndpointUnavailable, match="closed the connection before its response"):
        await ask(make_client(dialect.client_type))
    assert len(endpoint.requests) == 2


async def test_an_endpoint_that_never_answers_meets_a_time_limit(dialect, endpoint, make_client):
    endpoint.script(SILENCE)
    with pytest.raises(EndpointUnavailable, match=r"did not answer within 0\.1 s") as caught:
        await ask(make_client(dialect.client_type, timeout=0.1))
    assert "2 attempts" in str(caught.value)  # a slow machine reads the requests later, or never


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
