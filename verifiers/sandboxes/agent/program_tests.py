"""Runs one program against tests, each in a fork of its own: the half of `CodeEnv` that is inside the sandbox.

The host calls `load(source, limits)` and `run_tests(requests)` in an interpreter session; each answers with one line of
JSON on the session's stdout. This side knows inputs and never what is expected, and trusts the program in nothing: what
it writes, and whether it lets itself be ended.

A fork is paid for by the page: some 2 microseconds for each page of memory that either side then writes to, which in
Python reading does too. So whatever can be done once is done in `load`, and what is done for every test is little.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import gc
import importlib
import io
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
import types
import typing

SHOWN_ERROR_CHARS = 2000
LONGEST_SWEEP_S = 2.0
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
SESSION, VALUE, ANSWERS = 3, 4, 5
"""Descriptors above the standard streams: the session's own; what a function returned; the way to the host."""
IMPORTED_BEFORE = (
    *(
        "array",
        "bisect",
        "cmath",
        "collections",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "fractions",
    ),
    *(
        "functools",
        "hashlib",
        "heapq",
        "io",
        "itertools",
        "json",
        "math",
        "numbers",
        "operator",
        "queue",
        "random",
    ),
    *("re", "statistics", "string", "struct", "textwrap", "threading", "time", "typing"),
)
"""What a program's tests find imported if it mentions it: harmless modules of the standard library."""
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(.*)", re.MULTILINE)
_WORD = re.compile(r"\w+")

_program: types.CodeType | None = None
_main = types.ModuleType("__main__")
_limits: dict[str, typing.Any] = {}
_resource_limits: list[tuple[int, tuple[int, int]]] = []
_cpu_timer_s = 0.0
"""The limit of processor time, where it is no whole number of seconds. A program can turn its timer off."""
_test_number = 0
_stdout: typing.TextIO = sys.stdout
_poll = select.poll()
_CPU_SIGNALS = (signal.SIGXCPU, signal.SIGPROF)
"""As wait statuses too: a signal that ends a process is its low bits."""
_temporary = "/tmp"
_places: dict[str, frozenset[str]] = {}
"""Writable folder → what was in it before the first test."""
_free_files = 0
"""Of the file system that the places are on, between tests."""


def load(source: str, limits: dict[str, typing.Any]) -> bool:
    """Compile the program; answers {"error": null} or what is wrong with it. Returns whether there is a program."""
    global _program
    os.dup2(1, ANSWERS, inheritable=False)
    _answer({"worker": "ready"})  # from here on, what goes wrong is the program's doing
    _lock_up()
    error = None
    try:
        _program = compile(source, "<program>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as caught:
        error = "".join(traceback.format_exception_only(type(caught), caught))
    else:
        _prepare(source, limits)
    _answer({"error": error})
    return error is None


def _lock_up() -> None:
    """Keep the program's processes out of this one's memory, and adopt those that it leaves behind."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the sandbox's end takes them all


def _prepare(source: str, limits: dict[str, typing.Any]) -> None:
    """Do once what every test's process would have to do."""
    global _cpu_timer_s, _stdout, _temporary
    _temporary = os.environ.get("TMPDIR") or _temporary
    for names in _IMPORT.findall(source):
        for name in _WORD.findall(names):
            if name in IMPORTED_BEFORE:
                importlib.import_module(name)
    _limits.update(limits)
    for number in (0, 1, 2, VALUE):  # the streams find out what is behind them
        os.dup2(_new_file(), number)
    os.closerange(ANSWERS + 1, 4096)
    _remember_places()
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams()
    _stdout = sys.stdout
    _main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = _main
    sys.argv = ["program.py"]
    cpu_s = math.ceil(limits["cpu_limit_s"])
    if cpu_s != limits["cpu_limit_s"]:
        _cpu_timer_s = limits["cpu_limit_s"]
    with open("/proc/self/statm", "rb") as file:
        own_bytes = int(file.read().split()[0]) * 4096
    for which, amount, grace in (
        (resource.RLIMIT_CPU, cpu_s, 1),
        (resource.RLIMIT_AS, own_bytes + limits["memory_bytes"], 0),
        (resource.RLIMIT_FSIZE, limits["max_file_bytes"], 0),
    ):
        most = resource.getrlimit(which)[1]
        if most == resource.RLIM_INFINITY:
            most = amount + grace
        _resource_limits.append((which, (min(amount, most), min(amount + grace, most))))
    gc.collect()
    gc.freeze()  # else each fork's collector would touch, and so copy, everything that is here
    gc.disable()


def _remember_places() -> None:
    global _free_files
    device = os.stat(_temporary).st_dev
    for place in (_temporary, os.environ.get("HOME", _temporary), "/dev/shm"):
        # Elsewhere it may belong to others: not every back end has a file system of its own.
        if os.path.isdir(place) and os.stat(place).st_dev == device:
            _places[place] = frozenset(os.listdir(place))
    _free_files = os.statvfs(_temporary).f_ffree


def _clear_places() -> None:
    """Remove what a test has left, that no other finds it."""
    import shutil

    for place, before in _places.items():
        for name in os.listdir(place):
            path = os.path.join(place, name)
            if name in before:
                continue
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)


def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper]:
    """Streams over 0, 1 and 2 for every program's process: made once, they cost the forks nothing."""
    writers = [io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2)]
    return (
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace"),
        io.TextIOWrapper(writers[0], "utf-8", "backslashreplace"),
        io.TextIOWrapper(writers[1], "utf-8", "backslashreplace", line_buffering=True),
    )


def _answer(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    while text:
        text = text[os.write(ANSWERS, text) :]


def run_tests(requests: list[dict[str, typing.Any]], stop_at_error: bool) -> None:
    """Run tests in their order; answers their outcomes, up to the first that is not "ok" when told to stop there.

    A test: {"stdin": text} or {"function": name, "arguments": list}.
    """
    outcomes = []
    for request in requests:
        outcomes.append(_run(request))
        if stop_at_error and outcomes[-1][0] != "ok":
            break
    keys = ("status", "wait_status", "cpu_s", "stdout", "value", "error")
    _answer([dict(zip(keys, outcome)) for outcome in outcomes])  # noqa: B905 - strict= needs Python 3.10


def _run(request: dict[str, typing.Any]) -> tuple[str, int, float, str, str, str]:
    """One test. In one piece: a call of a function of ours costs both processes pages."""
    global _test_number
    _test_number += 1
    function = request.get("function")
    folder = f"{_temporary}/test-{_test_number}"
    os.mkdir(folder)
    os.chdir(folder)
    try:
        # New files for the standard streams and the value, in their places: no test sees another's.
        for number in (0, 1, 2) if function is None else (0, 1, 2, VALUE):
            descriptor = _new_file()
            os.dup2(descriptor, number)
            os.close(descriptor)
        if function is None:
            _write_stdin(request["stdin"])
        pid = os.fork()
        if pid == 0:
            _be_the_program(function, request)  # never returns
        in_time = _wait(pid, _limits["wall_limit_s"])
        _, wait_status, usage = os.wait4(pid, 0)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass  # it left nothing running, as most do
        else:
            _sweep(pid)
    finally:
        os.chdir("/")
        try:
            os.rmdir(folder)
        except OSError:
            _clear_places()
    if os.statvfs(_temporary).f_ffree != _free_files:
        _clear_places()
    cpu_s = usage.ru_utime + usage.ru_stime
    limit = _limits["max_output_bytes"]
    status = "ok"
    if not in_time or cpu_s > _limits["cpu_limit_s"] or wait_status in _CPU_SIGNALS:
        status = "timeout"
    elif os.lseek(1, 0, os.SEEK_END) > limit:
        status = "output_limit"
    elif wait_status != 0:
        status = "error"
    stdout = value = error = ""
    if function is None:
        stdout = os.pread(1, limit, 0).decode("utf-8", "replace")
    else:
        value = os.pread(VALUE, limit, 0).decode("utf-8", "replace")
    if status == "error":
        start = max(0, os.lseek(2, 0, os.SEEK_END) - SHOWN_ERROR_CHARS)
        error = os.pread(2, SHOWN_ERROR_CHARS, start).decode("utf-8", "replace")
    return status, wait_status, cpu_s, stdout, value, error


def _write_stdin(text: str) -> None:
    data, written = text.encode("utf-8", "surrogateescape"), 0
    while written < len(data):
        written += os.pwrite(0, memoryview(data)[written:], written)


def _new_file() -> int:
    """A file without a name."""
    try:
        return os.open(_temporary, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EOPNOTSUPP, errno.ENOENT):
            raise
    name = f"{_temporary}/stream-{_test_number}"  # a file system that has no nameless ones
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    return descriptor


# ------------------------------------------------------------------------------------------------- the program


def _be_the_program(function: str | None, request: dict[str, typing.Any]) -> None:
    """Become the program's process and end with it."""
    code = 1
    try:
        os.setsid()
        os.close(SESSION)
        os.close(ANSWERS)
        if function is None:
            os.close(VALUE)
        for which, amounts in _resource_limits:
            resource.setrlimit(which, amounts)
        if _cpu_timer_s:
            signal.setitimer(signal.ITIMER_PROF, _cpu_timer_s)
        gc.enable()
        code = _play(function, request)
    except SystemExit as ending:
        code = _code_of(ending)
    except BaseException:  # noqa: BLE001 - a program may raise anything
        _print_traceback()
    finally:
        try:
            sys.stdout.flush()
            if _stdout is not sys.stdout:
                _stdout.flush()  # it had put another one in its place
        except BaseException:  # noqa: BLE001 - its own stream may raise anything too
            code = code or 1
        os._exit(code & 0xFF)


def _play(function: str | None, request: dict[str, typing.Any]) -> int:
    namespace = _main.__dict__
    if function is not None:
        # What stands under `if __name__ == "__main__"` reads no stdin.
        namespace["__name__"] = "program"
    exec(_program, namespace)  # type: ignore[arg-type]  # `load` came first
    if function is not None:
        value = _function(namespace, function)(*request["arguments"])
        text = json.dumps(value, default=_plain).encode()
        while text:
            text = text[os.write(VALUE, text) :]
    return _finish()


def _function(namespace: dict[str, typing.Any], name: str) -> typing.Any:
    """A function of the program, or the method of its class `Solution`."""
    found = namespace.get(name)
    if found is None and isinstance(namespace.get("Solution"), type):
        found = getattr(namespace["Solution"](), name, None)
    if found is None:
        raise NameError(f"the program defines no function {name!r}")
    return found


def _plain(value: typing.Any) -> list[typing.Any]:
    """JSON for what has none: sets become sorted lists, arrays lists."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be the result of a test")


def _finish() -> int:
    """What an interpreter does at its end: threads, exit functions."""
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()  # the interpreter's own step, without public name
    if atexit._ncallbacks():  # pyright: ignore[reportPrivateUsage] - as the interpreter does
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    return 0


def _code_of(ending: SystemExit) -> int:
    if ending.code is None or isinstance(ending.code, int):
        return int(ending.code or 0)
    sys.stderr.write(f"{ending.code}\n")
    return 1


def _print_traceback() -> None:
    try:
        kind, error, frames = sys.exc_info()
        while frames is not None and frames.tb_frame.f_code.co_filename != "<program>":
            frames = frames.tb_next
        sys.stderr.write("".join(traceback.format_exception(kind, error, frames)))
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - out of memory, or an exception whose text raises
        os.write(2, b"error\n")


# ---------------------------------------------------------------------------------------------------- its end


def _wait(pid: int, limit_s: float) -> bool:
    """Wait for the end of the process, at the latest at the limit; whether it came by itself. Does not reap."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return _wait_watching(
            pid, limit_s
        )  # a kernel, or what poses as one, that has no such descriptors
    _poll.register(process, select.POLLIN)
    in_time = bool(_poll.poll(limit_s * 1000))
    _poll.unregister(process)
    os.close(process)
    if not in_time:
        _kill(os.kill, pid)
    return in_time


def _wait_watching(pid: int, limit_s: float) -> bool:
    deadline, pause_s = time.monotonic() + limit_s, 0.0005
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            _kill(os.kill, pid)
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return True


def _sweep(leader: int) -> None:
    """End every process that the program left behind."""
    deadline = time.monotonic() + LONGEST_SWEEP_S
    _kill(os.killpg, leader)
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            for child in file.read().split():
                _kill(os.kill, int(child))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            # It cannot be tidied up here; the host takes the program for failed and ends the sandbox.
            os._exit(1)
        time.sleep(0.001)


def _kill(how: typing.Callable[[int, int], None], pid: int) -> None:
    try:
        how(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
