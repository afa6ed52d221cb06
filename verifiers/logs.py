"""Logging for programs that use the library. The library itself only writes to the `verifiers` logger.

    vf.setup_logging("DEBUG")            # show the log on stderr
    with vf.quiet_verifiers(): ...       # show only errors in the block

`print_prompt_completions_sample` shows some rollouts during training.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError
from verifiers.messages import format_messages

LOGGER_NAME = "verifiers"
DEFAULT_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
DEFAULT_DATE_FORMAT = "%Y-%m-%d %H:%M:%S"

_OURS = "_verifiers_setup_logging"
_said_once: set[tuple[str, int, str]] = set()


class JsonFormatter(logging.Formatter):
    """One JSON object per line: timestamp, level, logger, message, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        fields: dict[str, Any] = {
            "timestamp": self.formatTime(record, self.datefmt),
            "level": record.levelname,
            "name": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def setup_logging(
    level: str | int | None = "INFO",
    log_format: str | None = None,
    date_format: str | None = None,
    log_file: str | Path | None = None,
    console_logging: bool = True,
    file_logging: bool = False,
    json_logging: bool = False,
) -> None:
    """Show the library's log on stderr, and write it to `log_file` if `file_logging`. A second call replaces the first.

    Only the `verifiers` logger is changed; handlers added by other code stay. `level=None` changes no level.
    """
    logger = logging.getLogger(LOGGER_NAME)
    handlers: list[logging.Handler] = []
    if console_logging:
        handlers.append(logging.StreamHandler(sys.stderr))
    if file_logging or log_file is not None:
        if log_file is None:
            raise ConfigError("setup_logging(file_logging=True) needs a log_file.")
        Path(log_file).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(log_file, encoding="utf-8"))
    formatter = (JsonFormatter if json_logging else logging.Formatter)(
        log_format or DEFAULT_FORMAT, date_format or DEFAULT_DATE_FORMAT
    )
    for handler in [
        h for h in logger.handlers if hasattr(h, _OURS) or type(h) is logging.NullHandler
    ]:
        logger.removeHandler(handler)
        handler.close()
    for handler in handlers:
        setattr(handler, _OURS, True)
        handler.setFormatter(formatter)
        logger.addHandler(handler)
    # Otherwise a program with a handler on the root logger would show every line twice.
    logger.propagate = not console_logging
    if level is not None:
        logger.setLevel(_number(level))


def _number(level: str | int) -> int:
    if isinstance(level, int):
        return level
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        known = ", ".join(logging.getLevelNamesMapping())
        raise ConfigError(f"{level!r} is not a log level. Levels: {known}.")
    return number


@contextmanager
def log_level(level: str | int) -> Iterator[None]:
    """Use another level for the library's log in the block."""
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.level
    logger.setLevel(_number(level))
    try:
        yield
    finally:
        logger.setLevel(before)


def quiet_verifiers() -> Any:
    """Show only warnings and errors in the block."""
    return log_level("WARNING")


def log_once(logger: logging.Logger, level: int, msg: str) -> None:
    """Log a message the first time only."""
    if (key := (logger.name, level, msg)) not in _said_once:
        _said_once.add(key)
        logger.log(level, msg)


def warning_once(logger: logging.Logger, msg: str) -> None:
    """Warn the first time only."""
    log_once(logger, logging.WARNING, msg)


# --------------------------------------------------------------------------------------- text for readers


def truncate(s: str, limit: int = 200) -> str:
    """Return the text, cut after `limit` characters and marked with `...`."""
    return s if len(s) <= limit else f"{s[:limit]}..."


def print_size(num_bytes: float) -> str:
    """Return a size for display: `4.8 MB`."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if num_bytes < 1024 or unit == "TB":
            return f"{num_bytes:.0f} bytes" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError("the last unit always returns")


def print_time(time_s: float) -> str:
    """Return a duration for display: `100ms`, `1m 5s`, `1h 1m`, `1d 1h`."""
    if time_s < 1:
        return f"{time_s * 1000:.0f}ms"
    seconds = int(time_s)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m {seconds % 60}s"
    if seconds < 86400:
        return f"{seconds // 3600}h {seconds % 3600 // 60}m"
    return f"{seconds // 86400}d {seconds % 86400 // 3600}h"


def print_prompt_completions_sample(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    errors: Sequence[Any],
    rewards: Sequence[float],
    step: int = 0,
    num_samples: int = 1,
) -> None:
    """Print a table of the first `num_samples` rollouts to stdout.

    Generation (a), which had no `errors`, may call it as `(prompts, completions, rewards, step, num_samples)`.
    """
    if isinstance(rewards, int):
        step, num_samples, rewards = rewards, step or 1, errors
        errors = [None] * len(prompts)
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table

    table = Table(show_header=True, header_style="bold", expand=False, show_lines=True)
    table.add_column("Prompt")
    table.add_column("Completion")
    table.add_column("Reward", justify="right")
    rows = zip(prompts, completions, errors, rewards, strict=False)
    for prompt, completion, error, reward in list(rows)[:num_samples]:
        text = format_messages(completion)
        if error is not None:
            text.append(f"\n\nerror: {_error_name(error)}", style="bold red")
        table.add_row(format_messages(prompt), text, f"{reward:.2f}")
    Console().print(Panel(table, expand=False, title=f"Step {step}"))


def _error_name(error: Any) -> str:
    return str(error.get("error")) if isinstance(error, Mapping) else type(error).__name__
