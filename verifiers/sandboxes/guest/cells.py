"""An interpreter session: cells come in on a control stream, results go out, variables stay.

What comes in: frame CELL, channel = cell number, UTF-8 source. What goes out: frame RESULT, the same number, JSON.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import signal
import socket
import sys
import types
from typing import Any

from . import frames, programs

CELL = 1
RESULT = 2
MAX_VALUE_CHARS = 40_000
"""Of a value, message or traceback; three of them must fit one frame, escaped."""
KINDS = frozenset((CELL, RESULT))


def serve(descriptor: int) -> int:
    """Run cells until the other side hangs up or a cell exits; returns the exit code."""
    control = socket.socket(fileno=descriptor)
    reader = frames.FrameReader(KINDS)
    programs.reseed()
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    programs.add_working_directory()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is a TextIOWrapper
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pieces: list[bytes] = []
    own_pid = os.getpid()
    while data := control.recv(1 << 16):
        for frame in reader.feed(data):
            pieces.append(frame.payload)
            if len(frame.payload) == frames.MAX_PAYLOAD_BYTES:
                continue  # the cell goes on in the next frame
            source = b"".join(pieces).decode("utf-8", "surrogatepass")
            pieces.clear()
            try:
                report = run_cell(source, frame.channel, main.__dict__)
            except SystemExit as exit_request:
                return programs.finish(programs.exit_code_of(exit_request))
            if os.getpid() != own_pid:
                return programs.finish(0)  # a child that the cell has forked: its parent answers
            control.sendall(frames.encode(RESULT, frame.channel, json.dumps(report).encode()))
    return programs.finish(0)


def run_cell(source: str, number: int, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run one cell; what it raises is in the report. SystemExit passes."""
    name = f"<cell {number}>"
    programs.remember_source(name, source)
    value, error = None, None
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        value = _evaluate(source, name, namespace)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except SystemExit:
        raise
    except BaseException as caught:  # noqa: BLE001 - whatever a cell raises is its result
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        error = {
            "type": type(caught).__name__,
            "message": _text_of(caught),
            "traceback": programs.format_error(caught, name)[-MAX_VALUE_CHARS:],
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
        return "(its text cannot be shown)"
