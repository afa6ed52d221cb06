"""Arguments that no constructor of an environment knows: attributes, as authors of v0 expect, and perhaps slips."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from types import FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


class UnknownArgumentWarning(UserWarning):
    """A constructor was given an argument it does not know; it became an attribute, as in v0."""


def take_unknown(environment: object, kwargs: Mapping[str, Any]) -> None:
    """Set them as attributes; one that looks like a slip is reported at the author's own line."""
    known = {
        name
        for cls in type(environment).__mro__
        if "__init__" in vars(cls)
        for name in inspect.signature(cls.__init__).parameters
    } - {"self", "kwargs", "args"}
    for name, value in kwargs.items():
        if near := get_close_matches(name, known, n=1, cutoff=0.8):
            warnings.warn(
                f"{type(environment).__name__} does not know the argument {name!r} (did you mean {near[0]!r}?); "
                "it became an attribute.",
                UnknownArgumentWarning,
                stacklevel=_frames_of_the_library() + 1,
            )
        setattr(environment, name, value)


def _frames_of_the_library() -> int:
    """How many callers, from the one of this function on, are modules of this package."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE:
        frame, count = frame.f_back, count + 1
    return count
