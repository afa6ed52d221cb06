"""Processor time of this process and all that it starts, sandboxes included, where the kernel keeps that account."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup/cpuacct")


class CpuMeter:
    """Counts from `start` on. Sandboxes are nobody's waited-for children, so `getrusage` does not see what they use.

    Works where control groups of version 1 have `cpuacct` in a tree of its own, which the sandboxes then do not leave;
    elsewhere `seconds()` is None.
    """

    def __init__(self) -> None:
        self._group: Path | None = None

    def start(self) -> CpuMeter:
        """Move this process into a group of its own."""
        group = _ROOT / f"vf-bench-{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            return self
        self._group = group
        return self

    def seconds(self) -> float | None:
        """User and system time since `start`."""
        if self._group is None:
            return None
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        """Leave the group and remove it."""
        if self._group is None:
            return
        (_ROOT / "cgroup.procs").write_text(str(os.getpid()))
        try:
            self._group.rmdir()
        except OSError:
            pass  # something of ours is still ending in it
        self._group = None
