"""A chart of rewards as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from verifiers.files import replace_file

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 116, 40, 44
"""Margins around the axes, in pixels. The right one holds the names of the series."""
LINE_HEIGHT = 18
INK, GRID = "#3c3c3c", "#e1e1e1"
COLOURS = ("#1f77b4", "#d66014", "#2c963c", "#be283c", "#785aaa", "#5a5a5a")


def write_curve(
    path: Path, series: Mapping[str, Sequence[float]], *, title: str = "mean reward by step"
) -> None:
    """Draw every series over its steps 1, 2, … Replace the file at once, so that viewers never read half of it."""
    replace_file(path, chart_of(series, title=title))


def chart_of(series: Mapping[str, Sequence[float]], *, title: str) -> str:
    """Return the chart as SVG. The reward's axis goes from 0 to 1, and further if a series does."""
    values = [value for one in series.values() for value in one]
    low, high = min([0.0, *values]), max([1.0, *values])
    steps = max([2, *map(len, series.values())])
    left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_of(step: float) -> float:
        return left + (step - 1) / (steps - 1) * (right - left)

    def y_of(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - TOP)

    parts = []
    for tick in range(6):
        value = low + (high - low) * tick / 5
        parts.append(_line((left, y_of(value)), (right, y_of(value)), GRID))
        parts.append(_text(f"{value:.1f}", left - 8, y_of(value) + 4, anchor="end"))
    for step in sorted({round(1 + (steps - 1) * tick / 5) for tick in range(6)}):
        parts.append(_line((x_of(step), bottom), (x_of(step), bottom + 5), INK))
        parts.append(_text(str(step), x_of(step), bottom + 18, anchor="middle"))
    parts.append(_line((left, bottom), (right, bottom), INK))
    parts.append(_line((left, bottom), (left, TOP), INK))
    parts.append(_text(title, left, 22))
    parts.append(_text("step", right, bottom + 36, anchor="end"))
    for index, (name, rewards) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [(x_of(step), y_of(value)) for step, value in enumerate(rewards, 1)]
        if len(points) == 1:
            parts.append(
                f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3" fill="{colour}"/>'
            )
        elif points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8" '
                'stroke-linejoin="round"/>'
            )
        parts.append(_text(name, right + 12, TOP + 5 + LINE_HEIGHT * index, colour=colour))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _line(start: tuple[float, float], end: tuple[float, float], colour: str) -> str:
    return f'<path d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}" stroke="{colour}"/>'


def _text(text: str, x: float, y: float, *, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
