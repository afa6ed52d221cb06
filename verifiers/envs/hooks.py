"""Calling an author's hook, sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CoroutineType
from typing import Any


async def call_hook(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`hook(*args, **kwargs)`, awaited if it must be."""
    value = hook(*args, **kwargs)
    if type(value) is CoroutineType:  # nearly always; isawaitable costs four times as much
        return await value
    return await value if inspect.isawaitable(value) else value
