"""Whose turn it is in the waiting list. Pure: every process computes the same order.

1. The user who has used less GPU time lately goes first. Past use counts half as much after each
   half-life (`ledger_rules`), and a lease counts while it is held. Each request that is placed
   counts as a little use, so that users with equal use take turns.
2. A user who yields comes after all others: such requests use cards that nobody else wants.
3. The requests of one user stay in their order.
4. A user who holds nothing, and has waited longer than the patience of the rules, goes before
   that: nobody who has used much waits for ever.

A request that does not fit yet keeps cards back from those behind it (`allocation`). It is not
passed by its own user's later requests, so what its user holds only shrinks; from then on that
user's use only fades while that of all who hold cards grows, and its turn comes and stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .protocol import LeaseEntry

CHARGE_S = 600.0  # what each card counts for from the first moment
RECORD_VALID_S = 600.0  # what users say counts again when root's record is older than this


class Account(NamedTuple):
    """GPU time that was used until a moment, as it counted at that moment."""

    seconds: float
    at: float

    def faded(self, now: float, half_life_s: float) -> float:
        """What it counts for now."""
        return self.seconds * fade(now - self.at, half_life_s)

    def plus(self, seconds: float, now: float, half_life_s: float) -> Account:
        """The account after more was used."""
        return Account(self.faded(now, half_life_s) + seconds, now)


class UseRecord(NamedTuple):
    """What root has seen of the use of all users (`recorder`), until a moment."""

    accounts: Mapping[int, Account] = {}
    at: float = -math.inf


NO_RECORD = UseRecord()


def fade(age_s: float, half_life_s: float) -> float:
    """The part that is left of what was used so long ago."""
    return math.pow(0.5, max(0.0, age_s) / half_life_s)


def held_s(cards: float, for_s: float, half_life_s: float) -> float:
    """What cards count for at the end of a time in which they were held."""
    return cards * half_life_s / math.log(2) * (1.0 - fade(for_s, half_life_s))


def used_by_lease(entry: LeaseEntry, until: float, half_life_s: float) -> float:
    """What a lease counts for, from its grant until a moment."""
    since = until if entry.granted_at is None else entry.granted_at
    return held_s(entry.counts_for, until - since, half_life_s)


def used_lately(
    accounts: Mapping[int, Iterable[Account]],
    held: Sequence[LeaseEntry],
    *,
    now: float,
    half_life_s: float,
    record: UseRecord = NO_RECORD,
    least_s: float = CHARGE_S,
) -> dict[int, float]:
    """How much GPU time each user has used, as it counts now.

    `accounts` are what users have said of the leases that have ended. Root's record knows also what
    is held, until it was written. While it is fresh, it alone counts; later, nobody can say less.
    """
    said = {
        uid: sum(one.faded(now, half_life_s) for one in several)
        for uid, several in accounts.items()
    }
    seen = {uid: one.faded(now, half_life_s) for uid, one in record.accounts.items()}
    for entry in held:
        # A lease that has just begun counts as much as one that is about to: see `in_turn`.
        counts = max(least_s * entry.counts_for, used_by_lease(entry, now, half_life_s))
        said[entry.uid] = said.get(entry.uid, 0.0) + counts
        until_record = Account(used_by_lease(entry, record.at, half_life_s), record.at)
        counts -= until_record.faded(now, half_life_s)
        seen[entry.uid] = seen.get(entry.uid, 0.0) + counts
    if now - record.at < RECORD_VALID_S:
        return seen
    return {uid: max(said.get(uid, 0.0), seen.get(uid, 0.0)) for uid in {*said, *seen}}


def part_of_cards(memory_mib: int | None, sizes_mib: Iterable[int]) -> float:
    """How many cards a lease counts for, on cards of these sizes: a part of one for its part."""
    return sum(1.0 if memory_mib is None else min(1.0, memory_mib / max(n, 1)) for n in sizes_mib)


def in_turn(
    waiting: Sequence[LeaseEntry],
    held: Sequence[LeaseEntry],
    used: Mapping[int, float],
    *,
    now: float,
    patience_s: float,
) -> Iterator[LeaseEntry]:
    """The waiting requests in the order in which they are served."""
    by_user: dict[tuple[bool, int], list[LeaseEntry]] = {}
    for entry in reversed(waiting):
        by_user.setdefault((entry.yields, entry.uid), []).append(entry)  # the oldest is the last
    count = {uid: used.get(uid, 0.0) for _, uid in by_user}
    if len(count) < 2:
        yield from waiting
        return
    holding = {entry.uid for entry in held}
    overdue = [
        entry
        for (yields, uid), own in by_user.items()
        if not yields and uid not in holding and now - (entry := own[-1]).asked_at > patience_s
    ]
    for entry in sorted(overdue, key=lambda entry: entry.asked_at):
        yield by_user[False, entry.uid].pop()
    place = {entry.lease_id: n for n, entry in enumerate(waiting)}

    def turn(own: list[LeaseEntry]) -> tuple[bool, float, int]:
        first = own[-1]
        return first.yields, count[first.uid], place[first.lease_id]

    while left := [own for own in by_user.values() if own]:
        entry = min(left, key=turn).pop()
        count[entry.uid] += CHARGE_S * entry.count
        yield entry
