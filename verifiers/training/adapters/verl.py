"""An environment as a verl agent loop: one rollout, one flat sequence, sampled by verl's own servers.

    # agent_loops.yaml, named in actor_rollout_ref.rollout.agent.agent_loop_config_path
    - name: verifiers
      _target_: verifiers.training.adapters.verl.VerifiersAgentLoop
      env_id: reverse-text

`dataset_rows` makes the rows. verl plays every rollout alone, so an environment that scores whole groups is refused. A
failed rollout counts 0.0 in the baseline of its group; none of its tokens is trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

from verifiers.errors import ConfigError
from verifiers.loading import load_environment
from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.engine_client import EngineClient, Sampled
from verifiers.training.adapters.flat import flat_group
from verifiers.training.adapters.play import play_groups
from verifiers.training.samples import OnDrift

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.training.adapters import Split


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
    """Play one rollout of a row on `server_manager.generate`. Return the fields of verl's `AgentLoopOutput`."""
    if env.requires_group_rollouts:
        raise ConfigError(
            "This environment scores whole groups, but verl plays each rollout alone."
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
        # Every rollout needs the same keys: verl makes columns of them.
        "extra_fields": {"turn_scores": [], "tool_rewards": [], "failure": flat.failure or ""},
    }


def dataset_rows(env: Environment, split: Split = "train", n: int = -1) -> list[dict[str, Any]]:
    """Return rows for verl's parquet files. Write them with `datasets.Dataset.from_list(rows).to_parquet(path)`."""
    return [
        {
            "data_source": env.env_id,
            "agent_name": "verifiers",
            "prompt": [dict(message) for message in row["prompt"]],
            "reward_model": {"style": "rule", "ground_truth": str(row.get("answer", ""))},
            "extra_info": {"index": index, "split": split, "verifiers": json.dumps(dict(row))},
        }
        for index, row in enumerate(env.source(split).inputs(n))
    ]


INSTALL = "pip install verl torch 'setuptools<80' cachetools uvicorn fastapi"
"""verl 0.9.1 imports the last four and does not declare them."""

_loaded = cache(lambda env_id, env_args: load_environment(env_id, **json.loads(env_args)))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


@cache
def _agent_loop_class() -> type:
    verl = trainer_module(
        "verl.experimental.agent_loop.agent_loop",
        "AgentLoopBase", "AgentLoopOutput",
        install=INSTALL,
    )  # fmt: skip

    class VerifiersAgentLoop(verl.AgentLoopBase):
        """One rollout of the environment `env_id`."""

        def __init__(self, *args: Any, env_id: str, env_args: Mapping[str, Any] | None = None,
                     on_drift: OnDrift = "error", **kwargs: Any) -> None:  # fmt: skip
            super().__init__(*args, **kwargs)
            # Arguments from YAML are containers of omegaconf, which JSON does not support.
            plain = json.dumps(dict(env_args or {}), default=_plain)
            self._env = _loaded(env_id, plain)
            self._on_drift: OnDrift = on_drift

        async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
            """Play the dataset's row. verl calls this method with the fields of the row."""
            rollout = self.config.actor_rollout_ref.rollout
            fields = await run_rollout(
                self._env,
                json.loads(kwargs["extra_info"]["verifiers"]),
                self.server_manager,
                self.tokenizer,
                sampling_params,
                prompt_length=rollout.prompt_length,
                response_length=rollout.response_length,
                on_drift=self._on_drift,
            )
            return verl.AgentLoopOutput(**fields)

    return VerifiersAgentLoop


def __getattr__(name: str) -> Any:
    if name == "VerifiersAgentLoop":
        return _agent_loop_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
