"""Which request gets which cards: a pure function of the cards, the leases and the waiting list.

Every waiting process computes the same answer from the same facts, so no server has to hand out
cards. The waiting list is walked in the order of `fair_share`: a request takes what the requests
before it cannot use. One whose user is over a limit (`holding_limits`) is passed over: it takes
and keeps nothing. A card that is kept for another user's reservation (`reservations`) does not
fit. A request that fits gets its cards. A request that does not fit yet keeps cards back from later
requests:

* If it wants whole cards, it keeps every free card that it could use, so their number only grows.
* If it wants part of a card, or has too few free cards, a card is drained for it: the one on which
  the least memory has to be released. Later requests may only use memory of that card that the
  first waiter does not need, so the amount that has to be released only shrinks. Only the first
  waiter that needs it gets a card drained, since a draining card is partly unused.

So small requests never starve a large one, and a request for card 1 does not wait behind one for
card 0.

The free memory of a card is what is neither reserved nor used. A lease counts with its reservation
from its first moment, or with what it uses if that is more. A process without a lease counts with
what it uses.

A card on which such a process computes is avoided: a whole card is not given beside any, and a part
of a card not beside another user's, until the process ends or a request says that it does not mind
(`beside`). A context that computes nothing is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import NamedTuple, Protocol

# What a program keeps of a card that it does not compute on any more: a CUDA context.
OVERLOOKED_MIB = 512


class CardShare(NamedTuple):
    """What one lease holds of one card."""

    uuid: str
    memory_mib: int | None  # None: the whole card
    uid: int
    group: str = ""
    pid: int = 0  # the owner, the ancestor of the lease's processes; 0: unknown in this namespace
    since: float = 0.0  # wall clock; 0: not known
    ends_at: float = inf  # when it should end


class CardWindow(NamedTuple):
    """A time in which a card is kept for the reservation of one user."""

    uuid: str
    start: float
    end: float
    uid: int


class Demand(NamedTuple):
    """What one request asks for: `count` of the cards in `among`, or `memory_mib` of each."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    among: tuple[str, ...]
    memory_mib: int | None = None
    uid: int = 0
    group: str = ""
    pid: int = 0
    pack: bool = False  # use the fullest card that fits; the default is the emptiest
    ends_at: float = inf  # when its lease should end, if it is granted now
    user: str = ""  # the name of `uid`
    beside: bool = False  # it does not mind processes without a lease

    @property
    def exact(self) -> bool:
        """Whether every card in `among` is wanted."""
        return self.count == len(self.among)


class ProcessMemory(NamedTuple):
    """What one process uses of a card; `lineage` is its pid and its ancestors, nearest first.

    Without a lineage nobody knows whose it is: a process of another container, or one that ends.
    """

    lineage: tuple[int, ...]
    used_mib: int
    user: str = ""
    compute: bool = True  # False: a desktop


class AvailableCard(NamedTuple):
    """A card that may be handed out: managed and healthy."""

    uuid: str
    memory_mib: int
    rank: float = 0.0  # lower is handed out first: when it was last used
    processes: tuple[ProcessMemory, ...] = ()
    used_mib: int = 0  # by all processes, as the driver reports it
    linked: tuple[str, ...] = ()  # the cards that NVLink joins with it, for who asks for several


class Limits(Protocol):
    """Says who is over a limit while the waiting list is walked: see `holding_limits`."""

    def over(self, demand: Demand) -> str:
        """Why a demand may not be granted; "": it may."""

    def take(self, demand: Demand, uuids: Sequence[str]) -> None:
        """Count cards as held by the user of a demand."""


class CardAllocator:
    """The cards with what is taken of each, while the waiting list is walked."""

    def __init__(
        self,
        available: Sequence[AvailableCard],
        shares: Sequence[CardShare],
        *,
        requester_pid: int = 0,
        most_drained: int = 1,
        windows: Sequence[CardWindow] = (),
    ) -> None:
        self._windows = windows
        self.available = {card.uuid: card for card in available}
        self.shares: dict[str, list[CardShare]] = {card.uuid: [] for card in available}
        self.most_drained = most_drained
        self.spare_mib: dict[str, int] = {}  # of each draining card: what later requests may use
        held: dict[str, list[CardShare]] = {card.uuid: [] for card in available}
        for share in shares:
            if share.uuid in held:
                held[share.uuid].append(share)
        self.unleased = {
            card.uuid: unleased(card, held[card.uuid], requester_pid=requester_pid)
            for card in available
        }
        self._owners = {
            uuid: {share.pid for share in on_card if share.pid} for uuid, on_card in held.items()
        }
        self._strangers: dict[tuple[str, bool, int, str], int] = {}
        self.free_mib = {
            card.uuid: card.memory_mib - self.unleased[card.uuid] for card in available
        }
        for share in (share for on_card in held.values() for share in on_card):
            self.take(share)

    def take(self, share: CardShare) -> None:
        """Count a share as taken."""
        taken = self.free_mib[share.uuid] if share.memory_mib is None else share.memory_mib
        self.free_mib[share.uuid] -= taken
        if share.uuid in self.spare_mib:
            self.spare_mib[share.uuid] -= taken
        self.shares[share.uuid].append(share)

    def is_free(self, uuid: str) -> bool:
        """Whether nobody holds any part of the card."""
        return not self.shares[uuid]

    def is_open(self, uuid: str, demand: Demand) -> bool:
        """Whether no other user has reserved the card for a time that the demand would reach."""
        return not any(
            window.uuid == uuid and window.uid != demand.uid and window.start < demand.ends_at
            for window in self._windows
        )

    def has_strangers(self, uuid: str, demand: Demand) -> bool:
        """Whether a process without a lease keeps the demand off the card."""
        card = self.available[uuid]
        if demand.beside or not card.processes:
            return False
        key = uuid, demand.memory_mib is None, demand.pid, demand.user
        if key not in self._strangers:
            self._strangers[key] = strangers_mib(card, self._owners[uuid], demand)
        return self._strangers[key] > OVERLOOKED_MIB

    def fits(self, uuid: str, demand: Demand) -> bool:
        """Whether the card can satisfy the demand now."""
        if self._windows and not self.is_open(uuid, demand):
            return False
        if self.has_strangers(uuid, demand):
            return False
        held = self.shares[uuid]
        if demand.memory_mib is None:
            return not held
        whole = any(share.memory_mib is None for share in held)
        spare = self.spare_mib.get(uuid, self.free_mib[uuid])
        return not whole and min(self.free_mib[uuid], spare) >= demand.memory_mib

    def shared_by_group(self, uuid: str, demand: Demand) -> bool:
        """Whether the whole card is held by the group of the demand, which may share it."""
        held = self.shares[uuid]
        return bool(
            demand.group
            and demand.exact
            and demand.memory_mib is None
            and held
            and all(
                share.memory_mib is None and share.group == demand.group and share.uid == demand.uid
                for share in held
            )
        )

    def choose(self, demand: Demand) -> tuple[str, ...] | None:
        """Return the cards that satisfy the demand now, best first, or None."""
        fitting = [
            uuid
            for uuid in demand.among
            if uuid in self.free_mib
            and (self.fits(uuid, demand) or self.shared_by_group(uuid, demand))
        ]
        if len(fitting) < demand.count:
            return None
        if not demand.exact:
            fitting.sort(key=lambda uuid: self._preference(uuid, demand))
            if demand.count > 1 and demand.memory_mib is None:
                return self._joined(fitting, demand.count)
        return tuple(fitting[: demand.count])

    def _joined(self, fitting: list[str], count: int) -> tuple[str, ...]:
        """Return several whole cards: of those without strangers, the ones with most NVLinks."""
        chosen = tuple(fitting[:count])
        clean = [uuid for uuid in fitting if not self.unleased[uuid]]
        if len(clean) < count:
            return chosen
        most = self._links(chosen)
        for first in clean:
            group = [first]
            while len(group) < count:
                rest = [uuid for uuid in clean if uuid not in group]
                group.append(max(rest, key=lambda uuid: self._links((*group, uuid))))
            if self._links(group) > most:
                chosen, most = tuple(group), self._links(group)
        return chosen

    def _links(self, uuids: Sequence[str]) -> int:
        return sum(other in self.available[uuid].linked for uuid in uuids for other in uuids)

    def _preference(self, uuid: str, demand: Demand) -> tuple[float, float, float]:
        card = self.available[uuid]
        if demand.memory_mib is None:
            # Cards that are used without a lease, or by a process that ended, come last.
            hidden_mib = card.used_mib - sum(process.used_mib for process in card.processes)
            used = self.unleased[uuid] > 0 or hidden_mib > OVERLOOKED_MIB
            return float(used), card.rank, 0.0
        free_mib = self.free_mib[uuid]
        used = self.unleased[uuid] > OVERLOOKED_MIB
        return float(used), float(free_mib if demand.pack else -free_mib), card.rank

    def keep_back(self, demand: Demand) -> tuple[str, ...]:
        """Return the free cards that a demand keeps back from later ones while it does not fit.

        If these are not enough, cards with shares are drained for it.
        """
        known = [
            uuid for uuid in demand.among if uuid in self.free_mib and self.is_open(uuid, demand)
        ]
        free = [
            uuid
            for uuid in known
            if demand.memory_mib is None
            and self.is_free(uuid)
            and not self.has_strangers(uuid, demand)
        ]
        if sum(uuid in self.spare_mib for uuid in known) < self.most_drained:
            others = [uuid for uuid in known if uuid not in free and uuid not in self.spare_mib]
            found = [
                (self.has_strangers(uuid, demand), *drain)
                for uuid in others
                if (drain := self._drain(uuid, demand)) is not None
            ]
            for _, _, uuid, spare in sorted(found)[: max(0, demand.count - len(free))]:
                self.spare_mib[uuid] = spare
        return tuple(free)

    def _drain(self, uuid: str, demand: Demand) -> tuple[int, str, int] | None:
        """Return what must be released for a demand, the card, and what others may use of it."""
        held = [share.memory_mib for share in self.shares[uuid]]
        sizes = sorted(mib for mib in held if mib is not None)
        if len(sizes) < len(held):
            return None  # somebody holds the whole card
        whole_mib = self.free_mib[uuid] + sum(sizes)
        others_mib = 0 if demand.memory_mib is None else whole_mib - demand.memory_mib
        if others_mib < 0:
            return None
        # The smallest shares may stay; later requests may use what these leave beside the demand.
        staying_mib = 0
        for mib in sizes:
            if staying_mib + mib > others_mib:
                break
            staying_mib += mib
        return sum(sizes) - staying_mib, uuid, others_mib - staying_mib


def unleased(card: AvailableCard, held: Sequence[CardShare], *, requester_pid: int = 0) -> int:
    """Return what is used of a card beyond the reservations of its leases.

    What the requesting process uses already is part of its own request, and is not counted.
    """
    owners = {share.pid for share in held if share.pid} | (
        {requester_pid} if requester_pid else set()
    )
    used: dict[int, int] = {}
    unknown_mib = 0
    for process in card.processes:
        if not process.lineage:
            unknown_mib += process.used_mib
            continue
        owner = next((pid for pid in process.lineage if pid in owners), 0)
        used[owner] = used.get(owner, 0) + process.used_mib
    seen = set(used)
    foreign_mib = used.pop(0, 0)
    used.pop(requester_pid, None)
    reserved: dict[int, int] = {}
    for share in held:
        mib = card.memory_mib if share.memory_mib is None else share.memory_mib
        reserved[share.pid] = reserved.get(share.pid, 0) + mib
    excess_mib = sum(max(0, mib - reserved.get(pid, 0)) for pid, mib in used.items())
    # Memory that no visible process accounts for: the driver's own, or a process in a container.
    # An otherwise empty card is not refused for it, or nobody could ever get that whole card.
    hidden_mib = max(0, card.used_mib - sum(process.used_mib for process in card.processes))
    if held or foreign_mib or unknown_mib:
        unknown_mib += hidden_mib
    # What cannot be attributed may be what a lease uses whose processes cannot be seen from here.
    unseen_mib = sum(mib for pid, mib in reserved.items() if pid not in seen)
    return foreign_mib + excess_mib + max(0, unknown_mib - unseen_mib)


def strangers_mib(card: AvailableCard, owners: Collection[int], demand: Demand) -> int:
    """Return what processes without a lease use of a card that a demand must not join.

    `owners` are those of its leases. A share may join processes of its own user: they are counted.
    """
    known = {*owners, demand.pid} - {0}
    whole = demand.memory_mib is None
    return sum(
        process.used_mib
        for process in card.processes
        if process.compute
        and known.isdisjoint(process.lineage)
        and (whole or (process.lineage and process.user not in ("", demand.user)))
    )


def grant(
    available: Sequence[AvailableCard],
    shares: Sequence[CardShare],
    waiting: Sequence[Demand],
    demand: Demand,
    *,
    pack: bool = False,
    windows: Sequence[CardWindow] = (),
    limits: Limits | None = None,
) -> tuple[str, ...] | None:
    """Return the cards that a demand may take now, after those waiting before it, or None."""
    allocator = CardAllocator(available, shares, requester_pid=demand.pid, windows=windows)
    # Joining a card that the own group holds already makes nobody wait longer.
    if all(
        uuid in allocator.free_mib and allocator.shared_by_group(uuid, demand)
        for uuid in demand.among
    ):
        return demand.among
    for before in waiting:
        if limits is None or not limits.over(before):
            chosen = allocate_next(allocator, before)
            if chosen and limits is not None:
                limits.take(before, chosen)
    if limits is not None and limits.over(demand):
        return None
    return allocator.choose(demand._replace(pack=pack or demand.pack))


def allocate_next(allocator: CardAllocator, demand: Demand) -> tuple[str, ...] | None:
    """Give the next demand its cards, or keep cards back for it and return None."""
    chosen = allocator.choose(demand)
    whole = chosen is None
    for uuid in allocator.keep_back(demand) if chosen is None else chosen:
        allocator.take(
            CardShare(uuid, None if whole else demand.memory_mib, demand.uid, demand.group)
        )
    return chosen
