"""Model clients: how environments and judges call a model. Read `client` first, then `http_client`.

client               the `Client` protocol and its hooks
http_client          a `Client` over the library's transport; the API is a `Dialect` of `verifiers.dialects`
*_client             one class per API
payloads             pure: request bodies, responses of any client, sampling arguments
connect              providers, keys, proxies, `resolve_client`; a new API is registered in `CLIENT_CLASSES`
endpoints            endpoints of one model: round robin, retries, adaptive concurrency
failures             pure: the error for each refusal
transport            HTTP on aiohttp
sdk                  objects and errors of the OpenAI and Anthropic SDKs
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifiers.clients.anthropic_messages_client import AnthropicMessagesClient
    from verifiers.clients.client import Client
    from verifiers.clients.connect import close_all_clients, resolve_client
    from verifiers.clients.nemorl_chat_completions_client import NeMoRLChatCompletionsClient
    from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient
    from verifiers.clients.openai_chat_completions_token_client import (
        OpenAIChatCompletionsTokenClient,
    )
    from verifiers.clients.openai_completions_client import OpenAICompletionsClient
    from verifiers.clients.openai_responses_client import OpenAIResponsesClient
    from verifiers.configs import ClientConfig

_NAMES = {
    "AnthropicMessagesClient": "verifiers.clients.anthropic_messages_client",
    "Client": "verifiers.clients.client",
    "ClientConfig": "verifiers.configs",
    "NeMoRLChatCompletionsClient": "verifiers.clients.nemorl_chat_completions_client",
    "OpenAIChatCompletionsClient": "verifiers.clients.openai_chat_completions_client",
    "OpenAIChatCompletionsTokenClient": "verifiers.clients.openai_chat_completions_token_client",
    "OpenAICompletionsClient": "verifiers.clients.openai_completions_client",
    "OpenAIResponsesClient": "verifiers.clients.openai_responses_client",
    "close_all_clients": "verifiers.clients.connect",
    "resolve_client": "verifiers.clients.connect",
}

__all__ = [
    "AnthropicMessagesClient",
    "Client",
    "ClientConfig",
    "NeMoRLChatCompletionsClient",
    "OpenAIChatCompletionsClient",
    "OpenAIChatCompletionsTokenClient",
    "OpenAICompletionsClient",
    "OpenAIResponsesClient",
    "close_all_clients",
    "resolve_client",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'verifiers.clients' has no attribute {name!r}")
