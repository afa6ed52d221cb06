"""Fixtures for tests of the clients: scripted endpoints on loopback, and clients that never really wait."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(
    0, str(Path(__file__).parent)
)  # `loopback`, `dialects`: shared with the conformance suite

from loopback import loopback_endpoint

from verifiers.clients.connect import client_class, forget_clients
from verifiers.configs import ClientConfig

KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY", KEY)
    forget_clients()


@pytest.fixture
async def endpoint():
    async with loopback_endpoint() as running:
        yield running


@pytest.fixture
def waits():
    """Seconds that clients made by `make_client` would have waited."""
    return []


@pytest.fixture
async def make_client(endpoint, waits):
    """Builds a client of the scripted endpoint; its waits are recorded instead of waited."""
    made = []

    def make(client_type="openai_chat_completions", **options):
        config = ClientConfig(
            client_type=client_type,
            **{"api_base_url": endpoint.url, "api_key_var": "TEST_KEY", "timeout": 5, **options},
        )
        client = client_class(client_type)(config)
        client._channel._sleep = _recording(waits)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


def _recording(waits):
    async def sleep(wait_s):
        waits.append(wait_s)

    return sleep
