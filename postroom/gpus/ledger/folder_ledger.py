"""The ledger as a folder of lock files, the default. `protocol` explains the files."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ...errors import CardHeld, GpuError
from ...system import processes
from ...system.shared_folder import SharedFolder
from ...text.durations import format_time
from ..cards import inventory
from ..cards.inventory import Card
from . import lease_records
from .activity import Activity
from .allocation import AvailableCard
from .card_cache import CACHE_S, CardCache, available_cards
from .lease_scan import LeaseScan, LedgerState
from .ledger_notes import LedgerNotes
from .ledger_rules import LedgerRules, read_rules
from .protocol import WITHOUT_A_LEASE, Lease, LeaseEntry, LeaseRequest, Ledger, Quarantine
from .reservations import AHEAD_S, LONGEST_S, Reservation, room
from .waiting import (
    CardClaim,
    LedgerFacts,
    PendingRequest,
    Situation,
    append,
    claimed,
    refusal,
    reserved_for,
    used_by_strangers,
)

FOLLOWS_S = 30.0  # a lease so soon after another may find its memory still in use


class FolderLedger:
    """Leases as locked files."""

    def __init__(self, where: str, *, cards: Callable[[], list[Card]] = inventory.cards) -> None:
        self.folder = SharedFolder(where)
        self.where = self.folder.path
        self.notes = LedgerNotes(self.folder)
        self._cards = cards

    # Leases and waiting requests

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases, oldest first."""
        with LeaseScan(self.folder) as scan:
            found = scan.snapshot()
            return (scan.with_squatters(found) if squatters else found).held

    def queue(self) -> list[LeaseEntry]:
        """List the waiting requests in their order."""
        with LeaseScan(self.folder) as scan:
            return scan.snapshot().waiting

    def log(self) -> list[dict[str, Any]]:
        """Return what happened, oldest first."""
        return self.notes.log()

    # Which cards

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids of the cards that are handed out; None means all."""
        return self.notes.managed()

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Set which cards are handed out from now on; None means all."""
        self.notes.manage(uuids)
        self.notes.record("managed", cards=None if uuids is None else list(uuids))

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the quarantined cards by uuid."""
        return self.notes.quarantined()

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work; its present leases stay until they end."""
        self.notes.set_quarantine(uuid, reason or "no reason given")
        self.notes.record("quarantined", cards=[uuid], reason=reason)

    def heal(self, uuid: str) -> None:
        """End the quarantine of a card."""
        self.notes.set_quarantine(uuid, "")
        self.notes.record("healed", cards=[uuid])

    # Fair shares, limits and reservations

    def claimed(self, lease: Lease, cards: list[Card]) -> CardClaim:
        """Return whether a holder should give its cards back: another's turn has come."""
        with LeaseScan(self.folder) as scan:
            return claimed(lease.entry, scan.snapshot(), self.situation(cards))

    def rules(self) -> LedgerRules:
        """Return the administrator's rules."""
        return read_rules(self.where)

    def facts(self) -> LedgerFacts:
        """Return what decides besides the leases and the waiting list."""
        now = time.time()
        accounts, reservations, record = self.notes.used_and_reserved(now)
        return LedgerFacts(self.rules(), accounts, reservations, now, record)

    def used(self) -> dict[int, float]:
        """Return how much GPU time each user has used, in seconds, as it counts now."""
        return self.facts().used(self.holders(squatters=False))

    def reservations(self) -> list[Reservation]:
        """Return the reservations that are not over, by their start."""
        return list(self.facts().reservations)

    def reserve(self, count: int, start: float, end: float, name: str = "") -> Reservation:
        """Keep cards for this user; raise GpuError if that cannot be."""
        now = time.time()
        if count < 1 or not start < end:
            raise GpuError("reserve at least one card, for a time above 0")
        if end - start > LONGEST_S or start - now > AHEAD_S:
            raise GpuError(
                f"a reservation lasts at most {LONGEST_S / 86_400:.0f} days, and begins within "
                f"{AHEAD_S / 86_400:.0f} days"
            )
        cards = self.available(self._cards())
        uid = os.geteuid()
        with self.folder.mutex():
            facts = self.facts()
            for cap in facts.rules.caps([uid]).get(uid, ()):
                own = [one for one in facts.reservations if one.uid in cap.members]
                most = cap.limit.cards
                if most is not None and count > room(own, start, end, cards=most)[0]:
                    raise GpuError(f"{cap.who} may hold {most} cards ({facts.rules.path})")
            left, other = room(facts.reservations, start, end, cards=len(cards))
            if count > left:
                of_them = f"; user {other.user} has reserved {other.count}" if other else ""
                raise GpuError(
                    f"{count} cards cannot be reserved: {left} of {len(cards)} are left then"
                    + of_them
                )
            self.notes.forget_old_reservations(now)
            made = Reservation(
                f"{os.urandom(3).hex()}",
                uid,
                processes.user_name(uid),
                count,
                start,
                end,
                name,
                now,
            )
            self.notes.add_reservation(made)
        self.notes.record("reserved", reservation=made.reservation_id, count=count, name=name)
        return made

    def unreserve(self, reservation_id: str) -> Reservation:
        """Remove a reservation of this user; root may remove any."""
        found = [one for one in self.reservations() if one.reservation_id == reservation_id]
        if not found:
            raise GpuError(f"there is no reservation {reservation_id!r}: see `gpu reservations`")
        one = found[0]
        if not self.notes.remove_reservation(one):
            raise GpuError(f"reservation {reservation_id} is user {one.user}'s, who can remove it")
        self.notes.record("unreserved", reservation=reservation_id)
        return one

    # Taking

    def try_acquire(self, request: LeaseRequest) -> Lease:
        """Take the cards now, or raise `CardHeld`, whose message says who holds them."""
        return self.acquire(request, timeout_s=0)

    def acquire(
        self,
        request: LeaseRequest,
        timeout_s: float | None = None,
        *,
        waiting: Callable[[str], None] | None = None,
        wanted: Callable[[], bool] | None = None,
        cards: list[Card] | None = None,
    ) -> Lease:
        """Wait for the cards; raise `CardHeld` after `timeout_s`."""
        cards = self._cards() if cards is None else cards
        began = time.monotonic()
        lease = self.take(
            self.entry(request, cards),
            cards,
            pack=request.pack,
            timeout_s=timeout_s,
            waiting=waiting,
            wanted=wanted,
        )
        fresh = time.monotonic() - began < CACHE_S
        self.await_memory(lease, cards, fresh=fresh, waiting=waiting, wanted=wanted)
        return lease

    def await_memory(
        self,
        lease: Lease,
        cards: list[Card],
        *,
        fresh: bool,
        waiting: Callable[[str], None] | None,
        wanted: Callable[[], bool] | None,
    ) -> None:
        """Wait, with a limit, until an earlier holder's memory is free; `fresh`: as `cards` say."""
        if not lease.follows_another:
            return
        from .freed_memory import await_memory

        try:
            with CardCache(cards, self._cards, fresh=fresh) as cache:
                await_memory(lease, cache, self.notes, waiting=waiting, wanted=wanted)
        except BaseException:
            lease.release()
            raise

    def take(
        self,
        entry: LeaseEntry,
        cards: list[Card],
        *,
        pack: bool = False,
        timeout_s: float | None = None,
        waiting: Callable[[str], None] | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> Lease:
        """Do what `acquire` does, for an entry that exists already."""
        began = time.monotonic()
        whole = entry.memory_mib is None
        with (
            CardCache(cards, self._cards) as cache,
            PendingRequest(
                self.folder,
                entry,
                _Remembered(lambda: self.situation(cache.cards())),
                pack=pack,
                known=_Remembered(lambda: self.situation(cache.known)) if whole else None,
            ) as pending,
        ):
            pending.ask(stay=timeout_s is None or timeout_s > 0)
            while not pending.granted:
                waited_s = time.monotonic() - began
                if timeout_s is not None and waited_s >= timeout_s:
                    raise CardHeld(self._refusal(pending, cache.known))
                if wanted is not None and not wanted():
                    raise CardHeld("nobody waits for the card any more")
                if waiting is not None:
                    waiting(self._refusal(pending, cache.known))
                    waiting = None
                pending.pause(waited_s, inf if timeout_s is None else timeout_s - waited_s)
                pending.ask_again()
            lease = self._lease(pending)
            lease.follows_another = self._follows_another(pending)
            self._tidy(pending.snapshot)
            return lease

    def _follows_another(self, pending: PendingRequest) -> bool:
        """Whether a lease of its cards ended lately, and no other is left that explains its use."""
        cards = pending.entry.cards
        snapshot = pending.snapshot
        if pending.entry.memory_mib is None and any(set(cards) & {*e.cards} for e in snapshot.held):
            return False  # it joins its group
        if any(set(cards) & {*dead.entry.cards} for dead in snapshot.dead):
            return True
        now = time.time()
        return any(
            card.uuid in cards and now - card.rank < FOLLOWS_S
            for card in pending.situation.available
        )

    def _refusal(self, pending: PendingRequest, cards: list[Card]) -> str:
        snapshot = pending.scan.with_squatters(pending.snapshot)
        return self.reason(pending.entry, snapshot, cards, pending.situation)

    def entry(self, request: LeaseRequest, cards: list[Card]) -> LeaseEntry:
        """Turn a request into an entry; raise GpuError if the cards could never satisfy it."""
        visible = {card.uuid: card for card in cards}
        if not visible:
            raise GpuError("no GPU is visible on this machine")
        among = request.cards or tuple(visible)
        count = len(among) if request.cards else request.count
        unknown = [uuid for uuid in among if uuid not in visible]
        if unknown:
            raise GpuError(
                f"there is no visible card {unknown[0]}; visible are {', '.join(visible)}"
            )
        if len(set(among)) != len(among):
            raise GpuError("a card is named twice in one request; ask once for each slot")
        if count < 1:
            raise GpuError(f"{count} cards were requested; request at least one")
        if count > len(among):
            raise GpuError(f"{count} cards were requested, but only {len(among)} are visible")
        if request.memory_mib is not None:
            if request.memory_mib < 1:
                raise GpuError(f"{request.memory_mib} MiB were requested; request at least one")
            fitting = [uuid for uuid in among if visible[uuid].memory_mib >= request.memory_mib]
            if len(fitting) < count:
                largest = max(visible[uuid].memory_mib for uuid in among)
                raise GpuError(
                    f"{count} cards with {request.memory_mib} MiB each were requested, but "
                    f"{len(fitting)} are that large; the largest has {largest} MiB"
                )
        return lease_records.new_entry(request, among, count)

    def available(self, cards: list[Card]) -> list[AvailableCard]:
        """Return the cards that may be handed out, least recently used first."""
        used = self.notes.last_used()
        return available_cards(cards, self, lambda card: used.get(card.uuid, 0.0))

    def situation(self, cards: list[Card]) -> Situation:
        """Return what a decision is about, besides the leases and the waiting list."""
        return Situation(self.available(cards), self.facts())

    def reason(
        self, entry: LeaseEntry, snapshot: LedgerState, cards: list[Card], situation: Situation
    ) -> str:
        """Say why an entry has to wait: for a rule, or for each card."""
        if why := refusal(entry, snapshot, situation):
            return why
        reserved = reserved_for(entry, snapshot, situation)
        used = used_by_strangers(entry, snapshot, situation)
        whole = entry.memory_mib is None
        managed, sick = self.notes.managed(), self.notes.quarantined()
        reasons = []
        for card in cards:
            if card.uuid not in entry.among:
                continue
            holders = [
                held.describe()
                for held in snapshot.held
                if card.uuid in held.cards or not held.cards
            ]
            if managed is not None and card.uuid not in managed:
                reasons.append(f"card {card.index} is not managed")
            elif card.uuid in sick:
                reasons.append(f"card {card.index} is quarantined: {sick[card.uuid].reason}")
            elif card.problem:
                reasons.append(f"card {card.index} has a problem: {card.problem}")
            elif card.uuid in reserved and not holders:
                window = reserved[card.uuid]
                reasons.append(
                    f"card {card.index} is reserved by user {processes.user_name(window.uid)} from "
                    f"{format_time(window.start)} to {format_time(window.end)}"
                    + ("" if entry.lasts_s else "; say with --for how long you need it")
                )
            elif holders:
                reasons.append(
                    f"card {card.index} is held by {' and by '.join(holders)}"
                    + ("" if whole else _unleased_words(card, snapshot, "; it is also used by "))
                )
            elif card.uuid in used:
                words = _unleased_words(card, snapshot, "by ")
                reasons.append(f"card {card.index} is {WITHOUT_A_LEASE} {words}".rstrip())
            elif entry.memory_mib is not None and (card.free_mib or 0) < entry.memory_mib:
                reasons.append(
                    f"card {card.index} has {card.used_mib} MiB in use without a lease"
                    + _unleased_words(card, snapshot, ", by ")
                )
            else:
                others = [w for w in snapshot.waiting if w.lease_id != entry.lease_id]
                first = next((w.describe() for w in others if card.uuid in w.among), "")
                what = f"is next for {first}" if first else "is free"
                reasons.append(f"card {card.index} {what}")
        return "; ".join(reasons)

    def _lease(self, pending: PendingRequest) -> Lease:
        """Return the lease of a granted request."""
        path = pending.path

        def settle(lease: Lease) -> None:
            if self._remove_if_dead(path):
                self._charge(lease.entry)
            self._note("released", lease.entry)

        def amend(lease: Lease, changes: dict[str, Any]) -> None:
            if lease.fds:
                append(lease.fds[0], lease_records.encode_change(changes))
                lease.entry = lease.entry._replace(**changes)

        os.set_inheritable(pending.fd, True)
        self._note("granted", pending.entry)
        return Lease(pending.entry, (pending.fd,), settle=settle, amend=amend)

    def _note(self, what: str, entry: LeaseEntry) -> None:
        with suppress(OSError):  # a full disk must not end the lease
            self.notes.touch(entry.cards)
            self.notes.record(what, entry)

    def path_of(self, lease: Lease) -> str:
        """Return the path of a lease of this user."""
        return os.path.join(self.folder.mine(), f"lease-{lease.lease_id}")

    # Files of dead leases

    def _remove_if_dead(self, path: str) -> bool:
        """Unlink a file if its owner is dead; False if anybody still has the lock."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _tidy(self, snapshot: LedgerState) -> list[tuple[str, str]]:
        """Unlink the files of dead leases that this user may unlink."""
        done = []
        for dead in snapshot.dead:
            if dead.uid != os.geteuid() and os.geteuid() != 0:
                continue
            path = os.path.join(self.where, dead.folder, dead.name)
            if self._remove_if_dead(path):
                done.append((dead.name, f"the lock of {dead.entry.describe()} is free"))
                self._charge(dead.entry)
                self._note("ended", dead.entry)
        return done

    def _charge(self, entry: LeaseEntry) -> None:
        """Count a lease as used; the process that unlinked its file does this."""
        if entry.cards:
            with suppress(OSError):
                self.notes.charge(entry, self.rules().half_life_s)
                self.notes.add_ended(entry)

    def tidy(self) -> None:
        """Clear away the dead leases of this user (root: of all), so that their ends are known."""
        with LeaseScan(self.folder) as scan:
            self._tidy(scan.snapshot())

    def note_end(self, lease: Lease) -> None:
        """Leave a process behind that writes down when a lease ends, and does not hold it."""
        from .lease_keeper import note_end

        note_end(lease, self.path_of(lease), self.tidy)

    def activity(self) -> dict[int, list[Activity]]:
        """Return what was seen of the cards of this host, by the users who looked."""
        return self.notes.activity()

    def own_folder(self) -> str:
        """Return this user's folder."""
        return self.folder.mine()

    def purge(self) -> list[tuple[str, str]]:
        """Remove the files of dead leases; return their names and why. Nothing depends on it."""
        with self.folder.mutex():
            with LeaseScan(self.folder) as scan:
                done = self._tidy(scan.snapshot())
            folder = self.folder.mine()
            for name in os.listdir(folder):
                if name.startswith("new-") and self._remove_if_dead(os.path.join(folder, name)):
                    done.append((name, "its process died while it wrote the request"))
        return done


def _unleased_words(card: Card, snapshot: LedgerState, start: str) -> str:
    """Name the processes without a lease that keep a request waiting."""
    from .card_overview import strangers

    leases = [held for held in snapshot.held if card.uuid in held.cards or not held.cards]
    found = [process.describe() for process in strangers(card, leases)]
    return start + " and by ".join(found) if found else ""


def local_part(ledger: Ledger) -> FolderLedger:
    """Return the part of a ledger that is in a folder of this host: all of it, or Redis's locks."""
    local = ledger if isinstance(ledger, FolderLedger) else getattr(ledger, "local", None)
    assert isinstance(local, FolderLedger)
    return local


class _Remembered:
    """Repeats an answer for `CACHE_S` before it asks again."""

    def __init__(self, ask: Callable[[], Situation]) -> None:
        self._ask = ask
        self._answer = Situation([])
        self._until = 0.0

    def __call__(self) -> Situation:
        if time.monotonic() > self._until:
            self._answer = self._ask()
            self._until = time.monotonic() + CACHE_S
        return self._answer
