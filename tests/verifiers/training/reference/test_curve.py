from xml.etree import ElementTree

import pytest

from verifiers.training.reference.curve import (
    BOTTOM,
    COLOURS,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    chart_of,
    write_curve,
)

SVG = "{http://www.w3.org/2000/svg}"


def test_a_curve_is_an_svg_with_its_line_where_the_rewards_are(tmp_path):
    path = tmp_path / "curve.svg"
    write_curve(path, {"reverse-text": [0.0, 0.5, 1.0]})
    chart = ElementTree.parse(path).getroot()
    [line] = chart.iter(f"{SVG}polyline")
    assert line.get("stroke") == COLOURS[0]
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert points[0] == (LEFT, HEIGHT - BOTTOM)
    assert points[1] == ((LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2)
    assert points[2] == (WIDTH - RIGHT, TOP)
    texts = [text.text for text in chart.iter(f"{SVG}text")]
    assert {"reverse-text", "mean reward by step", "0.0", "1.0", "1", "3"} <= set(texts)
    assert [file.name for file in tmp_path.iterdir()] == ["curve.svg"]


@pytest.mark.parametrize(
    ("series", "lines"),
    [
        ({}, 0),
        ({"one": [0.5]}, 0),
        ({"empty": []}, 0),
        ({"far": [-3.0, 12.0]}, 1),
        ({str(n): [n / 9] * 30 for n in range(9)}, 9),
        ({"<&>": [0.1, 0.2]}, 1),
    ],
    ids=["none", "one-step", "empty", "beyond", "many", "escaped"],
)
def test_any_rewards_can_be_drawn(series, lines):
    chart = ElementTree.fromstring(chart_of(series, title="ÄÖ<?"))
    assert len(list(chart.iter(f"{SVG}polyline"))) == lines
    for line in chart.iter(f"{SVG}polyline"):
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert LEFT <= x <= WIDTH - RIGHT
            assert TOP <= y <= HEIGHT - BOTTOM
