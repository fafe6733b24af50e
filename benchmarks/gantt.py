"""The picture of a packing: each card over time, a box per job as high as what it reserves."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from postroom.text.svg import INK, svg_document, text_at

WIDTH, LEFT, TOP, LANE, GAP = 1000, 70, 78, 150, 14
COLOURS = ("#9ecae1", "#6baed6", "#a1d99b", "#fdae6b", "#bcbddc", "#fc9272")
FAINT, BAD = "#888888", "#b2182b"


def draw(tasks: Sequence[Any], cards: Sequence[str], card_mib: int, result: Any) -> str:
    """An SVG: lanes are cards, boxes jobs; hatched ones failed or were killed."""
    end = max(result.packed_s, result.cover_s)
    kinds = list(dict.fromkeys(task.kind.name for task in sorted(tasks, key=_peak)))
    colour = {kind: COLOURS[place % len(COLOURS)] for place, kind in enumerate(kinds)}

    def x(seconds: float) -> float:
        return LEFT + seconds / end * (WIDTH - LEFT - 20)

    body: list[str] = []
    for lane, card in enumerate(cards):
        top = TOP + lane * (LANE + GAP)
        body.append(f'<rect x="{LEFT}" y="{top}" width="{x(end) - LEFT:.1f}" height="{LANE}"')
        body.append(' fill="#f7f7f7" stroke="#cccccc"/>')
        body.append(text_at(8, top + LANE / 2, card))
        on_card = sorted((t for t in tasks if t.card == card), key=lambda t: t.started)
        for task, floor_mib in _stack(on_card, card_mib):
            high = task.kind.peak_mib / card_mib * LANE
            y = top + LANE - (floor_mib + task.kind.peak_mib) / card_mib * LANE
            edge = BAD if task.ending != "ok" else "white"
            title = f"job {task.number}: {task.kind.name}, {task.ending}"
            body.append(
                f'<rect x="{x(task.started):.1f}" y="{y:.1f}" '
                f'width="{x(task.ended) - x(task.started):.1f}" height="{high:.1f}" '
                f'fill="{colour[task.kind.name]}" stroke="{edge}" stroke-width="0.8">'
                f"<title>{escape(title)}</title></rect>"
            )
    height = TOP + len(cards) * (LANE + GAP) + 24
    limit = x(result.cover_s)
    body.append(f'<line x1="{limit:.1f}" y1="{TOP - 6}" x2="{limit:.1f}" y2="{height - 26}"')
    body.append(f' stroke="{INK}" stroke-dasharray="4 3"/>')
    body.append(text_at(limit, TOP - 10, "lower bound", anchor="end"))
    for seconds in range(0, int(end) + 1, 100):
        body.append(text_at(x(seconds), height - 8, f"{seconds} s", colour=FAINT, anchor="middle"))
    legend = []
    for place, kind in enumerate(kinds):
        at = LEFT + place * 110
        legend.append(f'<rect x="{at}" y="38" width="12" height="12" fill="{colour[kind]}"/>')
        legend.append(text_at(at + 17, 48, kind))
    legend.append(text_at(LEFT + len(kinds) * 110, 48, "red edge: failed or killed", colour=BAD))
    head = (
        f"{len(tasks)} jobs on {len(cards)} cards: {result.packed_s:.0f} s, "
        f"{result.by_cover:.2f} times the lower bound; one job per card: {result.alone_s:.0f} s"
    )
    title = text_at(8, 22, head, size=15, weight="bold")
    return svg_document(WIDTH, height, [title, *legend, *body])


def _peak(task: Any) -> int:
    return int(task.kind.peak_mib)


def _stack(tasks: Sequence[Any], card_mib: int) -> list[tuple[Any, int]]:
    """Find for each job the lowest place in its card's lane where it lies beside nobody."""
    placed: list[tuple[Any, int]] = []
    for task in tasks:
        beside = sorted(
            (floor, floor + other.kind.peak_mib)
            for other, floor in placed
            if other.ended > task.started
        )
        floor = 0
        for low, high in beside:
            if floor + task.kind.peak_mib <= low:
                break
            floor = max(floor, high)
        # Memory has no places; a picture has, and may run out of them: then boxes overlap.
        placed.append((task, min(floor, card_mib - task.kind.peak_mib)))
    return placed
