"""Where keys, base URLs and proxies come from."""

from __future__ import annotations

import json

import pytest
from dialects import CHAT_FORMS
from loopback import Answer

from verifiers.clients import Client, resolve_client
from verifiers.clients.connect import (
    KEYLESS,
    PROVIDERS,
    api_key_of,
    is_private,
    load_prime_config,
    proxy_of,
)
from verifiers.configs import ClientConfig
from verifiers.errors import AuthenticationError, ConfigError
from verifiers.types import UserMessage

PROMPT = [UserMessage(content="2+2?")]
ANSWER = Answer(body=CHAT_FORMS["text"])


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
