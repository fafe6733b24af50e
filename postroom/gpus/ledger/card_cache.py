"""The state of the cards for waiting requests: the driver is asked twice a second, not more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...errors import GpuError
from ...system import processes
from ..cards import inventory
from ..cards.inventory import Card, CardWatch
from .allocation import AvailableCard, ProcessMemory
from .protocol import Ledger

CACHE_S = 0.5  # how long an answer of the driver is used


class CardCache:
    """The last known state of the cards; without `ask` it is never renewed."""

    def __init__(
        self,
        cards: list[Card],
        ask: Callable[[], list[Card]] | None = None,
        *,
        fresh: bool = True,
    ) -> None:
        """`fresh`: the cards were listed just now."""
        self._cards = cards
        self._ask = ask
        self._until = time.monotonic() + CACHE_S if fresh else 0.0
        self._watch: CardWatch | None = None

    @property
    def known(self) -> list[Card]:
        """The cards as they were last known."""
        return self._cards

    def cards(self) -> list[Card]:
        """Return the cards; if the driver does not answer, as they were last known."""
        if self._ask is not None and time.monotonic() > self._until:
            with suppress(GpuError):
                self._cards = self._look() or self._cards
            self._until = time.monotonic() + CACHE_S
        return self._cards

    def _look(self) -> list[Card]:
        if self._ask is not inventory.cards:
            return self._ask() if self._ask is not None else []
        if self._watch is None:
            self._watch = CardWatch()  # keeps its child process, which asks the driver
        return self._watch.cards()

    def close(self) -> None:
        """End the child process that asks the driver."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def __enter__(self) -> CardCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def memory_by_process(card: Card) -> tuple[ProcessMemory, ...]:
    """Return what each process uses of a card, with its ancestors where they can be seen."""
    return tuple(
        ProcessMemory(
            () if usage.user == "?" else (usage.pid, *processes.ancestors(usage.pid)),
            usage.used_mib,
            usage.user,
            usage.compute,
        )
        for usage in card.processes
        if usage.used_mib is not None  # else it is part of what the card itself shows as used
    )


def available_cards(
    cards: Sequence[Card], ledger: Ledger, rank: Callable[[Card], float]
) -> list[AvailableCard]:
    """Return the managed and healthy cards; those with a low rank are handed out first."""
    managed, quarantined = ledger.managed(), ledger.quarantined()
    return [
        AvailableCard(
            card.uuid,
            card.memory_mib,
            rank(card),
            memory_by_process(card),
            card.used_mib or 0,
            card.linked,
        )
        for card in cards
        if (managed is None or card.uuid in managed)
        and card.uuid not in quarantined
        and not card.problem
    ]
