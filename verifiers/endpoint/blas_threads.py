"""One BLAS thread while the model computes: matrices this small lose time, up to tenfold, when threads share them.

A process of our own sets environment variables before numpy loads (`process.BLAS_THREAD_VARIABLES`). Inside another
program numpy is loaded already and the program may want its threads, so a step borrows one and gives
the rest back. This knows the OpenBLAS that numpy's wheels carry; with another BLAS it does nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np


class ThreadControl(NamedTuple):
    """How to ask and tell a BLAS library its number of threads."""

    get: Callable[[], int]
    set: Callable[[int], object]


@functools.cache
def thread_control() -> ThreadControl | None:
    """The control of numpy's OpenBLAS; None if numpy carries none."""
    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".dylibs", package / ".libs")
    for library in sorted(file for folder in folders for file in folder.glob("*openblas*")):
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError:
            continue
        for prefix, suffix in (
            ("scipy_openblas", "64_"),
            ("scipy_openblas", ""),
            ("openblas", "64_"),
            ("openblas", ""),
        ):
            try:
                return ThreadControl(
                    getattr(loaded, f"{prefix}_get_num_threads{suffix}"),
                    getattr(loaded, f"{prefix}_set_num_threads{suffix}"),
                )
            except AttributeError:
                continue
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS to one thread in the block, for the whole process; costs about a microsecond."""
    control = thread_control()
    before = control.get() if control is not None else 1
    if control is None or before == 1:
        yield
        return
    control.set(1)
    try:
        yield
    finally:
        control.set(before)
