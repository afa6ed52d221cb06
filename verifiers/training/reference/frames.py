"""Messages over a pipe between the orchestrator and its trainer: 8 bytes of length, then a pickle.

Pickles are safe here: both ends are processes of one run that share nothing but this pipe.
"""

from __future__ import annotations

import pickle
from typing import Any

HEADER_BYTES = 8


def frame_of(message: Any) -> bytes:
    """A message as it goes over the pipe."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(HEADER_BYTES, "little") + content


def length_of(header: bytes) -> int:
    """How many bytes follow a header."""
    return int.from_bytes(header, "little")


def message_of(content: bytes) -> Any:
    """What `frame_of` was given."""
    return pickle.loads(content)
