"""Train the weights in `weights/` from scratch: `python -m verifiers.endpoint.train_weights --out FOLDER`.

Needs torch 2.9 or newer (`pip install torch`), one CPU core and a few minutes; the seed is fixed. It prints the mean
rewards that it reached. The mixture makes the model good but not perfect: long texts and large numbers are rare in
it, so that the bundled environments have something to measure and trainers have something to improve.
"""

# pyright: reportMissingImports=false
# Types are checked where torch is installed; the other checks must pass without torch.

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional

from verifiers.endpoint import practice, tokenizer
from verifiers.endpoint.chat_template import render_chat
from verifiers.endpoint.engine import Engine, Generation
from verifiers.endpoint.model import load_model
from verifiers.endpoint.practice import PracticeProblem
from verifiers.endpoint.sampling import Sampling
from verifiers.endpoint.torch_llama import TorchLlama
from verifiers.endpoint.weights import ModelConfig, save_checkpoint

logger = logging.getLogger(__name__)

SHIPPED = ModelConfig(
    vocab_size=tokenizer.VOCAB_SIZE,
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=32,
    max_position_embeddings=2048,
)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage of the training."""

    steps: int
    batch_size: int
    """Problems per step."""
    system_prompt_share: float
    """Share of the problems without tools that carry their system prompt."""
    tool_share: float
    """Share of problems with a calculator tool."""
    longest_texts: tuple[int, int]
    """Length in letters of the longest usual text, at the first and at the last step."""


STAGES = (
    # Without the long system prompts a step costs a third, and the skills are the same.
    Stage(350, 128, system_prompt_share=0.0, tool_share=0.3, longest_texts=(5, 10)),
    Stage(420, 64, system_prompt_share=0.7, tool_share=0.4, longest_texts=(10, 10)),
)
ADDITION_SHARE = 0.5
"""Share of sums among the problems without tools; the others are texts to reverse."""
TOOL_ANSWERED_SHARE = 0.3
"""Share of the problems with a tool in which the tool has answered: the easier part."""
DIGIT_WEIGHTS = (3, 3, 2)
"""Shares of numbers with one, two and three digits."""
LONG_TEXT_SHARE, LONGEST_TEXT = 0.03, 18
"""Share and length of unusually long texts."""
WARMUP_STEPS, DECAY_SHARE = 50, 0.4
"""The learning rate rises over the first steps and falls to 0 over the last share of all steps."""


def draw(rng: random.Random, stage: Stage, progress: float) -> PracticeProblem:
    """Return one problem of the stage's mixture at `progress` (0 to 1) of the stage."""
    digits = random_digits(rng, weights=DIGIT_WEIGHTS)
    if rng.random() < stage.tool_share:
        return practice.tool_problem(
            rng, digits=digits, answered=rng.random() < TOOL_ANSWERED_SHARE
        )
    with_system = rng.random() < stage.system_prompt_share
    if rng.random() < ADDITION_SHARE:
        return practice.addition_problem(rng, digits=digits, system_prompt=with_system)
    first, last = stage.longest_texts
    longest = round(first + (last - first) * min(1.0, 1.5 * progress))
    if rng.random() < LONG_TEXT_SHARE:
        longest = LONGEST_TEXT
    return practice.reverse_problem(rng, length=rng.randint(2, longest), system_prompt=with_system)


def random_digits(
    rng: random.Random, weights: tuple[float, float, float] = (1, 1, 1)
) -> tuple[int, int]:
    """Return the numbers of digits, 1 to 3, of the two numbers of a sum."""
    first, second = rng.choices((1, 2, 3), weights, k=2)
    return first, second


def batch_of(problems: list[PracticeProblem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids `int64 [B, T]` and targets `[B, T]`; targets outside the completions are -100."""
    rows, targets = [], []
    for problem in problems:
        prompt = render_chat(problem.messages, problem.tools)
        completion = [*tokenizer.encode(problem.completion), tokenizer.END]
        rows.append(prompt + completion[:-1])
        targets.append([-100] * (len(prompt) - 1) + completion)
    length = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.PAD] * (length - len(row)) for row in rows])
    target_ids = torch.tensor([row + [-100] * (length - len(row)) for row in targets])
    return ids, target_ids


def train(model: TorchLlama, *, seed: int, stages: tuple[Stage, ...] = STAGES) -> None:
    """Run the stages on `model`, in place: Muon for the matrices of the layers, AdamW for the rest."""
    rng = random.Random(seed)
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if "layers" in name and weight.dim() == 2]
    others = [weight for name, weight in named if "layers" not in name or weight.dim() != 2]
    optimizers = (
        torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0),
    )
    full_rates = [(group, group["lr"]) for one in optimizers for group in one.param_groups]
    total = sum(stage.steps for stage in stages)
    done, started = 0, time.process_time()
    for stage in stages:
        for step in range(stage.steps):
            rise, fall = (done + 1) / WARMUP_STEPS, (total - done) / (DECAY_SHARE * total)
            for group, rate in full_rates:
                group["lr"] = rate * min(1.0, rise, fall)
            progress = step / stage.steps
            problems = [draw(rng, stage, progress) for _ in range(stage.batch_size)]
            loss = loss_of(model, problems)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % 50 == 0:
                spent = time.process_time() - started
                logger.info(
                    "step %d of %d   loss %.4f   %.0f cpu-s", done, total, loss.item(), spent
                )


def loss_of(model: TorchLlama, problems: list[PracticeProblem]) -> torch.Tensor:
    """Return the cross-entropy per token of the completions."""
    ids, target_ids = batch_of(problems)
    kept = target_ids >= 0
    return functional.cross_entropy(model(ids)[kept], target_ids[kept])


def tool_reward(problem: PracticeProblem, completion: str) -> float:
    """Return 1.0 if the call, or the boxed answer after it, is exactly right."""
    return float(completion == problem.completion)


Kind = tuple[Callable[[random.Random], PracticeProblem], Callable[[PracticeProblem, str], float]]

MEASURED: dict[str, Kind] = {
    "reverse-text, 4 to 16 letters": (
        lambda rng: practice.reverse_problem(rng, length=rng.randint(4, 16)),
        practice.reverse_reward,
    ),
    "addition, 1 to 3 digits": (
        lambda rng: practice.addition_problem(rng, digits=random_digits(rng)),
        practice.addition_reward,
    ),
    "tool call": (
        lambda rng: practice.tool_problem(rng, digits=random_digits(rng), answered=False),
        tool_reward,
    ),
    "turn after the tool": (
        lambda rng: practice.tool_problem(rng, digits=random_digits(rng), answered=True),
        tool_reward,
    ),
}


def mean_rewards(folder: Path, *, temperature: float, count: int = 400) -> dict[str, float]:
    """Return the mean reward on fresh problems of each kind, sampled by the numpy engine from the saved weights."""
    engine = Engine(load_model(folder))
    rng = random.Random("measure")
    means = {}
    for name, (make, reward) in MEASURED.items():
        problems = [make(rng) for _ in range(count)]
        sequences = engine.run(
            *(
                Generation(
                    prompt_ids=render_chat(problem.messages, problem.tools),
                    max_tokens=96,
                    sampling=Sampling(temperature=temperature),
                    seed=index,
                )
                for index, problem in enumerate(problems)
            )
        )
        pairs = zip(problems, sequences, strict=True)
        means[name] = sum(reward(problem, sequence.text) for problem, sequence in pairs) / count
    return means


def main() -> None:
    """Train, save, and measure the saved weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = TorchLlama(SHIPPED)
    logger.info("%d parameters", sum(weight.numel() for weight in model.parameters()))
    train(model, seed=options.seed)
    tensors = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    save_checkpoint(options.out, model.config, tensors, dtype="F16")
    for temperature in (0.0, 1.0):
        for name, mean in mean_rewards(options.out, temperature=temperature).items():
            logger.info("temperature %.0f   %-30s mean reward %.3f", temperature, name, mean)


if __name__ == "__main__":
    main()
