"""Trains the embedded model with TRL's GRPOTrainer on the CPU and prints the mean reward of every step as JSON.

Run by `test_trl_training.py` in a Python that has trl, transformers and torch:
    python train_with_trl.py STEPS ROLLOUTS_PER_STEP FOLDER
"""

import json
import sys
import warnings
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

import verifiers as vf
from verifiers.endpoint import endpoint_process
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.training.adapters.trl import TRLRollouts, WeightPush, env_reward
from verifiers.training.policy import PolicyClient


def train(steps: int, rollouts_per_step: int, folder: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    # Longer texts than the shipped model was trained on, so that there is something to learn.
    env = vf.load_environment("reverse-text", min_length=18, max_length=22, num_train_examples=400)
    model = LlamaForCausalLM.from_pretrained(SHIPPED_WEIGHTS, dtype=torch.float32)
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    gaps: list[float] = []

    class Measured(GRPOTrainer):
        """Also notes how far the trainer's log-probabilities are from those of sampling, on-policy."""

        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            count = batch["completion_ids"].size(1)
            with torch.no_grad():
                own, *_ = self._get_per_token_logps_and_entropies(self.model, ids, attention, count)
            mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
            gaps.append((own - sampled(self, own))[mask].abs().max().item())
            return batch

    def sampled(trainer, like):
        padded = torch.zeros_like(like)
        for row, logprobs in enumerate(rollouts.last["logprobs"]):
            padded[row, : len(logprobs)] = torch.tensor(logprobs)
        return padded

    class Remembered(TRLRollouts):
        last: dict

        def __call__(self, prompts, trainer):
            self.last = super().__call__(prompts, trainer)
            return self.last

    with endpoint_process() as endpoint:
        client = PolicyClient(
            vf.ClientConfig(
                api_base_url=endpoint.base_url, client_type="openai_chat_completions_token"
            )
        )
        rollouts = Remembered(
            env, client, endpoint.model, before=WeightPush(endpoint.url, folder / "weights")
        )
        trainer = Measured(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(SHIPPED_WEIGHTS),
            reward_funcs=env_reward,
            rollout_func=rollouts,
            train_dataset=rollouts.dataset(),
            args=GRPOConfig(
                output_dir=str(folder / "trl"),
                per_device_train_batch_size=rollouts_per_step,
                num_generations=16,
                max_steps=steps,
                learning_rate=5e-4,  # 1e-3 fell apart at step 7 of one run
                lr_scheduler_type="constant",
                max_completion_length=72,
                beta=0.0,
                scale_rewards=False,
                loss_type="dapo",
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                seed=0,
            ),
        )
        trainer.train()
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    after = dict(model.named_parameters())
    moved = max((after[name] - one).abs().max().item() for name, one in before.items())
    return {"rewards": rewards, "gaps": gaps, "moved": moved}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(
        "\n" + json.dumps(train(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))) + "\n"
    )
