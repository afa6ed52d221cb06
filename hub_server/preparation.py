"""Whether a hub can be served as it stands, found out without SQLAlchemy.

A hub that comes back after a crash is in order nearly always: its tables are of the newest revision and it has
users. Seeing that takes a millisecond; the imports for anything more take half of a start.
"""

import sqlite3
from contextlib import closing

from hub_server.settings import Settings

HEAD = "0002"
"""The newest revision of the tables; a test compares it with the folder `migrations/versions`."""


def is_prepared(settings: Settings) -> bool:
    """Whether nothing is left to do before serving. False also when only a closer look can tell."""
    path = settings.sqlite_path
    folder_is_there = settings.staging_dir.is_dir() and (settings.data_dir / "blobs").is_dir()
    if path is None or settings.storage_url or not folder_is_there or not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=5.0)) as connection:
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            (has_users,) = connection.execute("SELECT EXISTS (SELECT 1 FROM users)").fetchone()
    except (sqlite3.Error, TypeError):  # no such table, or no row in it
        return False
    return revision == HEAD and bool(has_users)
