"""How the verbs of `postroom gpu` print: data on stdout, messages on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


class Misuse(Exception):
    """The options contradict each other; raised before anything is done."""


def print_json(value: Any) -> None:
    """Print one JSON document."""
    import json

    say(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def say(text: str) -> None:
    """Print data."""
    print(text, flush=True)


def talk(text: str) -> None:
    """Print a message for the user; stdout is for data only."""
    print(f"postroom: {text}", file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
