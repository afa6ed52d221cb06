"""`TokenGraph`: every token of a rollout once, although each turn repeats all turns before it.

A graph consists of a few chains. A chain is a run of ids in one buffer; it may begin with the first `shared` tokens
of another chain. A rollout whose turns extend each other is one chain:

    turn 1   prompt ██████ completion ▒▒▒
    turn 2   prompt ██████▒▒▒███ completion ▒▒        chain 0:  ██████▒▒▒███▒▒

A turn whose prompt differs from the earlier tokens (a template that renders an old response differently, an edited
history, a sub-agent) begins a new chain at the first different token. A mismatch therefore cannot corrupt stored
tokens, and a turn's prompt and completion are always returned exactly.

Only token ids decide what is shared. Messages are not consulted: two turns whose ids agree had the same context
regardless of their messages, and two turns whose ids differ did not.

`StepTokens` shows one turn as v0 does; its lists are built from the graph when they are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from verifiers.errors import Error
from verifiers.tokens.packed import PackedTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


ID_BYTES = 4
"""Ids are int32, log-probabilities float32."""


class TokensInvalid(Error, ValueError):
    """The tokens of a turn contradict each other, or are not tokens."""


class Chain:
    """Consecutive tokens; see the module. Offsets and lengths count tokens from the first token of the chain."""

    __slots__ = ("ids", "logprobs", "parent", "shared")

    parent: Chain | None
    """The chain that holds the first `shared` tokens; None if there are none."""
    shared: int
    ids: bytearray
    """The tokens after the shared ones, int32."""
    logprobs: bytearray
    """Log-probabilities of the completions on this chain, float32, in order and without gaps."""

    def __init__(self, parent: Chain | None, shared: int) -> None:
        # Skip a parent that itself only shares these tokens, so that chains do not grow into long sequences of parents.
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
        """Whether the tokens of the chain, in order, are the first tokens of `packed` (int32)."""
        if not packed.startswith(self.ids, self.shared * ID_BYTES):
            return False
        return self.parent is None or self.parent.starts_as(packed, self.shared)

    def starts_as(self, packed: bytes, length: int) -> bool:
        """Whether the first `length` tokens of the chain are the first tokens of `packed`."""
        if self.parent is not None:
            if not self.parent.starts_as(packed, min(length, self.shared)):
                return False
            if length <= self.shared:
                return True
        start, end = self.shared * ID_BYTES, length * ID_BYTES
        return self.ids[: end - start] == packed[start:end]

    def first(self, length: int) -> bytes:
        """Return the first `length` tokens, int32."""
        if self.parent is None:
            return bytes(self.ids[: length * ID_BYTES])
        if length <= self.shared:
            return self.parent.first(length)
        own = (length - self.shared) * ID_BYTES
        return self.parent.first(self.shared) + self.ids[:own]

    def common_length(self, packed: bytes) -> int:
        """Return the number of leading tokens that the chain and `packed` have in common."""
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
    """Position where a turn's prompt ends."""

    chain: Chain
    length: int


class TokenGraph:
    """The tokens of one rollout. `commit` adds a turn and returns its view."""

    __slots__ = ("chains",)

    def __init__(self) -> None:
        self.chains: list[Chain] = []
        """In order of creation; the chain that grew last is at the end."""

    @property
    def resident_bytes(self) -> int:
        """Memory of ids and log-probabilities in bytes, spare capacity included."""
        return sum(c.ids.__sizeof__() + c.logprobs.__sizeof__() for c in self.chains)

    @property
    def token_count(self) -> int:
        """Number of stored tokens."""
        return sum(len(chain.ids) // ID_BYTES for chain in self.chains)

    def commit(self, tokens: Mapping[str, Any], *, max_length: int | None = None) -> StepTokens:
        """Add one turn, as `ResponseTokens` or as v0's step tokens, and return its view.

        Ids may be lists or int32 buffers (numpy, `array`), log-probabilities lists or float32 buffers. `max_length`
        cuts off the tokens beyond it, and the view records that. Raise TokensInvalid when the lists contradict each
        other; the graph is then unchanged.
        """
        if isinstance(tokens, PackedTokens):
            tokens = tokens.packed()  # as stored: whole prompt lists are built only for readers
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
        """Return the chain that the prompt extends, moved to the end, or a new chain."""
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
    """Return the graph of the latest step with stored tokens, or a new graph."""
    for step in reversed(trajectory):
        tokens = step.get("tokens")
        if type(tokens) is StepTokens:
            return tokens.graph
    return TokenGraph()


def pack_ids(ids: Any, name: str) -> bytes:
    """Return token ids as int32 bytes."""
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
    """Return log-probabilities as float32 bytes; no bytes for None."""
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


_STORED = frozenset(
    ["prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "completion_logprobs"]
)
_KEYS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "completion_logprobs",
    "overlong_prompt",
    "is_truncated",
    "routed_experts",
)
_PLAIN = {"overlong_prompt": False, "is_truncated": False, "routed_experts": None}
"""Default values of the keys that do not hold tokens."""


class StepTokens(Mapping[str, Any]):
    """One turn of a `TokenGraph`.

    Reads like v0's dict: `tokens["prompt_ids"]`, `tokens.get("routed_experts")`, `dict(tokens)`, and as attributes.
    Each read builds a plain list that belongs to the reader. `array(...)` returns numpy instead; `prompt_length` and
    `completion_length` cost nothing. Masks, versions and flags may be assigned. Ids and log-probabilities record the
    model call and may not: put your own dict in `step["tokens"]` instead.
    """

    __slots__ = ("_details", "chain", "first_logprob", "graph", "length", "prompt_length")

    graph: TokenGraph
    chain: Chain
    prompt_length: int
    """Number of tokens of the prompt, from the first token of the chain."""
    length: int
    """Number of tokens of prompt and completion."""
    first_logprob: int
    """Index of the completion's first log-probability among the chain's; -1 when the endpoint returned none."""

    def __init__(
        self,
        graph: TokenGraph,
        chain: Chain,
        prompt_length: int,
        length: int,
        first_logprob: int,
        details: dict[str, Any] | None,
    ) -> None:
        self.graph = graph
        self.chain = chain
        self.prompt_length = prompt_length
        self.length = length
        self.first_logprob = first_logprob
        self._details = details or None

    @staticmethod
    def details_of(
        tokens: Mapping[str, Any], prompt_length: int, completion_length: int
    ) -> dict[str, Any]:
        """Values of a turn, other than ids and log-probabilities, that differ from the defaults."""
        details: dict[str, Any] = {}
        for name, length, usual in (
            ("prompt_mask", prompt_length, 0),
            ("completion_mask", completion_length, 1),
        ):
            mask = tokens.get(name)
            if mask is not None and not _is_uniform(mask, length, usual):
                _set_mask(details, name, mask, length, usual)
        for name in tokens:
            if name not in _STORED:
                value = tokens[name]
                if value is not None and value is not False:
                    details[name] = value
        if (versions := details.get("versions")) is not None:
            details["versions"] = _compact_versions(versions, completion_length)
        return details

    # ------------------------------------------------------------------------------------------ reading

    @property
    def completion_length(self) -> int:
        """Number of tokens of the completion."""
        return self.length - self.prompt_length

    @property
    def details(self) -> Mapping[str, Any] | None:
        """Fields of the endpoint beyond ids and log-probabilities; None if there are none."""
        return self._details

    @property
    def versions(self) -> Any:
        """Policy version per completion token `[C]`, one number when all are equal, None when unknown."""
        return self._details.get("versions") if self._details else None

    @property
    def packed_ids(self) -> bytes:
        """Prompt and completion, int32."""
        return self.chain.first(self.length)

    @property
    def packed_logprobs(self) -> bytes:
        """Log-probabilities of the completion, float32; empty when the endpoint returned none."""
        if self.first_logprob < 0:
            return b""
        start = self.first_logprob * ID_BYTES
        return bytes(self.chain.logprobs[start : start + self.completion_length * ID_BYTES])

    @property
    def packed_mask(self) -> bytes | None:
        """One byte per completion token, 1 where the model sampled it; None when it sampled all."""
        return self._details.get("completion_mask") if self._details else None

    def array(self, name: str) -> NDArray[Any]:
        """Return `prompt_ids`, `completion_ids` (int32), `completion_logprobs` (float32) or a mask (bool)."""
        import numpy as np

        if name in ("prompt_ids", "completion_ids"):
            return np.frombuffer(self._ids(name), np.int32)
        if name == "completion_logprobs":
            return np.frombuffer(self.packed_logprobs, np.float32)
        if name in ("prompt_mask", "completion_mask"):
            return np.array(self[name], bool)
        raise KeyError(name)

    def _ids(self, name: str) -> bytes:
        if name == "prompt_ids":
            return self.chain.first(self.prompt_length)
        return self.packed_ids[self.prompt_length * ID_BYTES :]

    def __getitem__(self, key: str) -> Any:
        if key in ("prompt_ids", "completion_ids"):
            return memoryview(self._ids(key)).cast("i").tolist()
        if key == "completion_logprobs":
            if self.first_logprob < 0 and self.completion_length:
                return None
            return memoryview(self.packed_logprobs).cast("f").tolist()
        details = self._details
        if key == "prompt_mask":
            mask = details.get(key) if details else None
            return [0] * self.prompt_length if mask is None else list(mask[: self.prompt_length])
        if key == "completion_mask":
            mask = details.get(key) if details else None
            count = self.completion_length
            return [1] * count if mask is None else list(mask[:count])
        if details is not None and key in details:
            return details[key]
        if key in _PLAIN:
            return _PLAIN[key]
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        yield from _KEYS
        yield from (key for key in self._details or () if key not in _KEYS)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return key in _KEYS or (self._details is not None and key in self._details)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}") from None

    def __repr__(self) -> str:
        return f"StepTokens({self.prompt_length} prompt tokens, {self.completion_length} completion tokens)"

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of lists."""
        return dict(self)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """Return a plain dict of lists."""
        return dict(self)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    # ------------------------------------------------------------------------------------------ assigning

    def __setitem__(self, key: str, value: Any) -> None:
        """Replace a mask, the versions or a flag. Raise TypeError for ids and log-probabilities."""
        if key in ("prompt_ids", "completion_ids", "completion_logprobs"):
            raise TypeError(
                f"{key} of a stored step cannot be assigned, because it records the model call. To train on "
                "other tokens, set step['tokens'] to your own dict."
            )
        details = self._details = dict(self._details or {})
        details.pop(key, None)
        if key == "prompt_mask":
            _set_mask(details, key, value, self.prompt_length, 0)
        elif key == "completion_mask":
            _set_mask(details, key, value, self.completion_length, 1)
        elif key == "versions" and value is not None:
            details[key] = _compact_versions(value, self.completion_length)
        elif value is not _PLAIN.get(key):
            details[key] = value


def stored_steps(tokens: Sequence[Any]) -> list[StepTokens | None]:
    """Return steps as views of one graph: unchanged if they are, else committed to a new graph.

    Plain dicts come from environments that build steps themselves, and from rollouts read from JSON.
    """
    views = [one for one in tokens if one is not None]
    if all(type(one) is StepTokens and one.graph is views[0].graph for one in views):
        return list(tokens)
    graph = TokenGraph()
    return [None if one is None else graph.commit(one) for one in tokens]


def _compact_versions(versions: Any, length: int) -> Any:
    """Return one number when all tokens have the same version, the usual case; else a list."""
    if isinstance(versions, int):
        return versions
    if len(versions) != length:
        raise TokensInvalid(
            f"The completion has {length} token ids but {len(versions)} policy versions."
        )
    first = versions[0] if length else None
    return list(versions) if any(v != first for v in versions) else first


def _is_uniform(mask: Any, length: int, value: int) -> bool:
    if type(mask) is bytes:
        return len(mask) == mask.count(value) == length
    # Lists of the same small integers are compared by identity, which is far faster than a search.
    return type(mask) is list and mask == [value] * length


def _set_mask(details: dict[str, Any], name: str, mask: Any, length: int, usual: int) -> None:
    packed = bytes(map(bool, mask))
    if len(packed) != length:
        part = name.removesuffix("_mask")
        raise TokensInvalid(
            f"The {part} has {length} token ids, but its mask has {len(packed)} entries."
        )
    if packed.count(usual) != length:
        details[name] = packed
