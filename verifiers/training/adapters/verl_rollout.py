"""One rollout of an environment in the fields of verl's `AgentLoopOutput`; `verl` makes an agent loop of it."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from verifiers.errors import ConfigError
from verifiers.training.adapters.engine_client import EngineClient, Sampled
from verifiers.training.adapters.flat import flat_group
from verifiers.training.adapters.play import play_groups
from verifiers.training.samples import OnDrift

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


async def run_rollout(
    env: Environment,
    row: Mapping[str, Any],
    server_manager: Any,
    tokenizer: Any,
    sampling_params: Mapping[str, Any],
    *,
    prompt_length: int,
    response_length: int,
    on_drift: OnDrift = "error",
) -> dict[str, Any]:
    """The fields of verl's `AgentLoopOutput` for one rollout of a row, sampled by `server_manager.generate`."""
    if env.requires_group_rollouts:
        raise ConfigError(
            "This environment scores groups as a whole; verl plays each rollout alone."
        )
    sampling_s = 0.0

    async def generate(ids: list[int], _: dict[str, Any], rollout_id: str) -> Sampled:
        nonlocal sampling_s
        begun = perf_counter()
        output = await server_manager.generate(
            request_id=rollout_id,
            prompt_ids=ids,
            sampling_params={**sampling_params, "logprobs": True},
        )
        sampling_s += perf_counter() - begun
        return Sampled(output.token_ids, output.log_probs or [])

    begun = perf_counter()
    [[state]] = await play_groups(env, [[row]], EngineClient(generate, tokenizer), "verl")
    [flat] = flat_group([state], on_drift=on_drift)
    flat = flat.cut(prompt_length, response_length)
    return {
        "prompt_ids": flat.prompt_ids,
        "response_ids": flat.completion_ids,
        "response_mask": flat.mask,
        "response_logprobs": flat.logprobs,
        "reward_score": flat.reward,
        "num_turns": len(state["prompt"]) + len(state["completion"] or []),
        "metrics": {
            "generate_sequences": sampling_s,
            "tool_calls": perf_counter() - begun - sampling_s,
        },
        # Every rollout must have the same keys: verl makes columns of them.
        "extra_fields": {"turn_scores": [], "tool_rewards": [], "failure": flat.failure or ""},
    }
