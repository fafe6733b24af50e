"""The plot of a table's columns, read again as XML."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from postroom.batch.plot import HEIGHT, WIDTH, plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 2.0)],
        [(1.0, 5.0), (2.0, 5.0)],
        [(0.0001, -3e9), (0.5, 7e9), (0.25, 0.0)],
    ],
)
def test_every_point_lies_within_the_picture(points: list[tuple[float, float]]) -> None:
    picture = ElementTree.fromstring(plot(points, "x", "y"))
    circles = picture.findall(f"{SVG}circle")
    assert len(circles) == len(points)
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < WIDTH
        assert 0 < float(circle.attrib["cy"]) < HEIGHT


def test_larger_values_lie_further_right_and_higher() -> None:
    picture = ElementTree.fromstring(plot([(3, 1), (1, 9)], "x", "y"))
    first, second = picture.findall(f"{SVG}circle")
    assert float(first.attrib["cx"]) < float(second.attrib["cx"])
    assert float(first.attrib["cy"]) < float(second.attrib["cy"])  # y grows downwards in SVG


def test_names_of_columns_and_ticks_are_written_whatever_they_hold() -> None:
    picture = ElementTree.fromstring(plot([(0, 0), (10, 1)], "<lr>", "a & b"))
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert "<lr>" in texts and "a & b" in texts
    assert {"0", "2", "10", "0.2"} <= set(texts)
