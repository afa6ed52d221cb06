"""SDK objects for a configuration, under v0's names: for code that wants to call the SDK itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verifiers.clients.connect import api_key_of, resolve_client_config, team_headers

if TYPE_CHECKING:
    from verifiers.configs import ClientConfig


def setup_http_client(config: ClientConfig) -> Any:
    """An `httpx.AsyncClient` with the configuration's limits, time limits and headers."""
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
    """An `AsyncOpenAI` for the configuration; raises AuthenticationError when its key is missing."""
    import openai

    return openai.AsyncOpenAI(**_options(config, openai.Timeout))


def setup_anthropic_client(config: ClientConfig) -> Any:
    """An `AsyncAnthropic` for the configuration; needs the `anthropic` extra."""
    try:
        import anthropic
    except ImportError as error:
        raise ImportError(
            "The Anthropic SDK is not installed: `pip install 'verifiers[anthropic]'`. "
            "The anthropic_messages client itself does not need it."
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
