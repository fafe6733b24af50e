"""Reservations: cards that are kept for one user for a time. Pure, apart from the record's JSON.

A reservation is a file of its user, `reserve-<id>`, that no process has to hold. Only that user (or
root) removes it; when it is over, everybody ignores it. It names how many cards, not which: the
cards that are likely to be free when it begins are kept for it, as every process computes from the
leases. A request of another user is not granted on these cards if it would still run when the
reservation begins; one without a time limit counts as if it ran for ever. A user who has a card
already keeps it.

What is reserved counts as used, whether it is used or not (`fair_share`), and against the limits
of its user (`ledger_rules`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...system import processes
from .allocation import AvailableCard, CardShare, CardWindow

VERSION = 1
LONGEST_S = 14 * 86_400.0
AHEAD_S = 60 * 86_400.0


class Reservation(NamedTuple):
    """Some cards for one user, from one moment to another."""

    reservation_id: str
    uid: int
    user: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    start: float
    end: float
    name: str = ""
    made_at: float = 0.0  # the change time of its file, which nobody can set
    host: str = ""

    def encode(self) -> dict[str, object]:
        """As the file holds it."""
        return {
            "version": VERSION,
            "id": self.reservation_id,
            "count": self.count,
            "start": self.start,
            "end": self.end,
            "name": self.name,
        }

    @classmethod
    def decode(cls, text: bytes, uid: int, made_at: float) -> Reservation | None:
        """Read one; None if it makes no sense. Its user is the owner of the file."""
        try:
            said = json.loads(text)
            if said["version"] != VERSION:
                return None
            found = cls(
                str(said["id"])[:100],
                uid,
                processes.user_name(uid),
                int(said["count"]),
                float(said["start"]),
                float(said["end"]),
                str(said["name"])[:200],
                made_at,
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None
        # One that nobody could have made is ignored: a file by hand, for a hundred years.
        sensible = (
            found.count > 0
            and 0 < found.end - found.start <= LONGEST_S
            and found.start - made_at <= AHEAD_S
        )
        return found if sensible else None


def windows(
    reservations: Iterable[Reservation],
    available: Sequence[AvailableCard],
    shares: Sequence[CardShare],
    *,
    now: float,
) -> list[CardWindow]:
    """Which cards are kept for whom, and when: for the oldest reservation first."""
    kept: list[CardWindow] = []
    for one in sorted(reservations, key=lambda r: (r.made_at, r.reservation_id)):
        if one.end <= now:
            continue
        taken = {
            w.uuid for w in kept if w.uid != one.uid and w.start < one.end and one.start < w.end
        }
        begins = max(one.start, now)

        def likely(
            card: AvailableCard, uid: int = one.uid, begins: float = begins
        ) -> tuple[float, bool, str]:
            on_card = [share for share in shares if share.uuid == card.uuid]
            busy_until = max((share.ends_at for share in on_card if share.uid != uid), default=0.0)
            # A lease that ends in time changes nothing, so that the choice stays the same.
            late = busy_until if busy_until > begins else 0.0
            return late, not any(share.uid == uid for share in on_card), card.uuid

        chosen = [card for card in sorted(available, key=likely) if card.uuid not in taken]
        kept += [CardWindow(card.uuid, one.start, one.end, one.uid) for card in chosen[: one.count]]
    return kept


def room(
    reservations: Iterable[Reservation], start: float, end: float, *, cards: int
) -> tuple[int, Reservation | None]:
    """How many cards are not reserved at any moment of a time, and the reservation in the way."""
    overlapping = [one for one in reservations if one.start < end and start < one.end]
    most, in_the_way = 0, None
    for moment in [start, *(one.start for one in overlapping if one.start > start)]:
        there = [one for one in overlapping if one.start <= moment < one.end]
        taken = sum(one.count for one in there)
        if taken > most:
            most, in_the_way = taken, there[-1]
    return max(0, cards - most), in_the_way


def ends_at(granted_at: float | None, lasts_s: float | None, now: float) -> float:
    """When a lease should end; one that is past its time may last for ever."""
    if lasts_s is None:
        return math.inf
    end = (now if granted_at is None else granted_at) + lasts_s
    return end if end > now else math.inf
