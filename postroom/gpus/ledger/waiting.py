"""One request in the folder ledger: from its file to its grant, and how often it checks."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from ...errors import GpuError
from ...system import processes
from ...system.shared_folder import SharedFolder
from . import lease_records
from .allocation import AvailableCard, CardShare, Demand, grant
from .lease_scan import LeaseScan, LedgerState
from .protocol import LeaseEntry

LOOK_S = 0.01  # how often the first waiting request looks; later ones look less often
LOOK_LIMIT_S = 2.0
GLANCE_LIMIT_S = 0.1
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


class PendingRequest:
    """A request with its file, which is first `new-`, then perhaps `ticket-`, then `lease-`.

    Only this class renames these files, and only under the folder's mutex.
    """

    def __init__(
        self,
        folder: SharedFolder,
        entry: LeaseEntry,
        available: Callable[[], list[AvailableCard]],
        *,
        pack: bool,
    ) -> None:
        self.folder = folder
        self.entry = entry
        self.before = 0
        self.granted = False
        self.snapshot = LedgerState([], [], [])
        self.available: list[AvailableCard] = []  # as of the last decision
        self.scan = LeaseScan(folder)
        self._slots = available
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
        available = self._slots()
        self.scan.snapshot()  # read most of it before we take the mutex
        with self.folder.mutex():
            cards = self._decide(available)
            if cards is not None:
                self._grant(cards)
            elif stay:
                # Given under the mutex, from a clock that all processes share: numbers grow.
                number = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                self._rename(f"ticket-{number:020d}-{self.entry.lease_id}")
        return self.granted

    def ask_again(self) -> bool:
        """Take the cards if it is our turn."""
        available = self._slots()
        # Without the mutex the answer is only a hint, so decide again under it.
        if self._decide(available) is not None:
            with self.folder.mutex():
                cards = self._decide(available)
                if cards is not None:
                    self._grant(cards)
        return self.granted

    def pause(self, waited_s: float, limit_s: float) -> None:
        """Wait until the next look is due, or files have changed and we are near the front."""
        end = time.monotonic() + min(look_s(self.before, waited_s), limit_s)
        while (left_s := end - time.monotonic()) > 0:
            time.sleep(min(left_s, glance_s(self.before)))
            if self.scan.has_changed():
                self.before = self.scan.count_before(os.path.basename(self.path))
                if self.before < NEAR:
                    return

    def _decide(self, available: list[AvailableCard]) -> tuple[str, ...] | None:
        self.snapshot = self.scan.snapshot()
        self.available = available
        cards, self.before = decide(self.entry, self.snapshot, available, pack=self._pack)
        return cards

    def _grant(self, cards: tuple[str, ...]) -> None:
        """Make the request a lease; it is one from the moment of the rename."""
        granted_at = time.time()
        append(self.fd, lease_records.encode_change({"cards": cards, "granted_at": granted_at}))
        self._rename(f"lease-{self.entry.lease_id}")
        self.entry = self.entry._replace(cards=cards, granted_at=granted_at)
        self.granted = True

    def _rename(self, name: str) -> None:
        path = os.path.join(os.path.dirname(self.path), name)
        os.rename(self.path, path)
        self.path = path


def decide(
    entry: LeaseEntry, snapshot: LedgerState, available: list[AvailableCard], *, pack: bool
) -> tuple[tuple[str, ...] | None, int]:
    """Return the cards that an entry may take now, or None, and how many requests are before it."""
    shares = shares_of(snapshot.held, [card.uuid for card in available])
    before = []
    for waiting in snapshot.waiting:
        if waiting.lease_id == entry.lease_id:
            break
        before.append(_demand(waiting))
    demand = _demand(entry)._replace(pid=_pid(entry, processes.pid_namespace()))
    return grant(available, shares, before, demand, pack=pack), len(before)


def shares_of(held: Sequence[LeaseEntry], uuids: Sequence[str]) -> list[CardShare]:
    """Return what leases hold; a lease that cannot be read names no cards and holds them all."""
    here = processes.pid_namespace()
    return [
        CardShare(uuid, entry.memory_mib, entry.uid, entry.group, _pid(entry, here))
        for entry in held
        for uuid in entry.cards or uuids
    ]


def _demand(entry: LeaseEntry) -> Demand:
    return Demand(entry.count, entry.among, entry.memory_mib, entry.uid, entry.group)


def _pid(entry: LeaseEntry, here: str) -> int:
    """Return the owner's pid if it is in our pid namespace, else 0."""
    return entry.process.pid if entry.process.pid_namespace == here else 0


def append(fd: int, text: bytes) -> None:
    """Append a whole line, or raise: readers ignore half a line."""
    os.lseek(fd, 0, os.SEEK_END)
    if os.write(fd, text) != len(text):
        raise GpuError("the ledger's disk is full: a lease could not be recorded")
