"""The ledger as a folder of lock files: the default store. The protocol is in `ledger`."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from ...errors import CardHeld, GpuError
from ...system.shared_folder import SharedFolder
from ..cards import inventory
from ..cards.inventory import Card
from . import lease_records
from .allocation import Slot
from .card_cache import SIGHT_S, CardCache, loads_of
from .card_notes import CardNotes
from .lease_scan import LeaseScan, LedgerState
from .protocol import CardVerdict, Lease, LeaseEntry, LeaseRequest
from .waiting import Applicant, append


class FolderLedger:
    """Leases as files with kernel locks on them."""

    def __init__(self, where: str, *, cards: Callable[[], list[Card]] = inventory.cards) -> None:
        self.folder = SharedFolder(where)
        self.where = self.folder.path
        self.notes = CardNotes(self.folder)
        self._cards = cards

    # Who is there

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases, oldest first."""
        with LeaseScan(self.folder) as scan:
            found = scan.take()
            return (scan.unmask(found) if squatters else found).held

    def queue(self) -> list[LeaseEntry]:
        """List those who wait, first in line first."""
        with LeaseScan(self.folder) as scan:
            return scan.take().line

    def log(self) -> list[dict[str, Any]]:
        """Return what happened, oldest first."""
        return self.notes.log()

    # Which cards

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids that are handed out; None is all of them."""
        return self.notes.managed()

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Say which cards are handed out from now on; None is all of them."""
        self.notes.manage(uuids)
        self.notes.record("managed", cards=None if uuids is None else list(uuids))

    def quarantined(self) -> dict[str, CardVerdict]:
        """Return the cards that get no work, with the reason."""
        return self.notes.quarantined()

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work; the leases on it live on until they end."""
        self.notes.pronounce(uuid, reason or "no reason given")
        self.notes.record("quarantined", cards=[uuid], reason=reason)

    def heal(self, uuid: str) -> None:
        """Let a quarantined card work again."""
        self.notes.pronounce(uuid, "")
        self.notes.record("healed", cards=[uuid])

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
        return self.take(
            self.entry(request, cards),
            cards,
            pack=request.pack,
            timeout_s=timeout_s,
            waiting=waiting,
            wanted=wanted,
        )

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
        """Do as `acquire` does, for an entry that was made already."""
        began = time.monotonic()
        # Shares go by what is used of a card at this moment, whole cards by who holds them.
        ask = self._cards if entry.memory_mib is not None else None
        with (
            CardCache(cards, ask) as cache,
            Applicant(
                self.folder, entry, _Remembered(lambda: self.slots(cache.cards())), pack=pack
            ) as applicant,
        ):
            applicant.ask(stay=timeout_s is None or timeout_s > 0)
            while not applicant.granted:
                waited_s = time.monotonic() - began
                if timeout_s is not None and waited_s >= timeout_s:
                    raise CardHeld(self._refusal(applicant, cards))
                if wanted is not None and not wanted():
                    raise CardHeld("nobody waits for the card any more")
                if waiting is not None:
                    waiting(self._refusal(applicant, cards))
                    waiting = None
                applicant.pause(waited_s, inf if timeout_s is None else timeout_s - waited_s)
                applicant.ask_again()
            self._tidy(applicant.snapshot)
            return self._lease(applicant)

    def _refusal(self, applicant: Applicant, cards: list[Card]) -> str:
        snapshot = applicant.scan.unmask(applicant.snapshot)
        return self.reason(applicant.entry, snapshot, cards)

    def entry(self, request: LeaseRequest, cards: list[Card]) -> LeaseEntry:
        """Turn a request into an entry; what no card of this machine could satisfy is refused."""
        visible = {card.uuid: card for card in cards}
        if not visible:
            raise GpuError("this machine has no GPU that can be seen from here")
        among = request.cards or tuple(visible)
        count = len(among) if request.cards else request.count
        unknown = [uuid for uuid in among if uuid not in visible]
        if unknown:
            raise GpuError(f"no card {unknown[0]} is in cache; there are {', '.join(visible)}")
        if len(set(among)) != len(among):
            raise GpuError("a card is named twice in one request; ask once for each slot")
        if count < 1:
            raise GpuError(f"{count} cards were asked for: at least one, please")
        if count > len(among):
            raise GpuError(f"{count} cards were asked for, and there are {len(among)} in cache")
        if request.memory_mib is not None:
            if request.memory_mib < 1:
                raise GpuError(f"{request.memory_mib} MiB were asked for: at least one, please")
            fitting = [uuid for uuid in among if visible[uuid].memory_mib >= request.memory_mib]
            if len(fitting) < count:
                largest = max(visible[uuid].memory_mib for uuid in among)
                raise GpuError(
                    f"{count} cards with {request.memory_mib} MiB each were asked for, and "
                    f"{len(fitting)} are that large; the largest has {largest} MiB"
                )
        return lease_records.new_entry(request, among, count)

    def slots(self, cards: list[Card]) -> list[Slot]:
        """Return the cards that may be handed out at all: managed, and not sick."""
        managed, sick = self.notes.managed(), self.notes.quarantined()
        used = self.notes.last_used()
        return [
            Slot(
                card.uuid,
                card.memory_mib,
                used.get(card.uuid, 0.0),
                loads_of(card),
                card.used_mib or 0,
            )
            for card in cards
            if (managed is None or card.uuid in managed)
            and card.uuid not in sick
            and not card.problem
        ]

    def reason(self, entry: LeaseEntry, snapshot: LedgerState, cards: list[Card]) -> str:
        """Say why an entry has to wait: card by card, with who holds it."""
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
                reasons.append(f"card {card.index} is sick: {card.problem}")
            elif holders:
                reasons.append(f"card {card.index} is held by {' and by '.join(holders)}")
            elif entry.memory_mib is not None and (card.free_mib or 0) < entry.memory_mib:
                reasons.append(f"card {card.index} has {card.used_mib} MiB in use without a lease")
            else:
                first = next((w.describe() for w in snapshot.line if card.uuid in w.among), "")
                reasons.append(f"card {card.index} is next for {first or 'another request'}")
        return "; ".join(reasons)

    def _lease(self, applicant: Applicant) -> Lease:
        """Return what was granted, in a form that can be handed down and released."""
        path = applicant.path

        def settle(lease: Lease) -> None:
            self._bury(path)
            self._note("released", lease.entry)

        def amend(lease: Lease, changes: dict[str, Any]) -> None:
            if lease.fds:
                append(lease.fds[0], lease_records.encode_change(changes))
                lease.entry = lease.entry._replace(**changes)

        os.set_inheritable(applicant.fd, True)
        self._note("granted", applicant.entry)
        return Lease(applicant.entry, (applicant.fd,), settle=settle, amend=amend)

    def _note(self, what: str, entry: LeaseEntry) -> None:
        with suppress(OSError):  # a full disk must not cost the lease
            self.notes.touch(entry.cards)
            self.notes.record(what, entry)

    def path_of(self, lease: Lease) -> str:
        """Return where a lease of ours is."""
        return os.path.join(self.folder.mine(), f"lease-{lease.lease_id}")

    # The dead

    def _bury(self, path: str) -> bool:
        """Unlink a file of a dead owner; False when it lives (children may have the lock)."""
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
        """Unlink what the dead left, as far as it is ours to unlink."""
        done = []
        for grave in snapshot.dead:
            if grave.uid != os.geteuid() and os.geteuid() != 0:
                continue
            path = os.path.join(self.where, grave.folder, grave.name)
            if self._bury(path):
                done.append((grave.name, f"the lock of {grave.entry.describe()} is free"))
                self._note("ended", grave.entry)
        return done

    def purge(self) -> list[tuple[str, str]]:
        """Tidy up what is provably dead: names and reasons. Nothing depends on it."""
        with self.folder.mutex():
            with LeaseScan(self.folder) as scan:
                done = self._tidy(scan.take())
            folder = self.folder.mine()
            for name in os.listdir(folder):
                if name.startswith("new-") and self._bury(os.path.join(folder, name)):
                    done.append((name, "a request whose process died before it was made"))
        return done


class _Remembered:
    """An answer that is good for a while."""

    def __init__(self, ask: Callable[[], list[Slot]]) -> None:
        self._ask = ask
        self._answer: list[Slot] = []
        self._until = 0.0

    def __call__(self) -> list[Slot]:
        if time.monotonic() > self._until:
            self._answer = self._ask()
            self._until = time.monotonic() + SIGHT_S
        return self._answer
