"""Who has held which cards for how long, how much of that time they computed, and who waited.

    past = read_past(open_ledger())
    for line in usage_lines(past, since, until, by="user"):
        line.who, line.held_s, line.busy_s, line.idle_s, line.waited_s, line.jobs, line.failures

`read_past` reads the ledger once. `usage_lines` is pure, so a picture over time calls it once for
each day or hour of the same `past`. `held_s` minus `busy_s` minus `idle_s` is what nobody measured.

Who holds how much is known from the leases: living ones, and those that have ended. Where root
records, it is at least what root has seen. Whether cards computed is known where somebody looked
(`activity`): root for everybody, a user's own queue for that user. By project there is what the
Masters of queues have counted; a user sees their own projects, and root sees all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from ...system import processes
from .activity import HOUR_S, Activity
from .ended_leases import EndedLease
from .folder_ledger import local_part
from .project_use import ProjectHours
from .protocol import LeaseEntry, Ledger

BY = ("user", "project", "card")


class LedgerPast(NamedTuple):
    """What the ledger knows about a time that is over, read at one moment."""

    leases: Sequence[EndedLease]  # also those that are held, as if they ended now
    waiting: Sequence[LeaseEntry]
    activity: Mapping[int, Sequence[Activity]]  # by the user who wrote it down
    projects: Mapping[int, Sequence[ProjectHours]]
    now: float


class UsageLine(NamedTuple):
    """The account of a user, a project or a card. Seconds are GPU seconds, except the waiting."""

    who: str
    held_s: float | None = None  # None: not known of a project
    busy_s: float = 0.0
    idle_s: float | None = None  # while it was held
    waited_s: float | None = None
    leases: int | None = None
    jobs: int | None = None  # of queues; None: this is not counted by card
    failures: int | None = None

    def encode(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        return {
            name: round(value, 1) if isinstance(value, float) else value
            for name, value in self._asdict().items()
        }


def read_past(ledger: Ledger) -> LedgerPast:
    """Read what the ledger of this host knows about a time that is over."""
    local = local_part(ledger)
    now = time.time()
    notes = local.notes
    ended = {one.lease_id: one for one in notes.ended()}
    held = {
        entry.lease_id: EndedLease.of(entry, now)
        for entry in local.holders(squatters=False)
        if entry.cards
    }
    return LedgerPast(
        list((ended | held).values()), local.queue(), notes.activity(), notes.projects(), now
    )


def usage_lines(
    past: LedgerPast, since: float, until: float, *, by: str = "user"
) -> list[UsageLine]:
    """Return the accounts of a time, the largest first."""
    of_leases = by != "project"
    found = _by_lease(past, since, until, by) if of_leases else _projects(past, since, until)
    return sorted(found, key=lambda line: (-(line.held_s or line.busy_s), line.who))


def _by_lease(past: LedgerPast, since: float, until: float, by: str) -> list[UsageLine]:
    lines: dict[str, UsageLine] = {}

    def add(who: str, **more: float) -> None:
        # A card has no line for the jobs of queues, and nobody's wait before the grant.
        line = lines.get(who) or UsageLine(who, 0.0, 0.0, 0.0, 0.0, 0)
        sums = {name: (getattr(line, name) or 0) + value for name, value in more.items()}
        lines[who] = line._replace(**sums)  # type: ignore[arg-type]

    def key(uid: int, uuid: str) -> str:
        return uuid if by == "card" else processes.user_name(uid)

    # The hour that is not over yet counts whole: nothing of it is later than now.
    end = inf if until >= past.now else until
    recorded = _seen(past.activity.get(0, ()), since, end)
    own = {uid: _seen(several, since, end) for uid, several in past.activity.items() if uid != 0}
    held = held_by_card(past.leases, since, until)
    for uid, uuid in {*held, *recorded}:
        held_s = max(held.get((uid, uuid), 0.0), recorded.get((uid, uuid), (0.0,))[0])
        row = recorded.get((uid, uuid)) or own.get(uid, {}).get((uid, uuid)) or (0.0, 0.0, 0.0)
        busy_s = min(row[2], held_s)
        idle_s = min(max(0.0, row[1] - row[2]), held_s - busy_s)
        if held_s > 0:
            add(key(uid, uuid), held_s=held_s, busy_s=busy_s, idle_s=idle_s)
    for one in past.leases:
        waited_s = _overlap(one.asked_at, one.granted_at, since, until)
        begun = since <= one.granted_at < until
        if not waited_s and not begun:
            continue
        for uuid in one.cards if by == "card" else one.cards[:1]:
            add(key(one.uid, uuid), waited_s=waited_s, leases=int(begun))
    if by == "user":
        for entry in past.waiting:
            add(key(entry.uid, ""), waited_s=_overlap(entry.asked_at, past.now, since, until))
        for uid, several in past.activity.items():
            for hour, counts in (pair for one in several for pair in one.jobs.items()):
                if since < (hour + 1) * HOUR_S and hour * HOUR_S < until:
                    add(key(uid, ""), jobs=counts[0], failures=counts[1])
    return list(lines.values())


def _projects(past: LedgerPast, since: float, until: float) -> list[UsageLine]:
    lines: dict[str, UsageLine] = {}
    several_users = len(past.projects) > 1
    for uid, several in past.projects.items():
        for (hour, project), (jobs, failed, run_s) in (
            pair for one in several for pair in one.items()
        ):
            if hour * HOUR_S >= until or (hour + 1) * HOUR_S <= since:
                continue
            who = f"{processes.user_name(uid)}/{project}" if several_users else project
            line = lines.get(who) or UsageLine(who, jobs=0, failures=0)
            lines[who] = line._replace(
                busy_s=line.busy_s + run_s,
                jobs=(line.jobs or 0) + jobs,
                failures=(line.failures or 0) + failed,
            )
    return list(lines.values())


def held_by_card(
    leases: Iterable[EndedLease], since: float, until: float
) -> dict[tuple[int, str], float]:
    """Return how long each user held each card; leases of one user on one card count once."""
    changes: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for one in leases:
        start, end = max(one.granted_at, since), min(one.ended_at, until)
        if start < end:
            for uuid in one.cards:
                part = one.weight / len(one.cards)
                changes.setdefault((one.uid, uuid), []).extend([(start, part), (end, -part)])
    found = {}
    for key, several in changes.items():
        held_s, parts, last = 0.0, 0.0, since
        for at, part in sorted(several):
            held_s += (at - last) * min(1.0, max(0.0, parts))
            parts, last = parts + part, at
        found[key] = held_s
    return found


def _seen(
    several: Sequence[Activity], since: float, until: float
) -> dict[tuple[int, str], tuple[float, float, float]]:
    """Sum what observers of one user saw of each user and card; of two who looked, the longer."""
    best: dict[tuple[int, str], tuple[float, float, float]] = {}
    for activity in several:
        sums: dict[tuple[int, str], tuple[float, float, float]] = {}
        for (hour, uid, uuid), row in activity.rows.items():
            part = _overlap(hour * HOUR_S, (hour + 1) * HOUR_S, since, until) / HOUR_S
            if part:
                before = sums.get((uid, uuid), (0.0, 0.0, 0.0))
                a, b, c = (old + part * new for old, new in zip(before, row, strict=True))
                sums[uid, uuid] = a, b, c
        for key, row in sums.items():
            if row[1] >= best.get(key, (0.0, 0.0, 0.0))[1]:
                best[key] = row
    return best


def _overlap(start: float, end: float, since: float, until: float) -> float:
    return max(0.0, min(end, until) - max(start, since))
