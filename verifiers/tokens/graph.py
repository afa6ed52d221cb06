"""`TokenGraph`: every token of a rollout once, although each turn repeats all turns before it.

A graph is a few chains. A chain is a run of ids in one buffer; it may begin with the first `shared` tokens of another
chain. A rollout whose turns extend each other is one chain:

    turn 1   prompt ██████ completion ▒▒▒
    turn 2   prompt ██████▒▒▒███ completion ▒▒        chain 0:  ██████▒▒▒███▒▒

A turn whose prompt differs from what was seen and sampled before (a template that renders an old answer differently,
an edited history, a sub-agent) begins a new chain at the first token that differs. So no mismatch can corrupt what is
stored, and what a turn's prompt and completion were is always given back exactly.

Token identity alone decides what is shared. Messages are not consulted: two turns whose ids agree saw the same
context whatever the messages say, and two whose ids differ did not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from verifiers.errors import Error
from verifiers.packed_tokens import PackedTokens

if TYPE_CHECKING:
    from verifiers.tokens.step_tokens import StepTokens

ID_BYTES = 4
"""Ids are int32, log-probabilities float32."""


class TokensInvalid(Error, ValueError):
    """The tokens of a turn contradict each other, or are no tokens."""


class Chain:
    """Consecutive tokens; see the module. Offsets and lengths count tokens from the chain's very beginning."""

    __slots__ = ("ids", "logprobs", "parent", "shared")

    parent: Chain | None
    """Where the first `shared` tokens are; None when there are none."""
    shared: int
    ids: bytearray
    """The tokens after the shared ones, int32."""
    logprobs: bytearray
    """Log-probabilities of the completions that lie on this chain, float32, in order, nothing in between."""

    def __init__(self, parent: Chain | None, shared: int) -> None:
        # A parent that itself only shares these tokens is skipped, so that chains do not queue up behind each other.
        while parent is not None and shared <= parent.shared:
            parent = parent.parent
        self.parent = parent
        self.shared = shared
        self.ids = bytearray()
        self.logprobs = bytearray()

    def __len__(self) -> int:
        return self.shared + len(self.ids) // ID_BYTES

    def __bool__(self) -> bool:
        return True

    def begins(self, packed: bytes) -> bool:
        """Whether all tokens of the chain, in order, are the first ones of `packed` (int32)."""
        if not packed.startswith(self.ids, self.shared * ID_BYTES):
            return False
        return self.parent is None or self.parent.starts_as(packed, self.shared)

    def starts_as(self, packed: bytes, length: int) -> bool:
        """Whether the first `length` tokens of the chain are the first ones of `packed`."""
        if self.parent is not None:
            if not self.parent.starts_as(packed, min(length, self.shared)):
                return False
            if length <= self.shared:
                return True
        start, end = self.shared * ID_BYTES, length * ID_BYTES
        return self.ids[: end - start] == packed[start:end]

    def first(self, length: int) -> bytes:
        """The first `length` tokens, int32."""
        if self.parent is None:
            return bytes(self.ids[: length * ID_BYTES])
        if length <= self.shared:
            return self.parent.first(length)
        own = (length - self.shared) * ID_BYTES
        return self.parent.first(self.shared) + self.ids[:own]

    def common_length(self, packed: bytes) -> int:
        """How many first tokens the chain has in common with `packed`."""
        low, high = 0, min(len(self), len(packed) // ID_BYTES)
        own = self.first(high)
        while low < high:
            middle = (low + high + 1) // 2
            if (
                own[low * ID_BYTES : middle * ID_BYTES]
                == packed[low * ID_BYTES : middle * ID_BYTES]
            ):
                low = middle
            else:
                high = middle - 1
        return low


class _Place(NamedTuple):
    """Where a turn's prompt ends."""

    chain: Chain
    length: int


class TokenGraph:
    """The tokens of one rollout. `commit` adds a turn and gives its view."""

    __slots__ = ("chains",)

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        """In the order they were begun; the one that grew last is at the end."""

    @property
    def resident_bytes(self) -> int:
        """Memory held by ids and log-probabilities, spare room included."""
        return sum(c.ids.__sizeof__() + c.logprobs.__sizeof__() for c in self.chains)

    @property
    def token_count(self) -> int:
        """Tokens stored."""
        return sum(len(chain.ids) // ID_BYTES for chain in self.chains)

    def commit(self, tokens: Mapping[str, Any], *, max_length: int | None = None) -> StepTokens:
        """Add one turn, given as `ResponseTokens` or as v0's step tokens, and give its view.

        Ids may be lists or int32 buffers (numpy, `array`), log-probabilities lists or float32 buffers. With
        `max_length` what lies beyond that many tokens is left out and the view says so. Raises TokensInvalid when the
        lists contradict each other; the graph is then as it was.
        """
        from verifiers.tokens.step_tokens import StepTokens

        if isinstance(tokens, PackedTokens):
            tokens = tokens.packed()  # as stored: lists of a whole prompt are made for readers only
        prompt = pack_ids(tokens["prompt_ids"], "prompt_ids")
        completion = pack_ids(tokens["completion_ids"], "completion_ids")
        logprobs = pack_logprobs(tokens.get("completion_logprobs"))
        prompt_length, length = len(prompt) // ID_BYTES, len(completion) // ID_BYTES
        if logprobs and len(logprobs) != len(completion):
            raise TokensInvalid(
                f"The completion has {length} token ids but {len(logprobs) // ID_BYTES} log-probabilities."
            )
        details = StepTokens.details_of(tokens, prompt_length, length)
        if max_length is not None and prompt_length + length > max_length:
            details["overlong_prompt"] = prompt_length > max_length
            details["is_truncated"] = True
            prompt_length = min(prompt_length, max_length)
            length = max_length - prompt_length
            prompt = prompt[: prompt_length * ID_BYTES]
            completion = completion[: length * ID_BYTES]
            logprobs = logprobs[: length * ID_BYTES]
        chain = self._chain_for(prompt)
        chain.ids += prompt[len(chain) * ID_BYTES :]
        chain.ids += completion
        first_logprob = len(chain.logprobs) // ID_BYTES if logprobs or not length else -1
        chain.logprobs += logprobs
        return StepTokens(
            self, chain, prompt_length, prompt_length + length, first_logprob, details
        )

    def _chain_for(self, prompt: bytes) -> Chain:
        """The chain that the prompt extends, moved to the end; a new one when it extends none."""
        chains = self.chains
        if chains and chains[-1].begins(prompt) and len(chains) == 1:
            return chains[0]
        longest: Chain | None = None
        for chain in chains:
            if (longest is None or len(chain) > len(longest)) and chain.begins(prompt):
                longest = chain
        if longest is not None:
            chains.remove(longest)
            chains.append(longest)
            return longest
        best = _Place(Chain(None, 0), 0)
        for chain in reversed(chains):
            if not best.length or chain.starts_as(prompt, min(best.length + 1, len(chain))):
                length = chain.common_length(prompt)
                if length > best.length:
                    best = _Place(chain, length)
        chain = Chain(best.chain, best.length) if best.length else Chain(None, 0)
        chains.append(chain)
        return chain


def graph_of(trajectory: Sequence[Mapping[str, Any]]) -> TokenGraph:
    """The graph that the latest step with stored tokens belongs to; a new one when there is none."""
    from verifiers.tokens.step_tokens import StepTokens

    for step in reversed(trajectory):
        tokens = step.get("tokens")
        if type(tokens) is StepTokens:
            return tokens.graph
    return TokenGraph()


def pack_ids(ids: Any, name: str) -> bytes:
    """Token ids as int32 bytes."""
    if type(ids) is not list and (view := _view_of(ids)) is not None:
        if view.format == "i" and view.c_contiguous:
            return view.tobytes()
        ids = view.tolist()
    try:
        return struct.pack(f"{len(ids)}i", *ids)
    except (struct.error, TypeError) as error:
        raise TokensInvalid(
            f"{name} must be whole numbers that fit 32 bits ({error}); got {ids!r:.100}"
        ) from error


def pack_logprobs(logprobs: Any) -> bytes:
    """Log-probabilities as float32 bytes; none for None."""
    if logprobs is None:
        return b""
    if type(logprobs) is not list and (view := _view_of(logprobs)) is not None:
        if view.format == "f" and view.c_contiguous:
            return view.tobytes()
        logprobs = view.tolist()
    try:
        return struct.pack(f"{len(logprobs)}f", *logprobs)
    except (struct.error, OverflowError, TypeError) as error:
        raise TokensInvalid(
            f"completion_logprobs must be numbers ({error}); got {logprobs!r:.100}"
        ) from error


def _view_of(values: Any) -> memoryview | None:
    try:
        view = memoryview(values)
    except TypeError:
        return None
    return view if view.ndim == 1 else None
