"""Reads all leases and waiting requests of the folder, and tests their locks."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from ...system.absence import absent_is_fine
from ...system.shared_folder import (
    RECORD_LIMIT,
    SharedFolder,
    UserFile,
    lock_holders,
    lock_is_free,
    lock_key,
)
from . import lease_records
from .protocol import LeaseEntry

COARSE_NS = 20_000_000  # the change time of a folder is at most this inexact
OPEN_LIMIT = 256  # descriptors kept open between two snapshots
# A ticket's number is as old as its file: more than this is no slow process and no set clock.
FORGED_NS = 60_000_000_000


class _File:
    """One file of the ledger; kept open, as far as there are descriptors, to test its lock."""

    def __init__(self, fd: int, uid: int) -> None:
        self.fd = fd
        self.lock_key = lock_key(fd)
        self.size = -1
        self.entry = lease_records.unreadable("", uid)
        self.dead = False
        self.number = 0  # of a ticket: its place in the waiting list


class DeadLease(NamedTuple):
    """A file whose lock is free: its owner is dead."""

    folder: str
    name: str
    uid: int
    entry: LeaseEntry


class LedgerState(NamedTuple):
    """The leases, the waiting requests in their order, and the dead of both, at one moment."""

    held: list[LeaseEntry]
    waiting: list[LeaseEntry]
    dead: list[DeadLease]


class LeaseScan:
    """Takes snapshots of the ledger; files that have not changed are not read again.

    It keeps the files open, and is for one thread.
    """

    def __init__(self, folder: SharedFolder) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], _File] = {}  # those that are open
        self._seen: list[_File] = []  # by the last snapshot
        self._changed_ns: dict[str, int] = {}

    def has_changed(self) -> bool:
        """Whether files came or went since the last snapshot: a cheap hint.

        It misses a death, which leaves the file behind.
        """
        return self._changed_ns != self._changes()

    def _changes(self) -> dict[str, int]:
        changed = {}
        for user in self.folder.users():
            with absent_is_fine():
                changed[user] = os.stat(os.path.join(self.folder.path, user)).st_mtime_ns
        return changed

    def count_before(self, ticket: str) -> int:
        """Count the tickets before one, by their names only."""
        count = 0
        for user in self.folder.users():
            with absent_is_fine():
                names = os.listdir(os.path.join(self.folder.path, user))
                count += sum(name.startswith("ticket-") and name < ticket for name in names)
        return count

    def snapshot(self) -> LedgerState:
        """Read the ledger; the answer is exact under the mutex, and a hint without it."""
        # A folder that changed just now may change again and have the same time: do not trust it.
        now_ns = time.time_ns()
        self._changed_ns = {
            user: changed_ns
            for user, changed_ns in self._changes().items()
            if now_ns - changed_ns > COARSE_NS
        }
        held: list[LeaseEntry] = []
        waiting: list[tuple[int, str, LeaseEntry]] = []
        dead: list[DeadLease] = []
        present: set[tuple[str, str]] = set()
        self._seen = []
        for found in self.folder.files("lease-", "ticket-"):
            file = self._look(found)
            if file is None:
                continue
            present.add((found.user, found.name))
            self._seen.append(file)
            if file.dead:
                dead.append(DeadLease(found.user, found.name, found.uid, file.entry))
            elif found.name.startswith("lease-"):
                held.append(file.entry)
            elif file.entry.among:
                waiting.append((file.number, found.name, file.entry))
        self._forget(present)
        held.sort(key=lambda entry: entry.granted_at or 0.0)
        waiting.sort(key=lambda ticket: ticket[:2])
        return LedgerState(held, [entry for _, _, entry in waiting], dead)

    def _look(self, found: UserFile) -> _File | None:
        file = self._files.get((found.user, found.name))
        if file is None:
            fd = found.open()
            if fd is None:
                return None
            file = _File(fd, found.uid)
            # Anybody may put any number of files here, so only a limited number is kept open.
            if len(self._files) >= OPEN_LIMIT:
                try:
                    self._refresh(file, found)
                finally:
                    os.close(fd)
                return file
            self._files[found.user, found.name] = file
        self._refresh(file, found)
        return file

    def _refresh(self, file: _File, found: UserFile) -> None:
        # A lock that was free once is never taken again, so a dead file is not read again.
        if not file.dead:
            size = os.fstat(file.fd).st_size
            if size != file.size:
                file.size = size
                file.entry = self._read(found, file.fd)
                if found.name.startswith("ticket-"):
                    self._place(file, found.name)
            file.dead = lock_is_free(file.fd)

    def _read(self, found: UserFile, fd: int) -> LeaseEntry:
        entry = lease_records.decode(os.pread(fd, RECORD_LIMIT, 0), found.uid)
        if entry is None or (found.name.startswith("lease-") and not entry.cards):
            path = os.path.join(self.folder.path, found.user, found.name)
            return lease_records.unreadable(path, found.uid)
        return entry

    def _place(self, file: _File, name: str) -> None:
        """Read the number of a ticket; nobody can wait for longer than their file is there."""
        number = name.split("-")[1]
        file.number = int(number) if number.isascii() and number.isdigit() else 0
        to_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns()
        earliest_ns = os.fstat(file.fd).st_ctime_ns - FORGED_NS
        if earliest_ns > time.time_ns():
            return  # the clock was set back since: nobody can tell
        said = file.number, file.entry.asked_at
        least = earliest_ns + to_boot_ns, earliest_ns / 1e9
        if said[0] < least[0] or said[1] < least[1]:
            file.number = max(said[0], least[0])
            file.entry = file.entry._replace(
                asked_at=max(said[1], least[1]),
                doubt=f"user {file.entry.user} wrote its ticket by hand: it is newer than it says",
            )

    def _forget(self, present: set[tuple[str, str]]) -> None:
        for key in self._files.keys() - present:
            os.close(self._files.pop(key).fd)

    def __enter__(self) -> LeaseScan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        self._forget(set())

    def with_squatters(self, snapshot: LedgerState) -> LedgerState:
        """Return the state with squatters named: processes of others that keep a lease's lock."""
        taken = lock_holders()
        squatters = {}
        for file in self._seen:
            locker = taken.get(file.lock_key)
            # Root may have inherited the lock through sudo.
            if locker is not None and locker.uid not in (file.entry.uid, 0):
                squatters[file.entry.lease_id] = str(locker)
        held = [e._replace(squatter=squatters.get(e.lease_id, "")) for e in snapshot.held]
        return snapshot._replace(held=held)
