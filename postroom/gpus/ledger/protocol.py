"""The ledger: who holds which card, how much of it, and who is next. The protocol, stated once.

A lease is one file on which its owner has a kernel lock (flock). The lock is the truth; the text
in the file only says what is held and by whom. The lock belongs to an open file description, which
children inherit: it goes with the last process that has it, at the moment that process dies. So
there is no time-out, no purge, and nothing to repair after `kill -9` of anything.

    folder/                       sticky and root's (shared by users), or private to one user
      postroom-<uid>/             one folder per user, writable by that user alone
        new-<id>                  being born; seen by nobody
        ticket-<number>-<id>      a request that waits; the line is the tickets of all, by number
        lease-<id>                a request that was granted
        used-<uuid>               its time: when this user last had that card
        verdict-<uuid>            this user's word on a card: sick, or healed; the newest counts
        managed                   this user's word on which cards are handed out
        log                       what happened, one JSON line each

    state     is                                      leaves it by
    new       locked, mode 0600                       rename to ticket or lease, under the mutex
    waiting   ticket-*, locked                        rename to lease under the mutex; or unlink
    held      lease-*, locked                         the lock's end, whatever the cause
    dead      any of them, lock free: counts nothing  unlink by its user or root

* Only the owner's processes move a file forward, and every move forward happens under one mutex: a
  flock on the ledger's folder itself, which no user can unlink. Between two moves nothing has to be
  true that a crash could break.
* A file gets its lock before it gets a name that others look at, and names are never used twice.
  So a lock that can be had is proof of death, for good, and no unlink can hit a living file.
* What is held of a card is the sum over the living leases; who may take what is `allocation.grant`,
  a pure function that everybody computes alike. A dead waiter drops out of the line by itself.
* The locks of others are tested with LOCK_SH on a read-only descriptor: testers don't disturb each
  other. A user who takes such a lock for good keeps a dead lease alive: that denies, and `list`
  names who does it (/proc/locks). Nobody can write, remove or move another user's files.
* A living lease that cannot be read counts as holding every card: it denies, and is named.
* A lease's text is lines of JSON, only ever appended: the request, the grant, then changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...system.processes import Process

if TYPE_CHECKING:
    from ..cards.inventory import Card


class LeaseRequest(NamedTuple):
    """What is asked of the ledger.

    `cards` names cards by uuid, all of which are wanted; without it any `count` of the cards in
    sight will do. With `memory_mib` only so much of each card is taken, else the whole of it.
    Leases of one user with the same non-empty `group` may share a whole card that each names.
    """

    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    cards: tuple[str, ...] = ()
    memory_mib: int | None = None
    name: str = ""
    group: str = ""
    pack: bool = False  # take the fullest card that fits, where the default spreads
    owner: Process | None = None  # for whom it is; by default this process


class LeaseEntry(NamedTuple):
    """One request in the ledger, waiting (`cards` is empty) or granted."""

    lease_id: str
    uid: int
    user: str
    process: Process
    name: str
    group: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    among: tuple[str, ...]
    memory_mib: int | None
    asked_at: float
    cards: tuple[str, ...] = ()
    granted_at: float | None = None
    keeper: Process | None = None  # the process that holds it for a shell
    squatter: str = ""  # who really has the lock, where that is not the owner
    host: str = ""
    token: int = 0

    def describe(self) -> str:
        """Say who this is, in one phrase."""
        import time

        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.granted_at or self.asked_at))
        who = f"{self.name!r} of user {self.user}" if self.name else f"user {self.user}"
        word = "since" if self.cards else "waiting since"
        text = f"{who}, pid {self.process.pid}, {word} {since}"
        if self.memory_mib is not None:
            text += f", {self.memory_mib} MiB"
        if self.squatter:
            text += f" (its lock is kept by {self.squatter})"
        return text


class Quarantine(NamedTuple):
    """Somebody's word on a card: quarantined for a reason."""

    uuid: str
    reason: str
    user: str
    at: float


class Lease:
    """Cards that are ours until the last process that has `fds` is gone.

    Hand `fds` down with `subprocess.Popen(..., pass_fds=lease.fds)`: then the cards stay held until
    that child, too, is gone, whatever becomes of this process.
    """

    def __init__(
        self,
        entry: LeaseEntry,
        fds: tuple[int, ...],
        *,
        settle: Callable[[Lease], None],
        amend: Callable[[Lease, dict[str, Any]], None],
    ) -> None:
        self.entry = entry
        self.fds = fds
        self._settle = settle
        self._amend = amend

    @property
    def lease_id(self) -> str:
        """Return the name of this lease in the ledger."""
        return self.entry.lease_id

    @property
    def cards(self) -> tuple[str, ...]:
        """Return the uuids of the cards."""
        return self.entry.cards

    @property
    def memory_mib(self) -> int | None:
        """Return how much of each card is ours; None is all of it."""
        return self.entry.memory_mib

    @property
    def released(self) -> bool:
        """Say whether this process has let go."""
        return not self.fds

    def amend(self, **changes: Any) -> None:
        """Append a change to the lease's record."""
        self._amend(self, changes)

    def release(self) -> None:
        """Let go, once; children that have the locks keep the cards until they end."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            # close, never LOCK_UN: unlocking would take the card from children that still use it.
            with suppress(OSError):
                os.close(fd)
        if fds:
            self._settle(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ledger(Protocol):
    """What every store of leases can do."""

    where: str

    def try_acquire(self, request: LeaseRequest) -> Lease:
        """Take the cards now, or raise `CardHeld`, whose message says who has them."""

    def acquire(
        self,
        request: LeaseRequest,
        timeout_s: float | None = None,
        *,
        waiting: Callable[[str], None] | None = None,
        wanted: Callable[[], bool] | None = None,
        cards: list[Card] | None = None,
    ) -> Lease:
        """Wait in line for the cards; raise `CardHeld` after `timeout_s`.

        `waiting` is told once why it waits; when `wanted` says no, the wait is given up. `cards`
        are the cards in sight, for a caller who has asked for them already.
        """

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases, oldest first.

        With `squatters` a lock that a stranger keeps is said so. For that the kernel is asked for
        all of its locks, which may take it ten milliseconds.
        """

    def queue(self) -> list[LeaseEntry]:
        """List those who wait, first in line first."""

    def log(self) -> list[dict[str, Any]]:
        """Return what happened, oldest first."""

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids that are handed out; None is all of them."""

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Say which cards are handed out from now on; None is all of them."""

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the cards that get no work, with the reason."""

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work."""

    def heal(self, uuid: str) -> None:
        """Let a quarantined card work again."""

    def purge(self) -> list[tuple[str, str]]:
        """Tidy up what is provably dead: names and reasons."""


DEFAULT_FOLDERS = ("/run/lock", "/tmp")


def default_folder() -> str:
    """Return the place that every user of this machine agrees on with no set-up."""
    for folder in DEFAULT_FOLDERS:
        with suppress(OSError):
            if os.stat(folder).st_mode & 0o1777 == 0o1777:
                return folder
    return DEFAULT_FOLDERS[-1]


def open_ledger(where: str | None = None) -> Ledger:
    """Open the ledger: `where` beats POSTROOM_LEDGER beats the machine's own folder."""
    place = where or os.environ.get("POSTROOM_LEDGER") or default_folder()
    if place.startswith(("redis://", "rediss://", "unix://")):
        from .redis_ledger import RedisLedger  # redis is an extra, and slow to import

        return RedisLedger(place)
    from .folder_ledger import FolderLedger

    return FolderLedger(place)
