"""The plot of a table's columns, read again as XML."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import pytest

from postroom.batch.plot import HEIGHT, SCALE, WIDTH, plot

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
    picture = ElementTree.fromstring(plot({"": points}, "x", "y"))
    circles = picture.findall(f"{SVG}circle")
    assert len(circles) == len(points)
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < WIDTH
        assert 0 < float(circle.attrib["cy"]) < HEIGHT


def test_larger_values_lie_further_right_and_higher() -> None:
    picture = ElementTree.fromstring(plot({"": [(3, 1), (1, 9)]}, "x", "y"))
    first, second = picture.findall(f"{SVG}circle")
    assert float(first.attrib["cx"]) < float(second.attrib["cx"])
    assert float(first.attrib["cy"]) < float(second.attrib["cy"])  # y grows downwards in SVG


def test_names_of_columns_and_ticks_are_written_whatever_they_hold() -> None:
    picture = ElementTree.fromstring(plot({"": [(0, 0), (10, 1)]}, "<lr>", "a & b"))
    texts = [text.text for text in picture.findall(f"{SVG}text")]
    assert "<lr>" in texts and "a & b" in texts
    assert {"0", "2", "10", "0.2"} <= set(texts)


@pytest.mark.parametrize("values", [(1.0,), (0.003, 700.0), (1e-30, 1e30), (10.0, 100.0)])
def test_a_log_axis_has_round_ticks_and_holds_every_point(values: tuple[float, ...]) -> None:
    points = [(value, value) for value in values]
    picture = ElementTree.fromstring(plot({"": points}, "x", "y", log_x=True, log_y=True))
    circles = picture.findall(f"{SVG}circle")
    assert len(circles) == len(values)
    assert all(0 < float(circle.attrib["cx"]) < WIDTH for circle in circles)
    assert all(0 < float(circle.attrib["cy"]) < HEIGHT for circle in circles)
    assert len(picture.findall(f"{SVG}text")) < 25


def test_each_group_has_its_colour_and_its_name() -> None:
    groups = {f"seed {n}": [(0.0, n), (1.0, n + 1.0)] for n in range(3)}
    picture = ElementTree.fromstring(plot(groups, "x", "y"))
    assert len({circle.attrib["fill"] for circle in picture.findall(f"{SVG}circle")}) == 3
    assert {*groups} <= {text.text for text in picture.findall(f"{SVG}text")}


def test_a_png_shows_the_same_picture() -> None:
    image = pytest.importorskip("PIL.Image")
    drawn = plot({"a": [(1, 1), (10, 2)], "b": [(1, 3)]}, "lr", "loss", log_x=True, png=True)
    with image.open(io.BytesIO(drawn)) as found:
        assert found.format == "PNG" and found.size == (WIDTH * SCALE, HEIGHT * SCALE)
        colours = {colour for _, colour in found.getcolors(1 << 24)}
    assert {(0, 0x72, 0xB2), (0xD5, 0x5E, 0)} <= colours
