"""Limits how many commands start at the same time: more than the cores can run would slow down all of them."""

from __future__ import annotations

import asyncio
import os
from collections import deque

STARTS_PER_CORE = 8
HOLD_S = 0.25
"""Maximum time for which a command counts as starting, so that long commands do not block others."""


class Admission:
    """Slots in order of arrival. A command holds its slot until it has ended, but for `HOLD_S` at most."""

    def __init__(self, slots: int | None = None) -> None:
        self._free = slots if slots is not None else STARTS_PER_CORE * (os.cpu_count() or 1)
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> Slot:
        """Wait for a slot."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return Slot(self)
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(grant)
        try:
            await grant
        except asyncio.CancelledError:
            if grant.done() and not grant.cancelled():
                self.release_one()  # the slot was already assigned to this call
            else:
                self._waiting.remove(grant)
            raise
        return Slot(self)

    def release_one(self) -> None:
        """Pass a slot to the next waiting command."""
        while self._waiting:
            grant = self._waiting.popleft()
            if not grant.done():
                grant.set_result(None)
                return
        self._free += 1


class Slot:
    """The right to start a command. Release it once, as early as possible."""

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission
        self._timer = asyncio.get_running_loop().call_later(HOLD_S, self.release)

    def release(self) -> None:
        """Release the slot. Idempotent."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            self._timer.cancel()
            admission.release_one()
