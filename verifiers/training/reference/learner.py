"""`Learner`: model, optimizers and their steps. Depends on torch only, not on environments, servers or processes.

A step is a function of the learner's state and the batch. Two learners with the same state and the same batches keep
equal weights, so `state_dict` and `load_state_dict` continue a run exactly.
"""

# pyright: reportMissingImports=false
# Types are checked where torch is installed; elsewhere the rest must still pass.

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verifiers.endpoint.torch_llama import TorchLlama
from verifiers.endpoint.weights import (
    ModelConfig,
    check_tensors,
    read_config,
    read_safetensors,
    save_checkpoint,
)
from verifiers.errors import ConfigError
from verifiers.training.losses import LOSSES, cross_entropy
from verifiers.training.packing import PaddedBatch, micro_batches, tensors_of, token_logprobs
from verifiers.training.reference.config import OptimizerSection, TrainConfig, WarmStartSection
from verifiers.training.samples import TokenSample

LOSS_WINDOW = 10
"""Steps over which the loss is averaged before it is compared with `until_loss`."""
NOISY_RATE_SHARE = 0.5
"""The noisy steps begin with this share of the learning rate. They make the policy uncertain but keep its skill."""
COUNTED_BY_SEQUENCE = frozenset({"gspo"})
"""Losses that are a mean over sequences, not over tokens."""


class Learner:
    """Model, optimizers and phase of a training run. The first weights are new, or those of `config.model.folder`."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        compute = config.compute
        if compute.threads:
            torch.set_num_threads(compute.threads)
        self.device = device_of(compute.device)
        torch.manual_seed(config.seed)
        self._rng = random.Random(f"learner {config.seed}")
        self.model = _model_of(config).to(self.device)
        self.phase = "warm_start"
        self.step_count = 0
        """Steps taken in this phase."""
        self.clean_count: int | None = None if config.warm_start.steps else 0
        """Number of clean steps of the warm start; None until they are over."""
        self._recent_losses: list[float] = []
        self.optimizers = self._optimizers(config.warm_start.optimizer)
        self._demonstrations: tuple[list[TokenSample], list[TokenSample]] = ([], [])

    # ------------------------------------------------------------------------------------------ warm start

    def set_demonstrations(
        self, clean: Sequence[TokenSample], noisy: Sequence[TokenSample]
    ) -> None:
        """Set the samples of the clean steps and of the noisy steps of `warm_start`.

        Raise ConfigError if a sample is longer than the model's context.
        """
        longest = max(map(len, (*clean, *noisy)))
        context = self.model.config.max_position_embeddings
        if longest > context:
            raise ConfigError(
                f"A demonstration has {longest} tokens, but the model's context is {context}. "
                "Raise model.max_position_embeddings, or shorten the environment's rows."
            )
        self._demonstrations = list(clean), list(noisy)

    @property
    def warm_start_is_over(self) -> bool:
        """Whether no supervised step is left."""
        return (
            self.clean_count is not None
            and self.step_count >= self.clean_count + self.config.warm_start.noisy_steps
        )

    def warm_start(self, steps: int) -> dict[str, float]:
        """Take up to `steps` supervised steps.

        Return their mean `loss`, the `step` reached, and whether it `is_noisy`.
        """
        section = self.config.warm_start
        losses = []
        for _ in range(steps):
            if self.warm_start_is_over:
                break
            clean, noisy = self._demonstrations
            chosen = self._rng.choices(
                clean if self.clean_count is None else noisy, k=section.batch_size
            )
            self._set_rates(section.optimizer, self._warm_start_factor(section))
            losses.append(self._supervised_step(chosen, section.optimizer.max_grad_norm))
            self.step_count += 1
            self._note_loss(losses[-1], section)
        return {
            "loss": float(np.mean(losses)) if losses else 0.0,
            "step": float(self.step_count),
            "is_noisy": float(self.clean_count is not None),
        }

    def _note_loss(self, loss: float, section: WarmStartSection) -> None:
        """Record the end of the clean steps if they are over."""
        if self.clean_count is not None:
            return
        self._recent_losses = [*self._recent_losses, loss][-LOSS_WINDOW:]
        is_low = (
            len(self._recent_losses) == LOSS_WINDOW
            and sum(self._recent_losses) / LOSS_WINDOW < section.until_loss
        )
        if is_low or self.step_count >= section.steps:
            self.clean_count = self.step_count

    def _warm_start_factor(self, section: WarmStartSection) -> float:
        if self.clean_count is None:
            return 1.0
        gone = (self.step_count - self.clean_count) / section.noisy_steps
        return NOISY_RATE_SHARE * (1.0 - gone)

    def _supervised_step(self, samples: Sequence[TokenSample], max_grad_norm: float) -> float:
        count = sum(sample.trained_count for sample in samples)
        total = 0.0
        for batch in micro_batches(samples, self.config.compute.micro_batch_tokens):
            streams, logprobs, _ = self._forward(batch)
            output = cross_entropy(logprobs, streams["mask"], token_count=count)
            output.loss.backward()
            total += float(output.loss.detach())
        self._update(max_grad_norm)
        return total

    # ------------------------------------------------------------------------------------------ reinforcement

    def begin_reinforcement(self) -> None:
        """Create new optimizers: the moments of the warm start belong to another loss."""
        self.phase = "reinforcement"
        self.step_count = 0
        self.optimizers = self._optimizers(self.config.optimizer)
        self._demonstrations = ([], [])

    def step(self, batches: Sequence[PaddedBatch]) -> dict[str, float]:
        """Update the weights once from the micro-batches of one batch.

        Return the loss's own metrics (see `LossOutput`) and `loss`, `entropy` (nats per sampled token), `grad_norm`
        (before clipping), `learning_rate`.
        """
        config = self.config
        name, options = config.loss, config.loss_options
        divisor = (
            sum(int(batch.mask.any(axis=1).sum()) for batch in batches)
            if name in COUNTED_BY_SEQUENCE
            else sum(batch.trained_count for batch in batches)
        )
        gathered: list[tuple[int, int, dict[str, float]]] = []
        for batch in batches:
            streams, logprobs, entropy = self._forward(batch)
            output = LOSSES[name](
                logprobs,
                streams["inference_logprobs"],
                streams["advantages"],
                streams["mask"],
                token_count=divisor,
                **options,
            )
            output.loss.backward()
            metrics = {key: float(value) for key, value in output.metrics.items()}
            metrics |= {"loss": float(output.loss.detach()), "entropy": entropy}
            gathered.append((batch.trained_count, len(batch), metrics))
        self._set_rates(config.optimizer, 1.0)
        metrics = merged(gathered)
        metrics["learning_rate"] = self.optimizers[-1].param_groups[0]["lr"]
        metrics["grad_norm"] = self._update(config.optimizer.max_grad_norm)
        self.step_count += 1
        return metrics

    def logprobs(self, batch: PaddedBatch) -> NDArray[np.float32]:
        """Return the log-probabilities `[B, T]` under the present weights, each token at its own temperature."""
        with torch.no_grad():
            return self._forward(batch)[1].cpu().numpy()

    def _forward(self, batch: PaddedBatch) -> tuple[dict[str, Tensor], Tensor, float]:
        """Return streams, log-probabilities `[B, T]`, and the mean entropy over trained tokens."""
        streams = tensors_of(batch, self.device)
        with self._precision():
            logits = self.model(streams["input_ids"])
        logprobs = token_logprobs(logits, streams["input_ids"], streams["temperatures"])
        with torch.no_grad():
            # The logits at t are the distribution of token t + 1.
            deciding = logits[:, :-1][streams["mask"][:, 1:]].float()
            shares = deciding.log_softmax(-1)
            entropy = -(shares.exp() * shares).sum(-1)
            mean = float(entropy.mean()) if len(entropy) else 0.0
        return streams, logprobs, mean

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.compute.dtype == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()

    # ------------------------------------------------------------------------------------------ optimizers

    def _optimizers(self, section: OptimizerSection) -> list[torch.optim.Optimizer]:
        named = list(self.model.named_parameters())
        is_matrix = {name: ".layers." in name and weight.dim() == 2 for name, weight in named}
        matrices = [w for name, w in named if is_matrix[name] and section.kind == "muon"]
        others = [w for name, w in named if not (is_matrix[name] and section.kind == "muon")]
        optimizers: list[torch.optim.Optimizer] = []
        if matrices:
            optimizers.append(
                torch.optim.Muon(
                    matrices,
                    lr=section.muon_learning_rate,
                    momentum=section.momentum,
                    weight_decay=section.weight_decay,
                )
            )
        optimizers.append(
            torch.optim.AdamW(
                others,
                lr=section.learning_rate,
                betas=section.betas,
                weight_decay=section.weight_decay,
            )
        )
        return optimizers

    def _set_rates(self, section: OptimizerSection, factor: float) -> None:
        rise = (self.step_count + 1) / section.warmup_steps if section.warmup_steps else 1.0
        for optimizer in self.optimizers:
            is_muon = isinstance(optimizer, torch.optim.Muon)
            full = section.muon_learning_rate if is_muon else section.learning_rate
            for group in optimizer.param_groups:
                group["lr"] = full * min(1.0, rise, factor)

    def _update(self, max_grad_norm: float) -> float:
        """Clip the gradient and update the weights. Return the norm of the gradient before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_grad_norm))
        if not np.isfinite(norm):
            raise FloatingPointError(
                f"The gradient of step {self.step_count + 1} is not finite. Lower the learning rate; "
                "the last checkpoint is intact."
            )
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norm

    # ------------------------------------------------------------------------------------------ saving

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights under the names of `LlamaForCausalLM`."""
        named = self.model.named_parameters()
        return {name: weight.detach().float().cpu().numpy() for name, weight in named}

    def save_model(self, folder: Path) -> None:
        """Write a model folder that the endpoint, transformers and vLLM read."""
        save_checkpoint(folder, self.model.config, self.tensors())

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next steps depend on."""
        version, internal, gauss = self._rng.getstate()
        state: dict[str, Any] = {
            "phase": self.phase,
            "step_count": self.step_count,
            "clean_count": self.clean_count,
            "recent_losses": self._recent_losses,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "rng": [version, list(internal), gauss],
            "torch_rng": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.device)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.phase = state["phase"]
        self.step_count = state["step_count"]
        self.clean_count = state["clean_count"]
        self._recent_losses = state["recent_losses"]
        is_warm = self.phase == "warm_start"
        section = self.config.warm_start.optimizer if is_warm else self.config.optimizer
        self.model.load_state_dict(state["model"])
        self.optimizers = self._optimizers(section)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(_current_state(optimizer, saved))
        version, internal, gauss = state["rng"]
        self._rng.setstate((version, tuple(internal), gauss))
        torch.set_rng_state(state["torch_rng"].cpu())
        if self.device.type == "cuda" and "cuda_rng" in state:
            torch.cuda.set_rng_state(state["cuda_rng"].cpu(), self.device)


def _current_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved state in the format of `torch.optim.Muon`. Older checkpoints have another format."""
    if not isinstance(optimizer, torch.optim.Muon) or "nesterov" in saved["param_groups"][0]:
        return dict(saved)
    [current], [group] = optimizer.param_groups, saved["param_groups"]
    return {
        "state": {n: {"momentum_buffer": one["momentum"]} for n, one in saved["state"].items()},
        "param_groups": [{**current, **group}],
    }


def device_of(name: str) -> torch.device:
    """Return the device; `auto` is the GPU if there is one.

    Raise ConfigError for a device that torch does not support.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"torch cannot use compute.device={name!r}: {reason}") from error
    return device


def merged(parts: Sequence[tuple[int, int, Mapping[str, float]]]) -> dict[str, float]:
    """Merge the metrics of micro-batches, each with its numbers of trained tokens and sequences, into those of the
    batch."""
    tokens = max(sum(part[0] for part in parts), 1)
    sequences = max(sum(part[1] for part in parts), 1)
    result: dict[str, float] = {}
    for name in parts[0][2]:
        values = [metrics[name] for _, _, metrics in parts]
        if name == "ratio_max":
            result[name] = max(values)
        elif name == "ratio_min":
            result[name] = min(values)
        elif name == "loss":  # already divided by the count of the whole batch
            result[name] = sum(values)
        elif name == "dropped_sequences":
            result[name] = sum(m[name] * count for _, count, m in parts) / sequences
        else:
            result[name] = sum(m[name] * count for count, _, m in parts) / tokens
    return result


def _model_of(config: TrainConfig) -> TorchLlama:
    folder = config.model.start_folder
    if folder is None:
        return TorchLlama(config.model.shape())
    shape: ModelConfig = read_config(folder / "config.json")
    tensors = read_safetensors(folder / "model.safetensors")
    check_tensors(tensors, shape, source=str(folder))
    model = TorchLlama(shape)
    named = {name: torch.from_numpy(tensor.copy()) for name, tensor in tensors.items()}
    if shape.tie_word_embeddings:
        named.pop("lm_head.weight", None)
    model.load_state_dict(named)
    return model
