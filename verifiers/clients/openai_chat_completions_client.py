"""The OpenAI chat completions API (`POST /chat/completions`), which nearly every endpoint supports."""

from __future__ import annotations

from typing import Any, ClassVar

from verifiers.clients.http_client import HttpClient
from verifiers.clients.payloads import Sampling
from verifiers.configs import ClientConfig
from verifiers.dialects import chat_completions
from verifiers.dialects.chat_completions import content_to_text as content_to_text
from verifiers.types import Response

DEFAULT_REASONING_FIELDS = list(chat_completions.REASONING_FIELDS)


class OpenAIChatCompletionsClient(HttpClient):
    """Chat completions: tool calls, reasoning, token ids and log-probabilities where the endpoint sends them."""

    path: ClassVar[str] = "chat/completions"
    length_key: ClassVar[str] = "max_completion_tokens"
    native_type: ClassVar[tuple[str, str]] = ("openai.types.chat", "ChatCompletion")

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncOpenAI` for the configuration."""
        from verifiers.clients.connect import setup_openai_client

        return setup_openai_client(config)

    def native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return messages in the API's format; with audio in them, `modalities` requests a text response."""
        native = chat_completions.native_messages(messages)
        return native, {"modalities": ["text"]} if chat_completions.has_audio(native) else {}

    def native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a function definition."""
        return chat_completions.native_tool(tool)

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: Sampling,
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request."""
        body = {"model": model, "messages": prompt, **extra}
        if tools:
            body["tools"] = tools
        body.update(sampling.body)
        return body

    def check_payload(self, payload: Any) -> None:
        """Raise for any number of choices but one, and for an empty choice."""
        chat_completions.check_payload(payload)

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format."""
        return chat_completions.response_of(payload)

    def sdk_method(self, client: Any) -> Any:
        """`client.chat.completions.create`."""
        return client.chat.completions.create


def parse_reasoning_content(message: Any) -> str | None:
    """Return the reasoning in a chat message from any of the field names in use."""
    from verifiers.clients.payloads import payload_of

    return chat_completions.parse_reasoning(payload_of(message))


def get_usage_field(usage: Any, key: str) -> Any:
    """Return a field of a usage object or dict."""
    return usage.get(key) if isinstance(usage, dict) else getattr(usage, key, None)
