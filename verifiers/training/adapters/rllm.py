"""Rollouts as rLLM's episodes, and a workflow that plays them on rLLM's rollout engine.

    AgentTrainer(workflow_class=VerifiersWorkflow, workflow_args={"env": env}, train_dataset=rows, ...)

`rows`: the rows of `env.get_dataset()`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from verifiers.clients.client import Client
from verifiers.configs import ClientConfig
from verifiers.dialects import chat_completions
from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.play import play_groups
from verifiers.training.samples import SampleError, failure_of, samples_of
from verifiers.types import Response

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


class RolloutEngineClient(Client[Any, list[Any], dict[str, Any], dict[str, Any]]):
    """Model client for rLLM's `RolloutEngine`, which receives messages and returns a `ModelOutput`."""

    def __init__(self, engine: Any, *, said: list[Any] | None = None) -> None:
        """`said`: a list that receives every `ModelOutput`."""
        super().__init__(engine)
        self._said = said

    def setup_client(self, config: ClientConfig) -> Any:
        """Do nothing: the engine exists already."""

    async def to_native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a function definition."""
        return chat_completions.native_tool(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return messages as dicts."""
        return [dict(m) for m in chat_completions.native_messages(messages)], {}

    async def get_native_response(
        self,
        prompt: list[Any],
        model: str,
        sampling_args: Mapping[str, Any],
        tools: list[dict[str, Any]] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the result of `get_model_response` in the format of a chat completion."""
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
        """Raise if the model returned neither text nor tool calls."""
        chat_completions.check_payload(response)

    async def from_native_response(self, response: dict[str, Any]) -> Response:
        """Return the response in the library's format, with its tokens."""
        return chat_completions.response_of(response)

    async def close(self) -> None:
        """Do nothing: the engine belongs to rLLM."""


def _tool_call(call: Any) -> Mapping[str, Any]:
    """Return a tool call as JSON: rLLM's `ToolCall(name, arguments)`, an OpenAI object or a dict."""
    if not isinstance(call, Mapping) and hasattr(call, "model_dump"):
        return call.model_dump(exclude_none=True)
    if isinstance(call, Mapping) and "function" in call:
        return call
    fields = call if isinstance(call, Mapping) else {"name": call.name, "arguments": call.arguments}
    arguments = fields["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"function": {"name": fields["name"], "arguments": text}}


INSTALL = "pip install git+https://github.com/rllm-org/rllm"


def episode_of(
    output: Mapping[str, Any], uid: str, task: Any = None, said: Sequence[Any] = ()
) -> Any:
    """Return the `Episode` of a rollout: one trajectory with one step per turn.

    `said`: the `ModelOutput`s of rLLM's engine (`RolloutEngineClient(engine, said=…)`). Each turn keeps its own, which
    can hold more than tokens, such as the version of the weights. Raise SampleError for a failed rollout: rLLM counts
    it as an error and does not train on it.
    """
    agent = trainer_module("rllm.agents.agent", "Episode", "Step", "Trajectory", install=INSTALL)
    if not samples_of(output):
        raise SampleError(f"The rollout is not trained on: {failure_of(output) or 'no tokens'}.")
    steps = [
        agent.Step(
            prompt_ids=step["tokens"]["prompt_ids"],
            response_ids=step["tokens"]["completion_ids"],
            logprobs=step["tokens"]["completion_logprobs"],
            chat_completions=[
                dict(message)
                for message in chat_completions.native_messages(
                    [*step["prompt"], *step["completion"]]
                )
            ],
            # rLLM's back ends train on the ids of the model output; without one they tokenise the messages again.
            model_output=_model_output(step, said),
            reward=float(step.get("reward") or 0.0),
        )
        for step in output["trajectory"]
    ]
    steps[-1].done = True
    reward = float(output["reward"])
    trajectory = agent.Trajectory(name="verifiers", task=task, steps=steps, reward=reward)
    metrics = dict(output.get("metrics") or {})
    return agent.Episode(
        id=uid, task=task, is_correct=reward > 0, trajectories=[trajectory], metrics=metrics
    )


def _model_output(step: Mapping[str, Any], said: Sequence[Any]) -> Any:
    tokens = step["tokens"]
    prompt_ids, ids = list(tokens["prompt_ids"]), list(tokens["completion_ids"])
    for output in said:
        if list(output.completion_ids or ()) == ids and list(output.prompt_ids or ()) == prompt_ids:
            return output
    rollout = trainer_module("rllm.engine.rollout", "ModelOutput", install=INSTALL)
    content = chat_completions.native_message(step["completion"][0]).get("content") or ""
    return rollout.ModelOutput(
        text=content,
        content=content,
        prompt_ids=prompt_ids,
        completion_ids=ids,
        logprobs=list(tokens["completion_logprobs"]),
        prompt_length=len(prompt_ids),
        completion_length=len(ids),
        finish_reason="length" if step.get("is_truncated") else "stop",
    )


@cache
def _workflow_class() -> type:
    base = trainer_module("rllm.workflows.workflow", "Workflow", install=INSTALL).Workflow

    class VerifiersWorkflow(base):
        """One rollout of `env` on rLLM's rollout engine."""

        def __init__(self, rollout_engine: Any, env: Environment,
                     sampling_args: Mapping[str, Any] | None = None, **kwargs: Any) -> None:  # fmt: skip
            super().__init__(rollout_engine=rollout_engine, **kwargs)
            self._env = env
            self._sampling_args = dict(sampling_args or {})

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Any:
            """Play a row of the dataset. rLLM calls this method."""
            self.reset(task, uid)
            said: list[Any] = []
            client = RolloutEngineClient(self.rollout_engine, said=said)
            model = str(getattr(self.rollout_engine, "model", None) or "rllm")
            [[state]] = await play_groups(self._env, [[task]], client, model, self._sampling_args)
            return episode_of(state, uid, task, said)

    return VerifiersWorkflow


def __getattr__(name: str) -> Any:
    if name == "VerifiersWorkflow":
        return _workflow_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
