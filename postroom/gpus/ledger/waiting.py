"""One request in the folder ledger: from its file to its grant, and how often it checks."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from math import inf
from types import TracebackType
from typing import NamedTuple

from ...errors import GpuError
from ...system import processes
from ...system.shared_folder import SharedFolder
from . import lease_records
from .allocation import AvailableCard, CardAllocator, CardShare, CardWindow, Demand, grant
from .fair_share import (
    NO_RECORD,
    Account,
    UseRecord,
    held_s,
    in_turn,
    part_of_cards,
    used_by_lease,
    used_lately,
)
from .holding_limits import HoldingLimits
from .lease_scan import LeaseScan, LedgerState
from .ledger_rules import LedgerRules
from .protocol import LeaseEntry
from .reservations import Reservation, ends_at, windows

LOOK_S = 0.01  # how often the first waiting request looks; later ones look less often
LOOK_LIMIT_S = 2.0
GLANCE_LIMIT_S = 0.1
LEAST_HOLD_S = 10.0  # a session that gives its card to others has it for this long
# A session gives its card back so long before a reservation, and asks for so long when it begins.
GIVE_BACK_S = 60.0
NEAR = 4  # this many requests at the front look at once when files have changed


# A look tests every lock in the ledger; a glance only asks whether files came or went. The end of
# the waiting list, and a request that has waited for hours, need neither often.


def look_s(before: int, waited_s: float) -> float:
    """Return the time from one look to the next, with `before` requests before ours."""
    first_s = min(max(LOOK_S, waited_s / 100), 5 * LOOK_S)
    return min(first_s * (1 + before), LOOK_LIMIT_S)


def glance_s(before: int) -> float:
    """Return the time from one glance to the next."""
    return min(LOOK_S * (1 + before / NEAR), GLANCE_LIMIT_S)


class LedgerFacts(NamedTuple):
    """What decides besides the leases and the waiting list, at one moment."""

    rules: LedgerRules = LedgerRules()
    accounts: Mapping[int, Sequence[Account]] = {}
    reservations: Sequence[Reservation] = ()
    now: float = 0.0
    record: UseRecord = NO_RECORD

    def used(self, held: Sequence[LeaseEntry]) -> dict[int, float]:
        """How much GPU time each user has used; what is reserved now counts as held."""
        half_life_s = self.rules.half_life_s
        used = used_lately(
            self.accounts, held, now=self.now, half_life_s=half_life_s, record=self.record
        )
        for one in self.reservations:
            if one.start <= self.now < one.end:
                has = {uuid for entry in held if entry.uid == one.uid for uuid in entry.cards}
                idle = max(0, one.count - len(has))
                used[one.uid] = used.get(one.uid, 0.0) + held_s(
                    idle, self.now - one.start, half_life_s
                )
        return used


class Situation(NamedTuple):
    """What a decision is about, and what is asked about afterwards."""

    available: list[AvailableCard]
    facts: LedgerFacts = LedgerFacts()


class PendingRequest:
    """A request with its file, which is first `new-`, then perhaps `ticket-`, then `lease-`.

    Only this class renames these files, and only under the folder's mutex.
    """

    def __init__(
        self,
        folder: SharedFolder,
        entry: LeaseEntry,
        situation: Callable[[], Situation],
        *,
        pack: bool,
        known: Callable[[], Situation] | None = None,
    ) -> None:
        """`situation` may ask the driver; `known` is the same with the cards as last seen."""
        self.folder = folder
        self.entry = entry
        self.before = 0
        self.granted = False
        self.snapshot = LedgerState([], [], [])
        self.situation = Situation([])  # as of the last decision
        self.scan = LeaseScan(folder)
        self._situation = situation
        self._known = known
        self._pack = pack
        self.path = os.path.join(folder.mine(), f"new-{entry.lease_id}")
        # Mode 0600 until it is locked, so that nobody else can lock it first.
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            append(self.fd, lease_records.encode_request(entry))
            os.fchmod(self.fd, 0o644)
        except BaseException:
            self._withdraw()
            raise

    def __enter__(self) -> PendingRequest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.scan.close()
        if not self.granted:
            self._withdraw()

    def _withdraw(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)
        os.close(self.fd)

    def ask(self, *, stay: bool) -> bool:
        """Take the cards; else, with `stay`, join the waiting list."""
        situation = self._situation()
        self.scan.snapshot()  # read most of it before we take the mutex
        with self.folder.mutex():
            cards = self._decide(situation)
            if cards is not None:
                self._grant(cards)
            elif stay:
                # Given under the mutex, from a clock that all processes share: numbers grow.
                number = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                self._rename(f"ticket-{number:020d}-{self.entry.lease_id}")
        return self.granted

    def ask_again(self) -> bool:
        """Take the cards if it is our turn."""
        # Without the mutex the answer is only a hint, so decide again under it. Whole cards depend
        # on the leases; the driver is asked only when one is free of them.
        if self._known is None:
            hinted = self._decide(situation := self._situation()) is not None
        else:
            beside = self.entry._replace(beside=True)
            hinted = self._decide(situation := self._known(), beside) is not None
        if hinted:
            situation = self._situation() if self._known is not None else situation
            with self.folder.mutex():
                cards = self._decide(situation)
                if cards is not None:
                    self._grant(cards)
        return self.granted

    def pause(self, waited_s: float, limit_s: float) -> None:
        """Wait until the next look is due, or files have changed and we are near the front."""
        end = time.monotonic() + min(look_s(self.before, waited_s), limit_s)
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, glance_s(self.before)))
            if self.scan.has_changed():
                # By their numbers; whose turn it is can only bring it forward from there.
                older = self.scan.count_before(os.path.basename(self.path))
                self.before = min(self.before, older)
                if self.before < NEAR:
                    return

    def _decide(
        self, situation: Situation, entry: LeaseEntry | None = None
    ) -> tuple[str, ...] | None:
        self.snapshot = self.scan.snapshot()
        self.situation = situation
        entry = entry or self.entry
        cards, self.before = decide(entry, self.snapshot, situation, pack=self._pack)
        return cards

    def _grant(self, cards: tuple[str, ...]) -> None:
        """Make the request a lease; it is one from the moment of the rename."""
        granted_at = time.time()
        weight = self._weight(cards)
        change = {"cards": cards, "granted_at": granted_at, "weight": weight}
        append(self.fd, lease_records.encode_change(change))
        self._rename(f"lease-{self.entry.lease_id}")
        self.entry = self.entry._replace(cards=cards, granted_at=granted_at, weight=weight)
        self.granted = True

    def _weight(self, cards: tuple[str, ...]) -> float:
        """How many cards the lease counts for: a share of one counts for its part."""
        sizes = {card.uuid: card.memory_mib for card in self.situation.available}
        mib = self.entry.memory_mib
        return part_of_cards(mib, (sizes.get(uuid, mib or 0) for uuid in cards))

    def _rename(self, name: str) -> None:
        path = os.path.join(os.path.dirname(self.path), name)
        os.rename(self.path, path)
        self.path = path


def decide(
    entry: LeaseEntry, snapshot: LedgerState, situation: Situation, *, pack: bool
) -> tuple[tuple[str, ...] | None, int]:
    """Return the cards that an entry may take now, or None, and how many requests are before it.

    This is the one place that decides, for a ledger in a folder and in Redis.
    """
    available, facts = situation
    line = snapshot.waiting
    if all(waiting.lease_id != entry.lease_id for waiting in line):
        line = [*line, entry]
    used = facts.used(snapshot.held) if len({one.uid for one in line}) > 1 else {}
    patience_s = facts.rules.patience_s
    order = in_turn(line, snapshot.held, used, now=facts.now, patience_s=patience_s)
    before = list(takewhile(lambda one: one.lease_id != entry.lease_id, order))
    demand = _demand(entry, facts.now)
    cards = grant(
        available,
        shares_of(snapshot.held, [card.uuid for card in available], now=facts.now),
        [_demand(one, facts.now) for one in before],
        demand,
        pack=pack,
        windows=_windows(snapshot, situation),
        limits=_limits(snapshot, situation, [entry, *before]),
    )
    return cards, len(before)


def refusal(entry: LeaseEntry, snapshot: LedgerState, situation: Situation) -> str:
    """Return which rule an entry waits for, whichever cards are free; "": for none."""
    limits = _limits(snapshot, situation, [entry])
    demand = _demand(entry, situation.facts.now)
    if why := limits.over(demand):
        return f"{why} ({situation.facts.rules.path})"
    return ""


class CardClaim(NamedTuple):
    """What others want of the cards of a lease."""

    why: str = ""  # why its holder should give them back now; "": it is still its turn
    until: float = inf  # when another user's reservation of one of them begins
    waited_for: bool = False  # somebody waits who would take one of them


def claimed(entry: LeaseEntry, snapshot: LedgerState, situation: Situation) -> CardClaim:
    """Return whether the holder of a lease should give it back, and until when it may have it.

    It should if a new request for the same cards, made now, would have to wait: another one is
    before it, or its user is over a limit. And it should before a reservation of one of them.
    """
    facts = situation.facts
    # Also one that it could be given back before: what is begun now must have ended then.
    windows = reserved_for(entry._replace(lasts_s=None), snapshot, situation)
    near = min((windows[uuid] for uuid in entry.cards if uuid in windows), default=None)
    if near is not None and near.start - facts.now < GIVE_BACK_S:
        why = f"user {processes.user_name(near.uid)} has reserved it"
    else:
        why = _overtaken(entry, snapshot, situation)
    waited_for = any({*one.among} & {*entry.cards} for one in snapshot.waiting)
    return CardClaim(why, inf if near is None else near.start, waited_for)


def _overtaken(entry: LeaseEntry, snapshot: LedgerState, situation: Situation) -> str:
    """Return why a new request for the cards of a lease would have to wait; "": it would not."""
    facts = situation.facts
    if facts.now - (entry.granted_at or facts.now) < LEAST_HOLD_S:
        return ""
    ours = [
        one
        for one in snapshot.held
        if one.lease_id == entry.lease_id
        or (one.group and (one.group, one.uid) == (entry.group, entry.uid))
    ]
    others = snapshot._replace(held=[one for one in snapshot.held if one not in ours])
    half_life_s = facts.rules.half_life_s
    spent = Account(sum(used_by_lease(one, facts.now, half_life_s) for one in ours), facts.now)
    accounts = {**facts.accounts, entry.uid: [*facts.accounts.get(entry.uid, ()), spent]}
    facts = facts._replace(accounts=accounts, reservations=())
    # What its own processes use is no stranger's.
    available = [
        card._replace(processes=(), used_mib=0) if card.uuid in entry.cards else card
        for card in situation.available
    ]
    situation = Situation(available, facts)
    again = entry._replace(
        lease_id="",
        cards=(),
        among=entry.cards,
        count=len(entry.cards),
        asked_at=facts.now,
        granted_at=None,
    )
    if decide(again, others, situation, pack=False)[0] is not None:
        return ""
    if why := refusal(again, others, situation):
        return why
    first = next((one for one in others.waiting if {*one.among} & {*entry.cards}), None)
    return f"{first.describe()} is before it" if first else ""


def reserved_for(
    entry: LeaseEntry, snapshot: LedgerState, situation: Situation
) -> dict[str, CardWindow]:
    """Return the windows of other users' reservations that an entry would reach, by card."""
    until = _demand(entry, situation.facts.now).ends_at
    return {
        window.uuid: window
        for window in _windows(snapshot, situation)
        if window.uid != entry.uid and window.start < until
    }


def used_by_strangers(entry: LeaseEntry, snapshot: LedgerState, situation: Situation) -> set[str]:
    """Return the cards that an entry is kept off by processes without a lease."""
    uuids = [card.uuid for card in situation.available]
    shares = shares_of(snapshot.held, uuids, now=situation.facts.now)
    allocator = CardAllocator(situation.available, shares)
    demand = _demand(entry, situation.facts.now)
    return {uuid for uuid in uuids if allocator.has_strangers(uuid, demand)}


def _windows(snapshot: LedgerState, situation: Situation) -> list[CardWindow]:
    available, facts = situation
    if not facts.reservations:
        return []
    shares = shares_of(snapshot.held, [card.uuid for card in available], now=facts.now)
    return windows(facts.reservations, available, shares, now=facts.now)


def _limits(
    snapshot: LedgerState, situation: Situation, asking: Sequence[LeaseEntry]
) -> HoldingLimits:
    available, facts = situation
    caps = facts.rules.caps({one.uid for one in (*snapshot.held, *asking)})
    sizes = {card.uuid: card.memory_mib for card in available}
    shares = shares_of(snapshot.held, list(sizes), now=facts.now) if caps else []
    return HoldingLimits(caps, shares, sizes, now=facts.now)


def shares_of(
    held: Sequence[LeaseEntry], uuids: Sequence[str], *, now: float = 0.0
) -> list[CardShare]:
    """Return what leases hold; a lease that cannot be read names no cards and holds them all."""
    here = processes.pid_namespace()
    return [
        CardShare(
            uuid,
            entry.memory_mib,
            entry.uid,
            entry.group,
            _pid(entry, here),
            entry.granted_at or 0.0,
            ends_at(entry.granted_at, entry.lasts_s, now),
        )
        for entry in held
        for uuid in entry.cards or uuids
    ]


def _demand(entry: LeaseEntry, now: float) -> Demand:
    return Demand(
        entry.count,
        entry.among,
        entry.memory_mib,
        entry.uid,
        entry.group,
        _pid(entry, processes.pid_namespace()),
        ends_at=inf if entry.lasts_s is None else now + entry.lasts_s,
        user=entry.user,
        beside=entry.beside,
    )


def _pid(entry: LeaseEntry, here: str) -> int:
    """Return the owner's pid if it is in our pid namespace, else 0."""
    return entry.process.pid if entry.process.pid_namespace == here else 0


def append(fd: int, text: bytes) -> None:
    """Append a whole line, or raise: readers ignore half a line."""
    os.lseek(fd, 0, os.SEEK_END)
    if os.write(fd, text) != len(text):
        raise GpuError("the ledger's disk is full: a lease could not be recorded")
