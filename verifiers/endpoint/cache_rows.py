"""Which tokens each row of the key/value cache holds, and which row helps a new prompt most.

Pure bookkeeping over the rows of a `model.Cache`. Running sequences use the rows 0..B-1 without a gap, so the
decode step works on one slice. The rows behind keep what they held: a later prompt that begins with
the same tokens starts from a copy. Contents computed under other weights or another salt never match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.endpoint.model import Cache

WORTH_WAITING_TOKENS = 16
"""A prompt waits one round if a prompt before it in the same round saves it more tokens than this."""


class Match(NamedTuple):
    """Where the longest usable beginning of a prompt was found."""

    row: int
    length: int
    """Shared tokens; 0 means no row helps."""
    pending: bool
    """The row is being filled in this very round, so it can be copied only in the next."""


class CacheRows:
    """The table of rows. `cache` is moved along with it."""

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
        """B: the rows in use by running sequences."""

    def find(self, prompt: NDArray[np.int32], scope: int) -> Match:
        """The row of this scope that shares most tokens with the prompt, and at least one fewer than it has.

        The last token is always run again: its logits are wanted, and they are not in the cache.
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
        """Makes row B a running row for the prompt, its shared beginning in place; gives the row.

        What the row held moves to the row unused for longest, unless it is that row or the match itself.
        """
        row, length = self.running, match.length
        if match.row != row or not length:
            victim = self._oldest_free_row()
            if victim == match.row and length:
                # The match is what would be thrown away: exchange instead, then it is in place.
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
        """The rows admitted since the last call are filled now."""
        self._pending[:] = False

    def append(self, rows: int, token_ids: NDArray[np.int64]) -> None:
        """The rows 0..`rows`-1 hold one more token each."""
        everyone = np.arange(rows)
        self._tokens[everyone, self._filled[:rows]] = token_ids
        self._filled[:rows] += 1

    def filled(self, rows: int) -> NDArray[np.int64]:
        """How many tokens each of the rows 0..`rows`-1 holds."""
        return self._filled[:rows]

    def tokens(self, row: int) -> Sequence[int]:
        """The tokens a row holds."""
        return self._tokens[row, : self._filled[row]].tolist()

    def release(self, row: int) -> int | None:
        """Ends the running row; its contents stay as a prefix for others.

        Gives the number of the last running row, whose sequence lives in `row` from now on, or None
        if the ended row was the last itself.
        """
        last = self.running - 1
        self._clock += 1
        self._used_at[row] = self._clock
        if row != last:
            self._exchange(row, last)
        self.running = last
        return last if row != last else None

    def forget_all(self) -> None:
        """No contents may be reused from now on: the weights have changed."""
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
