"""An environment as a SkyRL generator with the methods of `GeneratorInterface`. SkyRL is not imported.

    class Experiment(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return SkyRLGenerator(env, ClientConfig(api_base_url=f"http://{host}:{port}/v1",
                                  client_type="openai_chat_completions_token"), cfg.trainer.policy.model.path)

Switch SkyRL's HTTP endpoint on (`enable_http_endpoint`). Recipes that call `env.generate` and
`env.process_env_results_vllm` themselves also work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verifiers.training.adapters.flat import flat_group
from verifiers.training.adapters.play import play_groups
from verifiers.training.samples import OnDrift, SampleError

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.training.adapters import Split

VLLM_ONLY = (
    "include_stop_str_in_output", "min_p", "min_tokens", "repetition_penalty", "skip_special_tokens", "top_k",
)  # fmt: skip
"""Sampling parameters of vLLM, which go into the body of a request beside OpenAI's."""


def dataset_rows(env: Environment, split: Split = "train", n: int = -1) -> list[dict[str, Any]]:
    """Return rows for SkyRL's parquet files. SkyRL returns all columns but `prompt` and `env_class` as `env_extras`."""
    return [
        {
            "prompt": [dict(message) for message in row["prompt"]],
            "env_class": "verifiers",
            "data_source": env.env_id,  # SkyRL groups the results of evaluations by this column
            "verifiers": {"row": json.dumps(dict(row))},
        }
        for row in env.source(split).inputs(n)
    ]


class SkyRLGenerator:
    """A generator that SkyRL calls with `generate(input_batch)`."""

    def __init__(
        self,
        env: Environment,
        client: Any,
        model: str,
        *,
        max_prompt_length: int = 2**31,
        max_response_length: int = 2**31,
        max_concurrent: int = -1,
        on_drift: OnDrift = "error",
    ) -> None:
        """Lengths in tokens. Longer responses are cut; rollouts with longer prompts are not trained on."""
        self.env = env
        self.client = client
        self.model = model
        self.lengths = (max_prompt_length, max_response_length)
        self.max_concurrent = max_concurrent
        self.on_drift: OnDrift = on_drift

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return SkyRL's `GeneratorOutput`, one entry for each prompt, in order."""
        rows = [
            {**json.loads(extras["verifiers"]["row"]), "prompt": prompt}
            for prompt, extras in zip(
                input_batch["prompts"], input_batch["env_extras"], strict=True
            )
        ]
        ids = input_batch.get("trajectory_ids")
        groups: dict[Any, list[int]] = {}
        for index, row in enumerate(rows):
            key = ids[index].instance_id if ids else row["example_id"]
            groups.setdefault(key, []).append(index)
        states = await play_groups(
            self.env, [[rows[n] for n in indexes] for indexes in groups.values()],
            self.client, self.model, sampling_args_of(input_batch.get("sampling_params") or {}),
            max_concurrent=self.max_concurrent,
        )  # fmt: skip
        flat_of_index = {
            index: flat.cut(*self.lengths)
            for indexes, group in zip(groups.values(), states, strict=True)
            for index, flat in zip(indexes, flat_group(group, on_drift=self.on_drift), strict=True)
        }
        flats = [flat_of_index[index] for index in range(len(rows))]
        failures = [flat.failure for flat in flats if flat.failure is not None]
        if flats and len(failures) == len(flats):
            raise SampleError(f"None of {len(flats)} rollouts can be trained on: {failures[0]}.")
        return {
            "prompt_token_ids": [flat.prompt_ids for flat in flats],
            "response_ids": [flat.completion_ids for flat in flats],
            "rewards": [flat.reward for flat in flats],
            "loss_masks": [flat.mask for flat in flats],
            "stop_reasons": ["length" if flat.is_truncated else "stop" for flat in flats],
            "rollout_logprobs": [flat.logprobs for flat in flats],
            "rollout_metrics": {"generate/failed_rollouts": float(len(failures))},
            "trajectory_ids": ids,
            "rollout_expert_indices": None,
            "is_last_step": None,
        }


def sampling_args_of(sampling_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return SkyRL's parameters for vLLM as arguments of a chat completion. Log-probabilities are always requested."""
    given = {k: v for k, v in sampling_params.items() if v is not None and k != "logprobs"}
    extra = {
        **(given.pop("extra_body", None) or {}),
        **{k: given.pop(k) for k in VLLM_ONLY if k in given},
    }
    return {**given, "logprobs": True, "extra_body": extra}
