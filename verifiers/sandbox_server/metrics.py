"""Metrics of the server in the text format of Prometheus.

Format: https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP = {
    "sandboxes_created_total": ("counter", "Sandboxes created, by token."),
    "sandboxes_ended_total": ("counter", "Sandboxes ended, by reason."),
    "requests_refused_total": ("counter", "Requests refused, by token and HTTP status."),
    "commands_total": ("counter", "Commands ended, by token and outcome."),
    "bytes_total": ("counter", "Bytes of files and commands transferred, by direction."),
    "clients_cut_off_total": ("counter", "Connections closed by the server, by cause."),
    "sandboxes": ("gauge", "Live sandboxes, by token."),
    "memory_limit_bytes": ("gauge", "Sum of the memory limits of live sandboxes, by token."),
    "commands_running": ("gauge", "Commands and transfers in progress, by token."),
    "create_seconds": ("histogram", "Time from a request for a sandbox until the sandbox is up."),
    "command_seconds": ("histogram", "Time from the start of a command until its end."),
}
_PREFIX = "vf_sandboxes_"


class Histogram:
    """A histogram: the number of observations up to each limit."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def lines(self, name: str) -> list[str]:
        """Return the lines of the histogram."""
        lines, total = [], 0
        for limit, count in zip((*BUCKETS_S, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{limit}"}} {total}')
        return [*lines, f"{name}_sum {self._sum_s!r}", f"{name}_count {total}"]


class ServerMetrics:
    """All metrics since the start of the server."""

    def __init__(self) -> None:
        self._values: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.create_seconds = Histogram()
        self.command_seconds = Histogram()

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Increase a counter."""
        self._values[name, tuple(sorted(labels.items()))] += amount  # pyright: ignore[reportArgumentType] - floats add up too

    def put(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._values[name, tuple(sorted(labels.items()))] = value  # pyright: ignore[reportArgumentType] - as above

    def text(self) -> str:
        """Return the page for Prometheus."""
        histograms = {
            "create_seconds": self.create_seconds,
            "command_seconds": self.command_seconds,
        }
        lines: list[str] = []
        for name, (kind, about) in _HELP.items():
            lines += [f"# HELP {_PREFIX}{name} {about}", f"# TYPE {_PREFIX}{name} {kind}"]
            if name in histograms:
                lines += histograms[name].lines(_PREFIX + name)
            for (counted, labels), value in sorted(self._values.items()):
                if counted == name:
                    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
                    lines.append(f"{_PREFIX}{name}{{{shown}}} {value:.15g}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
