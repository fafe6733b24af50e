"""Lines that share cards by memory: which of them begin now, and on which card.

The batch knows all lines that wait, so it decides their order (`gpus.plan`); a line is handed to
the Master when there is room for it. The session that gets it books its part of the card from the
ledger, which has the last word: what a stranger took meanwhile is waited for there, in line. So
nothing is over-booked, whatever is killed, and what was learned of a kind is known to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..commands.command_source import CommandSourceError
from ..commands.spec import CommandSpec
from ..gpus.cards.inventory import Card, CardWatch
from ..gpus.ledger.allocation import Share
from ..gpus.ledger.card_overview import overview
from ..gpus.ledger.protocol import Ledger
from ..gpus.memory.booking import MEASURING
from ..gpus.memory.command_kind import kind_of_command
from ..gpus.memory.packing import reservation
from ..gpus.memory.placement import PlacementRequest, hand_out, table_of
from ..gpus.memory.profiles import Kind, Profiles
from ..jobs import Job
from ..text.memory_sizes import from_mib, to_mib

AUTO = "auto"  # the memory of a line is found out
LOOK_S = 0.25  # how often the ledger is looked at while lines wait


def declared_mib(memory: str) -> int | None:
    """Read what a line or `--memory` says: so much, or None where it is to be found out."""
    return None if memory == AUTO else to_mib(memory)


def name_of(job: Job) -> str:
    """What a line is called in the ledger."""
    return str(job.arguments["folder"]).rpartition("/")[2]


@dataclass(frozen=True)
class Held:
    """A line that waits for room, as the job that it will be."""

    job: Job
    kind: Kind
    memory_mib: int | None
    priority: int = 0

    @property
    def name(self) -> str:
        """What it is called in the ledger."""
        return name_of(self.job)


@dataclass(frozen=True)
class Promise:
    """What was promised to a line that was handed to the Master."""

    held: Held
    card: str
    memory_mib: int | None


class Packer:
    """Decides which lines of a batch begin."""

    choosy = True

    def __init__(
        self,
        cards: Sequence[Card],
        memory: str,
        *,
        where: str,
        ledger: Ledger,
        profiles: Profiles,
    ) -> None:
        self.cards = list(cards)
        self._memory = memory  # of a line that says nothing
        self._where = where  # what stands behind the names of this batch in the ledger
        self._ledger = ledger
        self._profiles = profiles
        self._watch = CardWatch()
        self._waiting: list[Held] = []
        self._promises: dict[str, Promise] = {}
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, line: CommandSpec) -> CommandSpec:
        """Return a line that some card could hold; else raise FeedError with both figures."""
        memory_mib = declared_mib(line.memory or self._memory)
        largest = max(self.cards, key=lambda card: card.memory_mib, default=None)
        if largest is not None and memory_mib is not None and memory_mib > largest.memory_mib:
            raise CommandSourceError(
                f"{line.command!r} asks for {from_mib(memory_mib)} of a card, and the largest, "
                f"card {largest.index}, has {from_mib(largest.memory_mib)}"
            )
        return line

    def add(self, job: Job, line: CommandSpec) -> None:
        """Have a line wait for room."""
        kind = kind_of_command(line.command, folder=job.arguments["cwd"])
        memory_mib = declared_mib(line.memory or self._memory)
        if memory_mib is not None:
            job.arguments["memory_mib"] = memory_mib
        self._waiting.append(Held(job, kind, memory_mib, line.scheduling.priority))
        self._look_at = 0.0

    def jobs(self) -> Iterable[Job]:
        """What waits."""
        return (held.job for held in self._waiting)

    def ended(self, job: Job) -> None:
        """A line that had begun has ended: there may be room."""
        self._promises.pop(name_of(job), None)
        self._look_at = 0.0

    def begin(self, now: float, free: int) -> list[Job]:
        """Return the jobs for which there is room now, `free` of them at most."""
        if not self._waiting or free <= 0 or now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        uuids = {card.uuid for card in self.cards}
        cards = [card for card in self._watch.cards() if card.uuid in uuids]
        asks = self._asks(cards)
        table = table_of(self._ledger, cards, self._promised())
        begun = []
        for position, uuid in hand_out(table, [ask for _, ask in asks])[:free]:
            place, ask = asks[position]
            held = self._waiting[place]
            held.job.arguments["card"] = uuid
            self._promises[held.name] = Promise(held, uuid, ask.memory_mib)
            begun.append(place)
        jobs = [self._waiting[place].job for place in begun]
        for place in sorted(begun, reverse=True):
            del self._waiting[place]
        return jobs

    def why(self) -> str:
        """Say card by card why nothing begins."""
        reasons = []
        for view in overview(self._ledger, self.cards):
            holders = " and by ".join(lease.describe() for lease in view.leases)
            held = f"is held by {holders}" if holders else view.reason or "has too little room"
            reasons.append(f"card {view.card.index} {held}")
        return "; ".join(reasons)

    def _asks(self, cards: Sequence[Card]) -> list[tuple[int, PlacementRequest]]:
        """What is asked for now, by places; of a kind that is unknown, one at a time measures."""
        largest_mib = max((card.memory_mib for card in cards), default=0)
        measured = {p.held.kind.type for p in self._promises.values() if self._unknown(p.held)}
        known: dict[str, PlacementRequest] = {}
        asks = []
        for place, held in enumerate(self._waiting):
            key = f"{held.kind} {held.memory_mib} {held.priority}"
            if key not in known:
                known[key] = self._ask(held, cards, largest_mib)
            ask = known[key]
            if ask.memory_mib is None:
                if held.kind.type in measured or self._profiles.is_measured(held.kind.type):
                    continue
                measured.add(held.kind.type)
            asks.append((place, ask))
        return asks

    def _ask(self, held: Held, cards: Sequence[Card], largest_mib: int) -> PlacementRequest:
        learned = self._profiles.learned(held.kind)
        asked_mib = reservation(learned, held.memory_mib, largest_mib=largest_mib)
        if asked_mib is not None and asked_mib > largest_mib:
            asked_mib = 1  # no card could hold it: it begins somewhere, to be refused with a reason
        among = [card.uuid for card in cards if card.memory_mib > learned.at_least_mib]
        return PlacementRequest(
            asked_mib, tuple(among or (card.uuid for card in cards)), held.priority
        )

    def _unknown(self, held: Held) -> bool:
        learned = self._profiles.learned(held.kind)
        return reservation(learned, held.memory_mib, largest_mib=0) is None

    def _promised(self) -> list[Share]:
        """What was promised to lines that have not got it yet."""
        booked = {entry.name.removesuffix(MEASURING) for entry in self._ledger.holders()}
        return [
            Share(promise.card, promise.memory_mib, 0)
            for name, promise in self._promises.items()
            if name + self._where not in booked
        ]
