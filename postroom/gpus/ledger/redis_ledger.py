"""The ledger across hosts: Redis decides who is next, the locks of each host decide who has a card.

    <prefix>:entries       hash: lease id -> the text of the entry, a waiting request or a lease
    <prefix>:numbers       hash: lease id -> its place in the waiting list
    <prefix>:tokens        hash: lease id -> the token of its latest change
    <prefix>:alive:<id>    exists while a process renews the entry; without it the entry is dead
    <prefix>:version       changes with every change of the entries
    <prefix>:fence         the last token; tokens only grow, also after a flush (server's clock)

    waiting --commit--> lease in Redis --lock in this host's folder--> locked --confirm--> held

* A process decides with `allocation.grant` on a snapshot. A script writes the decision, and refuses
  if anything has changed since the snapshot.
* Then the process locks the cards in this host's folder, as without Redis. Whatever happens to
  Redis (a flush, a restart with old data), nobody gets a card without the lock. For cards of this
  host only the locks count, so a death frees a card at once, not when an entry expires.
* After the lock, the process confirms that its token is still valid. If it was suspended between
  the two steps and its entry has expired meanwhile, it must start again.
* A small process (`redis_renewal`) watches the lock of each lease and renews its entry, since the
  owner may be any shell command. It also writes again what a flush has removed.
* The managed cards, the quarantines, the log, the rules, the reservations and how much each user
  has used belong to each host, and stay in its folder: they are about its cards.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ...errors import CardHeld, GpuError
from ...system import processes
from ..cards import inventory
from ..cards.inventory import Card
from .activity import Activity
from .card_cache import CardCache
from .folder_ledger import FolderLedger
from .lease_scan import LeaseScan, LedgerState
from .ledger_rules import LedgerRules
from .protocol import Lease, LeaseEntry, LeaseRequest, Quarantine
from .redis_renewal import start_renewal
from .redis_store import TTL_S, RedisLease, RedisStore
from .reservations import Reservation
from .waiting import CardClaim, claimed, decide, look_s

LOOK_LIMIT_S = 0.25  # a look here is one request to the server
# The longest time from a decision to its lock on this host. Meanwhile the request may still return
# to the waiting list, so it keeps its place there and no later request is next.
GRANT_S = 0.5


class RedisLedger:
    """Leases across hosts: the waiting list is in Redis, the locks are in this host's folder."""

    def __init__(self, url: str, *, cards: Callable[[], list[Card]] = inventory.cards) -> None:
        self.store = RedisStore(url)
        self.local = FolderLedger(self.store.folder, cards=cards)
        self.where = f"{self.store.where} with the locks in {self.local.where}"
        self._cards = cards
        folder = os.stat(self.local.where)
        self.place = f"{processes.boot_id()}:{folder.st_dev}:{folder.st_ino}"

    # What belongs to this host

    def log(self) -> list[dict[str, Any]]:
        """Return what happened on this host, oldest first."""
        return self.local.log()

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids of the cards that are handed out; None means all."""
        return self.local.managed()

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Set which cards are handed out from now on; None means all."""
        self.local.manage(uuids)

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the quarantined cards by uuid."""
        return self.local.quarantined()

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work."""
        self.local.quarantine(uuid, reason)

    def heal(self, uuid: str) -> None:
        """End the quarantine of a card."""
        self.local.heal(uuid)

    def claimed(self, lease: Lease, cards: list[Card]) -> CardClaim:
        """Return whether a holder should give its cards back: another's turn has come."""
        with LeaseScan(self.local.folder) as scan:
            _, snapshot = self.snapshot(scan)
        return claimed(lease.entry, snapshot, self.local.situation(cards))

    def rules(self) -> LedgerRules:
        """Return the administrator's rules of this host."""
        return self.local.rules()

    def used(self) -> dict[int, float]:
        """Return how much GPU time of this host each user has used, as it counts now."""
        return self.local.used()

    def reservations(self) -> list[Reservation]:
        """Return the reservations of this host's cards that are not over, by their start."""
        return self.local.reservations()

    def reserve(self, count: int, start: float, end: float, name: str = "") -> Reservation:
        """Keep cards of this host for this user."""
        return self.local.reserve(count, start, end, name)

    def unreserve(self, reservation_id: str) -> Reservation:
        """Remove a reservation of this user; root may remove any."""
        return self.local.unreserve(reservation_id)

    def activity(self) -> dict[int, list[Activity]]:
        """Return what was seen of the cards of this host, by the users who looked."""
        return self.local.activity()

    def note_end(self, lease: Lease) -> None:
        """Leave a process behind that writes down when a lease ends, and does not hold it."""
        self.local.note_end(lease)

    def own_folder(self) -> str:
        """Return this user's folder on this host."""
        return self.local.own_folder()

    def purge(self) -> list[tuple[str, str]]:
        """Remove the files of dead leases; return their names and why."""
        return self.local.purge()

    # Leases and waiting requests

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases of all hosts, oldest first."""
        _, rows = self.store.snapshot()
        others = [row.entry for row in rows if row.entry.cards and row.place != self.place]
        held = self.local.holders(squatters=squatters) + others
        return sorted(held, key=lambda entry: entry.granted_at or 0.0)

    def queue(self) -> list[LeaseEntry]:
        """List the waiting requests of all hosts in their order."""
        with LeaseScan(self.local.folder) as scan:
            return self.snapshot(scan)[1].waiting

    def snapshot(self, scan: LeaseScan) -> tuple[str, LedgerState]:
        """Return the version of the entries, and the leases and waiting requests of all hosts."""
        version, rows = self.store.snapshot()
        here = scan.snapshot()
        others = [row.entry for row in rows if row.entry.cards and row.place != self.place]
        tickets = [row for row in rows if not row.entry.cards and self._may_live(row)]
        tickets += [row for row in rows if self._is_about_to_lock(row)]
        tickets.sort(key=lambda row: int(row.number))
        waiting = here.waiting + [row.entry for row in tickets]
        return version, LedgerState(here.held + others, waiting, here.dead)

    def _may_live(self, row: RedisLease) -> bool:
        """Whether a request waits; one whose process died is ignored before it expires.

        That can only be seen on its own host.
        """
        return row.place != self.place or processes.alive(row.waiter) is not False

    def _is_about_to_lock(self, row: RedisLease) -> bool:
        """Whether a grant on this host was decided just now and is not locked yet."""
        granted_at = row.entry.granted_at
        return (
            row.place == self.place
            and not row.locked
            and granted_at is not None
            and 0 <= time.time() - granted_at < GRANT_S
            and processes.alive(row.waiter) is not False
        )

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
        cache = CardCache(cards, self._cards if request.memory_mib is not None else None)
        attempt = _Attempt(self, request, cache)
        began = time.monotonic()
        told = False
        try:
            while True:
                lease = attempt.step(time.monotonic())
                if lease is not None:
                    break
                waited_s = time.monotonic() - began
                if timeout_s is not None and waited_s >= timeout_s and attempt.refused:
                    raise CardHeld(attempt.reason)
                if wanted is not None and not wanted():
                    raise CardHeld("nobody waits for the card any more")
                if waiting is not None and attempt.refused and not told:
                    waiting(attempt.reason)
                    told = True
                left_s = inf if timeout_s is None else timeout_s - waited_s
                pause_s = look_s(attempt.before, waited_s)
                time.sleep(max(0.001, min(pause_s, LOOK_LIMIT_S, left_s)))
        except BaseException:
            attempt.give_up()
            raise
        finally:
            cache.close()
        self.local.await_memory(lease, cards, fresh=False, waiting=waiting, wanted=wanted)
        return lease


class _Attempt:
    """One request: an entry in Redis that is tried until it is granted."""

    def __init__(self, ledger: RedisLedger, request: LeaseRequest, cache: CardCache) -> None:
        self.ledger = ledger
        self.store = ledger.store
        self.request = request
        self.cache = cache
        self.entry = ledger.local.entry(request, cache.cards())
        row = self.store.put(RedisLease(self.entry, ledger.place, processes.myself()))
        assert row is not None  # without a version the script never refuses
        self.row = row
        self.refused = False
        self.reason = ""
        self.before = 0
        self._renewed = time.monotonic()

    def step(self, now: float) -> Lease | None:
        """Try once; return None if it has to wait, with the reason in `reason`."""
        try:
            lease = self._try()
            if lease is None and now - self._renewed > TTL_S / 5:
                self.store.renew(self.row)
                self._renewed = now
        except GpuError as error:
            # Wait for a server that restarts; without a server nothing is handed out.
            self.refused, self.reason = True, str(error)
            return None
        return lease

    def _try(self) -> Lease | None:
        with LeaseScan(self.ledger.local.folder) as scan:
            version, snapshot = self.ledger.snapshot(scan)
        local = self.ledger.local
        cards = self.cache.cards()
        situation = local.situation(cards)
        found, self.before = decide(self.entry, snapshot, situation, pack=self.request.pack)
        if found is None:
            self.refused = True
            self.reason = local.reason(self.entry, snapshot, cards, situation)
            return None
        granted = self.entry._replace(cards=found, granted_at=time.time())
        row = self.store.put(self.row._replace(entry=granted), version=version)
        if row is None:
            return None  # something has changed: try again
        self.row = row
        try:
            return self._lock(row, found)
        except (CardHeld, GpuError) as error:
            self.refused, self.reason = True, str(error)
            # Return to the waiting list, at the same place.
            self.row = self.store.put(row._replace(entry=self.entry)) or row
            return None

    def _lock(self, row: RedisLease, found: tuple[str, ...]) -> Lease:
        wanted = self.entry._replace(among=found, count=len(found))
        lease = self.ledger.local.take(wanted, self.cache.cards(), timeout_s=0)
        row = row._replace(locked=True)
        try:
            if not self.store.confirm(row):
                raise CardHeld("the grant had expired before the card was locked")
            lease.amend(token=int(row.token))
            start_renewal(self.store.url, self.ledger.local.path_of(lease), row)
        except (CardHeld, GpuError):
            lease.release()
            raise
        return lease

    def give_up(self) -> None:
        """Leave the waiting list."""
        with suppress(GpuError):
            self.store.drop(self.row)
