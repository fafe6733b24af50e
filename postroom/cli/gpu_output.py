"""How the verbs of `postroom gpu` print: data on stdout, messages on stderr."""

from __future__ import annotations

import sys
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
    from ..text.safe_text import printable  # most calls have nothing to tell

    print(f"postroom: {printable(text)}", file=sys.stderr, flush=True)
