"""A model client for an engine that receives and returns token ids, such as the one inside a trainer's process.

Sampled tokens are never tokenised again: the prompt of a later turn begins with the ids of the turns before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from verifiers.clients.client import Client
from verifiers.clients.openai_chat_completions_token_client import continued_ids, continued_step
from verifiers.configs import ClientConfig
from verifiers.dialects import chat_completions
from verifiers.errors import InvalidModelResponseError
from verifiers.types import Response

TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def hermes_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and the tool calls of a response in the format of Hermes and Qwen: JSON between `<tool_call>`
    tags."""
    calls: list[dict[str, Any]] = []
    for text_of_call in TOOL_CALL.findall(text):
        try:
            call = json.loads(text_of_call)
            function = {"name": call["name"], "arguments": call.get("arguments") or {}}
        except (ValueError, KeyError, TypeError):
            return text, []  # not a valid call: the environment receives the text unchanged
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return (TOOL_CALL.sub("", text).strip() if calls else text), calls


STAND_IN = {"role": "assistant", "content": "x"}


class Sampled(NamedTuple):
    """The tokens that an engine sampled."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    """After temperature, one per token."""


Generate = Callable[[list[int], dict[str, Any], str], Awaitable[Sampled]]
"""`(prompt_ids, sampling_args, rollout_id)`. All turns of a rollout have the same id, for sticky sessions."""


class EngineClient(Client[None, list[Any], dict[str, Any], dict[str, Any]]):
    """`tokenizer`: a Hugging Face tokenizer with a chat template. `parse`: text → (content, tool calls)."""

    def __init__(
        self,
        generate: Generate,
        tokenizer: Any,
        *,
        parse: Callable[[str], tuple[str, list[dict[str, Any]]]] = hermes_tool_calls,
    ) -> None:
        super().__init__(None)
        self._generate = generate
        self._tokenizer = tokenizer
        self._parse = parse

    def setup_client(self, config: ClientConfig) -> None:
        """Do nothing: the engine exists already."""

    async def to_native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a function definition in the format of chat templates."""
        return chat_completions.native_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return messages in the format of chat templates."""
        return chat_completions.native_messages(messages), {}

    async def get_native_response(
        self,
        prompt: list[Any],
        model: str,
        sampling_args: Mapping[str, Any],
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Sample, and return the result in the format of a chat completion."""
        state = kwargs.get("state") or {}
        ids = self._prompt_ids(prompt, tools, state.get("trajectory") or [])
        given = {name: value for name, value in sampling_args.items() if value is not None}
        sampled = await self._generate(ids, given, str(state.get("trajectory_id") or ""))
        token_ids = [int(token) for token in sampled.token_ids]
        if not token_ids or len(sampled.logprobs) != len(token_ids):
            raise InvalidModelResponseError(
                f"The engine returned {len(token_ids)} tokens and {len(sampled.logprobs)} log-probabilities."
            )
        ended = token_ids[-1] == self._tokenizer.eos_token_id
        text = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        content, calls = self._parse(text) if tools else (text, [])
        message = {"role": "assistant", "content": content, "tool_calls": calls or None}
        choice = {
            "message": message,
            "finish_reason": ("tool_calls" if calls else "stop") if ended else "length",
            "token_ids": token_ids,
            "logprobs": {"token_logprobs": [float(value) for value in sampled.logprobs]},
        }
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(token_ids)}
        return {"model": model, "prompt_token_ids": ids, "choices": [choice], "usage": usage}

    async def raise_from_native_response(self, response: dict[str, Any]) -> None:
        """Raise if the model returned neither text nor tool calls."""
        chat_completions.check_payload(response)

    async def from_native_response(self, response: dict[str, Any]) -> Response:
        """Return the response in the library's format, with its tokens."""
        return chat_completions.response_of(response)

    async def close(self) -> None:
        """Do nothing: the engine belongs to the trainer."""

    def _prompt_ids(
        self, prompt: list[Any], tools: list[Any] | None, trajectory: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        continuation = continued_step(trajectory, prompt)
        if continuation is not None:
            step, added = continuation
            answer = chat_completions.native_messages(step["completion"])[-1]
            # Templates refuse tool results without the calls that they answer.
            before = answer if added[0]["role"] == "tool" else STAND_IN
            tokens = step["tokens"]
            ids = continued_ids(
                [*tokens["prompt_ids"], *tokens["completion_ids"]],
                self._render([before], tools, generation=False),
                self._render([before, *added], tools, generation=True),
            )
            if ids is not None:
                return ids
        return self._render(prompt, tools, generation=True)

    def _render(
        self, messages: list[Any], tools: list[Any] | None, *, generation: bool
    ) -> list[int]:
        ids = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tools=tools,
            tokenize=True,
            add_generation_prompt=generation,
        )
        return list(ids["input_ids"] if isinstance(ids, Mapping) else ids)
