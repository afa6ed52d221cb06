"""Bookkeeping of the key/value cache: the tokens in each row, and the row that helps a new prompt most.

Running sequences use the rows 0..B-1 without a gap, so that a decode step works on one slice. The other rows keep
their contents: a later prompt that begins with the same tokens starts from a copy. Contents computed with other
weights or another salt never match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.endpoint.model import Cache

WORTH_WAITING_TOKENS = 16
"""A prompt waits one round if an earlier prompt of the same round would save it more tokens than this."""


class Match(NamedTuple):
    """Location of the longest reusable prefix of a prompt."""

    row: int
    length: int
    """Number of shared tokens; 0 means that no row helps."""
    pending: bool
    """Whether the row is being filled in this round. It can then be copied in the next round."""


class CacheRows:
    """The table of rows. It moves the contents of `cache` accordingly."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        _, self.rows, _, self.length, _ = cache.keys.shape
        self._tokens: NDArray[np.int32] = np.full((self.rows, self.length), -1, np.int32)
        self._filled: NDArray[np.int64] = np.zeros(self.rows, np.int64)
        self._scopes: NDArray[np.int64] = np.full(self.rows, -1, np.int64)
        self._pending: NDArray[np.bool_] = np.zeros(self.rows, np.bool_)
        self._used_at: NDArray[np.int64] = np.zeros(self.rows, np.int64)
        self._clock = 0
        self.running = 0
        """B: number of rows used by running sequences."""

    def find(self, prompt: NDArray[np.int32], scope: int) -> Match:
        """Find the row of this scope that shares the longest prefix with the prompt, excluding the prompt's last token.

        The last token is always computed again: its logits are needed, and they are not in the cache.
        """
        usable = np.flatnonzero(self._scopes == scope)
        if not len(usable) or len(prompt) < 2:
            return Match(0, 0, pending=False)
        limit = len(prompt) - 1
        differs = self._tokens[usable, :limit] != prompt[:limit]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), limit)
        shared = np.minimum(first, self._filled[usable])
        pending = self._pending[usable]
        ready = int(np.where(pending, -1, shared).argmax())
        ready_length = int(shared[ready]) if not pending[ready] else 0
        best = int(shared.argmax())
        if pending[best] and shared[best] > ready_length + WORTH_WAITING_TOKENS:
            return Match(int(usable[best]), int(shared[best]), pending=True)
        return Match(int(usable[ready]), ready_length, pending=False)

    def admit(self, prompt: NDArray[np.int32], scope: int, match: Match) -> int:
        """Make row B a running row for the prompt, with the shared prefix in place, and return the row.

        The previous contents of the row move to the least recently used row, unless that is the same row or the
        match.
        """
        row, length = self.running, match.length
        if match.row != row or not length:
            victim = self._oldest_free_row()
            if victim == match.row and length:
                # The match itself would be discarded: exchange the rows instead, which puts the match in place.
                self._exchange(row, victim)
            else:
                if victim != row:
                    self._copy(row, victim, int(self._filled[row]))
                if length:
                    self._cache.copy_prefix(match.row, row, length)
        self.running += 1
        self._tokens[row, : len(prompt)] = prompt
        self._tokens[row, len(prompt) :] = -1
        self._filled[row] = len(prompt)
        self._scopes[row] = scope
        self._pending[row] = True
        return row

    def _oldest_free_row(self) -> int:
        return self.running + int(self._used_at[self.running :].argmin())

    def settle(self) -> None:
        """Mark the rows admitted since the last call as filled."""
        self._pending[:] = False

    def append(self, rows: int, token_ids: NDArray[np.int64]) -> None:
        """Record one more token for each of the rows 0..`rows`-1."""
        everyone = np.arange(rows)
        self._tokens[everyone, self._filled[:rows]] = token_ids
        self._filled[:rows] += 1

    def filled(self, rows: int) -> NDArray[np.int64]:
        """Return the number of tokens in each of the rows 0..`rows`-1."""
        return self._filled[:rows]

    def tokens(self, row: int) -> Sequence[int]:
        """Return the tokens of a row."""
        return self._tokens[row, : self._filled[row]].tolist()

    def release(self, row: int) -> int | None:
        """End the running row; its contents stay available as a prefix.

        Return the index of the last running row, whose sequence moves to `row`, or None if the ended row was the
        last.
        """
        last = self.running - 1
        self._clock += 1
        self._used_at[row] = self._clock
        if row != last:
            self._exchange(row, last)
        self.running = last
        return last if row != last else None

    def forget_all(self) -> None:
        """Discard all contents for reuse, because the weights have changed."""
        self._scopes[:] = -1

    def _exchange(self, first: int, second: int) -> None:
        self._cache.swap(first, second, int(max(self._filled[first], self._filled[second])))
        both, swapped = [first, second], [second, first]
        for array in self._columns():
            array[both] = array[swapped]

    def _copy(self, source: int, target: int, length: int) -> None:
        self._cache.copy_prefix(source, target, length)
        for array in self._columns():
            array[target] = array[source]

    def _columns(self) -> tuple[NDArray, ...]:
        return self._tokens, self._filled, self._scopes, self._pending, self._used_at
