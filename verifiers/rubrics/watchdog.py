"""A time limit for author code that runs on the event loop without giving way to it.

A reward function or a tool that never returns would stop every rollout of the process. While such a call, or one step
of a coroutine, runs, a daemon thread watches the clock; past the limit it raises an exception inside the call
(CPython's asynchronous exceptions), again and again until the call has ended. That interrupts Python code, `except
Exception` around it or not. A call stuck in C (`time.sleep`, a regular expression) notices only when it returns to
Python; a program that owns its signals can let `interrupt_signal` break such calls too, as `vf-eval` does. Until then
the watchdog says, once, which call holds up the loop.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from verifiers.errors import Error, ScoringTimeout

logger = logging.getLogger(__name__)

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = [ctypes.c_ulong, ctypes.py_object]

LONGEST_NAP_S = 0.25
"""How late a limit may be noticed, in seconds."""


class _OutOfTime(BaseException):
    """Raised inside a call that ran out of time. Not an Exception: an author's `except Exception` must not keep it."""


class _Call:
    __slots__ = ("deadline", "is_reported", "is_struck", "kind", "name")

    def __init__(self, kind: str, name: str, deadline: float) -> None:
        self.kind = kind
        self.name = name
        self.deadline = deadline
        self.is_struck = False
        self.is_reported = False


class Watchdog:
    """Watches one synchronous call in each thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._calls: dict[int, _Call] = {}
        self._thread: threading.Thread | None = None
        self._interrupt: int | None = None
        self._pid = 0

    def call(
        self,
        func: Callable[..., Any],
        arguments: dict[str, Any],
        name: str,
        limit_s: float,
        *positional: Any,
        kind: str = "Reward function",
        error: type[Error] = ScoringTimeout,
    ) -> Any:
        """`func(*positional, **arguments)`; raises `error` when it runs longer than `limit_s`.

        `kind` and `name` say in messages what is called. A call within a watched call is watched by the limit of the
        outer one.
        """
        thread_id = threading.get_ident()
        if thread_id in self._calls:
            return func(*positional, **arguments)
        if self._pid != os.getpid():  # a thread does not survive a fork
            self._start()
        self._calls[thread_id] = _Call(kind, name, time.monotonic() + limit_s)
        try:
            try:
                return func(*positional, **arguments)
            finally:
                self._end(thread_id)
        except _OutOfTime:
            self._end(thread_id)  # it may have struck while the call was ending
            raise error(
                f"{kind} {name!r} ran longer than {limit_s:.3g} s without giving way and was interrupted. "
                "Make it faster or async, or raise the time limit."
            ) from None

    def _end(self, thread_id: int) -> None:
        with self._lock:
            ended = self._calls.pop(thread_id, None)
            if ended is not None and ended.is_struck:
                # What has not been raised yet must not appear later, in the event loop.
                _raise_in_thread(thread_id, ctypes.py_object())

    def _start(self) -> None:
        with self._lock:
            if self._pid == os.getpid():
                return
            self._pid = os.getpid()
            self._calls.clear()
            self._thread = threading.Thread(
                target=self._watch, name="scoring-watchdog", daemon=True
            )
            self._thread.start()

    def _watch(self) -> None:
        while True:
            now = time.monotonic()
            next_s = min((c.deadline - now for c in list(self._calls.values())), default=1.0)
            self._wake.wait(min(max(next_s, 0.02), LONGEST_NAP_S))
            with self._lock:
                now = time.monotonic()
                for thread_id, call in list(self._calls.items()):
                    if now >= call.deadline:
                        self._strike(thread_id, call, late_s=now - call.deadline)

    def _strike(self, thread_id: int, call: _Call, *, late_s: float) -> None:
        call.is_struck = True
        _raise_in_thread(thread_id, _OutOfTime)
        if late_s > 1.0 and not call.is_reported:
            call.is_reported = True
            logger.error(
                "%s %r does not return and blocks every rollout of this process.",
                call.kind,
                call.name,
            )
        if self._interrupt is not None and thread_id == threading.main_thread().ident:
            signal.pthread_kill(thread_id, self._interrupt)

    def interrupt_signal(self, number: int) -> None:
        """Let the watchdog break calls stuck in C by this signal. Call it once, from the main thread of a program
        that does not use the signal itself.
        """
        # The system call ends early; the pending exception is then raised.
        signal.signal(number, lambda *_: None)
        self._interrupt = number


watchdog = Watchdog()


class WatchedSteps:
    """A coroutine, awaited with every step watched: between two steps other tasks run, within one none can."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, limit_s: float) -> None:
        self._coroutine = coroutine
        self._name = name
        self._limit_s = limit_s

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._coroutine.send
        given: Any = None
        while True:
            try:
                awaited = watchdog.call(step, {}, self._name, self._limit_s, given)
            except StopIteration as done:
                return done.value
            try:
                given = yield awaited
                step = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - handed to the coroutine it was meant for
                given = error
                step = self._coroutine.throw
