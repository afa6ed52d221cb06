"""Output of the commands. Results go to stdout; notes, progress and errors to stderr.

Text from models, environments and files passes through `safe`, so that it cannot control the terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

PIPE_WIDTH = 120
"""Width of output that goes to a file or a pipe, in columns, unless COLUMNS sets another."""

MAX_WIDTH = 100_000
"""Maximum width of a table row in a file or a pipe, in columns."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def safe(text: str) -> str:
    """Return text without control characters; line breaks and tabs stay."""
    return _CONTROL.sub("�", text)


@lru_cache(maxsize=4)
def _console(*, is_stderr: bool, stream: TextIO, columns: str | None) -> Console:
    # `stream` and `columns` are the key of the cache: tests and pipes replace sys.stdout.
    from rich.console import Console

    console = Console(stderr=is_stderr, highlight=False, markup=False)
    if columns is None and not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def stdout() -> Console:
    """Return the console for results."""
    return _console(is_stderr=False, stream=sys.stdout, columns=os.environ.get("COLUMNS"))


def stderr() -> Console:
    """Return the console for notes, progress and errors."""
    return _console(is_stderr=True, stream=sys.stderr, columns=os.environ.get("COLUMNS"))


def is_bounded() -> bool:
    """Whether the output has a fixed width. A pipe or a file accepts lines of any length."""
    return stdout().is_terminal or "COLUMNS" in os.environ


def show(renderable: RenderableType = "") -> None:
    """Print a result for people: text unchanged, a table with one line per row unless the output has a fixed width."""
    from rich.table import Table

    if isinstance(renderable, str):
        stdout().print(safe(renderable), soft_wrap=True)
    elif isinstance(renderable, Table) and not is_bounded():
        show_wide(renderable, _natural_width(renderable))
    else:
        stdout().print(renderable)


def _natural_width(table: RenderableType) -> int:
    from rich.measure import Measurement

    console = stdout()
    return Measurement.get(console, console.options.update(width=MAX_WIDTH), table).maximum


def show_wide(renderable: RenderableType, width: int) -> None:
    """Print a result laid out for `width` columns, independent of the width of the output."""
    console = stdout()
    usual, console.width = console.width, max(width, console.width)
    try:
        console.print(renderable)
    finally:
        console.width = usual


def show_line(text: str) -> None:
    """Print a result for programs that read lines: tabs stay tabs, and no line is broken."""
    sys.stdout.write(safe(text).replace("\n", " ") + "\n")
    sys.stdout.flush()


def show_json(value: Any) -> None:
    """Print a result for programs: one JSON document and a line break."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=_plain) + "\n")
    sys.stdout.flush()


def _say(text: Any) -> None:
    # A terminal receives lines broken between words; a file receives the line unchanged.
    stderr().print(text, soft_wrap=not stderr().is_terminal)


def note(text: str) -> None:
    """Print information beside the result."""
    _say(safe(text))


def warn(text: str) -> None:
    """Print a warning about a probable mistake."""
    from rich.text import Text

    _say(Text.assemble(("warning: ", "bold yellow"), safe(text)))


def error(text: str) -> None:
    """Print the reason why the command failed."""
    from rich.text import Text

    _say(Text.assemble(("error: ", "bold red"), safe(text)))


class LogLines(logging.Handler):
    """Log handler for a file or a pipe: one line per message, of any length."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        _say(safe(f"{record.levelname:<8} {self.format(record)}"))


def traceback_of(caught: BaseException) -> None:
    """Print the full traceback, for -v."""
    import traceback

    sys.stderr.write(safe("".join(traceback.format_exception(caught))))


@contextmanager
def live(renderable: Any, *, fullscreen: bool = False) -> Iterator[Live]:
    """Keep a renderable on the terminal, redrawn by `refresh()`; other output appears above it."""
    from rich.live import Live

    with Live(
        renderable,
        console=stderr(),
        auto_refresh=False,
        transient=True,
        screen=fullscreen,
        redirect_stdout=False,
    ) as shown:
        yield shown


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()  # a numpy number
    return str(value)
