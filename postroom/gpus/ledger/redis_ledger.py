"""The ledger across hosts: Redis decides who is next, this host's own locks say who has a card.

    <prefix>:entries       hash: lease id -> the entry's text, a ticket or a lease
    <prefix>:numbers       hash: lease id -> its place in the line
    <prefix>:tokens        hash: lease id -> the token of its latest change
    <prefix>:alive:<id>    exists while somebody renews the entry, which is dead when it expires
    <prefix>:version       changed by every change of the entries
    <prefix>:fence         the last token given; they only grow, also past a flush (server's clock)

    ticket --commit--> lease in Redis --lock in this host's folder--> locked --confirm--> ours

* A decision is made by `allocation.grant` on a snapshot, and written by a script that refuses if
  anything has changed since: nobody decides on what is no longer true.
* Then the cards are locked in this host's folder, as without Redis. Redis may be flushed, restarted
  with an old state, or lie: no lock, no card. Of what is held on this host the locks are the truth,
  so that a death frees a card here at once, and not when an entry expires.
* Once it is locked, the token must still stand in Redis. A process that slept between the two,
  while its entry expired and another got the card, is fenced off there, and starts again.
* A lease is renewed by a small process of its own (`renewal`), which watches the lock: the owner
  may be a shell command that knows nothing of all this. What a flush removed is written again.
* Which cards are managed or sick, and the log, are this host's own matters and stay in its folder.
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
from .card_cache import CardCache
from .folder_ledger import FolderLedger
from .lease_scan import LeaseScan, LedgerState
from .protocol import Lease, LeaseEntry, LeaseRequest, Quarantine
from .redis_renewal import start_renewal
from .redis_store import TTL_S, RedisLease, RedisStore
from .waiting import decide, look_s

LOOK_LIMIT_S = 0.25  # a look here is one question to the server
# From the decision to the lock, on this host. Who is between them is neither in the line nor a
# holder, and may come back into the line: so long nobody behind it is next.
GRANT_S = 0.5


class RedisLedger:
    """Leases across hosts: in Redis for who is next, and in this host's folder for who has it."""

    def __init__(self, url: str, *, cards: Callable[[], list[Card]] = inventory.cards) -> None:
        self.store = RedisStore(url)
        self.local = FolderLedger(self.store.folder, cards=cards)
        self.where = f"{self.store.where} with the locks in {self.local.where}"
        self._cards = cards
        folder = os.stat(self.local.where)
        self.place = f"{processes.boot_id()}:{folder.st_dev}:{folder.st_ino}"

    # This host's own matters

    def log(self) -> list[dict[str, Any]]:
        """Return what happened on this host, oldest first."""
        return self.local.log()

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids that are handed out; None is all of them."""
        return self.local.managed()

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Say which cards are handed out from now on; None is all of them."""
        self.local.manage(uuids)

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the cards that get no work, with the reason."""
        return self.local.quarantined()

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work."""
        self.local.quarantine(uuid, reason)

    def heal(self, uuid: str) -> None:
        """Let a quarantined card work again."""
        self.local.heal(uuid)

    def purge(self) -> list[tuple[str, str]]:
        """Tidy up what is provably dead."""
        return self.local.purge()

    # Who is there

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases of all hosts, oldest first."""
        _, rows = self.store.snapshot()
        others = [row.entry for row in rows if row.entry.cards and row.place != self.place]
        held = self.local.holders(squatters=squatters) + others
        return sorted(held, key=lambda entry: entry.granted_at or 0.0)

    def queue(self) -> list[LeaseEntry]:
        """List those who wait on all hosts, first in line first."""
        with LeaseScan(self.local.folder) as scan:
            return self.snapshot(scan)[1].waiting

    def snapshot(self, scan: LeaseScan) -> tuple[str, LedgerState]:
        """Return the version of Redis, and who holds and who waits, here and elsewhere."""
        version, rows = self.store.snapshot()
        here = scan.snapshot()
        others = [row.entry for row in rows if row.entry.cards and row.place != self.place]
        # A waiter of this host that died is not waited for until its ticket expires.
        tickets = [
            row for row in rows if not row.entry.cards and processes.alive(row.waiter) is not False
        ]
        tickets += [row for row in rows if self._is_about_to_lock(row)]
        tickets.sort(key=lambda row: int(row.number))
        line = here.waiting + [row.entry for row in tickets]
        return version, LedgerState(here.held + others, line, here.dead)

    def _is_about_to_lock(self, row: RedisLease) -> bool:
        """Whether a grant on this host has just been decided, and its lock is to come."""
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
        """Take the cards now, or raise `CardHeld`, whose message says who has them."""
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
        """Wait in line for the cards; raise `CardHeld` after `timeout_s`."""
        cards = self._cards() if cards is None else cards
        cache = CardCache(cards, self._cards if request.memory_mib is not None else None)
        attempt = _Attempt(self, request, cache)
        began = time.monotonic()
        try:
            while True:
                lease = attempt.step(time.monotonic())
                if lease is not None:
                    return lease
                waited_s = time.monotonic() - began
                if timeout_s is not None and waited_s >= timeout_s and attempt.refused:
                    raise CardHeld(attempt.reason)
                if wanted is not None and not wanted():
                    raise CardHeld("nobody waits for the card any more")
                if waiting is not None and attempt.refused:
                    waiting(attempt.reason)
                    waiting = None
                left_s = inf if timeout_s is None else timeout_s - waited_s
                pause_s = look_s(attempt.before, waited_s)
                time.sleep(max(0.001, min(pause_s, LOOK_LIMIT_S, left_s)))
        except BaseException:
            attempt.give_up()
            raise
        finally:
            cache.close()


class _Attempt:
    """One request on its way: a ticket in Redis, tried again and again."""

    def __init__(self, ledger: RedisLedger, request: LeaseRequest, cache: CardCache) -> None:
        self.ledger = ledger
        self.store = ledger.store
        self.request = request
        self.cache = cache
        self.entry = ledger.local.entry(request, cache.cards())
        row = self.store.put(RedisLease(self.entry, ledger.place, processes.myself()))
        assert row is not None  # with no version given, nothing can have changed
        self.row = row
        self.refused = False
        self.reason = ""
        self.before = 0
        self._renewed = time.monotonic()

    def step(self, now: float) -> Lease | None:
        """Try once; None: not yet, for the reason in `reason`."""
        try:
            lease = self._try()
            if lease is None and now - self._renewed > TTL_S / 5:
                self.store.renew(self.row)
                self._renewed = now
        except GpuError as error:
            # A server that restarts is waited for; without one, nothing is handed out.
            self.refused, self.reason = True, str(error)
            return None
        return lease

    def _try(self) -> Lease | None:
        with LeaseScan(self.ledger.local.folder) as scan:
            version, snapshot = self.ledger.snapshot(scan)
        local = self.ledger.local
        cards = self.cache.cards()
        available = local.available(cards)
        found, self.before = decide(self.entry, snapshot, available, pack=self.request.pack)
        if found is None:
            self.refused = True
            self.reason = local.reason(self.entry, snapshot, cards)
            return None
        granted = self.entry._replace(cards=found, granted_at=time.time())
        row = self.store.put(self.row._replace(entry=granted), version=version)
        if row is None:
            return None  # somebody was faster: look again
        self.row = row
        try:
            return self._lock(row, found)
        except (CardHeld, GpuError) as error:
            self.refused, self.reason = True, str(error)
            # Back into the line, at the place we had.
            self.row = self.store.put(row._replace(entry=self.entry)) or row
            return None

    def _lock(self, row: RedisLease, found: tuple[str, ...]) -> Lease:
        wanted = self.entry._replace(among=found, count=len(found))
        lease = self.ledger.local.take(wanted, self.cache.cards(), timeout_s=0)
        row = row._replace(locked=True)
        try:
            if not self.store.confirm(row):
                raise CardHeld("the grant had expired before the card was locked")
        except (CardHeld, GpuError):
            lease.release()
            raise
        lease.amend(token=int(row.token))
        start_renewal(self.store.url, self.ledger.local.path_of(lease), row)
        return lease

    def give_up(self) -> None:
        """Leave the line."""
        with suppress(GpuError):
            self.store.drop(self.row)
