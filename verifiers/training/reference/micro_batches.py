"""Samples → padded micro-batches of about equally long rows. Needs no torch: the orchestrator makes them."""

from __future__ import annotations

from collections.abc import Sequence

from verifiers.training.packing import PaddedBatch, pad
from verifiers.training.samples import TokenSample


def micro_batches(samples: Sequence[TokenSample], max_tokens: int) -> list[PaddedBatch]:
    """The samples as padded batches of at most `max_tokens`, padding included; a longer sample is alone.

    The longest first, so that rows of one batch are about as long as each other.
    """
    order = sorted(samples, key=len, reverse=True)
    batches: list[PaddedBatch] = []
    while order:
        count = max(1, max_tokens // len(order[0]))
        batches.append(pad(order[:count]))
        order = order[count:]
    return batches
