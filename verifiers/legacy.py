"""The name that releases 0.2 and 0.3 of the public package used for v0: `from verifiers import legacy as vf`.

It offers every name of the package itself. Its modules (`verifiers.legacy.types`) are those of the package.
"""

from __future__ import annotations

import importlib
from typing import Any

_ROOT = importlib.import_module("verifiers")
__all__ = list(_ROOT.__all__)


def __getattr__(name: str) -> Any:
    return getattr(_ROOT, name)


def __dir__() -> list[str]:
    return dir(_ROOT)
