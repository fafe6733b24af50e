"""The two pieces that every SVG picture needs: the document around it, and escaped text."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK = "#222222"


def svg_document(width: int, height: int, body: Iterable[str]) -> str:
    """Return an SVG file with a white background."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" style="font-family:system-ui,sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def text_at(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    anchor: str = "start",
    weight: str = "normal",
    colour: str = INK,
) -> str:
    """Return a text element; the text may hold any characters."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{colour}">{escape(text)}</text>'
    )
