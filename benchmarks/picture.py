"""The picture: for each line a bar for every system, its ratio to the best peer, on a log axis."""

from __future__ import annotations

import math

from postroom.text.svg import svg_document, text_at

from .lines import LINES, US, Line, Results, is_peer
from .report import number

WIDTH, LEFT, RIGHT = 860, 250, 90
BAR, GAP, HEAD, TOP = 15, 4, 26, 64
OURS, THEIRS, FLOOR_COLOUR, TARGET = "#1d6fb8", "#b9c2cc", "#e3dccb", "#d1495b"
FAINT, GRID = "#888888", "#dddddd"


def draw(results: Results) -> str:
    """An SVG of all lines that have somebody to be compared with."""
    shown = [(line, _ratios(results, line)) for line in LINES]
    shown = [(line, ratios) for line, ratios in shown if len(ratios) > 1]
    values = [ratio for _, ratios in shown for ratio in ratios.values()] or [1.0]
    low = math.floor(min(0.0, *map(math.log10, values)))
    high = math.ceil(max(1.0, *map(math.log10, values)))

    def x(ratio: float) -> float:
        return LEFT + (math.log10(ratio) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    body: list[str] = []
    y = TOP
    for line, ratios in shown:
        y += HEAD
        body.append(text_at(8, y - 8, f"{line.title}, {line.unit}", weight="bold"))
        medians = results.medians(line)
        for system, ratio in ratios.items():
            colour = OURS if system == US else THEIRS if is_peer(system) else FLOOR_COLOUR
            left, right = sorted((x(1.0), x(ratio)))
            body.append(
                f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1.5):.1f}" '
                f'height="{BAR}" fill="{colour}"/>'
            )
            if system == US and line.target:
                body.append(
                    f'<rect x="{x(line.target) - 1:.1f}" y="{y - 2}" width="2" '
                    f'height="{BAR + 4}" fill="{TARGET}"/>'
                )
                right = max(right, x(line.target))
            weight = "bold" if system == US else "normal"
            body.append(text_at(LEFT - 8, y + 12, system, anchor="end", weight=weight))
            label = f"{number(medians[system])}  ({number(ratio)}x)"
            body.append(text_at(right + 5, y + 12, label, weight=weight))
            y += BAR + GAP
    height = y + 12
    axis = [_grid(x(10.0**power), power, height) for power in range(low, high + 1)]
    head = [
        text_at(8, 22, "Postroom and what people use instead", size=16, weight="bold"),
        text_at(
            8,
            42,
            "Bars: how many times better than the peer, floor or limit at 1x; right is better. "
            "Red: to be reached.",
            colour=FAINT,
        ),
    ]
    return svg_document(WIDTH, height, [*head, *axis, *body])


def _ratios(results: Results, line: Line) -> dict[str, float]:
    """Each system's score against the best peer, or against the reference where none is a peer."""
    medians = results.medians(line)
    peers = [value for name, value in medians.items() if is_peer(name)]
    reference = results.reference(line)
    if not peers or US not in medians or reference is None:
        return {}
    best = peers[0] if line.reference == "best" else reference[1]
    return {name: line.score(value, best) for name, value in medians.items() if value > 0}


def _grid(x: float, power: int, height: int) -> str:
    label = "1" if power == 0 else f"{10.0**power:,g}"
    width, colour = (1.4, FAINT) if power == 0 else (0.6, GRID)
    return (
        f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 6}" stroke="{colour}" '
        f'stroke-width="{width}"/>'
        + text_at(x, TOP - 4, f"{label}x", anchor="middle", colour=FAINT)
    )
