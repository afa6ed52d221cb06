"""Losses. In all formulas r = π_train(token) / π_inference(token), A is the advantage, N the number of trained tokens.

Common arguments: `logprobs` of the current trainer, `inference_logprobs` from the time of sampling (both after the
same temperature), `advantages` (one per token or one per sequence), `mask` (True where trained), `sequence_ids` for
packed streams, and `token_count`, a divisor to use instead of N: the trained tokens of the whole batch when the batch
is computed in parts, on several devices or in several micro-batches.
"""

from __future__ import annotations

from typing import Protocol

from verifiers.training.losses.streams import (
    Array,
    LossOutput,
    Streams,
    detached,
    output_of,
    streams_of,
)


class Loss(Protocol):
    """Signature of the policy losses of this module."""

    def __call__(
        self,
        logprobs: Array,
        inference_logprobs: Array,
        advantages: Array,
        mask: Array,
        *,
        sequence_ids: Array | None = None,
        token_count: float | None = None,
    ) -> LossOutput:
        """Return the loss and its metrics; see the module."""
        ...


def masked_importance_sampling(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    ratio_min: float = 0.5,
    ratio_max: float = 5.0,
    drop_below: float = 1e-5,
) -> LossOutput:
    """-1/N Σ M(r)·A with M(r) = r inside [ratio_min, ratio_max] and 0 outside; IcePop.

    A sequence with any ratio below `drop_below` is left out completely. Unlike clipping, masking gives no gradient to
    tokens on which trainer and sampler disagree, in either direction.
    Source: INTELLECT-3, https://arxiv.org/abs/2512.16144, equation 1 (0.5, 5, 1e-5); IcePop,
    https://arxiv.org/abs/2510.18855.
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    ratio = detached(s.ratio)
    dead = s.per_sequence(1.0 * (s.mask & (ratio < drop_below))) > 0
    keep = s.mask & (ratio >= ratio_min) & (ratio <= ratio_max) & ~s.per_token(dead)
    loss = -(s.xp.where(keep, s.ratio, 0.0 * s.ratio) * s.advantages).sum() / s.count(token_count)
    return output_of(s, loss, ~keep, dead)


def two_sided_clip(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    epsilon: float = 0.2,
    ratio_max: float = 4.0,
) -> LossOutput:
    """-1/N Σ min(min(r, ratio_max)·A, clip(r, 1-ε, 1+ε)·A): GRPO that bounds negative advantages too.

    Plain clipping leaves r·A unbounded when A < 0; one token with a huge ratio then destroys the step.
    Source: INTELLECT-2, https://arxiv.org/abs/2505.07291, section 4.1 (ε 0.2, δ 4).
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    xp = s.xp
    bounded = xp.clip(s.ratio, 0.0, ratio_max) * s.advantages
    clipped = xp.clip(s.ratio, 1 - epsilon, 1 + epsilon) * s.advantages
    loss = -xp.minimum(bounded, clipped).sum() / s.count(token_count)
    return output_of(s, loss, _outside(s, 1 - epsilon, 1 + epsilon, ratio_max))


def clip_higher(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.28,
) -> LossOutput:
    """-1/N Σ min(r·A, clip(r, 1-ε_low, 1+ε_high)·A), averaged over all tokens; DAPO.

    A larger upper bound lets unlikely tokens grow. Source: DAPO, https://arxiv.org/abs/2503.14476, sections 3.1 and
    3.3.
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    xp = s.xp
    clipped = xp.clip(s.ratio, 1 - epsilon_low, 1 + epsilon_high) * s.advantages
    loss = -xp.minimum(s.ratio * s.advantages, clipped).sum() / s.count(token_count)
    return output_of(s, loss, _outside(s, 1 - epsilon_low, 1 + epsilon_high, float("inf")))


def _outside(s: Streams, low: float, high: float, highest: float) -> Array:
    """Tokens whose gradient a clipped objective makes zero."""
    ratio = detached(s.ratio)
    up, down = s.advantages > 0, s.advantages < 0
    return s.mask & ((up & (ratio > high)) | (down & ((ratio < low) | (ratio > highest))))


def cispo(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    ratio_min: float = 0.0,
    ratio_max: float = 5.0,
) -> LossOutput:
    """-1/N Σ sg(clip(r, ratio_min, ratio_max))·A·log π: the weight is clipped, no token loses its gradient.

    Source: MiniMax-M1, https://arxiv.org/abs/2506.13585, equation 4, which sets no lower bound and does not state the
    upper one; 4 to 8 do alike in ScaleRL, https://arxiv.org/abs/2510.13786.
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    ratio = detached(s.ratio)
    weight = s.xp.clip(ratio, ratio_min, ratio_max)
    loss = -(weight * s.advantages * s.logprobs).sum() / s.count(token_count)
    return output_of(s, loss, None)


def gspo(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    epsilon_low: float = 3e-4,
    epsilon_high: float = 4e-4,
) -> LossOutput:
    """-1/S Σ_i min(s_i·A_i, clip(s_i, 1-ε_low, 1+ε_high)·A_i) with s_i = exp(mean log r over sequence i).

    S is the number of sequences with trained tokens; `token_count`, if given, is the number of sequences to divide by
    instead. A_i is the mean advantage of the sequence. Source: GSPO,
    https://arxiv.org/abs/2507.18071.
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    xp = s.xp
    lengths = s.per_sequence(s.mask + 0.0 * detached(s.ratio))
    at_least_one = xp.clip(lengths, 1.0, None)
    mean_log_ratio = _flat(s.per_sequence(s.log_ratio)) / _flat(at_least_one)
    ratio = xp.exp(mean_log_ratio)
    advantage = _flat(s.per_sequence(s.advantages)) / _flat(at_least_one)
    clipped = xp.clip(ratio, 1 - epsilon_low, 1 + epsilon_high)
    used = float((_flat(lengths) > 0).sum()) if token_count is None else float(token_count)
    loss = -xp.minimum(ratio * advantage, clipped * advantage).sum() / max(used, 1.0)
    now = detached(ratio)
    outside = ((advantage > 0) & (now > 1 + epsilon_high)) | (
        (advantage < 0) & (now < 1 - epsilon_low)
    )
    return output_of(s, loss, s.mask & s.per_token(outside.reshape(lengths.shape)))


def _flat(values: Array) -> Array:
    """`[S]` also where there is one sequence and its sum is a scalar."""
    return values.reshape(-1)


def divergence_tv(
    logprobs: Array,
    inference_logprobs: Array,
    advantages: Array,
    mask: Array,
    *,
    sequence_ids: Array | None = None,
    token_count: float | None = None,
    threshold: float = 0.2,
    kl_coefficient: float = 1e-3,
) -> LossOutput:
    """-1/N Σ (keep·A·r - kl_coefficient·(log r)²); DPPO with binary total variation.

    `keep` is False where the token's probability has moved by more than `threshold` in the direction of its
    advantage. This bounds probabilities rather than their ratio: unlikely tokens may move by large ratios and likely
    ones may not.
    Sources: DPPO, https://arxiv.org/abs/2602.04879; the squared log-ratio is that of Kimi k1.5,
    https://arxiv.org/abs/2501.12599.
    """
    s = streams_of(logprobs, inference_logprobs, advantages, mask, sequence_ids)
    xp = s.xp
    now = detached(s.logprobs)
    moved = xp.exp(now) - xp.exp(now - detached(s.log_ratio))
    gone_too_far = ((s.advantages > 0) & (moved > threshold)) | (
        (s.advantages < 0) & (moved < -threshold)
    )
    keep = s.mask & ~gone_too_far
    gain = xp.where(keep, s.ratio, 0.0 * s.ratio) * s.advantages
    loss = -(gain - kl_coefficient * s.log_ratio**2).sum() / s.count(token_count)
    return output_of(s, loss, s.mask & gone_too_far)


def cross_entropy(
    logprobs: Array,
    mask: Array,
    *,
    token_count: float | None = None,
) -> LossOutput:
    """-1/N Σ log π over the masked tokens: supervised fine-tuning."""
    s = streams_of(logprobs, None, None, mask, None)
    return output_of(s, -s.logprobs.sum() / s.count(token_count), None)


LOSSES: dict[str, Loss] = {
    "masked_importance_sampling": masked_importance_sampling,
    "two_sided_clip": two_sided_clip,
    "clip_higher": clip_higher,
    "cispo": cispo,
    "gspo": gspo,
    "divergence_tv": divergence_tv,
}
"""Policy losses by the name that a configuration uses."""
