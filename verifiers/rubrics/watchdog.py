"""A time limit for author code that blocks the event loop.

A reward function or a tool that never returns would stop every rollout of the process. A daemon thread watches the
clock during such a call, and during each step of a coroutine. After the limit it raises an exception inside the call
(CPython's asynchronous exceptions), repeatedly until the call has ended. That interrupts Python code, also inside
`except Exception`. A call inside C code (`time.sleep`, a regular expression) is interrupted only when it returns to
Python. A program that controls its signals can break such calls with `interrupt_signal`, as `vf-eval` does. Until then
the watchdog reports, once, which call blocks the loop.
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
"""Maximum delay after which a limit is noticed, in seconds."""
SLOW_S = 0.5
"""A call that blocks its thread longer than this is reported to its `on_slow`."""


class _OutOfTime(BaseException):
    """Raised inside a call after its limit. It is not an Exception, so that `except Exception` does not catch it."""


class _Call:
    __slots__ = ("began", "deadline", "is_reported", "is_struck", "kind", "name", "on_slow")

    def __init__(
        self,
        kind: str,
        name: str,
        began: float,
        deadline: float,
        on_slow: Callable[[float], None] | None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.began = began
        self.deadline = deadline
        self.on_slow = on_slow
        self.is_struck = False
        self.is_reported = False


class Watchdog:
    """Watches one synchronous call per thread."""

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
        on_slow: Callable[[float], None] | None = None,
    ) -> Any:
        """Return `func(*positional, **arguments)`. Raise `error` if the call runs longer than `limit_s`.

        `kind` and `name` describe the call in messages. `on_slow` receives the duration of a call that takes longer
        than `SLOW_S`, in seconds: when the call ends, and from the watchdog's thread while it runs. A call within a
        watched call ends at the earlier limit, with the error of the call that has this limit.
        """
        thread_id = threading.get_ident()
        if self._pid != os.getpid():  # a thread does not survive a fork
            self._start()
        outer = self._calls.get(thread_id)
        began = time.monotonic()
        deadline = began + limit_s
        if outer is not None and outer.deadline <= deadline:
            if on_slow is None:
                return func(*positional, **arguments)
            deadline = outer.deadline
        call = self._calls[thread_id] = _Call(kind, name, began, deadline, on_slow)
        try:
            try:
                return func(*positional, **arguments)
            finally:
                self._end(thread_id, call, outer)
        except _OutOfTime:
            self._end(
                thread_id, call, outer
            )  # the watchdog may have struck while the call was ending
            if outer is not None and outer.deadline <= deadline:
                raise  # the limit belonged to the outer call
            raise error(
                f"{kind} {name!r} ran longer than {limit_s:.3g} s without a break and was interrupted. "
                "Make it faster or async, or raise the time limit."
            ) from None

    def _end(self, thread_id: int, call: _Call, outer: _Call | None) -> None:
        with self._lock:
            if self._calls.get(thread_id) is not call:
                return
            if outer is None:
                del self._calls[thread_id]
            else:
                self._calls[thread_id] = outer
            if call.is_struck:
                # An exception that has not been raised yet must not appear later, in the event loop.
                _raise_in_thread(thread_id, ctypes.py_object())
        if call.on_slow is not None and (held_s := time.monotonic() - call.began) > SLOW_S:
            call.on_slow(held_s)

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
                slow = [c for c in self._calls.values() if c.on_slow and now - c.began > 2 * SLOW_S]
                for thread_id, call in list(self._calls.items()):
                    if now >= call.deadline:
                        self._strike(thread_id, call, late_s=now - call.deadline)
            for call in slow:
                if call.on_slow is not None:
                    call.on_slow(now - call.began)

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
        """Break calls inside C code with this signal. Call this method once, from the main thread of a program that
        does not use the signal itself.
        """
        # The system call ends early; the pending exception is then raised.
        signal.signal(number, lambda *_: None)
        self._interrupt = number


watchdog = Watchdog()


class WatchedSteps:
    """A coroutine, awaited with every step watched. Other tasks run between two steps, but not within a step.

    `limit_s` is the limit of a step, or a function that returns it. `on_step` receives the duration of every step.
    `how` are further arguments of `Watchdog.call`.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        name: str,
        limit_s: float | Callable[[], float],
        *,
        on_step: Callable[[float], None] | None = None,
        **how: Any,
    ) -> None:
        self._coroutine = coroutine
        self._name = name
        self._limit_s = limit_s
        self._on_step = on_step
        self._how = how

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._coroutine.send
        given: Any = None
        while True:
            limit_s = self._limit_s if isinstance(self._limit_s, float | int) else self._limit_s()
            began = time.monotonic()
            try:
                awaited = watchdog.call(step, {}, self._name, limit_s, given, **self._how)
            except StopIteration as done:
                return done.value
            finally:
                if self._on_step is not None:
                    self._on_step(time.monotonic() - began)
            try:
                given = yield awaited
                step = self._coroutine.send
            except BaseException as error:  # noqa: BLE001 - handed to the coroutine it was meant for
                given = error
                step = self._coroutine.throw
