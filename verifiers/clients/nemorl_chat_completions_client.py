"""Chat completions of NeMo RL: earlier responses are sent back with the token ids that were sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient
from verifiers.clients.payloads import native_of, payload_of
from verifiers.types import Messages, Response, SamplingArgs, Tool


class NeMoRLChatCompletionsClient(OpenAIChatCompletionsClient):
    """Adds `prompt_token_ids`, `generation_token_ids` and `generation_log_probs` to each assistant message.

    The server then continues from exactly these ids instead of tokenising the text again. Such an endpoint returns
    token ids in the message itself, under the same names; `prompt_token_ids` of the response are read as well.
    """

    async def get_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs | None,
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Call the model once; `kwargs` may hold `state`, whose trajectory has the token ids."""
        state = kwargs.get("state")
        trajectory = (state.get("trajectory") if state is not None else None) or []
        if trajectory and not isinstance(prompt, str):
            prompt = with_trajectory_tokens(prompt, trajectory)
        return await super().get_response(prompt, model, sampling_args, tools, **kwargs)

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call the model and return the SDK's response object, with the token ids where vLLM puts them."""
        native = await super().get_native_response(prompt, model, sampling_args, tools, **kwargs)
        payload = payload_of(native)
        moved = _with_generation_tokens(payload)
        return native if moved is payload else native_of(moved, *self.dialect.sdk_type)

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format; its token ids may be in the message."""
        return super().response_of(_with_generation_tokens(payload))


def with_trajectory_tokens(prompt: Messages, trajectory: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the prompt with each step's token ids on the assistant message that the step produced.

    Steps and assistant messages are matched from the last backwards, so that assistant messages of the original
    prompt (few-shot examples) get none.
    """
    messages: list[Any] = list(prompt)
    steps = list(trajectory)
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if not steps:
            break
        if message["role"] != "assistant":
            continue
        tokens = steps.pop().get("tokens")
        if tokens:
            messages[index] = {
                **message,
                "prompt_token_ids": list(tokens["prompt_ids"]),
                "generation_token_ids": list(tokens["completion_ids"]),
                "generation_log_probs": list(tokens["completion_logprobs"]),
            }
    return messages


def _with_generation_tokens(payload: Any) -> Any:
    """Move the token ids from the message to the response and its choice, one log-probability per token."""
    choices = payload.get("choices") or [{}]
    choice = choices[0]
    message = choice.get("message") or {}
    generated = message.get("generation_token_ids")
    if len(choices) != 1 or not generated or choice.get("token_ids"):
        return payload
    logprobs = message.get("generation_log_probs")
    moved = {
        **choice,
        "message": {key: value for key, value in message.items() if key not in _TOKEN_FIELDS},
        "token_ids": [int(token) for token in generated],
        "logprobs": {"content": [_token_logprob(value) for value in logprobs]}
        if logprobs
        else choice.get("logprobs"),
    }
    prompt = [int(token) for token in message.get("prompt_token_ids") or []]
    return {"prompt_token_ids": prompt, **payload, "choices": [moved]}


_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def _token_logprob(logprob: float) -> dict[str, Any]:
    """Return OpenAI's form of a log-probability. The text of the token is unknown."""
    return {"token": "", "logprob": float(logprob), "bytes": None, "top_logprobs": []}
