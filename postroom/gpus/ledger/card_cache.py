"""The cards as they are now, for whoever waits: asked again, but not at every look."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from ...errors import GpuError
from ...system import processes
from ..cards import inventory
from ..cards.inventory import Card, CardWatch
from .allocation import Load

SIGHT_S = 0.5  # for so long, those who wait go by what they know of the cards


class CardCache:
    """What is known of the cards. With `ask` it is renewed while it is looked at, else it stays."""

    def __init__(self, cards: list[Card], ask: Callable[[], list[Card]] | None = None) -> None:
        self._cards = cards
        self._ask = ask
        self._until = time.monotonic() + SIGHT_S
        self._watch: CardWatch | None = None

    def cards(self) -> list[Card]:
        """Return the cards; a driver that does not answer leaves what was known."""
        if self._ask is not None and time.monotonic() > self._until:
            with suppress(GpuError):
                self._cards = self._look() or self._cards
            self._until = time.monotonic() + SIGHT_S
        return self._cards

    def _look(self) -> list[Card]:
        if self._ask is not inventory.cards:
            return self._ask() if self._ask is not None else []
        if self._watch is None:
            self._watch = CardWatch()  # keeps the child that asks the driver
        return self._watch.cards()

    def close(self) -> None:
        """End the child that asks the driver."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def __enter__(self) -> CardCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def loads_of(card: Card) -> tuple[Load, ...]:
    """Return who uses how much of a card, each with those it descends from."""
    return tuple(
        Load((usage.pid, *processes.ancestors(usage.pid)), usage.used_mib)
        for usage in card.processes
    )
