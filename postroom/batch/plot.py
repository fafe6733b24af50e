"""A plot of one column of a table against another, a line for each group, as SVG or PNG.

The picture is made once, as a list of shapes in pixels; each form of file only draws these.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..errors import PostroomError
from ..text.svg import INK, svg_document, text_at

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 32, 52
GRID = "#dddddd"
# Distinct also for people who do not see all colours (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000")
LEGEND_CHARACTERS = 28
SCALE = 2  # of a PNG: pixels for each of ours

Points = Sequence[tuple[float, float]]


class _PlotMark(NamedTuple):
    """A line through points, a dot, or a text."""

    kind: str
    points: Points
    colour: str
    text: str = ""
    anchor: str = "start"
    size: int = 12


class _Axis(NamedTuple):
    """Where values of one column lie in the picture."""

    ticks: Sequence[float]
    log: bool
    start: float
    end: float

    def at(self, value: float) -> float:
        low, high, value = (
            math.log10(v) if self.log else v for v in (self.ticks[0], self.ticks[-1], value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def plot(
    groups: Mapping[str, Points],
    x_name: str,
    y_name: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    png: bool = False,
) -> bytes:
    """Draw a line for each group of points, in the order of x; on a log axis all are above 0."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    every = [point for points in groups.values() for point in points]
    x_axis = _Axis(_ticks([x for x, _ in every], log=log_x), log_x, LEFT, right)
    y_axis = _Axis(_ticks([y for _, y in every], log=log_y), log_y, bottom, TOP)
    shapes = []
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        shapes.append(_PlotMark("line", [(x, TOP), (x, bottom)], GRID))
        shapes.append(_text(x, bottom + 18, f"{tick:.4g}", anchor="middle"))
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        shapes.append(_PlotMark("line", [(LEFT, y), (right, y)], GRID))
        shapes.append(_text(LEFT - 6, y + 4, f"{tick:.4g}", anchor="end"))
    shapes.append(_text((LEFT + right) / 2, HEIGHT - 12, x_name, anchor="middle", size=14))
    shapes.append(_text(8, 20, y_name, size=14))
    for number, (name, points) in enumerate(groups.items()):
        colour = COLOURS[number % len(COLOURS)]
        shown = [(x_axis.at(x), y_axis.at(y)) for x, y in sorted(points)]
        shapes.append(_PlotMark("line", shown, colour))
        shapes += [_PlotMark("dot", [point], colour) for point in shown]
        if name:
            at = TOP + 16 * number + 12
            shapes.append(_PlotMark("line", [(right - 190, at - 4), (right - 174, at - 4)], colour))
            shapes.append(_text(right - 168, at, name[:LEGEND_CHARACTERS]))
    return _png(shapes) if png else _svg(shapes).encode()


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> _PlotMark:
    return _PlotMark("text", [(x, y)], INK, text, anchor, size)


def _svg(shapes: Sequence[_PlotMark]) -> str:
    body = []
    for shape in shapes:
        x, y = shape.points[0]
        if shape.kind == "text":
            body.append(text_at(x, y, shape.text, size=shape.size, anchor=shape.anchor))
        elif shape.kind == "dot":
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{shape.colour}"/>')
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            body.append(f'<polyline points="{path}" fill="none" stroke="{shape.colour}"/>')
    return svg_document(WIDTH, HEIGHT, body)


def _png(shapes: Sequence[_PlotMark]) -> bytes:
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise PostroomError(
            "a PNG needs Pillow: pip install 'postroom[plot]', or give the file a name that ends "
            "in .svg"
        ) from None
    image = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    draw = ImageDraw.Draw(image)
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for shape in shapes:
        points = [(x * SCALE, y * SCALE) for x, y in shape.points]
        x, y = points[0]
        if shape.kind == "text":
            font = ImageFont.load_default(shape.size * SCALE)
            draw.text((x, y), shape.text, shape.colour, font, anchor=anchors[shape.anchor])
        elif shape.kind == "dot" or len(points) == 1:
            radius = 3 * SCALE
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), shape.colour)
        else:
            draw.line(points, shape.colour, SCALE)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _ticks(values: Sequence[float], *, log: bool) -> list[float]:
    """Return round numbers that enclose some values; on a log axis these are powers of ten."""
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = max(1, math.ceil((last - first) / 8))
        count = max(1, math.ceil((last - first) / step))
        return [10.0 ** (first + step * n) for n in range(count + 1)]
    if low == high:
        low, high = low - 1, high + 1
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    width = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [n * width for n in range(math.floor(low / width), math.ceil(high / width) + 1)]
