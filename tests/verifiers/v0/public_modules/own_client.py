"""A client of the author's own, and an environment that asks it again when it fails."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.clients.client import Client
from verifiers.errors import ModelError
from verifiers.types import (
    ClientConfig,
    Messages,
    Response,
    ResponseMessage,
    SamplingArgs,
    State,
    Tool,
    Usage,
)
from verifiers.utils.async_utils import maybe_retry

REPLIES: list[str] = []
REWARDS = [1.0]
CALLED: list[str] = []


class Recorded(Client):
    def __init__(self) -> None:
        super().__init__(ClientConfig())
        self.failures = 1

    def setup_client(self, config: ClientConfig) -> Any:
        CALLED.append("setup_client")
        return object()

    async def to_native_tool(self, tool: Tool) -> Any:
        return tool.model_dump()

    async def to_native_prompt(self, messages: Messages) -> tuple[Any, dict[str, Any]]:
        CALLED.append("to_native_prompt")
        return [dict(message) for message in messages], {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: SamplingArgs, tools: Any = None, **kwargs: Any
    ) -> Any:
        CALLED.append("get_native_response")
        if self.failures:
            self.failures -= 1
            raise ModelError("not yet")
        return {"text": prompt[-1]["content"].upper(), "model": model}

    async def raise_from_native_response(self, response: Any) -> None:
        CALLED.append("raise_from_native_response")

    async def from_native_response(self, response: Any) -> Response:
        CALLED.append("from_native_response")
        usage = Usage(prompt_tokens=1, reasoning_tokens=0, completion_tokens=2, total_tokens=3)
        message = ResponseMessage(
            content=response["text"], finish_reason="stop", is_truncated=False, tokens=None
        )
        return Response(id="r", created=0, model=response["model"], usage=usage, message=message)

    async def close(self) -> None:
        CALLED.append("close")


CLIENT = Recorded


class Retrying(vf.SingleTurnEnv):
    async def get_model_response(self, state: State, prompt: Messages, **kwargs: Any) -> Response:
        CALLED.append("get_model_response")
        ask = maybe_retry(
            super().get_model_response,
            max_retries=2,
            initial=0.0,
            max_wait=0.0,
            error_types=(ModelError,),
        )
        return await ask(state, prompt, **kwargs)


def shouts(completion: Messages) -> float:
    return float(completion[-1]["content"] == "QUIET")


def load_environment() -> vf.Environment:
    rows = Dataset.from_list([{"question": "quiet"}])
    return Retrying(dataset=rows, rubric=vf.Rubric(funcs=[shouts]))
