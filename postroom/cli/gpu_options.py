"""The options that every verb of `postroom gpu` has."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..errors import GpuError
from ..gpus.inventory import Card, select
from ..gpus.ledger import open_ledger

F = TypeVar("F", bound=Callable[..., Any])


def with_ledger(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which ledger, and hand the function the ledger itself."""

    @click.option(
        "--ledger", metavar="WHERE", help="A folder or redis://...; else POSTROOM_LEDGER."
    )
    @click.option("--redis-server", metavar="HOST", help="Use the ledger of this Redis server.")
    @click.option("--redis-port", type=int, default=6379, show_default=True)
    @click.option("--redis-db", type=int, default=0, show_default=True)
    @click.option("--redis-prefix", default="postroom", show_default=True)
    @functools.wraps(function)
    def wrapped(
        *arguments: Any,
        ledger: str | None,
        redis_server: str | None,
        redis_port: int,
        redis_db: int,
        redis_prefix: str,
        **options: Any,
    ) -> Any:
        if redis_server is not None:
            if ledger is not None:
                raise click.UsageError("--ledger and --redis-server name two ledgers; give one")
            ledger = f"redis://{redis_server}:{redis_port}/{redis_db}?prefix={redis_prefix}"
        return function(open_ledger(ledger), *arguments, **options)

    return wrapped


def as_json(function: F) -> F:
    """Add --json."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON.")(function)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def talk(text: str) -> None:
    """Say something to the user: never on stdout, which is data."""
    click.echo(f"postroom: {text}", err=True)


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
