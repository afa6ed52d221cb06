"""Shared parts of all losses. Every function works on numpy arrays and on torch tensors alike.

numpy and torch agree on the few names used here (`exp`, `where`, `minimum`, `clip`, comparison, arithmetic), so each
formula is written once. torch is found through the given tensor and never imported.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are cut to ±20: no loss uses a ratio that far from 1 unchanged, and exp overflows float32 at 88."""

Array = Any
"""A numpy array or a torch tensor; the two have no common type."""


class LossOutput(NamedTuple):
    """A loss and the metrics to monitor."""

    loss: Array
    """A scalar; with tensors it has a gradient."""
    metrics: dict[str, Array]
    """Scalars without a gradient:

    `mismatch_kl`         mean of ratio - log ratio - 1 over the trained tokens; ≥ 0, about 0 on the first step
    `masked_fraction`     share of the trained tokens that the loss ignores or whose gradient it clips to zero
    `dropped_sequences`   share of the sequences with trained tokens that the loss ignores altogether
    `ratio_mean`, `ratio_max`, `ratio_min`    of π_train / π_inference over the trained tokens
    """


class Streams(NamedTuple):
    """The checked arguments of a loss, and values derived from them."""

    xp: ModuleType
    """numpy or torch."""
    logprobs: Array
    log_ratio: Array
    """log π_train - log π_inference, 0 where masked, cut to `LOG_RATIO_LIMIT`."""
    ratio: Array
    advantages: Array
    mask: Array
    """Booleans."""
    sequence_ids: Array | None
    sequence_count: int

    def per_sequence(self, values: Array) -> Array:
        """Return the sum of values over the tokens of each sequence, `[S]`."""
        if self.sequence_ids is None:
            return values.sum(-1)
        if self.xp is np:
            return np.bincount(self.sequence_ids, values, self.sequence_count)
        zeros = values.new_zeros(self.sequence_count)
        return zeros.index_add(0, self.sequence_ids, values)

    def per_token(self, values: Array) -> Array:
        """Return a value per sequence at each of its tokens."""
        return values[..., None] if self.sequence_ids is None else values[self.sequence_ids]

    def count(self, given: float | None) -> Array:
        """Return the divisor of a loss over tokens: the given number, else the count of trained tokens, at least 1."""
        return max(float(self.mask.sum()) if given is None else float(given), 1.0)


def streams_of(
    logprobs: Array,
    inference_logprobs: Array | None,
    advantages: Array | None,
    mask: Array,
    sequence_ids: Array | None,
) -> Streams:
    """Check the arguments of a loss. Raise ValueError when shapes differ.

    `advantages` may have one value per token or one per sequence.
    """
    xp = namespace_of(logprobs)
    mask = mask if mask.dtype in (bool, getattr(xp, "bool", bool)) else mask != 0
    shape = tuple(logprobs.shape)
    if sequence_ids is not None and len(shape) != 1:
        raise ValueError(f"sequence_ids go with packed streams [N]; logprobs has shape {shape}.")
    count = _sequence_count(shape, sequence_ids)
    if advantages is not None and tuple(advantages.shape) != shape:
        if tuple(advantages.shape) != (count,):
            raise ValueError(
                f"advantages has shape {tuple(advantages.shape)}; pass one per token {shape} "
                f"or one per sequence ({count},)."
            )
        if sequence_ids is not None:
            advantages = advantages[sequence_ids]
        elif len(shape) == 2:
            advantages = advantages[:, None] + xp.zeros_like(logprobs)
    for name, stream in (
        ("mask", mask),
        ("inference_logprobs", inference_logprobs),
        ("sequence_ids", sequence_ids),
    ):
        if stream is not None and tuple(stream.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(stream.shape)}, logprobs {shape}.")
    zeros = xp.zeros_like(logprobs)
    logprobs = xp.where(mask, logprobs, zeros)
    log_ratio = zeros
    if inference_logprobs is not None:
        # Masked entries of both are replaced: padding may hold any value, and nan * 0 is nan.
        log_ratio = logprobs - xp.where(mask, inference_logprobs, zeros)
        log_ratio = xp.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    advantages = zeros if advantages is None else xp.where(mask, advantages, zeros)
    return Streams(
        xp, logprobs, log_ratio, xp.exp(log_ratio), advantages, mask, sequence_ids, count
    )


def _sequence_count(shape: tuple[int, ...], sequence_ids: Array | None) -> int:
    if sequence_ids is not None:
        return int(sequence_ids.max()) + 1 if len(sequence_ids) else 0
    if len(shape) not in (1, 2):
        raise ValueError(f"logprobs is [B, T], or [N] of packed sequences; got shape {shape}.")
    return shape[0] if len(shape) == 2 else 1


def namespace_of(array: Array) -> ModuleType:
    """Return numpy or torch, the module of the array."""
    if isinstance(array, np.ndarray):
        return np
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    raise TypeError(f"Losses take numpy arrays or torch tensors; got {type(array).__name__}.")


def detached(values: Array) -> Array:
    """Return the values as constants: no gradient flows through them."""
    return values if isinstance(values, np.ndarray | np.generic | float) else values.detach()


def mismatch_kl(logprobs: Array, inference_logprobs: Array, mask: Array) -> Array:
    """Return the mean of ratio - log ratio - 1 over masked tokens: an estimate of KL(π_inference ‖ π_train) ≥ 0.

    Trainer and inference server agree exactly when it is 0. Source: http://joschu.net/blog/kl-approx.html (k3).
    """
    return _mismatch_kl(streams_of(logprobs, inference_logprobs, None, mask, None))


def _mismatch_kl(s: Streams) -> Array:
    # `ratio - 1` of a ratio near 1 loses all digits in float32, and the mean came out as -8e-9. The lower bound takes
    # the last rounding error; + 0 turns the -0.0 of an exact agreement into 0.0.
    log_ratio = detached(s.log_ratio)
    return _mean(s, s.xp.clip(s.xp.expm1(log_ratio) - log_ratio, 0.0, None)) + 0.0


def output_of(
    s: Streams, loss: Array, ignored: Array | None, dropped: Array | None = None
) -> LossOutput:
    """Return the output of a loss. `ignored`: one boolean per token; `dropped`: one boolean per sequence."""
    xp = s.xp
    ratio = detached(s.ratio)
    ones = xp.ones_like(ratio)
    has_any = bool(s.mask.any())
    zero = ratio.sum() * 0.0
    metrics: dict[str, Array] = {
        "mismatch_kl": _mismatch_kl(s),
        "masked_fraction": zero if ignored is None else _mean(s, xp.where(ignored, ones, 0 * ones)),
        "dropped_sequences": zero
        if dropped is None
        else detached(dropped).sum() / max(float((s.per_sequence(1.0 * s.mask) > 0).sum()), 1.0),
        "ratio_mean": _mean(s, ratio) if has_any else zero + 1.0,
        "ratio_max": ratio[s.mask].max() if has_any else zero + 1.0,
        "ratio_min": ratio[s.mask].min() if has_any else zero + 1.0,
    }
    return LossOutput(loss, metrics)


def _mean(s: Streams, values: Array) -> Array:
    return s.xp.where(s.mask, values, s.xp.zeros_like(values)).sum() / s.count(None)
