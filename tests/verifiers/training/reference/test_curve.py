import struct
import zlib

import numpy as np
import pytest

from verifiers.training.reference.curve import (
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    chart_of,
    png_of,
    write_curve,
)


def pixels_of(png):
    """The pixels of a PNG without filters, with every checksum checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, content = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        (crc,) = struct.unpack(">I", png[place + 8 + length : place + 12 + length])
        assert crc == zlib.crc32(kind + content)
        chunks[kind] = content
        place += 12 + length
    width, height, depth, colours, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colours) == (8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def has_colour(pixels, colour):
    return bool((np.abs(pixels.astype(int) - colour).max(axis=-1) < 12).any())


def test_a_curve_is_a_png_with_its_line_where_the_rewards_are(tmp_path):
    path = tmp_path / "curve.png"
    write_curve(path, {"reverse-text": [0.0, 1.0]})
    pixels = pixels_of(path.read_bytes())
    assert pixels.shape == (HEIGHT, WIDTH, 3)
    end = pixels[TOP - 2 : TOP + 6, WIDTH - RIGHT - 6 : WIDTH - RIGHT + 1]
    assert has_colour(end, COLOURS[0])
    assert not has_colour(pixels[TOP + 5 : 200, LEFT + 5 : 200], COLOURS[0])
    assert [file.name for file in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    "series",
    [
        {},
        {"one": [0.5]},
        {"empty": []},
        {"far": [-3.0, 12.0]},
        {str(n): [n / 9] * 30 for n in range(9)},
    ],
    ids=["none", "one-step", "empty", "beyond", "many"],
)
def test_any_rewards_can_be_drawn(series):
    chart = chart_of(series, title="ÄÖ?")
    assert np.array_equal(pixels_of(png_of(chart)), chart)
