"""rLLM's rollout engine as a model client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from verifiers.clients.client import Client
from verifiers.configs import ClientConfig
from verifiers.dialects import chat_completions
from verifiers.types import Response


class RolloutEngineClient(Client[Any, list[Any], dict[str, Any], dict[str, Any]]):
    """rLLM's `RolloutEngine`, which takes messages and gives a `ModelOutput`."""

    def __init__(self, engine: Any, *, said: list[Any] | None = None) -> None:
        """`said`: a list that every `ModelOutput` is added to."""
        super().__init__(engine)
        self._said = said

    def setup_client(self, config: ClientConfig) -> Any:
        """Nothing to set up: the engine is given."""

    async def to_native_tool(self, tool: Any) -> dict[str, Any]:
        """A function definition."""
        return chat_completions.native_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Messages as dicts."""
        return [dict(m) for m in chat_completions.native_messages(messages)], {}

    async def get_native_response(
        self,
        prompt: list[Any],
        model: str,
        sampling_args: Mapping[str, Any],
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """`get_model_response`, told in the shape of a chat completion."""
        state = kwargs.get("state") or {}
        given = {
            k: v for k, v in sampling_args.items() if v is not None and k not in ("n", "extra_body")
        }
        if "max_completion_tokens" in given:
            given["max_tokens"] = given.pop("max_completion_tokens")
        output = await self.client.get_model_response(
            messages=prompt,
            application_id=str(state.get("trajectory_id") or "verifiers"),
            tools=tools or [],
            **given,
        )
        if self._said is not None:
            self._said.append(output)
        message = {
            "role": "assistant",
            "content": output.content or output.text,
            "reasoning": output.reasoning,
            "tool_calls": [_tool_call(call) for call in output.tool_calls or []],
        }
        choice = {
            "message": message,
            "finish_reason": output.finish_reason or "stop",
            "token_ids": output.completion_ids,
            "logprobs": {"token_logprobs": output.logprobs} if output.logprobs else None,
        }
        return {"model": model, "prompt_token_ids": output.prompt_ids, "choices": [choice]}

    async def raise_from_native_response(self, response: dict[str, Any]) -> None:
        """Raise when the model said nothing."""
        chat_completions.check_payload(response)

    async def from_native_response(self, response: dict[str, Any]) -> Response:
        """The answer in the library's shape, with its tokens."""
        return chat_completions.response_of(response)

    async def close(self) -> None:
        """The engine belongs to rLLM."""


def _tool_call(call: Any) -> Mapping[str, Any]:
    """rLLM's `ToolCall(name, arguments)`, an OpenAI object or a dict, as JSON."""
    if not isinstance(call, Mapping) and hasattr(call, "model_dump"):
        return call.model_dump(exclude_none=True)
    if isinstance(call, Mapping) and "function" in call:
        return call
    told = call if isinstance(call, Mapping) else {"name": call.name, "arguments": call.arguments}
    arguments = told["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"function": {"name": told["name"], "arguments": text}}
