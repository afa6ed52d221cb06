"""Sample tokens from logits: temperature, filters, penalties, and draws that depend on the seed only.

Logits have the shape [B, V]: B rows, V tokens. Every row has separate settings, so one call serves unrelated
requests.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of one request. `requests.py` checks the values."""

    temperature: float = 1.0
    """0 selects the most likely token."""
    top_k: int = 0
    """Number of most likely tokens to keep; 0 or less keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens that together reach this probability."""
    min_p: float = 0.0
    """Keep tokens whose probability relative to the most likely token is at least this."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token generated so far."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once per earlier occurrence."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or generated so far."""
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Added to the logits of individual tokens."""

    @property
    def filters(self) -> bool:
        """Whether a filter may exclude tokens."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def adjusts(self) -> bool:
        """Whether the logits depend on more than the model."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.logit_bias
        )


class Draw(NamedTuple):
    """One token per row."""

    token_ids: NDArray[np.int64]
    """`[B]`."""
    logprobs: Floats
    """`[B, V]`, natural logarithm: the distribution each token was sampled from."""


def adjust(
    logits_V: Floats, settings: Sampling, prompt: Sequence[int], written: Sequence[int]
) -> None:
    """Apply penalties and biases to one row, in place."""
    if settings.repetition_penalty != 1.0:
        seen = np.unique(np.concatenate([prompt, written]).astype(np.int64))
        values = logits_V[seen]
        factor = np.where(
            values > 0, 1.0 / settings.repetition_penalty, settings.repetition_penalty
        )
        logits_V[seen] = values * factor
    if written and (settings.presence_penalty or settings.frequency_penalty):
        tokens, counts = np.unique(np.asarray(written), return_counts=True)
        logits_V[tokens] -= settings.presence_penalty + settings.frequency_penalty * counts
    for token, bias in settings.logit_bias.items():
        logits_V[token] += bias


def draw_tokens(
    logits: Floats,
    settings: Sequence[Sampling],
    temperatures: Floats,
    uniforms: NDArray[np.float64],
) -> Draw:
    """Sample one token per row.

    `temperatures [B]` repeats the temperatures of the settings; `uniforms [B]` lie inside (0, 1). The
    log-probabilities are exact: after temperature, penalties and filters, renormalised. A row with temperature 0
    takes the most likely token and reports log-probabilities at temperature 1.
    """
    greedy = temperatures == 0.0
    scaled: Floats = np.divide(
        logits, np.where(greedy, 1.0, temperatures)[:, None], dtype=np.float32, casting="same_kind"
    )
    filtered = [row for row, setting in enumerate(settings) if setting.filters and not greedy[row]]
    if filtered:
        scaled[filtered] = _filter(scaled[filtered], [settings[row] for row in filtered])
    scaled -= scaled.max(axis=1, keepdims=True)
    weights = np.exp(scaled)
    cumulative = np.cumsum(weights, axis=1, dtype=np.float64)
    totals = cumulative[:, -1]
    token_ids = (cumulative <= (uniforms * totals)[:, None]).sum(axis=1)
    if greedy.any():
        token_ids = np.where(greedy, scaled.argmax(axis=1), token_ids)
    logprobs = scaled - np.log(totals).astype(np.float32)[:, None]
    return Draw(token_ids, logprobs)


def _filter(scaled: Floats, settings: Sequence[Sampling]) -> Floats:
    # min_p, then top_k, then top_p over the remaining tokens: the order of vLLM. Excluded tokens become -inf.
    order = np.argsort(-scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    top_k = np.array([s.top_k if s.top_k > 0 else scaled.shape[1] for s in settings])
    with np.errstate(divide="ignore"):
        floor = np.log(np.array([s.min_p for s in settings], np.float32))
    ruled_out = np.arange(scaled.shape[1])[None, :] >= top_k[:, None]
    ruled_out |= ranked < ranked[:, :1] + floor[:, None]
    # Keep the most likely token even where rounding of min_p = 1 would exclude it.
    ruled_out[:, 0] = False
    ranked[ruled_out] = -np.inf
    weights = np.exp(ranked - ranked[:, :1], dtype=np.float64)
    before = np.cumsum(weights, axis=1) - weights
    top_p = np.array([s.top_p for s in settings])
    ranked[before >= top_p[:, None] * weights.sum(axis=1, keepdims=True)] = -np.inf
    result = np.empty_like(scaled)
    np.put_along_axis(result, order, ranked, axis=1)
    return result


def top_tokens(logprobs_V: Floats, count: int) -> list[tuple[int, float]]:
    """Return the `count` most likely tokens of a row with their log-probabilities, best first."""
    best = np.argsort(-logprobs_V, kind="stable")[:count]
    return [(int(token), finite(float(logprobs_V[token]))) for token in best]


def finite(logprob: float) -> float:
    """Replace infinity, which JSON lacks: an impossible token is reported as -9999.0, as OpenAI does."""
    return logprob if math.isfinite(logprob) else -9999.0


_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def stream_key(seed: int, choice: int) -> int:
    """Return the key of one sequence's random stream, from the request's seed and the index of the choice."""
    return _mix(_mix(seed & _MASK) + choice)


def _mix(number: int) -> int:
    # Compute one step of SplitMix64.
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


def uniforms(keys: NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number at position `counters[b]` of stream `keys[b]`, inside (0, 1).

    A counter-based generator: a token's draw depends on its seed and position only, never on the other requests of
    the batch. SplitMix64, https://doi.org/10.1145/2714064.2660195.
    """
    number = keys + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    number ^= number >> np.uint64(31)
    # 32 bits plus one half keep the result away from 0 and 1 by more than a rounding error.
    return ((number >> np.uint64(32)).astype(np.float64) + 0.5) * 2.0**-32
