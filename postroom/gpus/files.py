"""The ledger as a folder of lock files: the default store. The protocol is in `ledger`."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..errors import CardHeld, GpuError
from . import inventory, records
from .allocation import Share, Slot, Want, grant
from .census import Census, Snapshot
from .folder import Folder
from .inventory import Card
from .ledger import Entry, Lease, Request, Verdict
from .notes import Notes

POLL_S = 0.01  # how often the first in line looks; those behind look less often
POLL_LIMIT_S = 0.25


@dataclass
class _Draft:
    """A file of ours with its lock, on the way from request to lease."""

    entry: Entry
    fd: int
    path: str


@dataclass(frozen=True)
class Refusal:
    """Not yet: how many are before us in the line, and, for whoever asks, why."""

    before: int
    reason: Callable[[], str]


class FileLedger:
    """Leases as files with kernel locks on them."""

    def __init__(self, where: str, *, cards: Callable[[], list[Card]] = inventory.cards) -> None:
        self.folder = Folder(where)
        self.where = self.folder.path
        self.notes = Notes(self.folder)
        self._cards = cards

    # Who is there

    def holders(self) -> list[Entry]:
        """List the living leases, oldest first; a lock that a stranger keeps is said so."""
        with Census(self.folder) as census:
            return census.unmask(census.take()).held

    def queue(self) -> list[Entry]:
        """List those who wait, first in line first."""
        with Census(self.folder) as census:
            return census.take().line

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

    def quarantined(self) -> dict[str, Verdict]:
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

    def try_acquire(self, request: Request) -> Lease:
        """Take the cards now, or raise `CardHeld`, whose message says who has them."""
        return self.acquire(request, timeout_s=0)

    def acquire(
        self,
        request: Request,
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
        entry: Entry,
        cards: list[Card],
        *,
        pack: bool = False,
        timeout_s: float | None = None,
        waiting: Callable[[str], None] | None = None,
        wanted: Callable[[], bool] | None = None,
    ) -> Lease:
        """Do as `acquire` does, for an entry that was made already."""
        draft = self._draft(entry)
        began = time.monotonic()
        try:
            with Census(self.folder) as census:
                found = self._ask(draft, census, cards, pack=pack, stay=timeout_s != 0)
                while isinstance(found, Refusal):
                    waited_s = time.monotonic() - began
                    if timeout_s is not None and waited_s >= timeout_s:
                        raise CardHeld(found.reason())
                    if wanted is not None and not wanted():
                        raise CardHeld("nobody waits for the card any more")
                    if waiting is not None:
                        waiting(found.reason())
                        waiting = None
                    pause(waited_s, found.before, timeout_s)
                    found = self._ask_again(draft, census, cards, pack=pack)
                return found
        except BaseException:
            with suppress(OSError):
                os.unlink(draft.path)
            os.close(draft.fd)
            raise

    def _ask(
        self, draft: _Draft, census: Census, cards: list[Card], *, pack: bool, stay: bool
    ) -> Lease | Refusal:
        """Take the cards, or else a place in the line if we are to stay."""
        with self.folder.mutex():
            snapshot = census.take()
            self._tidy(snapshot)
            found, before = self.decide(draft.entry, snapshot, cards, pack=pack)
            if found is not None:
                return self._grant(draft, found)
            if stay:
                # The number is given under the mutex, by a clock that all processes share.
                number = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                self._rename(draft, f"ticket-{number:020d}-{draft.entry.lease_id}")
        return Refusal(before, lambda: self.reason(draft.entry, census.unmask(snapshot), cards))

    def _ask_again(
        self, draft: _Draft, census: Census, cards: list[Card], *, pack: bool
    ) -> Lease | Refusal:
        """Look whether it is our turn."""
        # What is seen without the mutex is a hint; what is seen under it counts.
        snapshot = census.take()
        found, before = self.decide(draft.entry, snapshot, cards, pack=pack)
        if found is not None:
            with self.folder.mutex():
                snapshot = census.take()
                found, before = self.decide(draft.entry, snapshot, cards, pack=pack)
                if found is not None:
                    return self._grant(draft, found)
        return Refusal(before, lambda: self.reason(draft.entry, census.unmask(snapshot), cards))

    def entry(self, request: Request, cards: list[Card]) -> Entry:
        """Turn a request into an entry; what no card of this machine could satisfy is refused."""
        visible = {card.uuid: card for card in cards}
        if not visible:
            raise GpuError("this machine has no GPU that can be seen from here")
        among = request.cards or tuple(visible)
        count = len(among) if request.cards else request.count
        unknown = [uuid for uuid in among if uuid not in visible]
        if unknown:
            raise GpuError(f"no card {unknown[0]} is in sight; there are {', '.join(visible)}")
        if len(set(among)) != len(among):
            raise GpuError("a card is named twice in one request; ask once for each slot")
        if count < 1:
            raise GpuError(f"{count} cards were asked for: at least one, please")
        if count > len(among):
            raise GpuError(f"{count} cards were asked for, and there are {len(among)} in sight")
        if request.memory_mib is not None:
            if request.memory_mib < 1:
                raise GpuError(f"{request.memory_mib} MiB were asked for: at least one, please")
            fitting = [uuid for uuid in among if visible[uuid].memory_mib >= request.memory_mib]
            if len(fitting) < count:
                largest = max(visible[uuid].memory_mib for uuid in among)
                raise GpuError(
                    f"{request.memory_mib} MiB on each of {count} were asked for, and the largest "
                    f"card has {largest} MiB"
                )
        return records.new_entry(request, among, count)

    def decide(
        self, entry: Entry, snapshot: Snapshot, cards: list[Card], *, pack: bool
    ) -> tuple[tuple[str, ...] | None, int]:
        """Return the cards that an entry may take now, or None, and how many are before it."""
        managed, sick = self.notes.managed(), self.notes.quarantined()
        used = self.notes.last_used()
        slots = [
            Slot(card.uuid, card.memory_mib, used.get(card.uuid, 0.0))
            for card in cards
            if (managed is None or card.uuid in managed)
            and card.uuid not in sick
            and not card.problem
        ]
        shares = [
            Share(uuid, held.memory_mib, held.uid, held.group)
            for held in snapshot.held
            for uuid in held.cards or [slot.uuid for slot in slots]
        ]
        line = []
        for waiting in snapshot.line:
            if waiting.lease_id == entry.lease_id:
                break
            line.append(_want(waiting))
        return grant(slots, shares, line, _want(entry), pack=pack), len(line)

    def reason(self, entry: Entry, snapshot: Snapshot, cards: list[Card]) -> str:
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
            else:
                first = next((w.describe() for w in snapshot.line if card.uuid in w.among), "")
                reasons.append(f"card {card.index} is next for {first or 'another request'}")
        return "; ".join(reasons)

    # Moving a file forward: new -> ticket -> lease

    def _draft(self, entry: Entry) -> _Draft:
        """Write a request and lock it before anybody looks at it."""
        path = os.path.join(self.folder.mine(), f"new-{entry.lease_id}")
        # 0600 until it is locked: nobody else can take its lock first.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _append(fd, records.encode_request(entry))
            os.fchmod(fd, 0o644)
        except BaseException:
            os.unlink(path)
            os.close(fd)
            raise
        return _Draft(entry, fd, path)

    def _rename(self, draft: _Draft, name: str) -> None:
        path = os.path.join(os.path.dirname(draft.path), name)
        os.rename(draft.path, path)
        draft.path = path

    def _grant(self, draft: _Draft, cards: tuple[str, ...]) -> Lease:
        """Make a request a lease; the rename is the moment at which it is one."""
        granted_at = time.time()
        change = {"cards": cards, "granted_at": granted_at}
        _append(draft.fd, records.encode_change(change))
        self._rename(draft, f"lease-{draft.entry.lease_id}")
        entry = replace(draft.entry, cards=cards, granted_at=granted_at)
        os.set_inheritable(draft.fd, True)
        with suppress(OSError):  # a full disk must not cost the lease
            self.notes.touch(cards)
            self.notes.record("granted", entry)
        path = draft.path

        def settle(lease: Lease) -> None:
            with suppress(OSError):
                self.notes.touch(cards)
                self.notes.record("released", lease.entry)
            self._bury(path)

        def amend(lease: Lease, changes: dict[str, Any]) -> None:
            if lease.fds:
                _append(lease.fds[0], records.encode_change(changes))
                lease.entry = replace(lease.entry, **changes)

        return Lease(entry, (draft.fd,), settle=settle, amend=amend)

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

    def _tidy(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        """Unlink what the dead left, as far as it is ours to unlink."""
        done = []
        for grave in snapshot.dead:
            if grave.uid != os.geteuid() and os.geteuid() != 0:
                continue
            path = os.path.join(self.where, grave.folder, grave.name)
            if self._bury(path):
                done.append((grave.name, f"the lock of {grave.entry.describe()} is free"))
                with suppress(OSError):
                    self.notes.touch(grave.entry.cards)
                    self.notes.record("ended", grave.entry)
        return done

    def purge(self) -> list[tuple[str, str]]:
        """Tidy up what is provably dead: names and reasons. Nothing depends on it."""
        with self.folder.mutex():
            with Census(self.folder) as census:
                done = self._tidy(census.take())
            folder = self.folder.mine()
            for name in os.listdir(folder):
                if name.startswith("new-") and self._bury(os.path.join(folder, name)):
                    done.append((name, "a request whose process died before it was made"))
        return done


def pause(waited_s: float, before: int, timeout_s: float | None) -> None:
    """Wait before the next look; the end of the line, and a long wait, need not look so often."""
    pause_s = min(max(POLL_S, waited_s / 100), 5 * POLL_S) * (1 + before)
    left_s = POLL_LIMIT_S if timeout_s is None else timeout_s - waited_s
    time.sleep(max(0.001, min(pause_s, POLL_LIMIT_S, left_s)))


def _want(entry: Entry) -> Want:
    return Want(entry.count, entry.among, entry.memory_mib, entry.uid, entry.group)


def _append(fd: int, text: bytes) -> None:
    """Append a whole line or raise: half a line would be no line."""
    os.lseek(fd, 0, os.SEEK_END)
    if os.write(fd, text) != len(text):
        raise GpuError("the ledger's disk is full: a lease could not be recorded")
