"""After a grant: the wait for memory that an earlier holder of the card has not given back yet.

Killing a process only begins the end of its use of a card. Its lock is free at once, but the driver
frees its memory later, sometimes by seconds. A program that computes before that runs
out of memory.

Only a lease that follows another one waits, and not for ever: what has not become free within
LIMIT_S belongs to somebody who cannot be seen from here (another container, the desktop of
Windows). That amount is noted, and nobody waits for it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...errors import CardHeld
from ...text.sizes import from_mib
from ..cards.inventory import Card
from .card_cache import CardCache
from .ledger_notes import LedgerNotes
from .protocol import Lease

LIMIT_S = 20.0
LOOK_S = 0.05
SLACK = 0.05  # of a whole card: less than this is not waited for


def not_freed(card: Card, memory_mib: int | None, *, staying_mib: int = 0) -> int:
    """Return how much must become free before a lease can be used; `memory_mib` is what it holds.

    `staying_mib` is known to be somebody's whom we cannot see.
    """
    left_mib = card.unexplained_mib - staying_mib
    if memory_mib is None:
        return left_mib if left_mib > SLACK * card.memory_mib else 0
    missing_mib = memory_mib - (card.memory_mib if card.free_mib is None else card.free_mib)
    return max(0, min(left_mib, missing_mib))


def await_memory(
    lease: Lease,
    cache: CardCache,
    notes: LedgerNotes,
    *,
    waiting: Callable[[str], None] | None = None,
    wanted: Callable[[], bool] | None = None,
) -> None:
    """Wait until the memory of a lease is free; `waiting` is told why, and if it is in vain."""
    staying: dict[str, int] | None = None
    told = False
    deadline = time.monotonic() + LIMIT_S
    while True:
        cards = [card for card in cache.cards() if card.uuid in lease.cards]
        if not _short(cards, lease, {}):
            return
        if staying is None:
            staying = notes.staying()
        short = _short(cards, lease, staying)
        if not short:
            return
        words = ", ".join(f"{from_mib(mib)} of card {card.index}" for card, mib in short)
        if waiting is not None and not told:
            told = True
            waiting(f"{words} is not free yet, although its last holder has ended{_left(short)}")
        if time.monotonic() > deadline:
            for card, _ in short:
                notes.set_staying(card.uuid, card.unexplained_mib)
            if waiting is not None:
                waiting(
                    f"{words} did not become free in {LIMIT_S:g} s{_left(short)}; going on without"
                )
            return
        if wanted is not None and not wanted():
            lease.release()
            raise CardHeld("nobody waits for the card any more")
        time.sleep(LOOK_S)


def _left(short: Sequence[tuple[Card, int]]) -> str:
    """Name the processes that the driver still shows, and Linux does not, or not here."""
    found = [usage.describe() for card, _ in short for usage in card.processes if usage.user == "?"]
    return f": it is of {' and of '.join(found)}" if found else ""


def _short(cards: Sequence[Card], lease: Lease, staying: dict[str, int]) -> list[tuple[Card, int]]:
    found = []
    for card in cards:
        mib = not_freed(card, lease.memory_mib, staying_mib=staying.get(card.uuid, 0))
        if mib:
            found.append((card, mib))
    return found
