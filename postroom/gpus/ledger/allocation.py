"""Who may take which card: a pure function of the cards, what is held, and the waiting line.

Everybody who waits computes the same answer from the same facts, so nobody has to hand anything
out. The rule is first come, first served, where it matters: a request takes what the requests
before it cannot use. Those before it are walked in order; one that fits is given its cards, one
that does not fit yet keeps what it has gathered so far:

* whole cards: every free card it could use, so that the number gathered only grows;
* room: the card on which the least has to leave for it drains. Whoever comes later may use of it
  only what will be left beside the one who waits. So what has to leave only shrinks, and at last it
  is gone. For a whole card, too: shares would else follow each other on it for ever. Only the first
  who waits for room has a card drained: one is waste enough, and everybody comes to be the first.

Hence a large request is never starved by small ones, and a request for card 1 does not wait behind
one for card 0.

The room on a card is what nobody has reserved and nobody uses beyond that. A lease counts with what
it has reserved, however little it uses yet, and with what it uses, if that is more; a process that
belongs to no lease counts with what it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Share(NamedTuple):
    """What one lease takes of one card."""

    uuid: str
    memory_mib: int | None  # None: the whole card
    uid: int
    group: str = ""
    pid: int = 0  # the owner, from whom the processes of the lease descend; 0: not known here


class Want(NamedTuple):
    """What one request asks for: `count` cards among those named, whole or so many MiB of each."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls
    among: tuple[str, ...]
    memory_mib: int | None = None
    uid: int = 0
    group: str = ""
    pid: int = 0
    pack: bool = False  # take the fullest card that fits, where the default spreads

    @property
    def exact(self) -> bool:
        """Say whether every card named is wanted."""
        return self.count == len(self.among)


class Load(NamedTuple):
    """What one process uses of a card; `lineage` is its pid and those above it, nearest first."""

    lineage: tuple[int, ...]
    used_mib: int


class Slot(NamedTuple):
    """One card as the allocation sees it."""

    uuid: str
    memory_mib: int
    rank: float = 0.0  # lower is handed out first: when it was last used
    loads: tuple[Load, ...] = ()
    used_mib: int = 0  # by everybody, as the driver counts it


class Table:
    """The cards with what is taken of each, while a line is walked."""

    def __init__(
        self,
        slots: Sequence[Slot],
        shares: Sequence[Share],
        *,
        asker_pid: int = 0,
        drains: int = 1,
    ) -> None:
        self.slots = {slot.uuid: slot for slot in slots}
        self.shares: dict[str, list[Share]] = {slot.uuid: [] for slot in slots}
        self.drains = drains
        self.spare: dict[str, int] = {}  # what may be taken of cards that drain for somebody
        held: dict[str, list[Share]] = {slot.uuid: [] for slot in slots}
        for share in shares:
            if share.uuid in held:
                held[share.uuid].append(share)
        self.unleased = {
            slot.uuid: unleased(slot, held[slot.uuid], asker_pid=asker_pid) for slot in slots
        }
        self.room = {slot.uuid: slot.memory_mib - self.unleased[slot.uuid] for slot in slots}
        for share in (share for on_card in held.values() for share in on_card):
            self.take(share)

    def take(self, share: Share) -> None:
        """Count a share as taken."""
        taken = self.room[share.uuid] if share.memory_mib is None else share.memory_mib
        self.room[share.uuid] -= taken
        if share.uuid in self.spare:
            self.spare[share.uuid] -= taken
        self.shares[share.uuid].append(share)

    def free(self, uuid: str) -> bool:
        """Say whether nobody has anything of the card."""
        return not self.shares[uuid]

    def fits(self, uuid: str, want: Want) -> bool:
        """Say whether the card has room for the want now."""
        held = self.shares[uuid]
        if want.memory_mib is None:
            return not held
        whole = any(share.memory_mib is None for share in held)
        spare = self.spare.get(uuid, self.room[uuid])
        return not whole and min(self.room[uuid], spare) >= want.memory_mib

    def ours(self, uuid: str, want: Want) -> bool:
        """Say whether the card is held as a whole by the want's own group, which may share it."""
        held = self.shares[uuid]
        return bool(
            want.group
            and want.exact
            and want.memory_mib is None
            and held
            and all(
                share.memory_mib is None and share.group == want.group and share.uid == want.uid
                for share in held
            )
        )

    def choose(self, want: Want) -> tuple[str, ...] | None:
        """Return the cards that satisfy the want now, best first, or None."""
        fitting = [
            uuid
            for uuid in want.among
            if uuid in self.room and (self.fits(uuid, want) or self.ours(uuid, want))
        ]
        if len(fitting) < want.count:
            return None
        if not want.exact:
            fitting.sort(key=lambda uuid: self._preference(uuid, want))
        return tuple(fitting[: want.count])

    def _preference(self, uuid: str, want: Want) -> tuple[float, float]:
        if want.memory_mib is None:
            # A card on which a stranger computes comes last.
            return float(self.unleased[uuid] > 0), self.slots[uuid].rank
        room = self.room[uuid]
        return float(room if want.pack else -room), self.slots[uuid].rank

    def gather(self, want: Want) -> tuple[str, ...]:
        """Return the free cards that a want which does not fit yet keeps from those behind it.

        Where that is not enough, cards with shares are drained for it.
        """
        known = [uuid for uuid in want.among if uuid in self.room]
        free = [uuid for uuid in known if self.free(uuid)] if want.memory_mib is None else []
        if sum(uuid in self.spare for uuid in known) < self.drains:
            others = [uuid for uuid in known if uuid not in free and uuid not in self.spare]
            found = [drain for uuid in others if (drain := self._drain(uuid, want)) is not None]
            for _, uuid, spare in sorted(found)[: max(0, want.count - len(free))]:
                self.spare[uuid] = spare
        return tuple(free)

    def _drain(self, uuid: str, want: Want) -> tuple[int, str, int] | None:
        """Return how much has to leave a card for a want, and what others may take meanwhile."""
        held = [share.memory_mib for share in self.shares[uuid]]
        sizes = sorted(mib for mib in held if mib is not None)
        if len(sizes) < len(held):
            return None  # somebody has it as a whole
        whole_mib = self.room[uuid] + sum(sizes)
        beside_mib = 0 if want.memory_mib is None else whole_mib - want.memory_mib
        if beside_mib < 0:
            return None
        # The small ones may stay. Who takes no more than what they leave makes none of them leave.
        stay_mib = 0
        for mib in sizes:
            if stay_mib + mib > beside_mib:
                break
            stay_mib += mib
        return sum(sizes) - stay_mib, uuid, beside_mib - stay_mib


def unleased(slot: Slot, held: Sequence[Share], *, asker_pid: int = 0) -> int:
    """Return what is used of a card beyond what its leases have reserved.

    What the asker itself has there already is part of what it asks for.
    """
    owners = {share.pid for share in held if share.pid} | ({asker_pid} if asker_pid else set())
    used: dict[int, int] = {}
    for load in slot.loads:
        owner = next((pid for pid in load.lineage if pid in owners), 0)
        used[owner] = used.get(owner, 0) + load.used_mib
    strangers = used.pop(0, 0)
    used.pop(asker_pid, None)
    reserved: dict[int, int] = {}
    for share in held:
        mib = slot.memory_mib if share.memory_mib is None else share.memory_mib
        reserved[share.pid] = reserved.get(share.pid, 0) + mib
    excess = sum(max(0, mib - reserved.get(pid, 0)) for pid, mib in used.items())
    # What no process accounts for: the driver's own, or processes that can't be seen from here
    # (a container). An empty card is not refused for it: nobody could ever have it as a whole.
    hidden = max(0, slot.used_mib - sum(load.used_mib for load in slot.loads))
    if not slot.loads:
        hidden = max(0, hidden - sum(reserved.values())) if held else 0
    elif not held and not strangers:
        hidden = 0
    return strangers + excess + hidden


def grant(
    slots: Sequence[Slot],
    shares: Sequence[Share],
    line: Sequence[Want],
    want: Want,
    *,
    pack: bool = False,
) -> tuple[str, ...] | None:
    """Return the cards that `want` may take now, with `line` before it, or None: it must wait."""
    table = Table(slots, shares, asker_pid=want.pid)
    # Joining a card that one's own group holds already keeps nobody waiting any longer.
    if all(uuid in table.room and table.ours(uuid, want) for uuid in want.among):
        return want.among
    for before in line:
        serve(table, before)
    return table.choose(want._replace(pack=pack or want.pack))


def serve(table: Table, want: Want) -> tuple[str, ...] | None:
    """Give the next in line its cards, or None: then it keeps what it has gathered so far."""
    chosen = table.choose(want)
    whole = chosen is None
    for uuid in table.gather(want) if chosen is None else chosen:
        table.take(Share(uuid, None if whole else want.memory_mib, want.uid, want.group))
    return chosen
