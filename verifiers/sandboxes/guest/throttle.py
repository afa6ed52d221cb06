"""Fairness where no control group gives it: a sandbox full of busy processes takes turns among them.

Linux gives every session (`setsid`) its own share of the processor, so 60 busy sessions in one sandbox would starve
a sandbox with one. This lets only a few run at a time and stops the others, in rotation.
"""

from __future__ import annotations

import os
import signal

from .processes import ProcessFacts, is_runnable

BUSY_PER_CORE = 4
"""More runnable processes than this, and they take turns."""
RUNNING_PER_CORE = 1
"""How many of them run at a time."""


class Throttle:
    """Call `tick` a few times a second with the sandbox's processes."""

    def __init__(self, cores: int) -> None:
        self._busy_limit = BUSY_PER_CORE * cores
        self._running_limit = RUNNING_PER_CORE * cores
        self._stopped: set[int] = set()
        self._turn = 0

    def tick(self, running: dict[int, ProcessFacts]) -> None:
        """Decide anew who runs until the next tick."""
        self._stopped &= running.keys()
        busy = sorted(p for p, f in running.items() if p in self._stopped or is_runnable(f))
        go: set[int] = set(busy)
        if len(busy) > self._busy_limit:
            start = self._turn % len(busy)
            go = set((busy + busy)[start : start + self._running_limit])
            self._turn += self._running_limit
        for pid in busy:
            if pid in go and pid in self._stopped:
                self._stopped.discard(pid)
                _send(pid, signal.SIGCONT)
            elif pid not in go and pid not in self._stopped:
                self._stopped.add(pid)
                _send(pid, signal.SIGSTOP)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
