"""Helpers that every process of the hub shares: the clock, the log, the check before serving, and the exit.

No import here needs SQLAlchemy, so that `vf-hub serve` restarts quickly.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import orjson

from hub_server.settings import Settings

HEAD = max(
    file.name.partition("_")[0]
    for file in (Path(__file__).parent / "migrations" / "versions").glob("[0-9]*.py")
)
"""The newest revision of the tables: the highest number of a file in `migrations/versions`."""


def utc_now() -> datetime:
    """Return the current time in UTC, to the microsecond."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """Return a time as `2026-01-31T12:00:00.000000Z`, which pip, uv and all clients parse."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class HubLogFormatter(logging.Formatter):
    """One JSON object per line. Control characters in messages cannot begin a new line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        entry = {
            "at": iso(utc_now()),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def configure_logging() -> None:
    """Send the log of this process to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(HubLogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def is_prepared(settings: Settings) -> bool:
    """Return whether the hub can be served without preparation. False also when only a closer look can tell.

    After a crash the tables are nearly always up to date and the hub has users. This check takes a millisecond; the
    imports for a closer look take half of a start.
    """
    path = settings.sqlite_path
    folder_is_there = settings.staging_dir.is_dir() and (settings.data_dir / "blobs").is_dir()
    if path is None or settings.storage_url or not folder_is_there or not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=5.0)) as connection:
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            (has_users,) = connection.execute("SELECT EXISTS (SELECT 1 FROM users)").fetchone()
    except (sqlite3.Error, TypeError):  # the table or its row is missing
        return False
    return revision == HEAD and bool(has_users)


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    Threads of obstore may release Python objects while the interpreter shuts down, which aborts the process (exit
    code 134, one time in five after a request that failed at once). If obstore is loaded, the interpreter is
    therefore not shut down; everything of ours is closed by now.
    """
    _flush()
    if "obstore" in sys.modules:
        os._exit(code)
    sys.exit(code)


def leave_at_exit() -> None:
    """Make a worker that ends normally do what `leave` does. A worker does not call `leave` itself.

    uvicorn starts workers by `multiprocessing`, which returns to the interpreter and shuts it down.
    """
    if multiprocessing.parent_process() is not None:
        atexit.register(_leave_in_good_order)


def _leave_in_good_order() -> None:
    if "obstore" in sys.modules:
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
