"""Samples → micro-batches: several sequences in one row, or one padded row per sequence.

Index t of every stream describes token t, as in `TokenSample`. A model's logits at t predict token t + 1, so a
trainer shifts once, where it computes log-probabilities: `token_logprobs` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from verifiers.errors import Error
from verifiers.training.samples import UNKNOWN_VERSION, TokenSample

if TYPE_CHECKING:
    from numpy.typing import NDArray


class PackingError(Error, ValueError):
    """Samples do not fit the requested micro-batches."""


@dataclass(slots=True, eq=False)
class MicroBatch:
    """S sequences in one row of N tokens, for attention kernels that take `cu_seqlens`."""

    input_ids: NDArray[np.int32]
    """`[N]`"""
    position_ids: NDArray[np.int32]
    """`[N]` from 0 in every sequence."""
    mask: NDArray[np.bool_]
    """`[N]` True where trained."""
    advantages: NDArray[np.float32]
    """`[N]` 0.0 where not trained."""
    inference_logprobs: NDArray[np.float32]
    """`[N]` 0.0 where not trained."""
    temperatures: NDArray[np.float32]
    """`[N]` sampling temperature of the token."""
    versions: NDArray[np.int32]
    """`[N]` policy version; `UNKNOWN_VERSION` where not sampled or unknown."""
    sequence_ids: NDArray[np.int32]
    """`[N]` from 0 to S - 1: the argument of losses for packed streams."""
    cu_seqlens: NDArray[np.int32]
    """`[S + 1]` positions where sequences begin, and N. Padding at the end is a separate sequence."""
    sample_numbers: tuple[int, ...]
    """Indices of the samples in the list given to `pack`; padding has none."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence."""
        return int(np.diff(self.cu_seqlens).max(initial=0))

    @property
    def trained_count(self) -> int:
        """Number of tokens that are trained on."""
        return int(self.mask.sum())


@dataclass(slots=True, eq=False)
class PaddedBatch:
    """B sequences as rows of T tokens, padded on the right; for models without variable-length attention."""

    input_ids: NDArray[np.int32]
    """`[B, T]`"""
    position_ids: NDArray[np.int32]
    """`[B, T]` 0 in padding."""
    attention_mask: NDArray[np.bool_]
    """`[B, T]` False in padding."""
    mask: NDArray[np.bool_]
    """`[B, T]` True where trained."""
    advantages: NDArray[np.float32]
    """`[B, T]` 0.0 where not trained."""
    inference_logprobs: NDArray[np.float32]
    """`[B, T]` 0.0 where not trained."""
    temperatures: NDArray[np.float32]
    """`[B, T]` 1.0 in padding."""
    versions: NDArray[np.int32]
    """`[B, T]` `UNKNOWN_VERSION` where not sampled or unknown."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def trained_count(self) -> int:
        """Number of tokens that are trained on."""
        return int(self.mask.sum())


def pack(
    samples: Sequence[TokenSample],
    max_tokens: int,
    *,
    ranks: int = 1,
    multiple_of: int = 1,
    pad_id: int = 0,
) -> list[list[MicroBatch]]:
    """Return micro-batches of at most `max_tokens`, the same number for each of `ranks` data-parallel workers.

    The longest samples are placed first, each into the first micro-batch with room (first-fit decreasing, at most 22
    % more micro-batches than the best packing). If their number is not divisible by `ranks`, micro-batches of padding
    alone are added: every rank must take the same number of steps. `multiple_of` pads each micro-batch to a multiple
    of that number of tokens. Raise PackingError for a sample longer than `max_tokens`: cut it with `TokenSample.cut`,
    or leave it out.
    """
    if max_tokens < 1 or ranks < 1 or multiple_of < 1 or max_tokens % multiple_of:
        raise PackingError(
            f"max_tokens={max_tokens} must be a positive multiple of multiple_of={multiple_of}, ranks={ranks} positive."
        )
    bins: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(samples)), key=lambda n: -len(samples[n])):
        length = _checked_length(samples[number], number, max_tokens)
        place = next((n for n, left in enumerate(room) if left >= length), None)
        if place is None:
            place = len(bins)
            bins.append([])
            room.append(max_tokens)
        bins[place].append(number)
        room[place] -= length
    bins += [[] for _ in range(-len(bins) % ranks)]
    # Heaviest first, in alternating order: ranks then have nearly the same number of tokens in every step.
    order = sorted(range(len(bins)), key=lambda n: -sum(len(samples[i]) for i in bins[n]))
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    for index, number in enumerate(order):
        lap, place = divmod(index, ranks)
        rank = place if lap % 2 == 0 else ranks - 1 - place
        shares[rank].append(_micro_batch(samples, bins[number], multiple_of, pad_id))
    return shares


def _checked_length(sample: TokenSample, number: int, max_tokens: int) -> int:
    if len(sample) > max_tokens:
        raise PackingError(
            f"Sample {number} has {len(sample)} tokens, a micro-batch at most {max_tokens}. "
            f"Cut it (sample.cut({max_tokens})), leave it out, or raise max_tokens."
        )
    if len(sample) and sample.mask[0]:
        raise PackingError(
            f"Sample {number} trains on its very first token, which no token before it predicts."
        )
    return len(sample)


def _micro_batch(
    samples: Sequence[TokenSample], numbers: Sequence[int], multiple_of: int, pad_id: int
) -> MicroBatch:
    chosen = [samples[number] for number in numbers]
    lengths = [len(sample) for sample in chosen]
    total = sum(lengths)
    padding = -total % multiple_of if total else multiple_of
    if padding:
        lengths.append(padding)

    def joined(streams: list[NDArray[Any]], fill: float, kind: type) -> NDArray[Any]:
        return np.concatenate([*streams, np.full(padding, fill)]).astype(kind)

    return MicroBatch(
        input_ids=joined([s.token_ids for s in chosen], pad_id, np.int32),
        position_ids=np.concatenate([np.arange(length) for length in lengths]).astype(np.int32),
        mask=joined([s.mask for s in chosen], 0, np.bool_),
        advantages=joined([s.token_advantages() for s in chosen], 0.0, np.float32),
        inference_logprobs=joined([s.logprobs for s in chosen], 0.0, np.float32),
        temperatures=joined([np.full(len(s), s.temperature) for s in chosen], 1.0, np.float32),
        versions=joined([_versions(s) for s in chosen], UNKNOWN_VERSION, np.int32),
        sequence_ids=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        sample_numbers=tuple(numbers),
    )


def _versions(sample: TokenSample) -> NDArray[np.int32]:
    if sample.versions is not None:
        return sample.versions
    return np.full(len(sample), UNKNOWN_VERSION, np.int32)


def pad(samples: Sequence[TokenSample], *, pad_id: int = 0, multiple_of: int = 1) -> PaddedBatch:
    """Return the samples as rows, padded on the right to the longest, rounded up to `multiple_of`."""
    if not samples:
        raise PackingError("There are no samples to pad.")
    lengths = [_checked_length(s, n, len(s)) for n, s in enumerate(samples)]
    width = -(-max(lengths) // multiple_of) * multiple_of

    def rows(streams: list[NDArray[Any]], fill: float, kind: type) -> NDArray[Any]:
        padded = np.full((len(streams), width), fill, kind)
        for row, stream in zip(padded, streams, strict=True):
            row[: len(stream)] = stream
        return padded

    return PaddedBatch(
        input_ids=rows([s.token_ids for s in samples], pad_id, np.int32),
        position_ids=rows([np.arange(length) for length in lengths], 0, np.int32),
        attention_mask=rows([np.ones(length) for length in lengths], 0, np.bool_),
        mask=rows([s.mask for s in samples], 0, np.bool_),
        advantages=rows([s.token_advantages() for s in samples], 0.0, np.float32),
        inference_logprobs=rows([s.logprobs for s in samples], 0.0, np.float32),
        temperatures=rows([np.full(len(s), s.temperature) for s in samples], 1.0, np.float32),
        versions=rows([_versions(s) for s in samples], UNKNOWN_VERSION, np.int32),
    )


# ------------------------------------------------------------------------------------------------ torch


def tensors_of(batch: MicroBatch | PaddedBatch, device: Any = None) -> dict[str, Any]:
    """Return the streams as torch tensors by name; ids are int64 for embeddings, `cu_seqlens` int32 for kernels."""
    import torch  # pyright: ignore[reportMissingImports]

    streams = {f.name: getattr(batch, f.name) for f in fields(batch) if f.name != "sample_numbers"}
    wide = {"input_ids", "position_ids", "sequence_ids"}
    return {
        name: torch.from_numpy(stream.astype(np.int64) if name in wide else stream).to(device)
        for name, stream in streams.items()
    }


def token_logprobs(logits: Any, input_ids: Any, temperatures: Any = None) -> Any:
    """Return the log-probability of every token given earlier ones: logits `[..., N, V]`, ids `[..., N]` → `[..., N]`.

    Index t describes token t; index 0 is 0.0, because no token predicts it. In a packed row the first token of a
    later sequence gets a meaningless value; no sample trains on it. `temperatures` `[..., N]` are the sampling
    temperatures, so that the result is comparable with the sampler's log-probabilities. The gradient flows to the
    logits.
    """
    import torch  # pyright: ignore[reportMissingImports]

    predicting = logits[..., :-1, :].float()
    if temperatures is not None:
        # At temperature 0 sampling is greedy, and endpoints report log-probabilities at 1.
        safe = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
        predicting = predicting / safe[..., 1:, None]
    chosen = predicting.gather(-1, input_ids[..., 1:, None]).squeeze(-1)
    logprobs = chosen - predicting.logsumexp(-1)
    return torch.cat([torch.zeros_like(logprobs[..., :1]), logprobs], -1)


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
