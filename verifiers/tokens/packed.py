"""`PackedTokens`: `ResponseTokens` as clients make them, whose long lists are not made until somebody reads them.

A prompt of twenty thousand ids costs half a millisecond as a Python list and nothing as a buffer, and the rollout loop
only ever copies it. Everybody else sees the lists of `ResponseTokens`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from verifiers.types import ResponseTokens

_LATE = ("prompt_ids", "prompt_mask", "completion_mask")


class PackedTokens(ResponseTokens):
    """Reads as `ResponseTokens` in every way: the first reading that needs the prompt or a mask makes plain lists.

    Until then `prompt_ids` is stored as an int32 `array` and the masks not at all; `packed` gives it like that.
    """

    __slots__ = ()

    @classmethod
    def make(
        cls,
        prompt_ids: array[int],
        completion_ids: list[int],
        completion_logprobs: list[float],
        **others: Any,
    ) -> Self:
        """The tokens of one answer whose prompt was not sampled and whose completion was."""
        return cls.of(
            {
                "prompt_ids": prompt_ids,
                "completion_ids": completion_ids,
                "completion_logprobs": completion_logprobs,
                **others,
            }
        )

    def packed(self) -> dict[str, Any]:
        """What is stored: `prompt_ids` an int32 `array` and no masks, or lists when somebody has read them."""
        return {name: dict.__getitem__(self, name) for name in dict.__iter__(self)}

    def _read(self) -> None:
        prompt_ids = dict.get(self, "prompt_ids")
        if type(prompt_ids) is not array:
            return
        dict.update(
            self,
            prompt_ids=prompt_ids.tolist(),
            prompt_mask=[0] * len(prompt_ids),
            completion_mask=[1] * len(dict.__getitem__(self, "completion_ids")),
        )

    def __getitem__(self, key: str) -> Any:
        if key in _LATE:
            self._read()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key."""
        if key in _LATE:
            self._read()
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _LATE:
            self._read()
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        return key in _LATE or super().__contains__(key)

    # `dict(tokens)` and `{**tokens}` copy the stored values of a subclass unless it has an `__iter__` of its own.
    def __iter__(self) -> Iterator[str]:
        self._read()
        return super().__iter__()

    def __len__(self) -> int:
        self._read()
        return super().__len__()

    def keys(self) -> Any:
        """The keys."""
        self._read()
        return super().keys()

    def values(self) -> Any:
        """The values, as lists."""
        self._read()
        return super().values()

    def items(self) -> Any:
        """Keys and values, as lists."""
        self._read()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._read()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # as of any dict

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {**self, **other}


def packed_ids(ids: Sequence[int] | array[int]) -> array[int]:
    """Token ids as an int32 `array`. Raises ValueError for anything but whole numbers that fit 32 bits."""
    if type(ids) is array and ids.typecode == "i":
        return ids
    try:
        packed = array("i")
        packed.frombytes(struct.pack(f"{len(ids)}i", *ids))  # twice as fast as array("i", ids)
    except (struct.error, TypeError) as error:
        raise ValueError(
            f"Token ids must be whole numbers that fit 32 bits ({error}); got {ids!r:.100}"
        ) from error
    return packed
