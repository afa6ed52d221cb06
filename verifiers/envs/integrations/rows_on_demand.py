"""Rows that are made when they are taken: a game or a generated problem can take seconds to set up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from verifiers.tasks import Row


class RowsOnDemand(Sequence[Row]):
    """The rows `make(first)` … `make(first + count - 1)`, each made once."""

    def __init__(self, make: Callable[[int], Row], first: int, count: int) -> None:
        self._make = make
        self._first = first
        self._count = count
        self._rows: dict[int, Row] = {}

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        index = index + self._count if index < 0 else index
        if not 0 <= index < self._count:
            raise IndexError(index)
        if index not in self._rows:
            self._rows[index] = self._make(self._first + index)
        return self._rows[index]
