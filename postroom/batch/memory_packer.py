"""Lines that share GPUs by memory: which of them start now, and on which card.

The batch knows all waiting lines, so it decides their order (`gpus.memory.placement`); a line goes
to the Master when a card has enough free memory for it. The session that gets it leases its part of
the card from the ledger, which decides: if another program has taken that memory meanwhile, the
session waits there. So no card is over-booked, whatever is killed, and every batch knows what was
measured of a kind of line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..commands.command_source import CommandSourceError
from ..commands.spec import AUTO, CommandSpec
from ..gpus.cards.inventory import Card, CardWatch
from ..gpus.ledger.allocation import CardShare
from ..gpus.ledger.card_overview import overview
from ..gpus.ledger.protocol import Ledger
from ..gpus.memory.booking import MEASURING
from ..gpus.memory.command_kind import kind_of_command
from ..gpus.memory.packing import reservation
from ..gpus.memory.placement import PlacementRequest, make_allocator, place_jobs
from ..gpus.memory.profiles import Kind, Profiles
from ..jobs import Job
from ..system.processes import user_name
from ..text.sizes import from_mib, to_mib

LOOK_S = 0.25  # between two reads of the ledger while lines wait


def declared_mib(memory: str) -> int | None:
    """Return the memory that a line or `--memory` declares; None: it is to be measured."""
    return None if memory == AUTO else to_mib(memory)


def name_of(job: Job) -> str:
    """Return the name of a line in the ledger."""
    return str(job.arguments["folder"]).rpartition("/")[2]


@dataclass(frozen=True)
class UnplacedLine:
    """A line that waits for memory, as the job that it will be."""

    job: Job
    kind: Kind
    memory_mib: int | None
    priority: int = 0

    @property
    def name(self) -> str:
        """Its name in the ledger."""
        return name_of(self.job)


@dataclass(frozen=True)
class Promise:
    """The card and the memory that were chosen for a line, until its session has leased them."""

    line: UnplacedLine
    card: str
    memory_mib: int | None


class Packer:
    """Decides which lines of a batch start, and where."""

    order_matters = True

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
        self._memory = memory  # of a line that declares none
        self._where = where  # the suffix of this batch's names in the ledger
        self._ledger = ledger
        self._profiles = profiles
        self._user = user_name(os.geteuid())
        self._watch = CardWatch()
        self._waiting: list[UnplacedLine] = []
        self._promises: dict[str, Promise] = {}
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, line: CommandSpec) -> CommandSpec:
        """Return a line that fits on some card; else raise CommandSourceError."""
        memory_mib = declared_mib(line.memory or self._memory)
        largest = max(self.cards, key=lambda card: card.memory_mib, default=None)
        if largest is not None and memory_mib is not None and memory_mib > largest.memory_mib:
            raise CommandSourceError(
                f"{line.command!r} needs {from_mib(memory_mib)} of GPU memory, but the largest "
                f"GPU, {largest.index}, has only {from_mib(largest.memory_mib)}"
            )
        return line

    def add(self, job: Job, line: CommandSpec) -> None:
        """Add a waiting line."""
        kind = kind_of_command(line.command, folder=job.arguments["cwd"])
        memory_mib = declared_mib(line.memory or self._memory)
        if memory_mib is not None:
            job.arguments["memory_mib"] = memory_mib
        self._waiting.append(UnplacedLine(job, kind, memory_mib, line.scheduling.priority))
        self._look_at = 0.0

    def jobs(self) -> Iterable[Job]:
        """Return the waiting jobs."""
        return (line.job for line in self._waiting)

    def ended(self, job: Job) -> None:
        """Note that a job has ended: memory may be free."""
        self._promises.pop(name_of(job), None)
        self._look_at = 0.0

    def begin(self, now: float, free: int) -> list[Job]:
        """Return the jobs that fit now, at most `free` of them."""
        if not self._waiting or free <= 0 or now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        uuids = {card.uuid for card in self.cards}
        cards = [card for card in self._watch.cards() if card.uuid in uuids]
        asks = self._asks(cards)
        allocator = make_allocator(self._ledger, cards, self._promised())
        started = []
        for position, uuid in place_jobs(allocator, [ask for _, ask in asks], user=self._user)[
            :free
        ]:
            place, ask = asks[position]
            line = self._waiting[place]
            line.job.arguments["card"] = uuid
            self._promises[line.name] = Promise(line, uuid, ask.memory_mib)
            started.append(place)
        jobs = [self._waiting[place].job for place in started]
        for place in sorted(started, reverse=True):
            del self._waiting[place]
        return jobs

    def why(self) -> str:
        """Say for each GPU why no line starts on it."""
        reasons = []
        for view in overview(self._ledger, self.cards):
            holders = " and by ".join(lease.describe() for lease in view.leases)
            used = f"is held by {holders}" if holders else view.reason
            reasons.append(f"GPU {view.card.index} {used or 'has too little free memory'}")
        return "; ".join(reasons)

    def _asks(self, cards: Sequence[Card]) -> list[tuple[int, PlacementRequest]]:
        """Return the requests of the waiting lines; only one line of an unknown kind at a time."""
        largest_mib = max((card.memory_mib for card in cards), default=0)
        measured = {p.line.kind.type for p in self._promises.values() if self._unknown(p.line)}
        known: dict[str, PlacementRequest] = {}
        asks = []
        for place, line in enumerate(self._waiting):
            key = f"{line.kind} {line.memory_mib} {line.priority}"
            if key not in known:
                known[key] = self._ask(line, cards, largest_mib)
            ask = known[key]
            if ask.memory_mib is None:
                if line.kind.type in measured or self._profiles.is_measured(line.kind.type):
                    continue
                measured.add(line.kind.type)
            asks.append((place, ask))
        return asks

    def _ask(self, line: UnplacedLine, cards: Sequence[Card], largest_mib: int) -> PlacementRequest:
        learned = self._profiles.learned(line.kind)
        asked_mib = reservation(learned, line.memory_mib, largest_mib=largest_mib)
        if asked_mib is not None and asked_mib > largest_mib:
            asked_mib = 1  # it fits nowhere: its session refuses it, with the reason
        among = [card.uuid for card in cards if card.memory_mib > learned.at_least_mib]
        return PlacementRequest(
            asked_mib, tuple(among or (card.uuid for card in cards)), line.priority
        )

    def _unknown(self, line: UnplacedLine) -> bool:
        learned = self._profiles.learned(line.kind)
        return reservation(learned, line.memory_mib, largest_mib=0) is None

    def _promised(self) -> list[CardShare]:
        """Return the memory that was promised and is not leased yet."""
        booked = {entry.name.removesuffix(MEASURING) for entry in self._ledger.holders()}
        return [
            CardShare(promise.card, promise.memory_mib, 0)
            for name, promise in self._promises.items()
            if name + self._where not in booked
        ]
