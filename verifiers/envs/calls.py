"""One rollout or one group, called the way either generation of v0 calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from verifiers.clients import Client, resolve_client
from verifiers.configs import ClientConfig
from verifiers.errors import ConfigError
from verifiers.messages import normalize_messages
from verifiers.rollouts.retries import is_retryable, with_retries
from verifiers.runs.output import output_from_state
from verifiers.state import State
from verifiers.types import RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


async def run_rollout(env: Environment, *args: Any, **kwargs: Any) -> RolloutOutput | State:
    """`Environment.run_rollout`: the first argument tells which generation calls."""
    if "sem" in kwargs or (args and not isinstance(args[0], Mapping)):
        return await _run_rollout_a(env, *args, **kwargs)
    return await _run_rollout_b(env, *args, **kwargs)


async def _run_rollout_a(
    env: Environment,
    sem: Any,
    input: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: Any = None,
) -> State:
    async with sem or nullcontext():
        return await env.rollout(input, client, model, sampling_args)


async def _run_rollout_b(
    env: Environment,
    input: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    max_retries: int = 0,
    state_columns: Sequence[str] | None = None,
    env_client: Any = None,
) -> RolloutOutput:
    if env_client is not None:
        return await env_client.run_rollout(
            input, client, model, sampling_args or {}, max_retries, state_columns
        )
    state = await with_retries(
        lambda: env._run_rollout_state(input, client, model, sampling_args),
        lambda state: state.error,
        max_retries,
    )
    return output_from_state(state, state_columns)


async def run_group(
    env: Environment, *args: Any, **kwargs: Any
) -> list[RolloutOutput] | list[State]:
    """`Environment.run_group`: semaphores among the arguments mean generation (a)."""
    older = {"gen_sampling_args", "gen_sem", "score_sem"} & set(kwargs)
    if older or any(hasattr(arg, "__aenter__") for arg in args[4:]):
        return await _run_group_a(env, *args, **kwargs)
    return await _run_group_b(env, *args, **kwargs)


async def _run_group_a(
    env: Environment,
    group_inputs: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    gen_sampling_args: Any = None,
    gen_sem: Any = None,
    score_sem: Any = None,
    **_: Any,
) -> list[State]:
    from verifiers.envs.generation import play_group, score

    states = await play_group(env, group_inputs, client, model, gen_sampling_args, limit=gen_sem)
    async with score_sem or nullcontext():
        await score(env, states, alone=False)
    return states


async def _run_group_b(
    env: Environment,
    group_inputs: Sequence[Mapping[str, Any]],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    max_retries: int = 0,
    state_columns: Sequence[str] | None = None,
    env_client: Any = None,
    **_: Any,
) -> list[RolloutOutput]:
    if env_client is not None:
        return await env_client.run_group(
            group_inputs, client, model, sampling_args or {}, max_retries, state_columns
        )
    states = await with_retries(
        lambda: env._run_group_states(group_inputs, client, model, sampling_args),
        lambda states: next((s.error for s in states if is_retryable(s.error)), None),
        max_retries,
    )
    return [output_from_state(state, state_columns) for state in states]


async def model_response_for_client(
    env: Environment,
    client: Any = None,
    model: str | None = None,
    prompt: Any = None,
    oai_tools: Any = None,
    sampling_args: SamplingArgs | None = None,
    message_type: Any = None,
    tool_defs: Any = None,
    **_: Any,
) -> Any:
    """Generation (a)'s `get_model_response(client, model, prompt, …)`, without a state.

    An SDK client gives the object of the SDK, as in generation (a); a `Client` or a configuration gives a `Response`.
    """
    if not isinstance(model, str) or prompt is None:
        raise ConfigError(
            "get_model_response takes (state, prompt, …) or (client, model, prompt, …); got "
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
