"""Model clients: how environments and judges call a model. Read `client` first, then `http_client`.

client               the `Client` protocol and its hooks
http_client          a `Client` over the library's transport; the API is a `Dialect` of `verifiers.dialects`
*_client             one class per API
payloads             pure: request bodies, responses of any client, sampling arguments
connect              providers, keys, proxies, `resolve_client`; the class of each client type
endpoints            endpoints of one model: round robin, retries, adaptive concurrency
failures             pure: the error for each refusal
transport            HTTP on aiohttp
sdk                  objects and errors of the OpenAI and Anthropic SDKs
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.clients.anthropic_messages_client import (
        AnthropicMessagesClient as AnthropicMessagesClient,
    )
    from verifiers.clients.client import Client as Client
    from verifiers.clients.connect import close_all_clients as close_all_clients
    from verifiers.clients.connect import resolve_client as resolve_client
    from verifiers.clients.nemorl_chat_completions_client import (
        NeMoRLChatCompletionsClient as NeMoRLChatCompletionsClient,
    )
    from verifiers.clients.openai_chat_completions_client import (
        OpenAIChatCompletionsClient as OpenAIChatCompletionsClient,
    )
    from verifiers.clients.openai_chat_completions_token_client import (
        OpenAIChatCompletionsTokenClient as OpenAIChatCompletionsTokenClient,
    )
    from verifiers.clients.openai_completions_client import (
        OpenAICompletionsClient as OpenAICompletionsClient,
    )
    from verifiers.clients.openai_responses_client import (
        OpenAIResponsesClient as OpenAIResponsesClient,
    )
    from verifiers.configs import ClientConfig as ClientConfig

__all__, __getattr__, __dir__ = lazy_names(__name__)
