"""Recognition of refusals, with texts that endpoints really sent (public issue threads and API documentation)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.clients.endpoints import is_retryable
from verifiers.clients.failures import (
    SHOWN_CHARACTERS,
    error_of,
    is_overlong,
    refusal_of,
    shown,
)
from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    EndpointUnavailable,
    Error,
    OverlongPromptError,
    RateLimitError,
)


def openai_error(message, code=None, type="invalid_request_error"):
    return {"error": {"message": message, "type": type, "param": "messages", "code": code}}


def vllm_error(message):
    return {
        "object": "error",
        "message": message,
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }


OVERLONG = {
    "openai": openai_error(
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 202868 tokens "
        "(202767 in the messages, 101 in the functions). Please reduce the length of the messages or functions.",
        "context_length_exceeded",
    ),
    "openai with a completion": openai_error(
        "This model's maximum context length is 4096 tokens. However, you requested 4118 tokens (3118 in the "
        "messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    ),
    "openai responses": openai_error(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "context_length_exceeded",
    ),
    "a bare code": openai_error("prompt_too_long"),
    "a code in its field": openai_error("Refused.", "prompt_too_long"),
    "context length exceeded": openai_error("Error: context length exceeded"),
    "anthropic text bytes": openai_error("messages: too many total text bytes: 9000001 > 9000000"),
    "bedrock, newer": openai_error("Your input is too long. Please reduce its size and try again."),
    "exceeded model": openai_error("Prompt tokens exceeded model limit"),
    "exceeds the configured limit": openai_error("Request exceeds the configured limit of 32768"),
    "exceeds context limit": openai_error("input exceeds context limit of 200000"),
    "openai configured limit": openai_error(
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 272044 tokens."
    ),
    "deepseek": openai_error(
        "This model's maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the "
        "messages, 8192 in the completion). Please reduce the length of the messages or completion.",
        "invalid_request_error",
    ),
    "vllm": vllm_error(
        "This model's maximum context length is 8192 tokens. However, you requested 8203 tokens (7691 in the "
        "messages, 512 in the completion). Please reduce the length of the messages or completion."
    ),
    "vllm input tokens": {
        "error": {
            "message": "This model's maximum context length is 100 tokens. However, your request has 200 input tokens. "
            "Please reduce the length of the input messages.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    },
    "vllm max_tokens over the rest": vllm_error(
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 8192 "
        "tokens and your request has 7710 input tokens (512 > 8192 - 7710)."
    ),
    "vllm decoder": vllm_error(
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
        "`max_model_len` is no smaller than the number of text tokens."
    ),
    "vllm of old": vllm_error("max_tokens must be at least 1, got -186."),
    "sglang": {
        "object": "error",
        "message": "The input (123 tokens) is longer than the model's context length (100 tokens).",
        "type": "BadRequestError",
        "code": 400,
    },
    "sglang total": openai_error(
        "Requested token count exceeds the model's maximum context length of 202752 tokens. You requested a total of "
        "202941 tokens: 170941 tokens from the input messages and 32000 tokens for the completion. Please reduce the "
        "number of tokens in the input messages or the completion to fit within the limit."
    ),
    "anthropic": {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "prompt is too long: 208310 tokens > 200000 maximum",
        },
        "request_id": "req_1",
    },
    "anthropic with max_tokens": {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease input "
            "length or `max_tokens` and try again",
        },
    },
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size. try increasing the context size or enable "
            "context shift",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 14429,
            "n_ctx": 8192,
        }
    },
    "llama-cpp-python": openai_error("Requested tokens (2285) exceed context window of 2048"),
    "gemini": [
        {
            "error": {
                "code": 400,
                "message": "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
                "status": "INVALID_ARGUMENT",
            }
        }
    ],
    "xai": {
        "code": "Client specified an invalid argument",
        "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    },
    "mistral": {
        "object": "error",
        "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum "
        "context length",
        "type": "invalid_request_prompt",
        "code": "3051",
    },
    "perplexity": openai_error("The total length of all messages is too long."),
    "cohere": {
        "message": "too many tokens: size limit exceeded by 19296 tokens. Try using shorter or fewer inputs. The "
        "limit for this model is 132000 tokens."
    },
    "groq": openai_error(
        "Please reduce the length of the messages or completion.", "context_length_exceeded"
    ),
    "bedrock": {"message": "Input is too long for requested model."},
}

NOT_OVERLONG = {
    "a limit that leaves no room at all": vllm_error(
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 8192 "
        "tokens and your request has 1210 input tokens (8192 > 8192 - 1210)."
    ),
    "the same in openai's words": openai_error(
        "This model's maximum context length is 4096 tokens. However, you requested 4217 tokens (121 in the messages, "
        "4096 in the completion). Please reduce the length of the messages or completion.",
        "context_length_exceeded",
    ),
    "another mistake": openai_error(
        "Unsupported value: 'temperature' does not support 0.3 with this model."
    ),
    "a missing model": openai_error(
        "The model `gpt-9` does not exist or you do not have access to it."
    ),
}


@pytest.mark.parametrize("payload", OVERLONG.values(), ids=OVERLONG)
def test_overlong_prompts_are_recognised_in_every_wording(payload):
    refusal = refusal_of(400, json.dumps(payload).encode())
    assert is_overlong(refusal)
    error = error_of(refusal, url="http://x/v1", key_var="K")
    assert isinstance(error, OverlongPromptError)
    assert not is_retryable(refusal._replace(status=500))


@pytest.mark.parametrize("payload", NOT_OVERLONG.values(), ids=NOT_OVERLONG)
def test_other_mistakes_are_not_taken_for_long_prompts(payload):
    refusal = refusal_of(400, json.dumps(payload).encode())
    assert not is_overlong(refusal)
    assert isinstance(error_of(refusal, url="http://x/v1", key_var="K"), BadRequestError)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_only_statuses_that_judge_the_request_can_mean_a_long_prompt(status):
    body = json.dumps(openai_error("This model's maximum context length is 5 tokens")).encode()
    assert not is_overlong(refusal_of(status, body))


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, BadRequestError, False),
        (401, AuthenticationError, False),
        (402, BadRequestError, False),
        (403, AuthenticationError, False),
        (404, BadRequestError, False),
        (408, EndpointUnavailable, True),
        (409, BadRequestError, True),
        (422, BadRequestError, False),
        (425, BadRequestError, True),
        (429, RateLimitError, True),
        (500, EndpointUnavailable, True),
        (503, EndpointUnavailable, True),
        (529, RateLimitError, True),
    ],
)
def test_what_each_status_means(status, kind, retryable):
    refusal = refusal_of(status, b'{"error": {"message": "why not"}}')
    assert is_retryable(refusal) is retryable
    error = error_of(refusal, url="http://x/v1", key_var="K")
    assert type(error) is kind or issubclass(type(error), kind)
    assert "why not" in str(error)
    assert "http://x/v1" in str(error)


@pytest.mark.parametrize(
    "payload",
    [
        openai_error(
            "You exceeded your current quota, please check your plan and billing details.",
            "insufficient_quota",
            "insufficient_quota",
        ),
        openai_error(
            "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 31000.",
            "rate_limit_exceeded",
            "tokens",
        ),
        openai_error("Your credit balance is too low to access the API."),
    ],
)
def test_a_429_that_waiting_does_not_cure_is_not_retried(payload):
    assert not is_retryable(refusal_of(429, json.dumps(payload).encode()))


@given(st.integers(300, 599), st.binary(max_size=3000))
def test_any_answer_gives_an_error_with_a_short_message(status, body):
    error = error_of(refusal_of(status, body), url="http://x/v1", key_var="K")
    assert isinstance(error, Error)
    assert len(str(error)) < SHOWN_CHARACTERS + 200


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["error", "message", "code", "type", "detail"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_gives_an_error(payload):
    error = error_of(refusal_of(418, json.dumps(payload).encode()), url="u", key_var="K")
    assert isinstance(error, BadRequestError)


def test_shown_text_is_one_short_line():
    assert shown("a\n  b\tc") == "a b c"
    assert shown("x" * 500) == "x" * SHOWN_CHARACTERS + "…"
