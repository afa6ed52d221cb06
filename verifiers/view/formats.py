"""Numbers, times and money as text: every page uses these and no other formats."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from verifiers.runs.prices import format_cost_usd
from verifiers.runs.statistics import Estimate

MISSING = "–"


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def number(value: Any, digits: int = 3) -> str:
    """Return a number with at most `digits` digits after the point: `0.5`, `12.25`, `1 234 567`."""
    if not _is_finite(value):
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if abs(value) >= 1000:
        return count(value)
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.1e}"
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def fixed(value: Any, digits: int = 3) -> str:
    """Return a number with exactly `digits` digits after the point, for columns."""
    return f"{value:.{digits}f}" if _is_finite(value) else MISSING


def signed(value: Any, digits: int = 3) -> str:
    """Return a difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}") if _is_finite(value) else MISSING


def count(value: Any) -> str:
    """Return a whole number with thin spaces between thousands."""
    return (
        f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
        if _is_finite(value)
        else MISSING
    )


def percent(value: Any) -> str:
    """Return a share: `12 %`, `0.4 %`."""
    if not _is_finite(value):
        return MISSING
    share = 100 * value
    digits = 1 if 0 < abs(share) < 10 or 90 < share < 100 else 0
    return f"{share:.{digits}f}\N{NO-BREAK SPACE}%"


def duration(seconds: Any) -> str:
    """Return a time span: `12 ms`, `3.4 s`, `2 min 5 s`, `1 h 4 min`."""
    if not _is_finite(seconds):
        return MISSING
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(value: Any) -> str:
    """Return a number of bytes: `512 B`, `1.2 MB`."""
    if not _is_finite(value):
        return MISSING
    left = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1000 or unit == "GB":
            return f"{left:.0f} {unit}" if unit == "B" or left >= 100 else f"{left:.1f} {unit}"
        left /= 1000
    return MISSING


def money(value: Any) -> str:
    """Return US dollars."""
    return format_cost_usd(value) if _is_finite(value) else MISSING


def moment(value: Any) -> str:
    """Return a date of metadata (ISO 8601) or a time stamp as `2026-11-22 10:00` in UTC."""
    try:
        if isinstance(value, str):
            when = datetime.fromisoformat(value)
            when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
        elif _is_finite(value):
            when = datetime.fromtimestamp(value, UTC)
        else:
            return MISSING
        return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return str(value)[:40]


def interval(estimate: Estimate, digits: int = 3) -> str:
    """Return the interval of an estimate: `0.41 to 0.55`."""
    if not (_is_finite(estimate.low) and _is_finite(estimate.high)):
        return MISSING
    return f"{fixed(estimate.low, digits)} to {fixed(estimate.high, digits)}"


FORMATS = {
    "number": number,
    "fixed": fixed,
    "signed": signed,
    "count": count,
    "percent": percent,
    "duration": duration,
    "size": size,
    "money": money,
    "moment": moment,
    "interval": interval,
}
"""Name of a filter in templates → function."""
