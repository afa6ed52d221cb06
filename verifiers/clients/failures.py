"""Map an endpoint's refusal to an error: a pure table from status and text to the errors of `verifiers.errors`.

Endpoints agree on status codes but not on wording, and "the prompt does not fit the context" is a plain 400 almost
everywhere. Only the text identifies it, hence the phrases. The tests hold a real message for each phrase.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    EndpointUnavailable,
    Error,
    ModelError,
    OverlongPromptError,
    RateLimitError,
)

OVERLONG_CODES = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Azure, OpenRouter, Groq
        "exceed_context_size_error",  # llama.cpp
        "request_too_large",  # Anthropic, 413
        "string_above_max_length",  # OpenAI, one message above the character limit
        "context_window_exceeded",
        "prompt_too_long",
    }
)

OVERLONG_PHRASES: tuple[str, ...] = (
    "context length",  # OpenAI, vLLM, SGLang, OpenRouter, DeepSeek, Mistral, Ollama and many others
    "context_length_exceeded",
    "exceeds the context window",  # OpenAI responses
    "exceed the configured limit",  # OpenAI
    "exceeds the configured limit",
    "exceeded model",
    "prompt_too_long",
    "maximum model length",  # vLLM
    "exceeds the maximum allowed length",  # SGLang
    "exceeds the model's maximum context",
    "prompt is too long",  # Anthropic
    "exceed context limit",  # Anthropic, input plus max_tokens
    "exceeds context limit",
    "too many total text bytes",  # Anthropic
    "input is too long",  # Anthropic on Bedrock
    "exceeds the available context size",  # llama.cpp
    "exceeds the maximum number of tokens allowed",  # Gemini
    "maximum prompt length is",  # xAI
    "prompt length exceeds",
    "`inputs` tokens + `max_new_tokens` must be",  # TGI, Together
    "`inputs` must have less than",  # TGI
    "reduce the length of the messages",  # OpenAI, Groq
    "reduce the length of the input",  # vLLM
    "context window exceeds limit",  # MiniMax
    "exceed context window of",  # llama-cpp-python
    "exceeds the context window size",  # GPT4All
    "total length of all messages is too long",  # Perplexity
    "too many tokens:",  # Cohere
    "is too long and exceeds limit of",  # vLLM, older
    "max_tokens must be at least 1, got -",  # vLLM, older: context minus prompt
    "too large for model with",  # Mistral
    "context the overflows",  # LM Studio
    "should not exceed max_num_tokens",  # TensorRT-LLM
)

_OVERLONG_STATUSES = frozenset({400, 413, 422, 500})
"""llama.cpp and some proxies answer 500 for a prompt that is too long."""

_COMPLETION_AND_CONTEXT = (
    # vLLM: 'max_tokens' … is too large: 8192. This model's maximum context length is 8192 tokens
    re.compile(r"is too large: (?P<completion>\d+)\D.{0,60}context length is (?P<context>\d+)"),
    # OpenAI, vLLM, SGLang: … 4096 tokens. … 4217 tokens (121 in the messages, 4096 in the completion)
    re.compile(
        r"maximum context length (?:is|of) (?P<context>\d+) tokens.{0,200}?"
        r"(?P<completion>\d+)(?: tokens)? (?:in|for) the completion"
    ),
    # Anthropic: exceed context limit: 178959 + 64000 > 200000
    re.compile(r"context limit: \d+ \+ (?P<completion>\d+) > (?P<context>\d+)"),
)
"""The requested length of the completion, and the context length."""

SHOWN_CHARACTERS = 200

_VERSION = re.compile(r"/v\d")
"""The version in the path of most APIs: `/v1`, `/v1beta`, `/api/v1`."""


class NoSuchRoute(BadRequestError):
    """The endpoint has no such path, or no such model (404, 405)."""


class Refusal(NamedTuple):
    """Content of a response that is not a 2xx."""

    status: int
    text: str
    """The endpoint's message."""
    code: str
    """The endpoint's error code, or ''."""


def refusal_of(status: int, body: bytes) -> Refusal:
    """Read the error from the formats in use: `{"error": {"message", "code", "type"}}`, `{"message"}`, `{"detail"}`,
    or plain text.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError:
        return Refusal(status, body[: 4 * SHOWN_CHARACTERS].decode("utf-8", "replace"), "")
    return refusal_of_payload(status, payload)


def refusal_of_payload(status: int, payload: Any) -> Refusal:
    """Read the error from JSON that is already decoded."""
    if isinstance(payload, list) and payload:  # Gemini wraps its error in a list
        payload = payload[0]
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    if not isinstance(error, dict):
        return Refusal(status, str(error), "")
    message = error.get("message") or error.get("detail") or error.get("msg") or error
    code = error.get("code") or error.get("type") or ""
    if not isinstance(code, str):
        code = str(error.get("type") or "")
    return Refusal(status, message if isinstance(message, str) else str(message), code)


def is_overlong(refusal: Refusal) -> bool:
    """Whether the endpoint reports that the prompt does not fit the model's context.

    False for a `max_tokens` that alone exceeds the context: no prompt would fit. That is a mistake of the caller and
    must not look like a long conversation.
    """
    if refusal.status not in _OVERLONG_STATUSES:
        return False
    text = refusal.text.lower()
    if refusal.code not in OVERLONG_CODES and not any(p in text for p in OVERLONG_PHRASES):
        return False
    for pattern in _COMPLETION_AND_CONTEXT:
        if found := pattern.search(text):
            return int(found["completion"]) < int(found["context"])
    return True


def error_of(refusal: Refusal, *, url: str, key_var: str, attempts: int = 1) -> Error:
    """Return the error for a refusal after the last attempt; `url` must not contain a secret."""
    message = shown(refusal.text).removesuffix(".")
    tries = f" after {attempts} attempts" if attempts > 1 else ""
    if is_overlong(refusal):
        return OverlongPromptError(f"{url} reports that the prompt is too long: {message}")
    match refusal.status:
        case 401 | 403:
            return AuthenticationError(
                f"{url} refused the credentials ({refusal.status}): {message}. "
                f"They come from {key_var}: check its value, and that it belongs to this URL."
            )
        case 404 | 405:
            hint = "" if _VERSION.search(url) else " Most base URLs end in /v1; this one does not."
            return NoSuchRoute(
                f"{url} answered {refusal.status}: {message}. Check the base URL and the model name.{hint}"
            )
        case 429 | 529:
            return RateLimitError(f"{url} limits the rate ({refusal.status}){tries}: {message}")
        case status if status >= 500 or status == 408:
            return EndpointUnavailable(f"{url} answered {status}{tries}: {message}")
        case status if status < 400:
            return ModelError(f"{url} answered {status}, which is not a model response: {message}")
        case status:
            return BadRequestError(f"{url} refused the request ({status}): {message}")


def shown(text: str) -> str:
    """Return the first characters of a text on one line, for a message."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
