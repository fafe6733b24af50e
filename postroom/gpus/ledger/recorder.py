"""Records how much GPU time each user has used, from the leases of all, for root.

A user writes their own account when a lease of theirs is cleared away, and could understate it.
The recorder looks at the leases of everybody, whose locks say how long they really last, and at the
sizes of the cards. While its record is fresh, it alone counts, and later nobody can say less
(`fair_share.used_lately`). If it is killed, the next one takes in what is held since the record; of
leases that end meanwhile, what came after the record is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .activity import GAP_S
from .fair_share import Account, held_s, part_of_cards
from .protocol import LeaseEntry

WRITE_S = 60.0


class Recorder:
    """Adds up what is held, from one look to the next."""

    def __init__(self, accounts: dict[int, Account], half_life_s: float) -> None:
        self.accounts = accounts
        self._half_life_s = half_life_s
        self._looked_at: float | None = None
        self._written_at: float | None = None

    def step(
        self, now: float, clock_s: float, held: Sequence[LeaseEntry], sizes_mib: Mapping[str, int]
    ) -> bool:
        """Count what is held since the last look; True when the accounts should be written.

        `now` is wall clock, which somebody may set; `clock_s` only goes on.
        """
        passed_s = 0.0 if self._looked_at is None else clock_s - self._looked_at
        self._looked_at = clock_s
        for entry in held:
            # After a look its user's word about its start is not needed. After a pause it is.
            began = now if entry.granted_at is None else entry.granted_at
            held_for_s = min(passed_s, max(0.0, now - began)) if passed_s > GAP_S else passed_s
            # A lease that cannot be read keeps all cards from others.
            uuids = entry.cards or (*sizes_mib,)
            known = [sizes_mib[uuid] for uuid in uuids if uuid in sizes_mib]
            # Of a card that we do not see, its size is what its user says.
            whole = len(known) == len(uuids)
            cards = part_of_cards(entry.memory_mib, known) if whole else entry.counts_for
            before = self.accounts.get(entry.uid, Account(0.0, now))
            more = held_s(cards, held_for_s, self._half_life_s)
            self.accounts[entry.uid] = before.plus(more, now, self._half_life_s)
        due = self._written_at is None or clock_s - self._written_at >= WRITE_S
        if due:
            self._written_at = clock_s
        return due
