"""An environment as the `rollout_func` of TRL's `GRPOTrainer` (1.16).

    rollouts = TRLRollouts(env, client, "policy", before=WeightPush("http://localhost:8000", "weights"))
    GRPOTrainer(..., train_dataset=rollouts.dataset(), rollout_func=rollouts, reward_funcs=env_reward)

TRL hands over prompts only, each as often as its group is large, wants one flat sequence for each, in order, and
computes the advantages itself. Without vLLM it takes the tokens for on-policy, so the endpoint must have the weights
of the step before anything is sampled: `before` is called for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from verifiers.envs.generation import run_sync
from verifiers.errors import ConfigError
from verifiers.training.adapters.flat import flat_groups
from verifiers.training.adapters.play import play_groups
from verifiers.training.adapters.prompt_rows import PromptRows, Split
from verifiers.training.samples import OnDrift
from verifiers.types import SamplingArgs

if TYPE_CHECKING:
    from datasets import Dataset

    from verifiers.envs.environment import Environment


def env_reward(env_reward: Sequence[float], **_: Any) -> list[float]:
    """The reward function to give to TRL: the environment's rewards as they are."""
    return list(env_reward)


class TRLRollouts:
    """Called by TRL as `rollout_func(prompts, trainer)`."""

    def __init__(
        self,
        env: Environment,
        client: Any,
        model: str,
        *,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        before: Callable[[Any], None] | None = None,
        max_concurrent: int = 64,
        on_drift: OnDrift = "error",
    ) -> None:
        """`before(trainer)` is called before a batch is sampled. Sampling arguments not given are the trainer's."""
        self.env = env
        self.client = client
        self.model = model
        self.sampling_args = sampling_args or {}
        self.before = before
        self.max_concurrent = max_concurrent
        self.on_drift: OnDrift = on_drift
        self._rows = PromptRows(env, num_examples)

    def dataset(self, split: Split = "train") -> Dataset:
        """The `train_dataset`, or the `eval_dataset`: a column `prompt`."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": prompt} for prompt in self._rows.prompts(split)])

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Token ids, log-probabilities, `env_mask` and `env_reward` of one rollout for each prompt."""
        if self.before is not None:
            self.before(trainer)
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        rows = [self._rows.row_of(prompt) for prompt in prompts]
        same = [list(group) for _, group in groupby(rows, key=lambda row: row["example_id"])]
        groups = [own[n : n + size] for own in same for n in range(0, len(own), size)]
        if self.env.requires_group_rollouts and any(len(group) < size for group in groups):
            raise ConfigError(
                "This environment scores groups as a whole, but a process gets only a part of one. Make "
                f"per_device_train_batch_size a multiple of num_generations={size}."
            )
        args = trainer.args
        sampling = {"temperature": args.temperature, "top_p": args.top_p} | self.sampling_args
        sampling.setdefault("max_tokens", args.max_completion_length)

        async def play() -> list[Any]:
            return await play_groups(
                self.env, groups, self.client, self.model, sampling,
                max_concurrent=self.max_concurrent,
            )  # fmt: skip

        found = flat_groups(run_sync(play), on_drift=self.on_drift)
        return {
            "prompt_ids": [one.prompt_ids for one in found],
            "completion_ids": [one.completion_ids for one in found],
            "logprobs": [one.logprobs for one in found],
            "env_mask": [one.mask for one in found],
            "env_reward": [one.reward for one in found],
        }
