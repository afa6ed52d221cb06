"""A small chart of rewards as a PNG, written with numpy and zlib: the trainer needs no plotting library for it.

Format: https://www.w3.org/TR/png-3/. Lines are smooth because everything is drawn three times as large and averaged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Canvas = NDArray[np.float32]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 24, 40, 44
"""Margins around the axes, in pixels."""
OVERSAMPLING = 3
INK, GRID = (60, 60, 60), (225, 225, 225)
COLOURS = (
    (31, 119, 180),
    (214, 96, 20),
    (44, 150, 60),
    (190, 40, 60),
    (120, 90, 170),
    (90, 90, 90),
)
LINE_PIXELS = 1.8

GLYPHS = {
    "0": "3e5149453e", "1": "00427f4000", "2": "4261514946", "3": "2141454b31", "4": "1814127f10",
    "5": "2745454539", "6": "3c4a494930", "7": "0171090503", "8": "3649494936", "9": "064949291e",
    "a": "2054545478", "b": "7f48444438", "c": "3844444420", "d": "384444487f", "e": "3854545418",
    "f": "087e090102", "g": "0c5252523e", "h": "7f08040478", "i": "00447d4000", "j": "2040443d00",
    "k": "7f10284400", "l": "00417f4000", "m": "7c04180478", "n": "7c08040478", "o": "3844444438",
    "p": "7c14141408", "q": "081414187c", "r": "7c08040408", "s": "4854545420", "t": "043f444020",
    "u": "3c4040207c", "v": "1c2040201c", "w": "3c4030403c", "x": "4428102844", "y": "0c5050503c",
    "z": "4464544c44", ".": "0060600000", "-": "0808080808", "_": "4040404040", "/": "2010080402",
}  # fmt: skip
"""Five columns of seven pixels each, the lowest bit on top."""


def write_curve(
    path: Path, series: Mapping[str, Sequence[float]], *, title: str = "mean reward by step"
) -> None:
    """Draw every series over its steps 1, 2, …; through a temporary file, so that viewers never see half of one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(png_of(chart_of(series, title=title)))
    part.replace(path)


def chart_of(series: Mapping[str, Sequence[float]], *, title: str) -> NDArray[np.uint8]:
    """`[HEIGHT, WIDTH, 3]`. The reward's axis goes from 0 to 1, further where a series does."""
    values = [value for one in series.values() for value in one]
    low, high = min([0.0, *values]), max([1.0, *values])
    steps = max([2, *map(len, series.values())])
    canvas = np.full((HEIGHT * OVERSAMPLING, WIDTH * OVERSAMPLING, 3), 255, np.float32)

    def place(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (step - 1) / (steps - 1) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return x, y

    for value in np.linspace(low, high, 6):
        (x0, y), (x1, _) = place(1, float(value)), place(steps, float(value))
        _line(canvas, (x0, y), (x1, y), GRID, 1.0)
        _write(canvas, f"{value:.1f}", x0 - 8, y - 5, align="right")
    for step in sorted({1, *(round(1 + (steps - 1) * k / 5) for k in range(1, 6))}):
        x, y = place(step, low)
        _line(canvas, (x, y), (x, y + 5), INK, 1.0)
        _write(canvas, str(step), x, y + 10, align="centre")
    corner, end, top = place(1, low), place(steps, low), place(1, high)
    _line(canvas, corner, end, INK, 1.0)
    _line(canvas, corner, top, INK, 1.0)
    _write(canvas, title, LEFT, 14)
    _write(canvas, "step", WIDTH - RIGHT, HEIGHT - 16, align="right")
    for index, (name, one) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [place(step, value) for step, value in enumerate(one, 1)]
        for first, second in pairwise(points):
            _line(canvas, first, second, colour, LINE_PIXELS)
        if len(points) == 1:
            _line(canvas, points[0], points[0], colour, 3 * LINE_PIXELS)
        y = HEIGHT - BOTTOM - 16.0 * (len(series) - index)
        _write(canvas, name, WIDTH - RIGHT - 4, y, align="right", colour=colour)
    small = canvas.reshape(HEIGHT, OVERSAMPLING, WIDTH, OVERSAMPLING, 3).mean(axis=(1, 3))
    return small.round().astype(np.uint8)


def png_of(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of `[height, width, 3]` RGB values."""
    height, width, _ = pixels.shape
    # Each row begins with the number of its filter; 0 is none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))


def _line(
    canvas: Canvas,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: tuple[int, int, int],
    pixels: float,
) -> None:
    """Colour everything nearer to the segment than half of `pixels`."""
    scale = OVERSAMPLING
    (x0, y0), (x1, y1) = [(x * scale, y * scale) for x, y in (start, end)]
    radius = pixels * scale / 2
    left, right = int(min(x0, x1) - radius), int(max(x0, x1) + radius) + 2
    top, bottom = int(min(y0, y1) - radius), int(max(y0, y1) + radius) + 2
    left, top = max(left, 0), max(top, 0)
    ys, xs = np.mgrid[top : min(bottom, canvas.shape[0]), left : min(right, canvas.shape[1])]
    dx, dy = x1 - x0, y1 - y0
    along = ((xs - x0) * dx + (ys - y0) * dy) / max(dx * dx + dy * dy, 1e-9)
    along = np.clip(along, 0.0, 1.0)
    near = (xs - x0 - along * dx) ** 2 + (ys - y0 - along * dy) ** 2 <= radius**2
    canvas[top : top + near.shape[0], left : left + near.shape[1]][near] = colour


def _write(
    canvas: Canvas,
    text: str,
    x: float,
    y: float,
    *,
    align: str = "left",
    colour: tuple[int, int, int] = INK,
) -> None:
    """Text in glyphs of 5 by 7 dots, `y` at its top; characters without a glyph leave a gap."""
    dot, pitch = 4, 6 * 4  # in oversampled pixels: a glyph is about 7 by 9 pixels of the chart
    left = x * OVERSAMPLING
    if align != "left":
        left -= len(text) * pitch / (1 if align == "right" else 2)
    for index, character in enumerate(text.lower()):
        columns = bytes.fromhex(GLYPHS.get(character, ""))
        for column, bits in enumerate(columns):
            for row in range(7):
                if bits >> row & 1:
                    a = int(y * OVERSAMPLING) + row * dot
                    b = int(left) + index * pitch + column * dot
                    canvas[max(a, 0) : a + dot, max(b, 0) : b + dot] = colour
