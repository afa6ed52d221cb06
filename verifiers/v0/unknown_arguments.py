"""Constructor arguments that no class in the hierarchy accepts. They become attributes, as in v0."""

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
    """A constructor received an argument that it does not accept; the argument became an attribute, as in v0."""


def take_unknown(environment: object, kwargs: Mapping[str, Any]) -> None:
    """Set the arguments as attributes. A probable typo is reported at the author's own line."""
    known = {
        name
        for cls in type(environment).__mro__
        if "__init__" in vars(cls)
        for name in inspect.signature(cls.__init__).parameters
    } - {"self", "kwargs", "args"}
    for name, value in kwargs.items():
        if near := get_close_matches(name, known, n=1, cutoff=0.8):
            warnings.warn(
                f"{type(environment).__name__} does not accept the argument {name!r} (did you mean {near[0]!r}?); "
                "it became an attribute.",
                UnknownArgumentWarning,
                stacklevel=_frames_of_the_library() + 1,
            )
        setattr(environment, name, value)


def _frames_of_the_library() -> int:
    """Return the number of frames of this package above the author's code."""
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == _PACKAGE:
        frame, count = frame.f_back, count + 1
    return count
