"""What users write into the ledger besides leases: last use, managed cards, quarantines, the log.

Each user writes only into the user's own folder. If two users disagree, the newest file counts, by
its change time (ctime), which nobody can set. The list of managed cards is for the administrator:
once root has written one, only root's counts.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ...system import processes
from ...system.shared_folder import SharedFolder
from . import lease_records
from .activity import HOUR_S, KEPT_HOURS, Activity
from .ended_leases import EndedLease, read_ended
from .fair_share import NO_RECORD, Account, UseRecord, used_by_lease
from .project_use import ProjectHours, decode_projects, encode_projects
from .protocol import LeaseEntry, Quarantine
from .reservations import Reservation

STAYING_S = 24 * 3600
_ACCOUNTS_LIMIT = 1 << 20
LOG_LIMIT = 1024 * 1024  # bytes; then a new log is begun, and one old log is kept

_Value = TypeVar("_Value")


class _Note(NamedTuple):
    name: str
    uid: int
    changed_ns: int
    text: bytes


class LedgerNotes:
    """Reads the notes of all users and writes those of this user."""

    def __init__(self, folder: SharedFolder) -> None:
        self.folder = folder

    def _read(self, prefix: str | tuple[str, ...], limit: int) -> Iterator[_Note]:
        for found in self.folder.files(*([prefix] if isinstance(prefix, str) else prefix)):
            fd = found.open()
            if fd is None:
                continue
            with open(fd, "rb") as file:
                changed_ns = os.fstat(fd).st_ctime_ns
                yield _Note(found.name, found.uid, changed_ns, file.read(limit) if limit else b"")

    def _write(self, name: str, value: Any, *, mode: int = 0o644) -> None:
        """Replace a note of this user atomically."""
        folder = self.folder.mine()
        temporary = os.path.join(folder, f"new-{os.urandom(6).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w") as file:
                json.dump(value, file)
                os.fchmod(fd, mode)
        except BaseException:  # a full disk: leave nothing behind
            with suppress(OSError):
                os.unlink(temporary)
            raise
        os.replace(temporary, os.path.join(folder, name))

    # When a card was last used

    def touch(self, uuids: Sequence[str]) -> None:
        """Note that cards are used now, so that other cards are handed out first."""
        for uuid in uuids:
            path = os.path.join(self.folder.mine(), f"used-{_plain(uuid)}")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.utime(fd)
            finally:
                os.close(fd)

    def last_used(self) -> dict[str, float]:
        """Return when each card was last used by any user."""
        used: dict[str, float] = {}
        for note in self._read("used-", 0):
            uuid = note.name.removeprefix("used-")
            used[uuid] = max(used.get(uuid, 0.0), note.changed_ns / 1e9)
        return used

    # Which cards are handed out

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Set which cards are handed out from now on; None means all."""
        self._write("managed", {"cards": None if uuids is None else list(uuids)})

    def managed(self) -> tuple[str, ...] | None:
        """Return the cards that are handed out; None means all."""
        notes = [note for note in self._read("managed", 65536) if note.name == "managed"]
        of_root = [note for note in notes if note.uid == 0]
        for note in sorted(of_root or notes, key=lambda note: -note.changed_ns):
            with suppress(ValueError, KeyError, TypeError):
                uuids = json.loads(note.text)["cards"]
                return None if uuids is None else tuple(str(uuid) for uuid in uuids)
        return None

    # Which cards are quarantined

    def set_quarantine(self, uuid: str, reason: str) -> None:
        """Quarantine a card, or end its quarantine with an empty reason."""
        self._write(f"verdict-{_plain(uuid)}", {"uuid": uuid, "reason": reason, "at": time.time()})

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the cards whose newest note is a quarantine."""
        newest: dict[str, tuple[int, Quarantine]] = {}
        for note in self._read("verdict-", 65536):
            with suppress(ValueError, KeyError, TypeError):
                value = json.loads(note.text)
                uuid, reason = str(value["uuid"]), lease_records.printable(str(value["reason"]))
                at = note.changed_ns / 1e9
                quarantine = Quarantine(uuid, reason, processes.user_name(note.uid), at)
                if uuid not in newest or newest[uuid][0] < note.changed_ns:
                    newest[uuid] = note.changed_ns, quarantine
        return {uuid: quarantine for uuid, (_, quarantine) in newest.items() if quarantine.reason}

    # How much was used, and what is reserved

    def charge(self, entry: LeaseEntry, half_life_s: float) -> None:
        """Add a lease that has ended to what its user has used lately.

        Each user writes their own account. Root, who clears away the leases of others, has one
        for each of them.
        """
        now = time.time()
        folder = self.folder.mine()
        # Nobody else can open it, so nobody else can keep it locked.
        fd = os.open(
            os.path.join(folder, "usage.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            accounts: dict[int, Account] = {}
            with suppress(FileNotFoundError), open(os.path.join(folder, "usage"), "rb") as file:
                accounts = _read_accounts(file.read(_ACCOUNTS_LIMIT))
            before = accounts.get(entry.uid, Account(0.0, now))
            more = used_by_lease(entry, now, half_life_s)
            accounts[entry.uid] = before.plus(more, now, half_life_s)
            self.write_accounts("usage", accounts)
        finally:
            os.close(fd)

    def add_ended(self, entry: LeaseEntry) -> None:
        """Write down a lease that has ended, for `usage_report`."""
        self._append("ended", EndedLease.of(entry, time.time()).encode())

    def ended(self) -> list[EndedLease]:
        """Return the leases that have ended, as far as they are written down."""
        notes = self._read("ended", 2 * LOG_LIMIT)
        return [one for note in notes for one in read_ended(note.text, note.uid)]

    # What observers have seen

    def write_activity(self, who: str, seen: Activity, projects: ProjectHours) -> None:
        """Replace what one observer of this user has seen; others cannot read the projects."""
        self._write(f"activity-{_plain(who)}", seen.encode())
        if projects:
            self._write(f"projects-{_plain(who)}", encode_projects(projects), mode=0o600)

    def activity(self, who: str = "") -> dict[int, list[Activity]]:
        """Return what observers have seen, by their users; with `who`, only of this one."""
        return self._by_user(f"activity-{_plain(who)}", who, Activity.decode)

    def projects(self, who: str = "") -> dict[int, list[ProjectHours]]:
        """Return what projects have run, by their users, as far as we may read it."""
        return self._by_user(f"projects-{_plain(who)}", who, decode_projects)

    def _by_user(
        self, prefix: str, who: str, decode: Callable[[Any], _Value]
    ) -> dict[int, list[_Value]]:
        found: dict[int, list[_Value]] = {}
        oldest_ns = time.time_ns() - int(KEPT_HOURS * HOUR_S) * 1_000_000_000
        for note in self._read(prefix, _ACCOUNTS_LIMIT):
            if note.changed_ns < oldest_ns and note.uid == os.geteuid():
                with suppress(OSError):  # of a queue that is not used any more
                    os.unlink(os.path.join(self.folder.mine(), note.name))
            elif not who or (note.name == prefix and note.uid == os.geteuid()):
                with suppress(ValueError, RecursionError):
                    found.setdefault(note.uid, []).append(decode(json.loads(note.text)))
        return found

    def write_accounts(self, name: str, accounts: Mapping[int, Account]) -> None:
        """Replace a file of accounts of this user."""
        self._write(name, {str(uid): list(account) for uid, account in accounts.items()})

    def used_and_reserved(
        self, now: float
    ) -> tuple[dict[int, list[Account]], list[Reservation], UseRecord]:
        """Return the accounts of all users, the reservations that are not over, root's record."""
        said: dict[int, list[Account]] = {}
        record = NO_RECORD
        reservations = []
        for note in self._read(("usage", "recorded", "reserve-"), _ACCOUNTS_LIMIT):
            if note.name.startswith("reserve-"):
                one = Reservation.decode(note.text, note.uid, note.changed_ns / 1e9)
                if one is not None and one.end > now:
                    reservations.append(one)
            elif note.name == "recorded":
                if note.uid == 0:
                    record = UseRecord(_read_accounts(note.text), min(now, note.changed_ns / 1e9))
            elif note.name == "usage":
                for uid, account in _read_accounts(note.text).items():
                    # Nobody can write down what another has used.
                    if note.uid in (0, uid):
                        said.setdefault(uid, []).append(account)
        return said, sorted(reservations, key=lambda one: (one.start, one.made_at)), record

    def add_reservation(self, one: Reservation) -> None:
        """Write a reservation of this user."""
        self._write(f"reserve-{one.reservation_id}", one.encode())

    def remove_reservation(self, one: Reservation) -> bool:
        """Remove a reservation, or what is left of it; False: it is another user's."""
        for found in self.folder.files(f"reserve-{one.reservation_id}"):
            if found.uid == one.uid:
                with suppress(OSError):
                    os.unlink(os.path.join(self.folder.path, found.user, found.name))
                    return True
        return False

    def forget_old_reservations(self, now: float) -> None:
        """Remove this user's reservations that are over."""
        for note in self._read("reserve-", _ACCOUNTS_LIMIT):
            if note.uid == os.geteuid():
                one = Reservation.decode(note.text, note.uid, note.changed_ns / 1e9)
                if one is None or one.end <= now:
                    with suppress(OSError):
                        os.unlink(os.path.join(self.folder.mine(), note.name))

    # Memory that nobody here accounts for

    def set_staying(self, uuid: str, memory_mib: int) -> None:
        """Note that this much of a card is used by somebody who cannot be seen from here."""
        self._write(f"staying-{_plain(uuid)}", {"uuid": uuid, "memory_mib": memory_mib})

    def staying(self) -> dict[str, int]:
        """Return what stays used of each card; the newest note counts, for a day."""
        newest: dict[str, tuple[int, int]] = {}
        since_ns = time.time_ns() - STAYING_S * 1_000_000_000
        for note in self._read("staying-", 65536):
            with suppress(ValueError, KeyError, TypeError):
                value = json.loads(note.text)
                uuid, mib = str(value["uuid"]), int(value["memory_mib"])
                if note.changed_ns > max(since_ns, newest.get(uuid, (0, 0))[0]):
                    newest[uuid] = note.changed_ns, mib
        return {uuid: mib for uuid, (_, mib) in newest.items()}

    # What happened

    def record(self, what: str, entry: LeaseEntry | None = None, **more: Any) -> None:
        """Append a line to the log of this user."""
        line: dict[str, Any] = {"at": time.time(), "what": what}
        if entry is not None:
            line |= {
                "lease_id": entry.lease_id,
                "name": entry.name,
                "pid": entry.process.pid,
                "cards": entry.cards,
                "memory_mib": entry.memory_mib,
            }
        self._append("log", json.dumps(line | more).encode() + b"\n")

    def _append(self, name: str, line: bytes) -> None:
        """Append a line to a log of this user; a full log is kept as the old one."""
        path = os.path.join(self.folder.mine(), name)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o644)
        try:
            os.write(fd, line)
            if os.fstat(fd).st_size > LOG_LIMIT:
                with suppress(OSError):
                    os.replace(path, f"{path}.1")
        finally:
            os.close(fd)

    def log(self) -> list[dict[str, Any]]:
        """Return what happened according to the logs of all users, oldest first."""
        lines: list[dict[str, Any]] = []
        for note in self._read("log", 2 * LOG_LIMIT):
            user = processes.user_name(note.uid)
            for line in note.text.splitlines():
                with suppress(ValueError, TypeError):
                    value = json.loads(line)
                    value["at"] = float(value["at"])
                    lines.append(value | {"user": user})
        return sorted(lines, key=lambda line: line["at"])


def _read_accounts(text: bytes) -> dict[int, Account]:
    """Read accounts by user; what makes no sense is left out."""
    found: dict[int, Account] = {}
    with suppress(ValueError, TypeError, AttributeError):
        for uid, (seconds, at) in json.loads(text).items():
            account = Account(float(seconds), float(at))
            if uid.isdecimal() and account.seconds >= 0 and all(map(math.isfinite, account)):
                found[int(uid)] = account
    return found


def _plain(uuid: str) -> str:
    """Return a uuid as a safe file name."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in uuid)[:100]
