"""The OpenAI text completions API (`POST /completions`): a prompt as text, a completion as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.dialects.chat_completions import (
    FINISH_REASONS,
    only_choice,
    parse_tokens,
    parse_usage,
)
from verifiers.dialects.dialect import (
    DONE,
    Dialect,
    UnusableRequest,
    completion_body,
    event,
    response_from,
)
from verifiers.errors import BadRequestError, EmptyModelResponseError
from verifiers.messages import content_text
from verifiers.types import Response


class Completions(Dialect):
    """Text completions. Messages are joined by a blank line, because base models have no roles."""

    name = "openai_completions"
    path = "completions"
    prompt_key = "prompt"
    has_tools = False
    sdk_method = "completions.create"
    sdk_type = ("openai.types", "Completion")

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
        reason = choice.get("finish_reason")
        message: dict[str, Any] = {
            "role": "assistant",
            "content": choice.get("text"),
            "finish_reason": reason if reason in FINISH_REASONS else None,
            "is_truncated": reason == "length",
        }
        tokens = parse_tokens(payload, choice)
        if tokens is not None:
            message["tokens"] = tokens
        usage = parse_usage(payload.get("usage"))
        return response_from(payload, message, usage, payload.get("created") or 0)

    def chat_messages(self, body: Mapping[str, Any]) -> str:
        """Return the prompt, which must be one text."""
        prompt = body["prompt"]
        if not isinstance(prompt, str):
            raise UnusableRequest(f"prompt must be one text, not {type(prompt).__name__}.")
        return prompt

    def response_body(self, response: Response) -> dict[str, Any]:
        """Return the body of `/v1/completions`."""
        text = content_text(response.message.content)
        return completion_body(
            response, "text_completion", {"text": text, "index": 0, "logprobs": None}
        )

    def events(self, response: Response, wants_usage: bool = False) -> list[bytes]:
        """Return the whole body as one event, then the end."""
        return [event(self.response_body(response)), DONE]


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
