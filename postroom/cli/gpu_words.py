"""The options of `postroom gpu` as plain facts: click's parser and the shortcut's are made of them.

Nothing here imports click: it alone takes longer than all that `postroom gpu get` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..errors import GpuError
from ..gpus.cards.inventory import Card, CardWatch, select
from ..gpus.ledger.protocol import Ledger, open_ledger
from ..system.frozen import Frozen

TYPE_CHECKING = False  # see `gpus.frozen`
if TYPE_CHECKING:
    from typing import Any


class Option(Frozen):
    """One option of a verb; with `kind` bool it is a flag."""

    flag: str
    name: str  # of the parameter that gets its value
    kind: type[str] | type[int] | type[float] | type[bool] = str
    default: str | int | None = None
    least: int | None = None
    metavar: str | None = None
    help: str | None = None
    show_default: bool = False


class GpuVerb(Frozen):
    """A verb that scripts call; `action` gets the ledger, the cards, and the rest by name."""

    action: Callable[..., None]
    options: tuple[Option, ...]
    argument: str = ""  # the name of its one argument, if it has any
    metavar: str | None = None
    is_command: bool = False  # the argument is all the words that are left

    @property
    def all_options(self) -> tuple[Option, ...]:
        """Return its own options, and those that say which ledger."""
        return (*self.options, *LEDGER_OPTIONS)

    def call(self, values: dict[str, Any]) -> None:
        """Open the ledger that the values name, and do it."""
        # The driver takes its time: the ledger is opened meanwhile.
        with CardWatch(alone=True) as watch:
            self.action(choose_ledger(values), watch, **values)


class Misuse(Exception):
    """Options that contradict each other: found before anything is done."""


JSON = Option("--json", "json_", bool, help="Print JSON.")

LEASE_OPTIONS = (
    Option("-n", "count", int, 1, least=1, help="How many cards."),
    Option("--memory", "memory", metavar="SIZE", help="Only so much of a card, as 8G."),
    Option("--gpus", "gpus", metavar="IDS", help="These cards, as 0,2 or by uuid; else any."),
    Option("--pack", "pack", bool, help="With --memory: the fullest card that fits."),
    Option("--timeout", "timeout_s", float, help="Seconds to wait; else for ever."),
    Option("--name", "name", default="", help="What it is for, shown to others."),
)

LEDGER_OPTIONS = (
    Option(
        "--ledger",
        "ledger",
        metavar="WHERE",
        help="A folder or redis://...; else POSTROOM_LEDGER.",
    ),
    Option(
        "--redis-server",
        "redis_server",
        metavar="HOST",
        help="Use the ledger of this Redis server.",
    ),
    Option("--redis-port", "redis_port", int, 6379, show_default=True),
    Option("--redis-db", "redis_db", int, 0, show_default=True),
    Option("--redis-prefix", "redis_prefix", default="postroom", show_default=True),
)


def choose_ledger(values: dict[str, Any]) -> Ledger:
    """Open the ledger that the options name, taking these out of the values."""
    where, server, port, db, prefix = (values.pop(option.name) for option in LEDGER_OPTIONS)
    if server is not None:
        if where is not None:
            raise Misuse("--ledger and --redis-server name two ledgers; give one")
        where = f"redis://{server}:{port}/{db}?prefix={prefix}"
    return open_ledger(where)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    import json

    say(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def say(text: str) -> None:
    """Print data."""
    print(text, flush=True)


def talk(text: str) -> None:
    """Say something to the user: never on stdout, which is data."""
    print(f"postroom: {text}", file=sys.stderr, flush=True)


def pick(cards: Sequence[Card], words: str) -> list[Card]:
    """Return the cards named by `0,2` or by uuids."""
    chosen: list[Card] = []
    for word in words.split(","):
        card = select(cards, word.strip())
        if card in chosen:
            raise GpuError(f"card {word.strip()} is named twice")
        chosen.append(card)
    return chosen


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
