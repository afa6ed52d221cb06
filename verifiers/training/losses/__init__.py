"""Policy losses as pure functions: numpy arrays or torch tensors in, `LossOutput` out.

    streams   shared parts: arguments, per-sequence sums, the log-ratio, diagnostics
    policy    the losses

A loss takes `[B, T]` (one row per sequence, padding masked out) or packed `[N]` with `sequence_ids` `[N]`. With
tensors the result has a gradient with respect to `logprobs` only.
"""

from verifiers.training.losses.policy import (
    LOSSES,
    Loss,
    cispo,
    clip_higher,
    cross_entropy,
    divergence_tv,
    gspo,
    masked_importance_sampling,
    two_sided_clip,
)
from verifiers.training.losses.streams import LossOutput, mismatch_kl

__all__ = [
    "LOSSES",
    "Loss",
    "LossOutput",
    "cispo",
    "clip_higher",
    "cross_entropy",
    "divergence_tv",
    "gspo",
    "masked_importance_sampling",
    "mismatch_kl",
    "two_sided_clip",
]
