"""Which of many waiting jobs of one owner start now, and on which card.

Between different owners the ledger decides, first come, first served. An owner who knows all of the
jobs can do better, and nobody else waits longer for it. Large jobs are placed first, each on the
fullest card that has enough free memory, and small jobs fill the gaps. For jobs that do not fit,
cards are drained: later jobs may only use memory of such a card that the waiting job does not need.
So large jobs start soon, and the last jobs of all are small ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..cards.inventory import Card
from ..ledger.allocation import CardAllocator, CardShare, Demand, allocate_next
from ..ledger.card_cache import available_cards
from ..ledger.lease_records import told_beside
from ..ledger.protocol import Ledger
from ..ledger.waiting import shares_of


@dataclass(frozen=True)
class PlacementRequest:
    """What one waiting job needs: `memory_mib` of one of these cards; None means a whole card."""

    memory_mib: int | None
    among: tuple[str, ...]
    priority: int = 0


def order(requests: Sequence[PlacementRequest]) -> list[int]:
    """Return the order in which jobs are placed, as positions in the list.

    A higher priority comes first. Then come jobs that will be measured, since others of their kind
    wait for them; then large jobs before small ones; otherwise the order stays.
    """
    return sorted(range(len(requests)), key=lambda position: _rank(requests[position]))


def _rank(request: PlacementRequest) -> tuple[int, bool, int]:
    return -request.priority, request.memory_mib is not None, -(request.memory_mib or 0)


def place_jobs(
    allocator: CardAllocator, requests: Sequence[PlacementRequest], *, user: str = ""
) -> list[tuple[int, str]]:
    """Return the positions of the jobs of a user that start now, each with its card."""
    started = []
    refused: dict[PlacementRequest, int] = {}
    for position in order(requests):
        request = requests[position]
        if refused.get(request, 0) >= len(allocator.available):
            continue  # every card is drained for a job like this already
        demand = Demand(
            1, request.among, request.memory_mib, pack=True, user=user, beside=told_beside()
        )
        chosen = allocate_next(allocator, demand)
        if chosen is None:
            refused[request] = refused.get(request, 0) + 1
        else:
            started.append((position, chosen[0]))
    return started


def make_allocator(
    ledger: Ledger, cards: Sequence[Card], promised: Sequence[CardShare]
) -> CardAllocator:
    """Return the cards as they are now, with what is held of them and what we have promised."""
    available = available_cards(cards, ledger, lambda card: card.index)
    held = shares_of(ledger.holders(), [card.uuid for card in available])
    return CardAllocator(available, [*held, *promised], most_drained=len(available))
