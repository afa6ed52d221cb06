"""What every client makes of an endpoint's refusal."""

from __future__ import annotations

from email.utils import formatdate
from time import time

import pytest
from client_suite import KEY, ask
from loopback import Answer

from verifiers.clients.connect import client_class
from verifiers.configs import ClientConfig
from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    EndpointUnavailable,
    OverlongPromptError,
    RateLimitError,
)


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
