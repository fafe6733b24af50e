"""A scatter plot as SVG: one column of a table against another."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..text.svg import svg_document, text_at

WIDTH, HEIGHT = 640, 420
LEFT, RIGHT, TOP, BOTTOM = 74, 24, 32, 52
GRID, DOT = "#dddddd", "#1d6fb8"


def plot(points: Sequence[tuple[float, float]], x_name: str, y_name: str) -> str:
    """Draw points, joined by a line in the order of x."""
    ordered = sorted(points)
    x_ticks, y_ticks = (_ticks([point[axis] for point in ordered]) for axis in (0, 1))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_at(value: float) -> float:
        return LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (right - LEFT)

    def y_at(value: float) -> float:
        return bottom - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - TOP)

    body = []
    for tick in x_ticks:
        x = x_at(tick)
        body.append(_line(x, TOP, x, bottom))
        body.append(text_at(x, bottom + 18, f"{tick:.4g}", anchor="middle"))
    for tick in y_ticks:
        y = y_at(tick)
        body.append(_line(LEFT, y, right, y))
        body.append(text_at(LEFT - 6, y + 4, f"{tick:.4g}", anchor="end"))
    body.append(text_at((LEFT + right) / 2, HEIGHT - 12, x_name, size=14, anchor="middle"))
    body.append(text_at(8, 20, y_name, size=14))
    shown = [(x_at(x), y_at(y)) for x, y in ordered]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
    body.append(f'<polyline points="{path}" fill="none" stroke="{DOT}"/>')
    body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{DOT}"/>' for x, y in shown]
    return svg_document(WIDTH, HEIGHT, body)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{GRID}"/>'


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers that enclose some values."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 1, high + 1
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [count * step for count in range(first, last + 1)]
