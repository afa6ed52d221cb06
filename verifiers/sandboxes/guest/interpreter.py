"""Python code in a fork of the prepared interpreter: whole programs, and sessions of cells that keep variables.

A program runs as if `python3 -c` had started it. A session receives cells on a control stream: frames of kind CELL
with the cell number as channel and UTF-8 source as payload. It returns one frame of kind RESULT per cell, with the
same number and JSON as payload.
"""

from __future__ import annotations

import ast
import builtins
import json
import linecache
import os
import signal
import socket
import sys
import traceback
import types
from typing import Any

from . import case_runner, frames, launch, processes

FILE_NAME = "<program>"
SCORING_VARIABLE = "SANDBOX_SCORING"
"""Set for jobs that judge the results of other jobs. Programs then import libraries before modules of the working
directory, and a written file replaces any entry in its way.
"""


def run_program(
    code: str, argv: list[str], memory_bytes: int | None, cpu_time_s: float | None
) -> int:
    """Run source as `__main__` and return the exit code. Errors go to stderr with a traceback."""
    if memory_bytes is not None:
        memory_bytes += processes.address_space_bytes()
    launch.limit_process(0, memory_bytes, cpu_time_s)
    reseed()
    # The same name in every back end.
    sys.modules["sandbox_guest"] = sys.modules[__name__.rpartition(".")[0]]
    sys.modules["sandbox_guest.case_runner"] = case_runner
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = ["-c", *argv]
    add_working_directory()
    remember_source(FILE_NAME, code)
    try:
        exec(compile(code, FILE_NAME, "exec"), main.__dict__)
        exit_code = 0
    except SystemExit as exit_request:
        exit_code = exit_code_of(exit_request)
    except BaseException as error:  # noqa: BLE001 - any error of the program, as the interpreter would
        print_error(error, FILE_NAME)
        exit_code = 130 if isinstance(error, KeyboardInterrupt) else 1
    return finish(exit_code)


def add_working_directory() -> None:
    """Let programs import modules of the working directory: before all others, as `python3 -c` does, or after them.

    Programs that judge the working directory use the latter, so that no file there replaces a library.
    """
    at = len(sys.path) if os.environ.get(SCORING_VARIABLE) else 0
    sys.path.insert(at, "")


def finish(exit_code: int) -> int:
    """End like an interpreter: wait for threads, run exit functions, flush."""
    import atexit

    # The guest does not import threading: its hook after every fork costs more than the fork itself.
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()  # the interpreter's own step, without a public name
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] # the same
        sys.stdout.flush()
    except BrokenPipeError:
        exit_code = exit_code or 120
    return exit_code


def exit_code_of(exit_request: SystemExit) -> int:
    """Return the exit code of `sys.exit(…)`. A text goes to stderr."""
    code = exit_request.code
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def remember_source(name: str, code: str) -> None:
    """Make source that has no file available to tracebacks."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)


def print_error(error: BaseException, file_name: str) -> None:
    """Print a traceback on stderr that begins in the program itself."""
    sys.stderr.write(format_error(error, file_name))


def format_error(error: BaseException, file_name: str) -> str:
    """Return the traceback without the frames of the guest."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != file_name:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # noqa: BLE001 - a program's exception class can fail in its own __str__
        return f"{type(error).__name__}: (the text of this error cannot be shown)\n"


def reseed() -> None:
    """Give this fork its own random numbers in NumPy. `random` reseeds itself."""
    generator = sys.modules.get(
        "numpy.random"
    )  # NumPy imports it lazily; if it is missing now, it will seed itself
    if generator is not None:
        generator.seed()


CELL = 1
RESULT = 2
MAX_VALUE_CHARS = 40_000
"""Maximum length of a value, message or traceback: three of them must fit into one frame, escaped."""
CELL_KINDS = frozenset((CELL, RESULT))


def serve_cells(descriptor: int) -> int:
    """Run cells until the host closes the stream or a cell exits; return the exit code."""
    control = socket.socket(fileno=descriptor)
    reader = frames.FrameReader(CELL_KINDS)
    reseed()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    add_working_directory()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a TextIOWrapper
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pieces: list[bytes] = []
    own_pid = os.getpid()
    while data := control.recv(1 << 16):
        for frame in reader.feed(data):
            pieces.append(frame.payload)
            if len(frame.payload) == frames.MAX_PAYLOAD_BYTES:
                continue  # the cell continues in the next frame
            source = b"".join(pieces).decode("utf-8", "surrogatepass")
            pieces.clear()
            try:
                report = run_cell(source, frame.channel, main.__dict__)
            except SystemExit as exit_request:
                return finish(exit_code_of(exit_request))
            if os.getpid() != own_pid:
                return finish(0)  # a child that the cell has forked: its parent reports
            control.sendall(frames.encode(RESULT, frame.channel, json.dumps(report).encode()))
    return finish(0)


def run_cell(source: str, number: int, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run one cell and return its report, which includes an exception. SystemExit propagates."""
    name = f"<cell {number}>"
    remember_source(name, source)
    value, error = None, None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        value = _evaluate(source, name, namespace)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except SystemExit:
        raise
    except BaseException as caught:  # noqa: BLE001 - any error of a cell is its result
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        error = {
            "type": type(caught).__name__,
            "message": _text_of(caught),
            "traceback": format_error(caught, name)[-MAX_VALUE_CHARS:],
        }
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - the cell has closed it, or put something else in its place
            pass
    return {"value": value, "error": error}


def _evaluate(source: str, name: str, namespace: dict[str, Any]) -> str | None:
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), namespace)
        return None
    tree.body.pop()
    exec(compile(tree, name, "exec"), namespace)
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    namespace["_"] = value
    return None if value is None else repr(value)[:MAX_VALUE_CHARS]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_VALUE_CHARS]
    except BaseException:  # noqa: BLE001 - a cell's exception class can fail in its own __str__
        return "(the text of this error cannot be shown)"
