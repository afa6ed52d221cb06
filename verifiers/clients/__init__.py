"""Model clients: how environments and judges talk to a model.

client               the `Client` protocol and its hooks
http_client          a Client over our transport; the classes below describe one API each
chat_completions     pure: messages and tools → JSON → Response
response_tokens      pure: token ids and log-probabilities of an answer
sampling             pure: sampling arguments → request
connect              providers, keys, proxies, `resolve_client`
endpoints            endpoints, round robin, retries
retries · adaptive   pure: when to try again, how many at once
failures             pure: what a refusal means
transport            HTTP on aiohttp
sdk_*                objects and errors of the OpenAI and Anthropic SDKs
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
