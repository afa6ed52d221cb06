"""v0 import path of the client for the OpenAI chat completions API; see `verifiers.dialects.chat_completions`."""

from __future__ import annotations

from typing import Any

from verifiers.clients.http_client import HttpClient
from verifiers.clients.payloads import payload_of
from verifiers.dialects.chat_completions import (
    REASONING_FIELDS,
    ChatCompletions,
    parse_reasoning,
)
from verifiers.dialects.dialect import content_to_text as content_to_text

DEFAULT_REASONING_FIELDS = list(REASONING_FIELDS)


class OpenAIChatCompletionsClient(HttpClient):
    """Chat completions: tool calls, reasoning, token ids and log-probabilities where the endpoint sends them."""

    dialect = ChatCompletions()


def parse_reasoning_content(message: Any) -> str | None:
    """Return the reasoning in a chat message from any of the field names in use."""
    return parse_reasoning(payload_of(message))


def get_usage_field(usage: Any, key: str) -> Any:
    """Return a field of a usage object or dict."""
    return usage.get(key) if isinstance(usage, dict) else getattr(usage, key, None)
