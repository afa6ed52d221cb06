"""Starting a process: a program by `posix_spawn`, or a function in a fork of this interpreter."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] # signal's own wrappers turn numbers into enums and back
import gc
import io
import json
import os
import resource
import signal
import stat
import sys
import traceback
from collections.abc import Callable, Sequence
from os import _exit  # a program may replace os._exit

CANNOT_START = 126
NOT_FOUND = 127

try:
    import ctypes

    _mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not every C library has it
    _memset = ctypes.memset
except (ImportError, OSError):
    _mallopt = _memset = None
_M_PERTURB, _PERTURBED = -6, 0x5A
# The host may ignore signals (`nohup` does), and children inherit ignored signals.
_DEFAULTED_SIGNALS = tuple(
    number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)
)


_handled_signals: list[int] = []


def prepare_forks() -> None:
    """Do once what every fork would otherwise do: each page of memory that a fork touches costs 2 microseconds.

    A process that makes many guests by forking calls this function itself, so that the guests do not have to.
    """
    if _mallopt is not None:
        # Overwrite freed memory: a forked program has all memory of the guest, which includes the input of earlier
        # commands.
        _mallopt(_M_PERTURB, _PERTURBED)
    # Signals that a guest handles, and signals that are ignored now.
    _handled_signals[:] = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} | {
        number for number in _DEFAULTED_SIGNALS if signal.getsignal(number) is not signal.SIG_DFL
    }
    # By number: in a fork, other files will be open under these numbers.
    sys.stdin = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "surrogateescape"
    )
    sys.stdout = _text_writer(1)
    sys.stderr = _text_writer(2, line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr


def wipe(data: bytes) -> None:
    """Overwrite bytes that are no longer needed. A single byte is skipped: the interpreter shares such objects."""
    if _memset is not None and len(data) > 1:
        _memset(id(data) + bytes.__basicsize__ - 1, 0, len(data))


def are_forks_prepared() -> bool:
    """Whether this process or a parent has called `prepare_forks`."""
    return bool(_handled_signals)


class CannotStart(Exception):
    """The command could not be started: (exit code as in a shell, reason)."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(exit_code, reason)
        self.exit_code = exit_code
        self.reason = reason


def find_program(name: str, path: str, cwd: str) -> str:
    """Return the file to execute. Raises CannotStart with 127 (no such file) or 126 (not executable)."""
    if "/" in name:
        candidates = [os.path.join(cwd, name)]
    else:
        candidates = [os.path.join(cwd, folder, name) for folder in path.split(":")]
    denied = None
    for candidate in candidates:
        try:
            status = os.stat(candidate)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and os.access(candidate, os.X_OK):
            return candidate
        denied = candidate
    if denied is not None:
        raise CannotStart(CANNOT_START, f"{denied}: not an executable file")
    raise CannotStart(NOT_FOUND, f"{name}: command not found")


def spawn_program(
    argv: Sequence[str], env: dict[str, str], cwd: str, stdio: tuple[int, int, int]
) -> int:
    """Start a program in its own session and return its pid."""
    program = find_program(argv[0], env.get("PATH", ""), cwd)
    try:
        os.chdir(cwd)
    except OSError as error:
        raise CannotStart(CANNOT_START, f"cannot enter {cwd}: {error.strerror}") from None
    try:
        return os.posix_spawn(
            program,
            list(argv),
            env,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)],
            setsid=True,
            setsigmask=[],
            setsigdef=_DEFAULTED_SIGNALS,
        )
    except OSError as error:
        if error.errno == 8:  # ENOEXEC: a script without '#!', which a shell would run
            return spawn_program(["/bin/sh", program, *argv[1:]], env, cwd, stdio)
        raise CannotStart(CANNOT_START, f"{argv[0]}: {error.strerror}") from None
    finally:
        os.chdir("/")  # the one directory that no command can remove or close


def fork_function(
    run: Callable[[], int],
    extra_env: dict[str, str],
    cwd: str,
    stdio: tuple[int, int, int],
    keep: int | None,
    prepare: Callable[[], None],
) -> int:
    """Run a function in a fork of this interpreter, with stdio and at most one more descriptor; return the pid.

    `extra_env` is added to this process's environment. Call `prepare_forks` first.
    """
    try:
        pid = os.fork()
    except OSError as error:
        raise CannotStart(CANNOT_START, f"cannot fork: {error.strerror}") from None
    if pid:
        return pid
    code = 1
    try:
        _become_ordinary(extra_env, cwd, stdio, keep)
        prepare()
        code = run()
    except BaseException:  # noqa: BLE001 - the last stop of a forked process; nothing above it may run
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            _exit(code & 0xFF)


def _become_ordinary(
    extra_env: dict[str, str], cwd: str, stdio: tuple[int, int, int], keep: int | None
) -> None:
    """Undo the guest's settings: its signals, descriptors, environment and disabled collector."""
    os.setsid()
    if _mallopt is not None:
        _mallopt(_M_PERTURB, 0)
    signal.set_wakeup_fd(-1)
    for number in _handled_signals:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if keep is not None:
        os.dup2(keep, 3, inheritable=False)
    os.closerange(3 if keep is None else 4, min(limit, 65536))
    os.environ.update(extra_env)
    gc.enable()
    try:
        os.chdir(cwd)
    except OSError as error:
        sys.stderr.write(f"cannot enter {cwd}: {error.strerror}\n")
        sys.stderr.flush()
        _exit(CANNOT_START)


def _text_writer(descriptor: int, *, line_buffering: bool = False) -> io.TextIOWrapper:
    raw = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=line_buffering)


def limit_process(pid: int, memory_bytes: int | None, cpu_time_s: float | None) -> None:
    """Lower the limits of a process that has just started (0 = this one)."""
    limits = []
    if memory_bytes is not None:
        limits.append((resource.RLIMIT_AS, memory_bytes))
    if cpu_time_s is not None:
        limits.append((resource.RLIMIT_CPU, max(1, int(-(-cpu_time_s // 1)))))
    for which, amount in limits:
        try:
            hard = resource.prlimit(pid, which)[1]
            amount = amount if hard == resource.RLIM_INFINITY else min(hard, amount)
            resource.prlimit(pid, which, (amount, amount))
        except (ProcessLookupError, PermissionError):
            return  # the process has already ended
        except (OverflowError, ValueError) as error:
            raise CannotStart(CANNOT_START, f"the limit {amount} cannot be set: {error}") from None


WARM_UP_RUNS = 16
"""Python specialises code after about eight runs."""
_WARM_UP_PROGRAM = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"


def warm_up() -> None:
    """Run a small program several times before the first fork. Standard output must lead to /dev/null.

    While the interpreter runs code, it stores what it learns in its objects: the method behind a name, the
    instruction that suits the values. Each fork pays for each page that it writes to, so the interpreter should
    learn before the fork.
    """
    streams = sys.stdin, sys.stdout, sys.stderr
    with open(os.memfd_create("warm-up"), "wb+", buffering=0) as file:
        file.write(b"3\n")
        for _ in range(WARM_UP_RUNS):
            file.seek(0)
            reader = io.BufferedReader(io.FileIO(file.fileno(), closefd=False))
            sys.stdin = io.TextIOWrapper(reader, "utf-8", "replace")
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8")
                for number in (1, 2)
            )
            exec(compile(_WARM_UP_PROGRAM, "<program>", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            json.loads(json.dumps({"text": ["", 1, 1.0, None, True]}, ensure_ascii=False))
    sys.stdin, sys.stdout, sys.stderr = streams
