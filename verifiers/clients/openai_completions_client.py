"""The OpenAI text completions API (`POST /completions`): a prompt as text, a completion as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from verifiers.clients.http_client import HttpClient
from verifiers.clients.payloads import Sampling
from verifiers.configs import ClientConfig
from verifiers.dialects.chat_completions import (
    FINISH_REASONS,
    only_choice,
    parse_tokens,
    parse_usage,
)
from verifiers.errors import BadRequestError, EmptyModelResponseError
from verifiers.types import Response, ResponseMessage


class OpenAICompletionsClient(HttpClient):
    """Text completions. Messages are joined by a blank line, because base models have no roles."""

    path: ClassVar[str] = "completions"
    native_type: ClassVar[tuple[str, str]] = ("openai.types", "Completion")

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncOpenAI` for the configuration."""
        from verifiers.clients.connect import setup_openai_client

        return setup_openai_client(config)

    def native_prompt(self, messages: Any) -> tuple[str, dict[str, Any]]:
        """Return the texts of the messages. Raise BadRequestError for anything but text."""
        if isinstance(messages, str):
            return messages, {}
        return "\n\n".join(_text(message) for message in messages), {}

    def native_tool(self, tool: Any) -> Any:
        """Raise BadRequestError: text completions do not support tools."""
        raise BadRequestError(
            "The text completions API does not support tools. Use client_type='openai_chat_completions'."
        )

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: Sampling,
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request."""
        return {"model": model, "prompt": prompt, **extra, **sampling.body}

    def check_payload(self, payload: Any) -> None:
        """Raise for any number of choices but one, and for a choice without text."""
        choice = only_choice(payload)
        if not choice.get("text"):
            raise EmptyModelResponseError(
                f"The model returned no text (finish_reason {choice.get('finish_reason')!r})."
            )

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format."""
        choice = only_choice(payload)
        finish_reason = choice.get("finish_reason")
        said: dict[str, Any] = {
            "role": "assistant",
            "content": choice.get("text"),
            "finish_reason": finish_reason if finish_reason in FINISH_REASONS else None,
            "is_truncated": finish_reason == "length",
        }
        tokens = parse_tokens(payload, choice)
        if tokens is not None:
            said["tokens"] = tokens
        return Response.of(
            {
                "id": payload.get("id") or "",
                "created": payload.get("created") or 0,
                "model": payload.get("model") or "",
                "usage": parse_usage(payload.get("usage")),
                "message": ResponseMessage.of(said),
            }
        )

    def sdk_method(self, client: Any) -> Any:
        """`client.completions.create`."""
        return client.completions.create


def _text(message: Any) -> str:
    content = message["content"] if isinstance(message, Mapping) else message.content
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise BadRequestError(
                f"The text completions API accepts text only, and the prompt holds a part of type {kind!r}. "
                f"Use client_type='openai_chat_completions'."
            )
        texts.append(part["text"])
    return "".join(texts)
