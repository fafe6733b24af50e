"""Tables of text, safe to print on a terminal, and of HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from .safe_text import printable


def cut(text: str, width: int) -> str:
    """Shorten a text to a width; an ellipsis shows that something is missing."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def table_lines(
    rows: Sequence[Sequence[str]], *, indent: str = "", width: int | None = None
) -> list[str]:
    """Align the columns of some rows; with a width, longer lines are cut."""
    shown = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        (indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))).rstrip()
        for row in shown
    ]
    return lines if width is None else [cut(line, width) for line in lines]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns of some rows, as one text."""
    return "\n".join(table_lines(rows))


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Some rows as HTML; the first cell of each is its head."""
    lines = []
    for head, *cells in rows:
        others = "".join(f"<td>{_escaped(cell)}</td>" for cell in cells)
        lines.append(f"<tr><th>{_escaped(head)}</th>{others}</tr>")
    return f"<table>{''.join(lines)}</table>"


def _escaped(cell: str) -> str:
    import html  # it loads a table of all entities

    return html.escape(printable(cell))
