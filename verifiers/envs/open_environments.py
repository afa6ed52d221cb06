"""Environments that still have something to tear down; what a script forgot to close is closed at exit."""

from __future__ import annotations

import asyncio
import atexit
import logging
import weakref
from typing import Any

logger = logging.getLogger(__name__)

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_registered = False


def add(environment: Any) -> None:
    """Remember an environment until it is closed or gone."""
    global _registered
    _open.add(environment)
    if not _registered:
        _registered = True
        atexit.register(_close_all)


def remove(environment: Any) -> bool:
    """Forget an environment; False when it had been closed before."""
    known = environment in _open
    _open.discard(environment)
    return known


def _close_all() -> None:
    async def close() -> None:
        for environment in list(_open):
            try:
                await environment.aclose()
            except Exception:
                logger.exception("Closing %s failed", type(environment).__name__)

    if any(environment._teardown_handlers for environment in _open):
        asyncio.run(close())
