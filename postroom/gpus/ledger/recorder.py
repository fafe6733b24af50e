"""Records how much GPU time each user has used, from the leases of all, for root.

A user writes their own account when a lease of theirs is cleared away, and could understate it.
The recorder looks at the leases of everybody, whose locks say how long they really last. While its
record is fresh, it alone counts (`ledger_notes.used_and_reserved`). If it is killed, at most a
minute is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from .fair_share import Account, held_s
from .protocol import LeaseEntry

WRITE_S = 60.0


class Recorder:
    """Adds up what is held, from one look to the next."""

    def __init__(self, accounts: dict[int, Account], half_life_s: float) -> None:
        self.accounts = accounts
        self._half_life_s = half_life_s
        self._looked_at: float | None = None
        self._written_at = 0.0

    def step(self, now: float, held: Sequence[LeaseEntry]) -> bool:
        """Count what is held since the last look; True when the accounts should be written."""
        passed_s = 0.0 if self._looked_at is None else max(0.0, now - self._looked_at)
        self._looked_at = now
        for entry in held:
            before = self.accounts.get(entry.uid, Account(0.0, now))
            # A share of a card says its weight itself; that it has cards at all, its lock says.
            cards = min(entry.weight, len(entry.cards)) or len(entry.cards)
            more = held_s(cards, passed_s, self._half_life_s)
            self.accounts[entry.uid] = before.plus(more, now, self._half_life_s)
        due = now - self._written_at >= WRITE_S
        if due:
            self._written_at = now
        return due
