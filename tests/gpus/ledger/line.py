"""The waiting list with no process, no disk and no clock: the decision itself, over simulated time.

Each request is decided as its own process would, by `waiting.decide`, from the same facts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from postroom.gpus.ledger.allocation import AvailableCard
from postroom.gpus.ledger.fair_share import Account, used_by_lease
from postroom.gpus.ledger.lease_scan import LedgerState
from postroom.gpus.ledger.ledger_rules import LedgerRules
from postroom.gpus.ledger.protocol import LeaseEntry
from postroom.gpus.ledger.reservations import Reservation
from postroom.gpus.ledger.waiting import LedgerFacts, Situation, decide
from postroom.system.processes import Process

START = 1_800_000_000.0
USUAL = LedgerRules()
LATER_S = 60.0  # the facts change with time alone: look again


@dataclass
class Line:
    """Cards, the leases on them, and who waits."""

    cards: int = 4
    rules: LedgerRules = USUAL
    reservations: Sequence[Reservation] = ()
    now: float = START
    waiting: list[LeaseEntry] = field(default_factory=list)
    held: dict[str, LeaseEntry] = field(default_factory=dict)
    ended: list[tuple[LeaseEntry, float]] = field(default_factory=list)
    accounts: dict[int, Account] = field(default_factory=dict)
    _takes_s: dict[str, float] = field(default_factory=dict)
    _ends: list[tuple[float, str]] = field(default_factory=list)
    _made: int = 0

    def ask(
        self,
        uid: int,
        takes_s: float,
        *,
        count: int = 1,
        jobs: int = 1,
        memory_mib: int | None = None,
        limited: bool = False,
        yields: bool = False,
    ) -> list[str]:
        """Have a user ask for cards; return the ids of the requests."""
        made = []
        for _ in range(jobs):
            self._made += 1
            entry = LeaseEntry(
                f"{self._made:06d}",
                uid,
                f"user{uid}",
                Process(0, 0, "", ""),
                *("", ""),
                count,
                tuple(card.uuid for card in self.available()),
                memory_mib,
                self.now,
                lasts_s=takes_s if limited else None,
                yields=yields,
            )
            self._takes_s[entry.lease_id] = takes_s
            self.waiting.append(entry)
            made.append(entry.lease_id)
        return made

    def available(self) -> list[AvailableCard]:
        return [AvailableCard(f"card-{n}", 24_000) for n in range(self.cards)]

    def facts(self) -> LedgerFacts:
        accounts = {uid: [account] for uid, account in self.accounts.items()}
        return LedgerFacts(self.rules, accounts, self.reservations, self.now)

    def state(self) -> LedgerState:
        return LedgerState(list(self.held.values()), list(self.waiting), [])

    def grant_all(self) -> None:
        """Let every waiting request decide, again and again, until nobody gets a card."""
        moved = True
        while moved:
            moved = False
            # The last first: whoever looks first, the answer must not depend on it.
            for entry in reversed(self._first_of_each()):
                situation = Situation(self.available(), self.facts())
                found, _ = decide(entry, self.state(), situation, pack=False)
                if found is not None:
                    self.waiting.remove(entry)
                    granted = entry._replace(cards=found, granted_at=self.now)
                    self.held[entry.lease_id] = granted
                    end = self.now + self._takes_s[entry.lease_id]
                    heapq.heappush(self._ends, (end, entry.lease_id))
                    moved = True
                    break

    def _first_of_each(self) -> list[LeaseEntry]:
        """The first few of each user and kind: those behind them are alike, and not before them."""
        kinds: dict[object, list[LeaseEntry]] = {}
        for entry in self.waiting:
            kind = entry.uid, entry.count, entry.memory_mib, entry.lasts_s, entry.yields
            kinds.setdefault(kind, []).append(entry)
        return [entry for alike in kinds.values() for entry in alike[:2]]

    def run(self, until_s: float) -> None:
        """Let time pass."""
        until = START + until_s
        while self.now < until:
            self.grant_all()
            self.now = min([until, self.now + LATER_S, *(end for end, _ in self._ends[:1])])
            while self._ends and self._ends[0][0] <= self.now:
                entry = self.held.pop(heapq.heappop(self._ends)[1])
                half_life_s = self.rules.half_life_s
                before = self.accounts.get(entry.uid, Account(0.0, self.now))
                more = used_by_lease(entry, self.now, half_life_s)
                self.accounts[entry.uid] = before.plus(more, self.now, half_life_s)
                self.ended.append((entry, self.now))
        self.grant_all()

    def card_s(self, uid: int, since_s: float = 0.0) -> float:
        """How long a user had cards, in card seconds, since a moment of the simulation."""
        spans = [(entry, end) for entry, end in self.ended]
        spans += [(entry, self.now) for entry in self.held.values()]
        return sum(
            len(entry.cards) * max(0.0, end - max(entry.granted_at or 0.0, START + since_s))
            for entry, end in spans
            if entry.uid == uid
        )
