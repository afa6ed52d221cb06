"""Check the keys that an environment needs when it is loaded. Separate because the root exports it on first use."""

from __future__ import annotations

import os
from collections.abc import Iterable

from verifiers.errors import MissingKeyError


def ensure_keys(keys: Iterable[str]) -> None:
    """Raise MissingKeyError naming every environment variable of `keys` that is not set."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)
