"""The ledger: who holds which card, how much of it, and who is next. This is its protocol.

A lease is a file on which its owner has a file lock (flock). The lock is the truth; the text in the
file only says what is held and by whom. Child processes inherit the lock, and it ends when the last
process that has it ends. So there is no time-out and no clean-up, and after `kill -9` of anything
there is nothing to repair.

    folder/                       root's with the sticky bit (shared by users), or one user's own
      postroom-<uid>/             one folder per user; only that user can write to it
        new-<id>                  a request that is being written; everybody ignores it
        ticket-<number>-<id>      a waiting request; all users' tickets by number: the waiting list
        lease-<id>                a granted request
        used-<uuid>               its change time: when this user last had that card
        staying-<uuid>            memory of that card that did not become free (`freed_memory`)
        verdict-<uuid>            this user quarantined or healed that card; the newest file counts
        mode-<uuid>               the compute mode before --exclusive (`session.exclusive_mode`)
        managed                   this user's choice of the cards that are handed out
        reserve-<id>              cards that are kept for this user for a time (`reservations`)
        usage                     how much GPU time this user has used lately (`fair_share`)
        ended                     this user's leases that have ended, a line each (`ended_leases`)
        activity-<who>            whether held cards computed, as an observer saw it (`activity`)
        projects-<who>            what the projects of a queue have run; only its user can read it
        recorded                  root's: the same for all users, from `postroom gpu record`
        log                       what happened, one line of JSON each
      postroom-rules.toml         root's: how use fades, and who may hold how much (`ledger_rules`)

    state     file                          how it ends
    new       new-*, locked, mode 0600      renamed to ticket-* or lease-*, under the mutex
    waiting   ticket-*, locked              renamed to lease-* under the mutex, or unlinked
    held      lease-*, locked               when the lock ends, for whatever reason
    dead      any of these, lock free       unlinked by its user or root; until then it is ignored

* Only processes of the owner rename a file, and only under the mutex: a flock on the ledger's
  folder, which no user can unlink. A crash between two renames leaves nothing inconsistent.
* A file is locked before it gets a name that others read, and names are never reused. So if the
  lock of a file can be taken, its owner is dead for good, and unlinking it hits no living lease.
* What is held of a card is the sum over the living leases. `allocation.grant` decides who may take
  what; it is a pure function, so every process computes the same answer. A dead waiter is ignored.
* A process tests another's lock with LOCK_SH on a read-only descriptor, so that tests do not
  disturb each other. A user who keeps such a lock keeps a dead lease alive. That blocks a card, and
  `list` names that user (from /proc/locks). Nobody can change, remove or rename another's files.
* Tickets are ordered by number, then by whose turn it is (`fair_share`). A number that is older
  than its file, by the file's change time, which nobody can set, does not count: `list` names it.
* Each user writes down how much they have used, when a lease of theirs is cleared away. So a user
  can understate their own use, and nobody can change what is recorded of another. While root
  runs `postroom gpu record`, only its record counts.
* A living lease that cannot be read counts as holding every card. `list` names it, too.
* The text of a lease is lines of JSON that are only appended: the request, the grant, then changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...errors import GpuError
from ...system.processes import Process

if TYPE_CHECKING:
    from ..cards.inventory import Card
    from .activity import Activity
    from .ledger_rules import LedgerRules
    from .reservations import Reservation
    from .waiting import CardClaim

# In the reason why a request waits.
WITHOUT_A_LEASE = "used without a lease"


class LeaseRequest(NamedTuple):
    """A request for cards.

    `cards` are the uuids of the cards that are wanted, all of them; without it the request is for
    any `count` of the visible cards. `memory_mib` is what to reserve of each card; without it the
    lease holds whole cards. Leases of one user with the same `group` may share a whole card that
    each of them names.
    """

    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    cards: tuple[str, ...] = ()
    memory_mib: int | None = None
    name: str = ""
    group: str = ""
    pack: bool = False  # use the fullest card that fits; the default is the emptiest
    owner: Process | None = None  # whose lease it is; by default this process's
    lasts_s: float | None = None  # how long it is for, if that is known: see `reservations`
    beside: bool = False  # also a card that somebody uses without a lease: see `allocation`
    yields: bool = False  # after all other users: see `fair_share`


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
    keeper: Process | None = None  # the process that holds the lock for a shell
    squatter: str = ""  # who has the lock, if that is not the owner
    host: str = ""
    token: int = 0
    lasts_s: float | None = None  # how long it is for, as its user says
    beside: bool = False  # it does not mind processes without a lease
    yields: bool = False  # it is for cards that no other user wants
    weight: float = 0.0  # how many cards its part of them counts for, as its user says
    doubt: str = ""  # what is wrong with its file

    @property
    def counts_for(self) -> float:
        """How many cards it counts for: part of one for less than one."""
        whole = float(len(self.cards))
        return whole if self.memory_mib is None else min(self.weight, whole) or whole

    def describe(self) -> str:
        """Return a phrase that says whose it is, and since when."""
        import time

        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.granted_at or self.asked_at))
        who = f"{self.name!r} of user {self.user}" if self.name else f"user {self.user}"
        word = "since" if self.cards else "waiting since"
        # Of a lease that cannot be read neither pid nor time is known.
        text = f"{who}, pid {self.process.pid}, {word} {since}" if self.count else who
        if self.memory_mib is not None:
            text += f", {self.memory_mib} MiB"
        if self.squatter:
            text += f" (its lock is kept by {self.squatter})"
        if self.doubt:
            text += f" ({self.doubt})"
        return text


class Quarantine(NamedTuple):
    """A card that gets no work: why, who said so, and when."""

    uuid: str
    reason: str
    user: str
    at: float


class Lease:
    """Cards that are held until the last process that has `fds` ends.

    Pass `fds` to a child with `subprocess.Popen(..., pass_fds=lease.fds)`. Then the cards are held
    until that child ends, too, even if this process ends first.
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
        self.follows_another = False  # whose memory may not be free yet

    @property
    def lease_id(self) -> str:
        """Return the id of this lease in the ledger."""
        return self.entry.lease_id

    @property
    def cards(self) -> tuple[str, ...]:
        """Return the uuids of the cards."""
        return self.entry.cards

    @property
    def memory_mib(self) -> int | None:
        """Return how much of each card is held; None means all of it."""
        return self.entry.memory_mib

    @property
    def released(self) -> bool:
        """Whether this process has released it."""
        return not self.fds

    def amend(self, **changes: Any) -> None:
        """Append a change to the lease's record."""
        self._amend(self, changes)

    def release(self) -> None:
        """Release the cards, once; children that have the locks hold the cards until they end."""
        fds, self.fds = self.fds, ()
        for fd in fds:
            # Close, never LOCK_UN: unlocking would take the card from children that still use it.
            with suppress(OSError):
                os.close(fd)
        if fds:
            self._settle(self)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Ledger(Protocol):
    """What a ledger can do, in a folder or in Redis."""

    where: str

    def try_acquire(self, request: LeaseRequest) -> Lease:
        """Take the cards now, or raise `CardHeld`, whose message says who holds them."""

    def acquire(
        self,
        request: LeaseRequest,
        timeout_s: float | None = None,
        *,
        waiting: Callable[[str], None] | None = None,
        wanted: Callable[[], bool] | None = None,
        cards: list[Card] | None = None,
    ) -> Lease:
        """Wait for the cards; raise `CardHeld` after `timeout_s`.

        `waiting` is called with the reason for the wait, and again if the cards were granted but
        the memory of their last holder is not free yet (`freed_memory`). The wait ends with
        `CardHeld` when `wanted` returns False. `cards` are the visible cards, if the caller knows
        them already.
        """

    def holders(self, *, squatters: bool = True) -> list[LeaseEntry]:
        """List the living leases, oldest first.

        With `squatters` each entry names a process of another user that keeps its lock. This reads
        all locks of the system (/proc/locks), which may take ten milliseconds.
        """

    def queue(self) -> list[LeaseEntry]:
        """List the waiting requests in their order."""

    def log(self) -> list[dict[str, Any]]:
        """Return what happened, oldest first."""

    def managed(self) -> tuple[str, ...] | None:
        """Return the uuids of the cards that are handed out; None means all."""

    def manage(self, uuids: Sequence[str] | None) -> None:
        """Set which cards are handed out from now on; None means all."""

    def quarantined(self) -> dict[str, Quarantine]:
        """Return the quarantined cards by uuid."""

    def quarantine(self, uuid: str, reason: str) -> None:
        """Give a card no more work."""

    def heal(self, uuid: str) -> None:
        """End the quarantine of a card."""

    def claimed(self, lease: Lease, cards: list[Card]) -> CardClaim:
        """Return whether a holder should give its cards back: another's turn has come.

        `cards` are the visible cards.
        """

    def rules(self) -> LedgerRules:
        """Return the administrator's rules."""

    def used(self) -> dict[int, float]:
        """Return how much GPU time each user has used, in seconds, as it counts now."""

    def reservations(self) -> list[Reservation]:
        """Return the reservations that are not over, by their start."""

    def reserve(self, count: int, start: float, end: float, name: str = "") -> Reservation:
        """Keep cards for this user; raise GpuError if that cannot be."""

    def unreserve(self, reservation_id: str) -> Reservation:
        """Remove a reservation of this user; root may remove any."""

    def activity(self) -> dict[int, list[Activity]]:
        """Return what was seen of the cards of this host, by the users who looked."""

    def note_end(self, lease: Lease) -> None:
        """Leave a process behind that writes down when a lease ends, and does not hold it."""

    def purge(self) -> list[tuple[str, str]]:
        """Remove the files of dead leases; return their names and why."""

    def own_folder(self) -> str:
        """Return this user's folder on this host."""


DEFAULT_FOLDERS = ("/run/lock", "/tmp")


def default_folder() -> str:
    """Return the folder that all users of this machine share without any set-up."""
    for folder in DEFAULT_FOLDERS:
        with suppress(OSError):
            if os.stat(folder).st_mode & 0o1777 == 0o1777:
                return folder
    return DEFAULT_FOLDERS[-1]


def open_ledger(
    where: str | None = None, *, cards: Callable[[], list[Card]] | None = None
) -> Ledger:
    """Open the ledger at `where`, else at POSTROOM_LEDGER, else in the default folder.

    `cards` lists the cards as they are now; without it, a process is started for that each time.
    """
    ask = {} if cards is None else {"cards": cards}
    place = where or os.environ.get("POSTROOM_LEDGER") or default_folder()
    if place.startswith(("redis://", "rediss://", "unix://")):
        from .redis_ledger import RedisLedger  # redis is optional, and slow to import

        return RedisLedger(place, **ask)
    if "://" in place:  # as a folder it would be a ledger that nobody else asks
        raise GpuError(
            f"{place.partition('://')[0]}:// is no address of a ledger: write redis://, rediss:// "
            "or unix://, or the path of a folder"
        )
    from .folder_ledger import FolderLedger

    return FolderLedger(place, **ask)
