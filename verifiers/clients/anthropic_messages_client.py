"""v0 import path of the client for the Anthropic messages API; see `verifiers.dialects.anthropic_messages`."""

from __future__ import annotations

from typing import Any

from verifiers.clients.connect import setup_anthropic_client
from verifiers.clients.http_client import HttpClient
from verifiers.configs import ClientConfig
from verifiers.dialects.anthropic_messages import AnthropicMessages


class AnthropicMessagesClient(HttpClient):
    """Messages API: thinking blocks are returned with their signatures; tool use; images.

    A response without any content is not an error here: these models end a turn that way when a tool's result needs
    no comment.
    """

    dialect = AnthropicMessages()

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncAnthropic` for the configuration. Needs the extra `anthropic`; requests do not."""
        return setup_anthropic_client(config)
