"""Which of many waiting jobs begin now, and on which card: for one who has them all in hand.

Between strangers the ledger's line decides, first come, first served. One who knows all of their
jobs can do better, and nobody else waits longer for it: the large ones are placed first, on the
fullest card that has room, and what is small fills the gaps. For those that find no room, cards are
drained: whoever is placed later may use of such a card only what will be left beside them. So
large ones come soon, and the end of it all is made of small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cards.inventory import Card
from ..ledger.allocation import CardAllocator, CardShare, Demand, allocate_next
from ..ledger.card_cache import available_cards
from ..ledger.protocol import Ledger
from ..ledger.waiting import shares_of


@dataclass(frozen=True)
class PlacementRequest:
    """What one waiting job asks for: so much of one of these cards; None is all of it."""

    memory_mib: int | None
    among: tuple[str, ...]
    priority: int = 0


def order(asks: Sequence[PlacementRequest]) -> list[int]:
    """Return in which order jobs are placed, by their places in the list.

    A higher priority comes first. Then those that measure, since others of their kind wait for
    them; then the large before the small; else in the order in which they came.
    """
    return sorted(range(len(asks)), key=lambda place: _rank(asks[place]))


def _rank(ask: PlacementRequest) -> tuple[int, bool, int]:
    return -ask.priority, ask.memory_mib is not None, -(ask.memory_mib or 0)


def place_jobs(allocator: CardAllocator, asks: Sequence[PlacementRequest]) -> list[tuple[int, str]]:
    """Return the places of the jobs that begin now, each with its card."""
    begun = []
    refused: dict[PlacementRequest, int] = {}
    for place in order(asks):
        ask = asks[place]
        if refused.get(ask, 0) >= len(allocator.available):
            continue  # as many like it have been refused as there are cards to drain for them
        chosen = allocate_next(allocator, Demand(1, ask.among, ask.memory_mib, pack=True))
        if chosen is None:
            refused[ask] = refused.get(ask, 0) + 1
        else:
            begun.append((place, chosen[0]))
    return begun


def make_allocator(
    ledger: Ledger, cards: Sequence[Card], promised: Sequence[CardShare]
) -> CardAllocator:
    """Return the cards as they are now, with what is held of them and what we have promised."""
    available = available_cards(cards, ledger, lambda card: card.index)
    held = shares_of(ledger.holders(), [card.uuid for card in available])
    return CardAllocator(available, [*held, *promised], most_drained=len(available))
