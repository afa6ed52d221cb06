"""Where processes of one machine meet: socket files, or ports where there are none."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verifiers.child_process import get_free_port
from verifiers.clients.connect import is_loopback

logger = logging.getLogger(__name__)

LONGEST_SOCKET_FOLDER = 80
"""Bytes. Kernels take paths of 103 (macOS) or 107 (Linux), and names get up to 22; longer folders move to /tmp."""


def make_ipc_address(session_id: str, name: str) -> str:
    """The address of a socket file for one process of a session."""
    return f"ipc:///tmp/vf-{session_id}-{name}"


def new_socket_folder() -> Path:
    """A new folder only this user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="vf-"))
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="vf-", dir="/tmp"))
    return folder


@contextmanager
def socket_folder() -> Iterator[Path]:
    """`new_socket_folder`, removed with everything in it."""
    folder = new_socket_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def address_in(folder: Path, name: str) -> str:
    """An address for a socket in a folder; a port of this machine where there are no socket files."""
    if sys.platform == "win32":
        return f"tcp://127.0.0.1:{get_free_port()}"
    return f"ipc://{folder / name}"


def warn_if_open(address: str) -> None:
    """There are no passwords: who reaches the socket can run rollouts with this machine's keys."""
    if not address.startswith("tcp://"):
        return
    host = address.removeprefix("tcp://").rpartition(":")[0]
    if not is_loopback(host):
        logger.warning(
            "The environment server listens at %s, beyond this machine, and asks for no password. Whoever reaches it "
            "can run rollouts with its keys. Process %d.",
            address,
            os.getpid(),
        )
