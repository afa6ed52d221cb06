"""Locations of models and their keys: providers, keys, proxies, and one shared client per configuration.

This is the only module of the clients that reads environment variables. Keys are read at the time of a request: a key
that is set after the client was built is used, and a configuration never stores a key.
"""

from __future__ import annotations

import importlib
import ipaddress
import os
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import orjson
from pydantic import ValidationError
from yarl import URL

from verifiers.clients.endpoints import AdaptiveLimit, Channel, EndpointAccess
from verifiers.clients.sdk import endpoint_of, speaks_anthropic
from verifiers.clients.transport import Transport, address
from verifiers.configs import CLIENT_TYPES, ClientConfig, ClientType, EndpointClientConfig
from verifiers.errors import AuthenticationError, ConfigError

if TYPE_CHECKING:
    from verifiers.clients.client import Client
    from verifiers.configs import ClientConfig


class Provider(NamedTuple):
    """A model API with a short name."""

    base_url: str
    key_var: str
    client_type: ClientType = "openai_chat_completions"


PROVIDERS: dict[str, Provider] = {
    "prime": Provider("https://api.pinference.ai/api/v1", "PRIME_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com", "ANTHROPIC_API_KEY", "anthropic_messages"),
    "minimax": Provider("https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "glm": Provider("https://api.z.ai/api/paas/v4", "GLM_API_KEY"),
    "local": Provider("http://localhost:8000/v1", "VLLM_API_KEY"),
    "vllm": Provider("http://localhost:8000/v1", "VLLM_API_KEY"),
}
"""`vf-eval --provider NAME`."""

CLIENT_CLASSES: dict[str, tuple[str, str]] = {
    "openai_chat_completions": ("openai_chat_completions_client", "OpenAIChatCompletionsClient"),
    "openai_completions": ("openai_completions_client", "OpenAICompletionsClient"),
    "openai_responses": ("openai_responses_client", "OpenAIResponsesClient"),
    "anthropic_messages": ("anthropic_messages_client", "AnthropicMessagesClient"),
    "openai_chat_completions_token": (
        "openai_chat_completions_token_client",
        "OpenAIChatCompletionsTokenClient",
    ),
    "nemorl_chat_completions": ("nemorl_chat_completions_client", "NeMoRLChatCompletionsClient"),
}
"""Client type → module and class, for types with a v0 import path or own code.

`client_class` makes the class of every other entry of `DIALECTS`, so a new API is not listed here. A new API needs a
module in `verifiers/dialects/`, an entry in `DIALECTS` there (the interception server then offers the API), and a name
in `ClientType` (`verifiers/run_options.py`, which imports the standard library only).
"""

KEYLESS = "EMPTY"
"""Key for an endpoint on this machine or its network when the key variable is not set; vLLM's convention."""

MOST_REMEMBERED_CLIENTS = 256

_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".svc")


# ---------------------------------------------------------------------------------------------------- keys


def load_prime_config() -> dict[str, Any]:
    """Return the content of `~/.prime/config.json`, written by the `prime` command; {} if it cannot be read."""
    try:
        config = orjson.loads((Path.home() / ".prime" / "config.json").read_bytes())
    except (OSError, RuntimeError, orjson.JSONDecodeError):
        return {}
    return config if isinstance(config, dict) else {}


def api_key_of(config: EndpointClientConfig) -> str:
    """Return the current key for an endpoint from the environment.

    Without a key, private addresses get "EMPTY"; any other address raises AuthenticationError naming the variable.
    """
    key = os.environ.get(config.api_key_var, "")
    if not key and config.api_key_var == "PRIME_API_KEY":
        key = load_prime_config().get("api_key") or ""
    if key:
        return key.strip()
    url = base_url_of(config.api_base_url)
    if is_private(url.host or ""):
        return KEYLESS
    raise AuthenticationError(
        f"{address(url)} needs a key, and the environment variable {config.api_key_var} is not "
        f"set. Set it (`export {config.api_key_var}=…`), or name another variable (api_key_var, `vf-eval -k`)."
    )


def base_url_of(text: str) -> URL:
    """Return the base URL of an endpoint. Raise ConfigError for an invalid URL, `localhost:8000/v1` included."""
    try:
        url = URL(text)
        is_usable = url.scheme in ("http", "https") and bool(url.host)
    except ValueError:  # a port out of range, an open bracket
        is_usable = False
        url = URL()
    if not is_usable:
        shown = text.rpartition("@")[2]  # the part before the host may hold a password
        near = "" if "://" in text or not text else f" Did you mean 'http://{shown}'?"
        raise ConfigError(
            f"{shown!r} is not the URL of an endpoint; write it like http://localhost:8000/v1.{near}"
        )
    if url.user or url.password:
        raise ConfigError(
            f"The URL of {address(url)} holds a user name or password. Remove them: the key comes from the "
            f"variable api_key_var (`vf-eval -k`), other credentials from headers (`--header`)."
        )
    return url


def is_private(host: str) -> bool:
    """Whether a host is this machine or in its private network, by address or by name."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        # Only the local network resolves a name without a dot (`localhost`, a Docker service).
        return bool(host) and (
            "." not in host or host.lower().rstrip(".").endswith(_PRIVATE_SUFFIXES)
        )
    return found.is_private or found.is_loopback


def team_headers(config: EndpointClientConfig) -> dict[str, str]:
    """Return headers that name the team for which a Prime key is used."""
    if config.api_key_var != "PRIME_API_KEY":
        return {}
    team = os.environ.get("PRIME_TEAM_ID") or load_prime_config().get("team_id")
    return {"X-Prime-Team-ID": str(team)} if team else {}


def proxy_of(base_url: str) -> str | None:
    """Return the proxy for a URL from `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`; None for no proxy.

    Raise ConfigError for an unsupported kind of proxy and for an invalid base URL.
    """
    url = base_url_of(base_url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or is_loopback(url.host or "") or urllib.request.proxy_bypass(url.host or ""):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if URL(proxy).scheme not in ("http", "https"):
        raise ConfigError(
            f"The environment selects the proxy {address(URL(proxy))}; only http and https proxies are supported. "
            f"Unset it, or list {url.host} in NO_PROXY."
        )
    return proxy


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# ------------------------------------------------------------------------------------------- configurations


def resolve_client_configs(config: ClientConfig) -> list[ClientConfig]:
    """Return one configuration per endpoint; an endpoint's own values override the shared ones."""
    if not config.endpoint_configs:
        return [config]
    shared = {name: getattr(config, name) for name in ClientConfig.model_fields}
    shared |= {"endpoint_configs": [], "client_idx": 0}
    return [
        config.model_copy(
            update={
                **shared,
                **{name: getattr(endpoint, name) for name in endpoint.model_fields_set},
            }
        )
        for endpoint in config.endpoint_configs
    ]


def resolve_client_config(config: ClientConfig) -> ClientConfig:
    """Return the configuration of the endpoint at index `client_idx`, modulo the number of endpoints."""
    configs = resolve_client_configs(config)
    if len(configs) == 1 and not config.endpoint_configs:
        return config
    return configs[config.client_idx % len(configs)]


def channel_of_config(
    config: ClientConfig,
    *,
    key_header: str = "Authorization",
    headers: Mapping[str, str] | None = None,
) -> Channel:
    """Return the endpoints of a configuration, ready for requests. Does not read keys."""
    shared = transport_of(config)
    endpoints = [
        EndpointAccess(
            one.api_base_url,
            key=_key_reader(one),
            key_var=f"the environment variable {one.api_key_var}",
            key_header=key_header,
            headers={**(headers or {}), **team_headers(one), **one.extra_headers},
            proxy=proxy_of(one.api_base_url),
            adaptive=AdaptiveLimit(most=one.max_connections)
            if config.adaptive_concurrency
            else None,
            transport=None if _limits_of(one) == _limits_of(config) else transport_of(one),
        )
        for one in resolve_client_configs(config)
    ]
    return Channel(endpoints, shared, max_retries=config.max_retries, first=config.client_idx)


def transport_of(config: EndpointClientConfig) -> Transport:
    """Return a transport with the time limits and sizes of a configuration."""
    timeout_s, connect_timeout_s, max_connections, keeps_connections = _limits_of(config)
    return Transport(
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        max_connections=max_connections,
        keeps_connections=keeps_connections,
    )


def _limits_of(config: EndpointClientConfig) -> tuple[float, float, int, bool]:
    keeps_connections = config.max_keepalive_connections > 0
    return config.timeout, config.connect_timeout, config.max_connections, keeps_connections


def _key_reader(config: EndpointClientConfig) -> Callable[[], str]:
    return lambda: api_key_of(config)


def channel_of_sdk_object(
    client: Any, *, headers: Mapping[str, str] | None = None
) -> Channel | None:
    """Return the endpoint of an unmodified SDK object over our transport; None for an object that must be called
    itself.
    """
    found = endpoint_of(client)
    if found is None:
        return None
    endpoint = EndpointAccess(
        found.base_url,
        key=lambda: found.key,
        key_var=f"the {type(client).__name__} object you passed",
        key_header=found.key_header,
        headers={**(headers or {}), **found.headers},
        query=found.query,
        proxy=proxy_of(found.base_url),
        sdk=type(client).__module__.partition(".")[0],
    )
    transport = Transport(timeout_s=found.timeout_s, connect_timeout_s=found.connect_timeout_s)
    return Channel([endpoint], transport, max_retries=found.max_retries)


# ------------------------------------------------------------------------------------------------- clients

AnyClient: TypeAlias = "Client[Any, Any, Any, Any]"

_by_config: OrderedDict[str, AnyClient] = OrderedDict()
_by_object: OrderedDict[tuple[int, str], tuple[Any, AnyClient]] = OrderedDict()


def client_class(client_type: str) -> type[AnyClient]:
    """Return the class that implements an API. Raise ConfigError for an unknown type."""
    if client_type in CLIENT_CLASSES:
        module, name = CLIENT_CLASSES[client_type]
        return getattr(importlib.import_module(f"verifiers.clients.{module}"), name)
    from verifiers.dialects import DIALECTS

    if client_type not in DIALECTS:
        hint = ""
        if (
            client_type in CLIENT_TYPES
        ):  # v0's renderer made token ids in this process, with a separate package
            hint = " Use 'openai_chat_completions_token' instead: the server returns the token ids."
        raise ConfigError(
            f"{client_type!r} is not a client type.{hint} Client types: {', '.join(CLIENT_CLASSES | DIALECTS)}."
        )
    # By name, because `http_client` imports this module.
    http_client = importlib.import_module("verifiers.clients.http_client")
    return http_client.plain_client_class(DIALECTS[client_type])


def resolve_client(client_or_config: Any, *, client_type: ClientType | None = None) -> AnyClient:
    """Return the client for a `Client`, a `ClientConfig`, a dict of one, or an SDK-like object.

    Equal configurations share one client and therefore one connection pool. `client_type` names the API of a bare SDK
    object; the default is chat completions, or messages for an Anthropic object. Raise ConfigError for other values.
    """
    from verifiers.clients.client import Client

    if isinstance(client_or_config, Client):
        return client_or_config
    if isinstance(client_or_config, Mapping):
        try:
            client_or_config = ClientConfig(**client_or_config)
        except ValidationError as error:
            raise ConfigError(f"The client's configuration is not valid: {error}") from error
    if isinstance(client_or_config, ClientConfig):
        return _client_of_config(client_or_config)
    if client_or_config is None or isinstance(client_or_config, str | bytes | int | float | type):
        raise _unsupported(client_or_config)
    if not any(
        hasattr(client_or_config, name) for name in ("chat", "completions", "messages", "responses")
    ):
        raise _unsupported(client_or_config)
    return _client_of_object(client_or_config, client_type)


def _unsupported(value: Any) -> ConfigError:
    return ConfigError(
        f"Unsupported client type: {type(value).__name__} ({value!r:.100}). Pass a vf.ClientConfig, an AsyncOpenAI, or "
        f"a vf.Client."
    )


def _client_of_config(config: ClientConfig) -> AnyClient:
    key = config.model_dump_json()
    client = _by_config.get(key)
    if client is None:
        client = _by_config[key] = client_class(config.client_type)(config.model_copy(deep=True))
        if len(_by_config) > MOST_REMEMBERED_CLIENTS:
            _by_config.popitem(last=False)
    return client


def _client_of_object(client: Any, client_type: ClientType | None) -> AnyClient:
    chosen = client_type or (
        "anthropic_messages" if speaks_anthropic(client) else "openai_chat_completions"
    )
    key = (id(client), chosen)
    known = _by_object.get(key)
    if known is None or known[0] is not client:
        # The object is kept alive beside its client, so that its id cannot be reused.
        known = _by_object[key] = (client, client_class(chosen)(client))
        if len(_by_object) > MOST_REMEMBERED_CLIENTS:
            _by_object.popitem(last=False)
    return known[1]


async def close_all_clients() -> None:
    """Close the connections of all shared clients in the running event loop. The clients work on in later loops.

    Not needed for correctness: connections close with their event loop. This closes them earlier.
    """
    for client in [*_by_config.values(), *(client for _, client in _by_object.values())]:
        if (aclose := getattr(client, "aclose", None)) is not None:  # clients over our transport
            await aclose()


def forget_clients() -> None:
    """Drop the shared clients, so that the next `resolve_client` creates new ones, for example after a change of
    proxies.
    """
    _by_config.clear()
    _by_object.clear()


def setup_http_client(config: ClientConfig) -> Any:
    """Return an `httpx.AsyncClient` with the configuration's limits, time limits and headers."""
    import httpx

    config = resolve_client_config(config)
    return httpx.AsyncClient(
        timeout=httpx.Timeout(config.timeout, connect=config.connect_timeout),
        limits=httpx.Limits(
            max_connections=config.max_connections,
            max_keepalive_connections=config.max_keepalive_connections,
        ),
        headers={**team_headers(config), **config.extra_headers},
    )


def setup_openai_client(config: ClientConfig) -> Any:
    """Return an `AsyncOpenAI` for the configuration. Raise AuthenticationError when its key is missing."""
    import openai

    return openai.AsyncOpenAI(**_options(config, openai.Timeout))


def setup_anthropic_client(config: ClientConfig) -> Any:
    """Return an `AsyncAnthropic` for the configuration. Needs the extra `anthropic`."""
    try:
        import anthropic
    except ImportError as error:
        raise ImportError(
            "The Anthropic SDK is not installed: `pip install 'anthropic>=0.40'`. "
            "The anthropic_messages client works without the SDK."
        ) from error
    options = _options(config, anthropic.Timeout)
    options["base_url"] = options["base_url"].rstrip("/").removesuffix("/v1")
    return anthropic.AsyncAnthropic(**options)


def _options(config: ClientConfig, timeout_type: Any) -> dict[str, Any]:
    config = resolve_client_config(config)
    return {
        "base_url": config.api_base_url,
        "api_key": api_key_of(config),
        "max_retries": config.max_retries,
        "timeout": timeout_type(config.timeout, connect=config.connect_timeout),
        "default_headers": {**team_headers(config), **config.extra_headers},
    }
