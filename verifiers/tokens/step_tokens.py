"""`StepTokens`: the tokens of one turn as v0 shows them, made from the graph when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.tokens.graph import ID_BYTES, Chain, TokenGraph, TokensInvalid

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
"""What the keys that are not about tokens read as when nothing else was said."""


class StepTokens(Mapping[str, Any]):
    """One turn of a `TokenGraph`.

    It reads like v0's dict: `tokens["prompt_ids"]`, `tokens.get("routed_experts")`, `dict(tokens)`, and as attributes.
    Each reading makes a plain list that is the reader's own. `array(...)` gives numpy instead, and `prompt_length` and
    `completion_length` cost nothing. Masks, versions and flags may be assigned; ids and log-probabilities are what the
    model was shown and said, and may not: put a dict of your own in `step["tokens"]` instead.
    """

    __slots__ = ("_details", "chain", "first_logprob", "graph", "length", "prompt_length")

    graph: TokenGraph
    chain: Chain
    prompt_length: int
    """Tokens of the prompt, from the chain's beginning."""
    length: int
    """Tokens of prompt and completion."""
    first_logprob: int
    """Place of the completion's first log-probability among the chain's; -1 when the endpoint gave none."""

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
        """Everything about a turn that is not ids and log-probabilities and not as usual."""
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
        """Tokens of the completion."""
        return self.length - self.prompt_length

    @property
    def details(self) -> Mapping[str, Any] | None:
        """What the endpoint gave beyond ids and log-probabilities; None when nothing."""
        return self._details

    @property
    def versions(self) -> Any:
        """Policy version of each completion token `[C]`, one number when all have the same, None when not known."""
        return self._details.get("versions") if self._details else None

    @property
    def packed_ids(self) -> bytes:
        """Prompt and completion, int32."""
        return self.chain.first(self.length)

    @property
    def packed_logprobs(self) -> bytes:
        """The completion's log-probabilities, float32; empty when the endpoint gave none."""
        if self.first_logprob < 0:
            return b""
        start = self.first_logprob * ID_BYTES
        return bytes(self.chain.logprobs[start : start + self.completion_length * ID_BYTES])

    @property
    def packed_mask(self) -> bytes | None:
        """One byte a completion token, 1 where it is the model's own; None when all are."""
        return self._details.get("completion_mask") if self._details else None

    def array(self, name: str) -> NDArray[Any]:
        """`prompt_ids`, `completion_ids` (int32), `completion_logprobs` (float32) or a mask (bool) as an array."""
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
        """A plain dict of lists."""
        return dict(self)

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """A plain dict of lists."""
        return dict(self)

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    # ------------------------------------------------------------------------------------------ assigning

    def __setitem__(self, key: str, value: Any) -> None:
        """Replace a mask, the versions or a flag. Raises TypeError for ids and log-probabilities."""
        if key in ("prompt_ids", "completion_ids", "completion_logprobs"):
            raise TypeError(
                f"{key} of a stored step cannot be assigned: it is what the model was shown or said. To train on "
                "other tokens, set step['tokens'] to a dict of your own."
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
    """Steps as views of one graph: as they are when they are that already, else committed to a new one.

    Plain dicts come from environments that make their own steps, and from rollouts read back from JSON.
    """
    views = [one for one in tokens if one is not None]
    if all(type(one) is StepTokens and one.graph is views[0].graph for one in views):
        return list(tokens)
    graph = TokenGraph()
    return [None if one is None else graph.commit(one) for one in tokens]


def _compact_versions(versions: Any, length: int) -> Any:
    """One number when all tokens have the same version, as nearly always; else a list."""
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
    # Two lists of the same small integers are compared by identity, far faster than a search.
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
