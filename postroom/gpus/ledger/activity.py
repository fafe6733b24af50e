"""Whether held cards compute: what somebody saw who looked at them every few seconds.

The Master of a standing queue looks, and root's `postroom gpu record`. Each writes what it saw into
the folder of its own user, by hour. Of root's record everything counts, of a user's what is about
that user's own leases: nobody can say that another left a card idle (`usage_report`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..cards.inventory import Card
from .protocol import LeaseEntry

HOUR_S = 3600.0
KEPT_HOURS = 32 * 24
MOST_ROWS = 10_000  # of hours, users and cards; the oldest hours go first
GAP_S = 120.0  # what happened in a longer time between two looks is not known
BUSY_PERCENT = 1  # a card that computes for less than this is idle

_VERSION = 1
_Row = tuple[float, float, float]


class WatchedCard(NamedTuple):
    """Since when a card is looked at without a gap, the last look, and when it last computed."""

    since: float
    seen_at: float
    busy_at: float


class Activity(NamedTuple):
    """What one observer has seen: by hour, user and card; the jobs of its queue; and each card.

    A row is how long the card was held, how long it was looked at meanwhile, and how long it
    computed, in seconds.
    """

    rows: dict[tuple[int, int, str], _Row]  # hour, uid, uuid
    jobs: dict[int, tuple[int, int]]  # hour: how many ended, and how many of them failed
    cards: dict[str, WatchedCard]

    def encode(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        hours: dict[str, dict[str, list[float]]] = {}
        for (hour, uid, uuid), row in self.rows.items():
            hours.setdefault(str(hour), {})[f"{uid} {uuid}"] = [round(value, 1) for value in row]
        return {
            "version": _VERSION,
            "hours": hours,
            "jobs": {str(hour): list(counts) for hour, counts in self.jobs.items()},
            "cards": {uuid: list(card) for uuid, card in self.cards.items()},
        }

    @classmethod
    def decode(cls, value: Any) -> Activity:
        """Read it; anything that makes no sense is left out."""
        found = cls({}, {}, {})
        with suppress(ValueError, TypeError, AttributeError, KeyError, OverflowError):
            if value["version"] != _VERSION:
                return found
            for hour, by_card in value["hours"].items():
                for key, row in by_card.items():
                    uid, _, uuid = key.partition(" ")
                    found.rows[int(hour), int(uid), uuid] = _numbers(row, 3)  # type: ignore[assignment]
            for hour, counts in value["jobs"].items():
                jobs, failed = _numbers(counts, 2)
                found.jobs[int(hour)] = int(jobs), int(failed)
            for uuid, card in value["cards"].items():
                found.cards[uuid] = WatchedCard(*_numbers(card, 3))
        return found


def _numbers(values: Sequence[Any], count: int) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    if len(numbers) != count or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise ValueError("these are not the numbers that are written here")
    return numbers


class ActivityMeter:
    """Adds up what it sees, from one look to the next."""

    def __init__(self, before: Activity | None = None) -> None:
        self.seen = before or Activity({}, {}, {})
        self._looked_at: float | None = None

    def step(self, now: float, held: Sequence[LeaseEntry], cards: Sequence[Card]) -> None:
        """Look once: who holds which card now, and whether it computes."""
        busy = {
            card.uuid: card.utilisation >= BUSY_PERCENT
            for card in cards
            if card.utilisation is not None
        }
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        if not 0.0 <= passed_s <= GAP_S:
            passed_s = 0.0
        self._looked_at = now
        since: dict[tuple[int, str], float] = {}
        for entry in held:
            for uuid in entry.cards:
                began = since.get((entry.uid, uuid), now)
                since[entry.uid, uuid] = min(began, entry.granted_at or now)
        for (uid, uuid), began in since.items():
            self._add(now, uid, uuid, min(passed_s, max(0.0, now - began)), busy.get(uuid))
        for uuid, computes in busy.items():
            self._watch(now, uuid, computes)
        self._forget(now)

    def _add(self, now: float, uid: int, uuid: str, held_s: float, busy: bool | None) -> None:
        key = int(now // HOUR_S), uid, uuid
        before = self.seen.rows.get(key, (0.0, 0.0, 0.0))
        self.seen.rows[key] = (
            before[0] + held_s,
            before[1] + (0.0 if busy is None else held_s),
            before[2] + (held_s if busy else 0.0),
        )

    def _watch(self, now: float, uuid: str, computes: bool) -> None:
        before = self.seen.cards.get(uuid)
        if before is None or not 0.0 <= now - before.seen_at <= GAP_S:
            before = WatchedCard(now, now, 0.0)
        self.seen.cards[uuid] = WatchedCard(before.since, now, now if computes else before.busy_at)

    def count_jobs(self, at: float, jobs: int, failed: int) -> None:
        """Count jobs of the observer's queue that have ended."""
        before = self.seen.jobs.get(int(at // HOUR_S), (0, 0))
        self.seen.jobs[int(at // HOUR_S)] = before[0] + jobs, before[1] + failed

    def _forget(self, now: float) -> None:
        first = int(now // HOUR_S) - KEPT_HOURS
        rows, jobs, cards = self.seen
        if len(rows) > MOST_ROWS:
            first = max(first, sorted(hour for hour, _, _ in rows)[-MOST_ROWS] + 1)
        for key in [key for key in rows if key[0] < first]:
            del rows[key]
        for hour in [hour for hour in jobs if hour < first]:
            del jobs[hour]
        for uuid in [uuid for uuid, card in cards.items() if now - card.seen_at > 24 * HOUR_S]:
            del cards[uuid]


def idle_since(
    uuid: str, held_since: float, seen: Mapping[int, Sequence[Activity]], now: float
) -> float | None:
    """Return since when a held card has not computed; None if it has, or nobody has looked.

    `seen` is what observers saw, by their users. Root's word counts alone while root looks.
    """

    def fresh(several: Sequence[Activity]) -> list[WatchedCard]:
        found = [one.cards[uuid] for one in several if uuid in one.cards]
        return [card for card in found if now - card.seen_at <= GAP_S]

    looks = fresh(seen.get(0, ())) or [card for several in seen.values() for card in fresh(several)]
    if not looks:
        return None
    busy_at = max(card.busy_at for card in looks)
    since = max(held_since, busy_at, min(card.since for card in looks))
    return since if now - busy_at > GAP_S else None
