"""Ctrl-C and SIGTERM: a command ends properly if it can, and ends in any case.

    first Ctrl-C                     the command finishes the work that must not be lost
    second Ctrl-C, or one SIGTERM    the command has `GRACE_S` to end, then the process is ended

Three parts enforce the second line, because author code may hold the main thread:

1. The signal handlers run in the main thread, between two steps of Python code.
2. A daemon thread, woken by the handler, ends the process after `GRACE_S`, also while `except BaseException: pass`
   swallows every exception or a thread never returns.
3. The guardian, a separate process, receives the number of each signal from Python's C handler through a pipe
   (`signal.set_wakeup_fd`), also while code in C holds the interpreter's lock. After `KILL_S` the guardian kills the
   process, and then every process that it had started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

OnSignal = Callable[[int], object]
"""Called by the signal handler with the number of signals so far."""

EXIT_CODE = 130
GRACE_S = 1.5
"""Time for an orderly end after the second Ctrl-C or a SIGTERM, in seconds."""
KILL_S = 1.8
"""Time after which the guardian kills the process, in seconds."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDED = b"\nThe command was ended. Everything that was saved before is on the disk.\n"

_CODE = r"""
import os, select, signal, sys, time

parent, pipe, kill_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
with_proc = os.path.exists("/proc/self/stat")


def family():
    # (process id, start time) of everything the parent has started
    if not with_proc:
        import subprocess
        lines = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True).stdout
        parents = {(int(a), ""): int(b) for a, b in map(str.split, lines.splitlines())}
    else:
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open("/proc/" + name + "/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                except OSError:
                    continue
                if fields[0] != b"Z":
                    parents[int(name), fields[19]] = int(fields[1])
    found, new = set(), {parent}
    while new:
        new = {key for key, above in parents.items() if above in new and key not in found}
        found |= new
        new = {key[0] for key in new}
    return {key for key in found if key[0] != os.getpid()}, parents


try:
    os.setsid()
except OSError:
    pass
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
interrupts, is_told = 0, False
while not is_told:
    ready = select.select([pipe], [], [], 1.0)[0]
    numbers = os.read(pipe, 4096) if ready else b""
    if os.getppid() != parent or (ready and not numbers):
        sys.exit()
    interrupts += numbers.count(signal.SIGINT)
    is_told = signal.SIGTERM in numbers or interrupts > 1
begun = time.monotonic()
seen = set()
while os.getppid() == parent:
    seen |= family()[0]
    if time.monotonic() - begun > kill_s:
        os.write(2, b"\nThe command did not end and was killed. Everything that was saved before is on the disk.\n")
        os.kill(parent, signal.SIGKILL)
        break
    time.sleep(0.05)
time.sleep(0.1)
alive = family()[1]
for key in seen:
    if key in alive:
        try:
            os.kill(key[0], signal.SIGKILL)
        except OSError:
            pass
"""


class GuardianProcess:
    """A running guardian."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe
        self._before = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)

    def tell(self, number: int) -> None:
        """Let the guardian end this process soon, even if other code has replaced `set_wakeup_fd`."""
        with suppress(OSError):
            os.write(self._pipe, bytes([number] * 2))

    def close(self) -> None:
        """End the guardian."""
        signal.set_wakeup_fd(self._before)
        os.close(self._pipe)
        with suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def start_process(kill_s: float) -> GuardianProcess | None:
    """Start a guardian that ends this process `kill_s` seconds after the second SIGINT or the first SIGTERM.

    Returns None if no guardian can be started. Call it in the main thread.
    """
    if not hasattr(os, "posix_spawn") or not sys.executable:
        return None
    read, write = os.pipe()
    os.set_blocking(write, False)
    number = 3
    arguments = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _CODE,
        str(os.getpid()),
        str(number),
        str(kill_s),
    ]
    actions = [
        (os.POSIX_SPAWN_DUP2, read, number),
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
    ]
    spawn: Any = os.posix_spawn
    try:
        try:  # in a separate session, so that Ctrl-C reaches the command only
            pid = spawn(arguments[0], arguments, os.environ, file_actions=actions, setsid=True)
        except NotImplementedError:
            pid = spawn(arguments[0], arguments, os.environ, file_actions=actions)
    except OSError:
        os.close(write)
        return None
    finally:
        os.close(read)
    return GuardianProcess(pid, write)


class Guard:
    """The signal handlers, the thread and the guardian of one command. Used through `guarded`."""

    def __init__(self, grace_s: float | None) -> None:
        self.on_signal: OnSignal | None = None
        """Replaces KeyboardInterrupt as the reaction to a signal."""
        self.signals = 0
        self.is_ending = False
        self.has_interrupted = False
        """Whether a signal has raised KeyboardInterrupt in the command."""
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._guardian: GuardianProcess | None = None
        # A pipe, not an Event: a handler may interrupt code that holds the lock of an Event.
        self._read, self._write = os.pipe()
        self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        self._thread = threading.Thread(target=self._watch, name="exit-watch", daemon=True)
        self._thread.start()

    def start_guardian(self) -> None:
        """Start the guardian process, unless it runs already."""
        if self._guardian is None:
            self._guardian = start_process(self._grace_s + KILL_S - GRACE_S)

    def _receive(self, number: int, _: object) -> None:
        self.signals += 1
        if number == signal.SIGTERM or self.signals > 1:
            self._end_soon(number)
        if self.signals > 2:
            _end()
        if self.on_signal is not None:
            self.on_signal(self.signals)
        else:
            raise _interrupt()

    def _end_soon(self, number: int) -> None:
        if not self.is_ending:
            self.is_ending = True
            os.write(self._write, b"x")
            if self._guardian is not None:
                self._guardian.tell(number)

    def _watch(self) -> None:
        if os.read(self._read, 1) == b"x":
            time.sleep(self._grace_s)
            _end()

    def close(self) -> None:
        """Restore the previous signal handlers. A command that must end soon stays guarded until its process ends."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.is_ending:
            return
        os.close(self._write)
        self._thread.join()
        os.close(self._read)
        if self._guardian is not None:
            self._guardian.close()


def _end() -> None:
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\x1b[?25h")  # a live display hides the cursor
        os.write(2, _ENDED)
    os._exit(EXIT_CODE)


_active: Guard | None = None


def _interrupt() -> KeyboardInterrupt:
    if _active is not None:
        _active.has_interrupted = True
    return KeyboardInterrupt()


@contextmanager
def guarded(grace_s: float | None = None) -> Iterator[Guard | None]:
    """Guard a command; nested calls share one guard. `grace_s` replaces `GRACE_S`.

    Yields None outside the main thread, where no signals arrive.
    """
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield _active
        return
    _active = Guard(grace_s)
    try:
        yield _active
    finally:
        guard, _active = _active, None
        guard.close()


def protect() -> None:
    """Start the guardian of the running command, before author code runs."""
    if _active is not None:
        _active.start_guardian()


Result = TypeVar("Result")


@contextmanager
def _handled_by(on_signal: OnSignal) -> Iterator[None]:
    with guarded() as guard:
        if guard is None:
            yield
            return
        guard.signals = 0  # an earlier signal raised KeyboardInterrupt, and the command continued
        before, guard.on_signal = guard.on_signal, on_signal
        try:
            yield
        finally:
            guard.on_signal = before


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets. Enter in the event loop."""
    import asyncio

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    with _handled_by(lambda _: loop.call_soon_threadsafe(stop.set)):
        protect()
        yield stop


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a new event loop, like `asyncio.run`. The first signal cancels the coroutine in its loop.

    The second signal raises KeyboardInterrupt, also while code of a task blocks the loop. Raises KeyboardInterrupt if
    a signal ended the coroutine.
    """
    import asyncio

    running: asyncio.Task[Result] | None = None
    is_cancelled = False

    def receive(signals: int) -> None:
        nonlocal is_cancelled
        is_cancelled = True
        if running is None:
            return  # the coroutine is cancelled before its first step
        if signals > 1 or running.done():
            raise _interrupt()
        running.get_loop().call_soon_threadsafe(running.cancel)

    async def started() -> Result:
        nonlocal running
        running = asyncio.ensure_future(work)
        if is_cancelled:
            running.cancel()
        return await running

    with _handled_by(receive):
        try:
            return asyncio.run(started())
        except (asyncio.CancelledError, Exception) as error:
            if is_cancelled:
                raise _interrupt() from error
            raise


async def interruptible(
    work: Callable[[asyncio.Event], Awaitable[Result]], on_first: Callable[[], None]
) -> Result:
    """Await `work(stop)`. The first signal sets `stop` and calls `on_first`. The second cancels the work, even while
    code of a task blocks the loop.

    Raises KeyboardInterrupt if a signal cancelled the work.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    running = asyncio.ensure_future(work(stop))
    is_cancelled = False

    def receive(signals: int) -> None:
        nonlocal is_cancelled
        if signals == 1:
            loop.call_soon_threadsafe(finish)
            return
        is_cancelled = True
        loop.call_soon_threadsafe(running.cancel)
        if not stop.is_set() and asyncio.current_task(loop) is not None:
            # The loop has not run since the first signal: a task that never yields holds the loop, and this handler
            # runs within that task.
            raise asyncio.CancelledError

    def finish() -> None:
        stop.set()
        on_first()

    with _handled_by(receive):
        protect()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGURG"):
            from verifiers.rubrics.watchdog import watchdog

            watchdog.interrupt_signal(signal.SIGURG)
        try:
            return await running
        except asyncio.CancelledError:
            if is_cancelled:
                raise _interrupt() from None
            raise
