"""Files and folders that only the account of the hub can read.

The database holds private environments, samples and hashes of tokens; blobs are private wheels. Other accounts of the
machine must not read them, and the same holds for a backup.
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
    """Make this process and its children create files and folders for their own account only."""
    os.umask(_OTHERS)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, each closed to other accounts. Existing folders stay as they are."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=FOLDER_MODE, exist_ok=True)


def create(path: Path) -> io.BufferedWriter:
    """Open an empty file for writing that is closed to other accounts."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def touch(path: Path) -> None:
    """Create an empty file, closed to other accounts, if it is missing. SQLite's other files get the same mode."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))


def tighten(data_dir: Path, database: Path | None) -> None:
    """Close files that an earlier release left open: data folder, database with its log, key, blobs, staging.

    Only the hub's own entries of the folder are changed. The content of a closed folder is skipped.
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
    """Remove the rights of other accounts and return whether there were any."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    # The target of a link may be anywhere, and a folder with the sticky bit is shared on purpose.
    if not mode & _OTHERS or stat.S_ISLNK(mode) or mode & stat.S_ISVTX:
        return False
    try:
        os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)
    except OSError as error:
        logger.warning(
            "Other accounts of this machine can read %s, and the hub may not change that: %s.",
            path,
            error.strerror,
        )
    return True
