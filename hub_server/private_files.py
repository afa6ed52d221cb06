"""Files and folders that only the account of the hub can read.

The database holds private environments, samples and hashes of tokens; blobs are private wheels. Other accounts of the
machine have no business in any of it, and neither has a backup that lies beside it.
"""

import contextlib
import io
import logging
import os
import stat
from pathlib import Path

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077

logger = logging.getLogger(__name__)


def keep_private() -> None:
    """Let this process, and those that it starts, make files and folders for its own account only."""
    os.umask(_OTHERS)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each closed to others. Folders that exist stay as they are."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def create(path: Path) -> io.BufferedWriter:
    """A file to write, empty and closed to others."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def touch(path: Path) -> None:
    """Make an empty file that is closed to others, unless there is one. SQLite gives its other files the same mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def tighten(data_dir: Path, database: Path | None) -> None:
    """Close what an earlier release left open: the data folder, the database with its log, the key, blobs, staging.

    Only the hub's own entries of the folder are touched. Inside a folder that is closed nothing is looked at.
    """
    _close(data_dir)
    files = [] if database is None else [database.with_name(database.name + end) for end in _SQLITE]
    for path in (*files, data_dir / "secret.key"):
        _close(path)
    for name in ("blobs", "staging"):
        _close_tree(data_dir / name)


_SQLITE = ("", "-wal", "-shm", "-journal")


def _close_tree(folder: Path) -> None:
    if not _close(folder):
        return
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            _close_tree(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            _close(Path(entry.path))


def _close(path: Path) -> bool:
    """Take the rights of others away; whether there were any."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    # A link's target may be anywhere, and a folder with the sticky bit is shared on purpose.
    if not mode & _OTHERS or stat.S_ISLNK(mode) or mode & stat.S_ISVTX:
        return False
    try:
        os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
    except OSError as error:
        logger.warning(
            "%s can be read by other accounts of this machine, and the hub may not change that: %s.",
            path,
            error.strerror,
        )
    return True
