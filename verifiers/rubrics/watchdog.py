"""A time limit for synchronous author code that runs on the event loop.

A reward function that never returns would stop every rollout of the process. While such a call runs, a daemon thread
watches the clock; past the limit it raises `ScoringTimeout` inside the call (CPython's asynchronous exceptions). That
interrupts Python code. A call stuck in C (`time.sleep`, a regular expression) notices only when it returns to Python;
a program that owns its signals can let `interrupt_signal` break such calls too, as `vf-eval` does. Until then the
watchdog says, once, which function holds up the loop.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from verifiers.errors import ScoringTimeout

logger = logging.getLogger(__name__)

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = [ctypes.c_ulong, ctypes.py_object]


class Watchdog:
    """Watches the one synchronous call that a thread runs at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = 0
        self._deadline = 0.0
        self._name = ""
        self._fired = False
        self._interrupt: int | None = None
        self._pid = 0

    def call(
        self, func: Callable[..., Any], arguments: dict[str, Any], name: str, limit_s: float
    ) -> Any:
        """`func(**arguments)`; raises ScoringTimeout when it runs longer than `limit_s`.

        Not reentrant and for one thread at a time: a nested or second call runs unwatched.
        """
        if self._deadline:
            return func(**arguments)
        self._ensure_thread()
        self._owner = threading.get_ident()
        self._name = name
        self._fired = False
        self._deadline = time.monotonic() + limit_s
        try:
            value = func(**arguments)
            self._stand_down(may_be_pending=True)
        except ScoringTimeout:
            self._stand_down(may_be_pending=False)
            raise ScoringTimeout(
                f"Reward function {name!r} ran longer than {limit_s:g} s and was interrupted. "
                "Make it faster or async, or raise the scoring time limit."
            ) from None
        except BaseException:
            self._stand_down(may_be_pending=True)
            raise
        return value

    def _stand_down(self, *, may_be_pending: bool) -> None:
        with self._lock:
            self._deadline = 0.0
            fired = self._fired
        if fired and may_be_pending:
            # The exception is on its way to this thread: take it here, not in the event loop.
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                pass

    def _ensure_thread(self) -> None:
        if self._thread is None or self._pid != os.getpid():  # a thread does not survive a fork
            self._pid = os.getpid()
            self._thread = threading.Thread(
                target=self._watch, name="scoring-watchdog", daemon=True
            )
            self._thread.start()

    def _watch(self) -> None:
        reported = 0.0
        while True:
            deadline = self._deadline
            self._wake.wait(min(max(deadline - time.monotonic(), 0.02), 0.25) if deadline else 0.25)
            with self._lock:
                if not self._deadline or time.monotonic() < self._deadline:
                    continue
                first = not self._fired
                self._fired = True
                if first:
                    _raise_in_thread(self._owner, ScoringTimeout)
                elif reported != self._deadline and time.monotonic() > self._deadline + 1.0:
                    reported = self._deadline
                    logger.error(
                        "Reward function %r does not return and blocks every rollout of this process.",
                        self._name,
                    )
                if self._interrupt is not None and self._owner == threading.main_thread().ident:
                    signal.pthread_kill(self._owner, self._interrupt)

    def interrupt_signal(self, number: int) -> None:
        """Let the watchdog break calls stuck in C by this signal. Call it once, from the main thread of a program
        that does not use the signal itself.
        """
        signal.signal(
            number, lambda *_: None
        )  # the system call ends early; the pending exception is then raised
        self._interrupt = number


watchdog = Watchdog()
