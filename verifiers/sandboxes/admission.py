"""How many commands may start at once: more than the cores can run only makes every one of them slower."""

from __future__ import annotations

import asyncio
import os
from collections import deque

STARTS_PER_CORE = 8
HOLD_S = 0.25
"""A command counts as starting for at most this long: long ones must not keep others waiting."""


class Admission:
    """First come, first served. A slot is held until the command has ended, or for `HOLD_S`, whichever is first."""

    def __init__(self, slots: int | None = None) -> None:
        self._free = slots if slots is not None else STARTS_PER_CORE * (os.cpu_count() or 1)
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> Slot:
        """Wait for a slot."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return Slot(self)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release_one()  # the slot was ours already
            else:
                self._waiting.remove(turn)
            raise
        return Slot(self)

    def release_one(self) -> None:
        """Pass a slot on."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Slot:
    """A place among the starting commands; give it back once, early is better."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.release)

    def release(self) -> None:
        """Give the slot back. Idempotent."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            self._timer.cancel()
            admission.release_one()
