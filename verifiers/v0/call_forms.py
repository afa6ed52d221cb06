"""Calls of an environment in the forms of older releases, recognised by their arguments.

`also_called_as` marks a method that accepts an older form beside its own. In generation (a), 0.1.0 to 0.1.10, the first
argument is a semaphore or a client, and calls return states. In the current form the first argument is the row, and
calls return outputs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ParamSpec

from verifiers.clients import Client, resolve_client
from verifiers.configs import ClientConfig
from verifiers.errors import ConfigError
from verifiers.messages import normalize_messages
from verifiers.state import State
from verifiers.tools.functions import normalize_tool, to_oai_tool
from verifiers.types import Messages, SamplingArgs, Tool
from verifiers.v0.plain_states import also_takes_mappings

Parameters = ParamSpec("Parameters")


def also_called_as(
    older: Callable[..., Any], is_older: Callable[[Sequence[Any], Mapping[str, Any]], bool]
) -> Callable[[Callable[Parameters, Any]], Callable[..., Any]]:
    """Mark a method: calls whose arguments satisfy `is_older(args, kwargs)` go to `older(self, *args, **kwargs)`."""

    def mark(method: Callable[Parameters, Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_older(args, kwargs):
                return older(self, *args, **kwargs)
            return method(self, *args, **kwargs)  # type: ignore[arg-type]  # `self` is the first parameter

        return call

    return mark


class OlderForms:
    """Names of older releases that environments still offer."""

    tool_defs: list[Tool] | None

    @property
    def oai_tools(self) -> list[dict[str, Any]] | None:
        """The tool definitions in OpenAI's format, as generation (a) had them."""
        return None if self.tool_defs is None else [to_oai_tool(tool) for tool in self.tool_defs]

    @oai_tools.setter
    def oai_tools(self, tools: Sequence[Any] | None) -> None:
        self.tool_defs = None if tools is None else [normalize_tool(tool) for tool in tools]

    async def _cleanup(self, state: State, *_: Any, **__: Any) -> None:
        await self.cleanup(state)  # type: ignore[attr-defined]  # of `Environment`

    def _format_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
        return self.format_dataset(dataset)  # type: ignore[attr-defined]  # of `Environment`

    def process_env_results_vllm(self, *args: Any, **kwargs: Any) -> Any:
        """Return token ids and masks of finished rollouts, by the name that 0.1.7's trainers call."""
        from verifiers.v0.processed_outputs import process_env_results_vllm

        return process_env_results_vllm(*args, **kwargs)

    process_env_results = process_env_results_vllm


# ------------------------------------------------------------------------------------------------ generation (a)


def is_rollout_with_semaphore(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `run_rollout` is called as `(sem, input, client, model, sampling_args)`."""
    return "sem" in kwargs or (bool(args) and not isinstance(args[0], Mapping))


async def rollout_with_semaphore(
    env: Any,
    sem: Any,
    input: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: Any = None,
) -> State:
    """Run generation (a)'s `run_rollout`: return the state of one rollout, unscored."""
    async with sem or nullcontext():
        return await env.rollout(input, client, model, sampling_args)


def is_group_with_semaphores(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `run_group` is called with generation (a)'s semaphores."""
    older = {"gen_sampling_args", "gen_sem", "score_sem"} & set(kwargs)
    return bool(older) or any(hasattr(arg, "__aenter__") for arg in args[4:])


async def group_with_semaphores(
    env: Any,
    group_inputs: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    gen_sampling_args: Any = None,
    gen_sem: Any = None,
    score_sem: Any = None,
    **_: Any,
) -> list[State]:
    """Run generation (a)'s `run_group`: return the states of one example, scored."""
    return await env.play_and_score(
        group_inputs,
        client,
        model,
        gen_sampling_args,
        alone=False,
        play_limit=gen_sem,
        score_limit=score_sem,
    )


def is_call_without_state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `get_model_response` is called as `(client, model, prompt, …)`."""
    first = args[0] if args else kwargs.get("state")
    if isinstance(first, State):
        return False
    # A mapping is a state, or the configuration of a client before a model's name and a prompt.
    is_before_prompt = len(args) > 2 and isinstance(args[2], str | list)
    return not isinstance(first, Mapping) or is_before_prompt


async def model_response_for_client(
    env: Any,
    client: Any = None,
    model: str | None = None,
    prompt: Any = None,
    oai_tools: Any = None,
    sampling_args: SamplingArgs | None = None,
    message_type: Any = None,
    tool_defs: Any = None,
    **_: Any,
) -> Any:
    """Run generation (a)'s `get_model_response(client, model, prompt, …)`, without a state.

    An SDK client returns the object of the SDK, as in generation (a); a `Client` or a configuration a `Response`.
    """
    if not isinstance(model, str) or prompt is None:
        raise ConfigError(
            "get_model_response accepts (state, prompt, …) or (client, model, prompt, …); got "
            f"{type(client).__name__}, {type(model).__name__} and {type(prompt).__name__}."
        )
    kind = message_type or env.message_type
    is_own = isinstance(client, Client | ClientConfig | Mapping)
    resolved = resolve_client(
        client, client_type="openai_completions" if kind == "completion" and not is_own else None
    )
    ask = resolved.get_response if is_own else resolved.get_checked_native_response
    return await ask(
        normalize_messages(prompt, field_name="prompt"),
        model,
        dict(sampling_args or {}),
        env._normalize_tool_defs(oai_tools or tool_defs) or None,
    )


# ----------------------------------------------------------------------------------------- hooks of a multi-turn loop


def also_takes_messages(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let `is_completed(state)` accept `(messages, state)` from before 0.1.8, and a plain dict as the state."""

    takes_mapping = also_takes_mappings(method)

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = args[-1] if args else kwargs.pop("state")
        if isinstance(state, State):
            return method(self, state, **kwargs)
        return takes_mapping(self, state, **kwargs)

    return call


async def called_with_state(method: Callable[..., Any], state: State) -> Any:
    """Return the result of an author's method in the form `(state)`, or in the earlier form `(messages, state)`."""
    positional = [
        p
        for p in inspect.signature(method).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(positional) < 2:
        result = method(state)
    else:
        trajectory = state.get("trajectory")
        last = trajectory[-1] if trajectory else None
        conversation = [*last["prompt"], *last["completion"]] if last else state.get("prompt")
        result = method(conversation, state)
    return await result if inspect.isawaitable(result) else result


def reply_of(returned: Any, state: State) -> Messages | str | None:
    """Return the messages of an `env_response`. Before 0.1.7 it returned `(messages, state)`; that state is merged."""
    if not isinstance(returned, tuple):
        return returned
    reply, newer = returned
    if newer is not state:
        state.update(newer)
    return reply
