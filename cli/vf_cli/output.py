"""Everything the commands print. Results go to stdout; notes, progress and errors to stderr.

Text from models, environments and files passes through `safe`, so that it cannot drive the terminal.
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
"""Columns when the output goes to a file or a pipe and COLUMNS does not say otherwise."""

MAX_WIDTH = 100_000
"""Columns of the widest table row that a file or a pipe receives."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def safe(text: str) -> str:
    """Text without control characters; line breaks and tabs stay."""
    return _CONTROL.sub("�", text)


@lru_cache(maxsize=4)
def _console(*, is_stderr: bool, stream: TextIO, columns: str | None) -> Console:
    # `stream` and `columns` are the cache's key: tests and pipes replace sys.stdout.
    from rich.console import Console

    console = Console(stderr=is_stderr, highlight=False, markup=False)
    if columns is None and not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def stdout() -> Console:
    """The console for results."""
    return _console(is_stderr=False, stream=sys.stdout, columns=os.environ.get("COLUMNS"))


def stderr() -> Console:
    """The console for notes, progress and errors."""
    return _console(is_stderr=True, stream=sys.stderr, columns=os.environ.get("COLUMNS"))


def is_bounded() -> bool:
    """Whether results go to something of a set width. A pipe or a file takes lines of any length."""
    return stdout().is_terminal or "COLUMNS" in os.environ


def show(renderable: RenderableType = "") -> None:
    """A result, for people: text as it is, a table in one line per row unless the output has a set width."""
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
    """A result laid out for `width` columns, whatever the width of where it goes."""
    console = stdout()
    usual, console.width = console.width, max(width, console.width)
    try:
        console.print(renderable)
    finally:
        console.width = usual


def show_line(text: str) -> None:
    """A result, for programs that read lines: tabs stay tabs, and nothing is broken."""
    sys.stdout.write(safe(text).replace("\n", " ") + "\n")
    sys.stdout.flush()


def show_json(value: Any) -> None:
    """A result, for programs: one JSON document and a line break."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=_plain) + "\n")
    sys.stdout.flush()


def _say(text: Any) -> None:
    # A terminal gets whole words on its lines; a file gets the line as it is.
    stderr().print(text, soft_wrap=not stderr().is_terminal)


def note(text: str) -> None:
    """Something to know beside the result."""
    _say(safe(text))


def warn(text: str) -> None:
    """Something that is probably not as the user thinks."""
    from rich.text import Text

    _say(Text.assemble(("warning: ", "bold yellow"), safe(text)))


def error(text: str) -> None:
    """Why the command failed."""
    from rich.text import Text

    _say(Text.assemble(("error: ", "bold red"), safe(text)))


class LogLines(logging.Handler):
    """The log for a file or a pipe: one line per message, however long."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        _say(safe(f"{record.levelname:<8} {self.format(record)}"))


def traceback_of(caught: BaseException) -> None:
    """The full traceback, for -v."""
    import traceback

    sys.stderr.write(safe("".join(traceback.format_exception(caught))))


@contextmanager
def live(renderable: Any, *, fullscreen: bool = False) -> Iterator[Live]:
    """Keep a renderable on the terminal, drawn anew by `refresh()`; what is printed meanwhile appears above it."""
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
