"""Runs one program against tests, each in a fork of its own. This file runs inside a sandbox, not on the host.

The host sends it as the first cell of an interpreter session and then calls `load(source)` and `run_tests(requests)`,
which print their results as one line of JSON. It knows inputs and never what is expected. Standard library only,
Python 3.9 or newer, and nothing here trusts the program: what it writes, and whether it lets itself be ended.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import types

SHOWN_ERROR_CHARS = 2000
LONGEST_SWEEP_S = 2.0
PR_SET_CHILD_SUBREAPER = 36

_program: types.CodeType | None = None
_test_number = 0
_own_bytes = 0
_streams: list = []


def load(source: str) -> None:
    """Compile the program; prints {"error": null} or what is wrong with it."""
    global _own_bytes, _program
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    error = None
    try:
        _program = compile(source, "<program>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as caught:
        error = "".join(traceback.format_exception_only(type(caught), caught))
    with open("/proc/self/statm", "rb") as file:
        _own_bytes = int(file.read().split()[0]) * 4096
    _streams[:] = _text_streams()
    gc.collect()
    gc.freeze()  # else each fork's collector would touch, and so copy, everything that is here
    _answer({"error": error})


def _text_streams() -> list:
    """Streams over 0, 1 and 2 for every program's process: made once, they cost the forks nothing."""
    return [
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace"),
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8", "backslashreplace"
        ),
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
            "utf-8",
            "backslashreplace",
            line_buffering=True,
        ),
    ]


def run_tests(requests: list, stop_at_error: bool) -> None:
    """Run tests in their order; prints their outcomes, up to the first that is not "ok" when told to stop there."""
    outcomes = []
    for request in requests:
        outcomes.append(_run(request))
        if stop_at_error and outcomes[-1]["status"] != "ok":
            break
    _answer(outcomes)


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def _adopt_orphans() -> None:
    """What a program's process leaves behind becomes our child, to be ended with it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass  # the sandbox's end takes them all


def _run(request: dict) -> dict:
    """One test: {"stdin": text} or {"function": name, "arguments": list}, with its limits."""
    global _test_number
    _test_number += 1
    folder = os.path.join(tempfile.gettempdir(), f"test-{os.getpid()}-{_test_number}")
    os.mkdir(folder)
    stdin, stdout, stderr, value = (tempfile.TemporaryFile() for _ in range(4))  # noqa: SIM115 - closed below
    try:
        stdin.write(request.get("stdin", "").encode("utf-8", "surrogateescape"))
        stdin.seek(0)
        files = [file.fileno() for file in (stdin, stdout, stderr, value)]
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_the_program(request, files, folder)  # never returns
        in_time, wait_status, usage = _wait(pid, request["wall_limit_s"])
        cpu_s = usage.ru_utime + usage.ru_stime
        status = _status(request, in_time, wait_status, cpu_s, _size(stdout))
        limit = request["max_output_bytes"]
        return {
            "status": status,
            "stdout": _text(stdout, limit) if "function" not in request else "",
            "value": _text(value, limit),
            "error": _text(stderr, SHOWN_ERROR_CHARS, from_end=True),
            "exit_code": _exit_code(wait_status),
            "cpu_s": cpu_s,
            "wall_s": time.monotonic() - started,
        }
    finally:
        for file in (stdin, stdout, stderr, value):
            file.close()
        _sweep()
        _remove(folder)


def _status(request: dict, in_time: bool, wait_status: int, cpu_s: float, written: int) -> str:
    signaled = os.WIFSIGNALED(wait_status)
    if not in_time or cpu_s > request["cpu_limit_s"]:
        return "timeout"
    if signaled and os.WTERMSIG(wait_status) in (signal.SIGXCPU, signal.SIGPROF):
        return "timeout"
    if written > request["max_output_bytes"]:
        return "output_limit"
    return "ok" if not signaled and os.WEXITSTATUS(wait_status) == 0 else "error"


def _exit_code(wait_status: int) -> int:
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


# ------------------------------------------------------------------------------------------------- the program


def _be_the_program(request: dict, files: list, folder: str) -> None:
    """Become the program's process and end with it."""
    code = 1
    try:
        _separate(files, folder)
        _limit(request)
        code = _play(request)
    except SystemExit as ending:
        code = _code_of(ending)
    except BaseException:  # noqa: BLE001 - a program may raise anything
        _print_traceback()
    finally:
        try:
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - its own stream may raise anything too
            code = code or 1
        os._exit(code & 0xFF)


def _separate(files: list, folder: str) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    kept = [os.dup(number) for number in files]  # above all that is replaced below
    for number, descriptor in enumerate(kept[:3]):
        os.dup2(descriptor, number)
    os.dup2(kept[3], 3)
    os.closerange(4, 256)
    os.chdir(folder)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams


def _limit(request: dict) -> None:
    cpu_s = int(-(-request["cpu_limit_s"] // 1))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    # Whole seconds are coarse; the timer is fine, but a program can turn it off.
    signal.setitimer(signal.ITIMER_PROF, request["cpu_limit_s"])
    limits = [
        (resource.RLIMIT_AS, _own_bytes + request["memory_bytes"]),
        (resource.RLIMIT_FSIZE, request["max_file_bytes"]),
    ]
    for which, amount in limits:
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            amount = min(amount, hard)
        resource.setrlimit(which, (amount, amount))


def _play(request: dict) -> int:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = ["program.py"]
    name = request.get("function")
    if name is not None:
        main.__dict__["__name__"] = (
            "program"  # what stands under `if __name__ == "__main__"` reads no stdin
        )
    exec(_program, main.__dict__)  # type: ignore[arg-type]  # `load` came first
    if name is not None:
        value = _function(main.__dict__, name)(*request["arguments"])
        text = json.dumps(value, default=_plain).encode()
        while text:
            text = text[os.write(3, text) :]
    return _finish()


def _function(namespace: dict, name: str):
    """A function of the program, or the method of its class `Solution`."""
    found = namespace.get(name)
    if found is None and isinstance(namespace.get("Solution"), type):
        found = getattr(namespace["Solution"](), name, None)
    if found is None:
        raise NameError(f"the program defines no function {name!r}")
    return found


def _plain(value):
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
    if threading.active_count() > 1:
        threading._shutdown()  # type: ignore[attr-defined]  # the interpreter's own step, without public name
    if atexit._ncallbacks():
        atexit._run_exitfuncs()
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


def _wait(pid: int, limit_s: float):
    """Wait for the program's process, killing it at the limit: (in time, wait status, resources used)."""
    deadline = time.monotonic() + limit_s
    in_time = True
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                in_time = False
                break
            signal.sigtimedwait({signal.SIGCHLD}, left_s)
    finally:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            os.kill(pid, signal.SIGKILL)  # it may not have reached its own process group yet
        except ProcessLookupError:
            pass
        _, wait_status, usage = os.wait4(pid, 0)
    return in_time, wait_status, usage


def _sweep() -> None:
    """End every process that the program left behind."""
    deadline = time.monotonic() + LONGEST_SWEEP_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            for child in file.read().split():
                try:
                    os.kill(int(child), signal.SIGKILL)
                except ProcessLookupError:
                    pass
        signal.sigtimedwait({signal.SIGCHLD}, 0.01)
    os._exit(
        1
    )  # it cannot be tidied up here; the host takes the program for failed and ends the sandbox


def _remove(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)


def _size(file) -> int:
    return os.fstat(file.fileno()).st_size


def _text(file, limit: int, *, from_end: bool = False) -> str:
    size = _size(file)
    start = max(0, size - limit) if from_end else 0
    return os.pread(file.fileno(), limit, start).decode("utf-8", "replace")
