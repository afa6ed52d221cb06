"""Functions of `verifiers.utils` that no code of this library calls."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from verifiers.clients.payloads import payload_of
from verifiers.dialects.chat_completions import only_choice, response_of
from verifiers.envs.multiturn_env import completion_messages, step_tokens
from verifiers.errors import RETRYABLE
from verifiers.interception.answers import empty_response, serialize_intercept_response
from verifiers.rollouts.retries import is_retryable, with_retries
from verifiers.runs.v0 import results_text
from verifiers.tasks import RowFormat, TaskSource
from verifiers.tokens import StepTokens
from verifiers.types import GenerateOutputs, Messages, Response


async def parse_response_message(response: Response) -> Messages:
    """Return the response as one message."""
    return completion_messages(response)


async def parse_response_messages(response: Any, message_type: str = "chat") -> Any:
    """Return a `Response` or an OpenAI response object as messages, or as text for completions."""
    if message_type == "completion":
        return _as_response(response).message.content or ""
    return completion_messages(_as_response(response))


async def parse_response_tokens(
    response: Any, message_type: str | int | None = "chat", max_seq_len: int | None = None
) -> StepTokens | None:
    """Return the token ids of a response, cut to `max_seq_len`; None if the endpoint returned none.

    Generation (b) calls it as `(response, max_seq_len)`, generation (a) as `(response, message_type, max_seq_len)`.
    """
    if not isinstance(message_type, str):
        max_seq_len = message_type if max_seq_len is None else max_seq_len
    return step_tokens(_as_response(response), max_seq_len)


def _as_response(response: Any) -> Response:
    if isinstance(response, Response):
        return response
    payload = payload_of(response)
    choice = only_choice(payload)
    if "message" in choice or "text" not in choice:
        return response_of(payload)
    # a text completion: move its text to the field that chat uses
    chat = {**choice, "message": {"role": "assistant", "content": choice["text"]}}
    return response_of({**payload, "choices": [chat]})


def maybe_retry(
    func: Callable[..., Awaitable[Any]],
    max_retries: int = 0,
    initial: float = 1.0,
    max_wait: float = 60.0,
    error_types: tuple[type[Exception], ...] = RETRYABLE,
) -> Callable[..., Awaitable[Any]]:
    """Return v0's wrapper: it repeats `func` if it raises one of `error_types` or returns states with one."""

    def error_of(value: Any) -> object:
        states = value if isinstance(value, list) else [value]
        found = [state.get("error") for state in states if isinstance(state, dict)]
        return next((error for error in found if is_retryable(error, error_types)), None)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await with_retries(
            lambda: func(*args, **kwargs),
            error_of,
            max_retries,
            retryable=error_types,
            raised=error_types,
            initial_s=initial,
            longest_s=max_wait,
        )

    return call


def format_dataset(
    dataset: Any,
    system_prompt: str | None = None,
    few_shot: Any = None,
    question_key: str = "question",
    answer_key: str = "answer",
    map_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return the dataset with the columns `prompt` and `example_id`."""
    row_format = RowFormat(
        system_prompt, list(few_shot or []), question_key=question_key, answer_key=answer_key
    )
    return TaskSource(dataset, row_format, **(map_kwargs or {})).dataset()


def print_results(results: GenerateOutputs, num_samples: int = 1) -> None:
    """Write `results_text` to stdout."""
    sys.stdout.write(results_text(results, num_samples))


def create_empty_completion(model: str) -> Any:
    """Return OpenAI's object for an empty response."""
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_validate(serialize_intercept_response(empty_response(model)))
