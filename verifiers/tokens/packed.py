"""`PackedTokens`: `ResponseTokens` as clients make them. Long lists are built only when they are read.

A prompt of twenty thousand ids costs half a millisecond as a Python list and nothing as a buffer, and the rollout
loop only copies it. All other readers see the lists of `ResponseTokens`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from verifiers.types import ResponseTokens

_LATE = ("prompt_ids", "prompt_mask", "completion_mask")


class PackedTokens(ResponseTokens):
    """Reads as `ResponseTokens` in every way. The first read of the prompt or a mask builds plain lists.

    Until then `prompt_ids` is an int32 `array`, and masks are not stored; `packed` returns that form.
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
        """Return the tokens of a response whose prompt was not sampled and whose completion was."""
        return cls.of(
            {
                "prompt_ids": prompt_ids,
                "completion_ids": completion_ids,
                "completion_logprobs": completion_logprobs,
                **others,
            }
        )

    def packed(self) -> dict[str, Any]:
        """Return the stored form: `prompt_ids` as an int32 `array` and no masks, or lists once they have been read."""
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
        """Return the value of a key."""
        if key in _LATE:
            self._read()
        return super().get(key, default)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _LATE:
            self._read()
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        return key in _LATE or super().__contains__(key)

    # `dict(tokens)` and `{**tokens}` copy the stored values of a subclass unless it defines `__iter__`.
    def __iter__(self) -> Iterator[str]:
        self._read()
        return super().__iter__()

    def __len__(self) -> int:
        self._read()
        return super().__len__()

    def keys(self) -> Any:
        """Return the keys."""
        self._read()
        return super().keys()

    def values(self) -> Any:
        """Return the values, as lists."""
        self._read()
        return super().values()

    def items(self) -> Any:
        """Return keys and values, as lists."""
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
    """Return token ids as an int32 `array`. Raise ValueError for anything but integers that fit 32 bits."""
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
