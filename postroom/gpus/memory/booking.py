"""The booking of a job: its lease of GPU memory, the measurement of what it uses, what is learned.

    with book(need, ledger=open_ledger(), profiles=Profiles(), cards=inventory.cards()) as booking:
        child = subprocess.Popen(..., env={**os.environ, **booking.environment},
                                 pass_fds=booking.lease.fds)
        booking.watch(child.pid)
        code = child.wait()
        booking.finish(ok=code == 0)

A booking holds only file locks: the lease, and the right to measure a kind of job. So a job that is
killed leaves nothing behind that others would wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...errors import CardHeld, GpuError
from ...system import processes
from ...text.sizes import from_mib
from ..cards import inventory
from ..cards.inventory import Card, CardWatch, pin
from ..devices.device import device_in_use
from ..devices.out_of_memory import is_out_of_memory
from ..ledger.lease_environment import lease_environment
from ..ledger.protocol import Lease, LeaseRequest, Ledger
from .meter import Meter, Sample
from .packing import CONTEXT_MIB, EXCESS, Learned, advice, needed, reservation
from .profiles import Kind, Measuring, ProfileRow, Profiles

MEASURED_POLL_S = 0.05  # how often a job checks whether the measurement of its kind has ended
TIMELINES = 200  # how many are kept in one folder
ALONE = 0.05  # a job is alone on a card if others use less than this part of it
UNSEEN_RUNS = 3  # after this many runs without visible memory a job is taken to be small

MEASURING = " (measuring)"  # ends the name of a lease that has its card alone

Say = Callable[[str], None]
Hook = Callable[[], None]
R = TypeVar("R")


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Need:
    """What a job needs: `memory_mib` of each of `count` cards, or what its kind needs."""

    kind: Kind
    memory_mib: int | None = None  # declared by the user
    count: int = 1
    pack: bool = False
    name: str = ""
    where: str = ""  # added to the name in the ledger
    card: str = ""  # uuid of the card to use if it has enough free memory
    lasts_s: float | None = None  # how long it can take; None: nobody knows


class Booking:
    """The cards of a job, and what it uses of them."""

    def __init__(
        self,
        need: Need,
        cards: Sequence[Card],
        *,
        profiles: Profiles,
        lease: Lease | None = None,
        measuring: Measuring | None = None,
        alone: bool = False,
    ) -> None:
        """`alone`: nobody else uses the cards, as they are now, while the job runs."""
        self.need = need
        self.cards = tuple(cards)
        self.lease = lease
        self.meter: Meter | None = None
        self.exceeded: Callable[[str], None] | None = None
        self.needed = ""  # after the end: what it needed
        self.advice = ""  # the same with its name and its duration
        self._profiles = profiles
        self._measuring = measuring
        self._finished = False
        self._before = {card.uuid: card for card in cards} if alone else {}

    @property
    def measuring(self) -> bool:
        """Whether it runs alone on its card, to measure what its kind needs."""
        return self._measuring is not None

    @property
    def reserved_mib(self) -> int | None:
        """How much of each card is reserved; None means all of it."""
        return self.lease.memory_mib if self.lease is not None else None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that make only these cards visible, and say how to use them.

        A card that is had alone, to measure a job, is shared as soon as the job has settled.
        """
        if self.lease is None:
            return pin(*self.cards)
        return pin(*self.cards) | lease_environment(self.lease.lease_id, shared=True)

    def watch(self, pid: int | None = None, driver: CardWatch | None = None) -> Meter:
        """Measure a process and its descendants from now on; `driver` is asked what they use."""
        uuids = [card.uuid for card in self.cards]
        pid = os.getpid() if pid is None else pid
        self.meter = Meter(uuids, pid, self._on_sample, self._before, driver)
        return self.meter.__enter__()

    def _on_sample(self, sample: Sample) -> None:
        meter = self.meter
        if meter is None or self._finished:
            return
        reserved_mib = self.reserved_mib
        if reserved_mib is not None and sample.used_mib > reserved_mib * EXCESS:
            tell, self.exceeded = self.exceeded, None
            if tell is not None:
                tell(
                    f"{self.need.name} uses {sample.used_mib} MiB of GPU {self.cards[0].index}, "
                    f"but only {reserved_mib} MiB are reserved"
                )
        if self._measuring is not None and meter.settled:
            self._settle(meter.peak_mib)

    def _settle(self, peak_mib: int) -> None:
        """End the measurement: the job has stopped growing; release what it does not need."""
        self._learn(ProfileRow(self.need.kind.call, peak_mib, seen_at=time.time()))
        largest_mib = min(card.memory_mib for card in self.cards)
        needs_mib = reservation(Learned(peak_mib), self.need.memory_mib, largest_mib=largest_mib)
        if self.lease is not None and needs_mib is not None:
            with suppress(OSError, GpuError):
                self.lease.amend(memory_mib=needs_mib)
                self._before.clear()  # from now on others use the card, too
        self._end_measurement()

    def call(
        self,
        function: Callable[[], R],
        *,
        sure: bool = False,
        ended: Hook = _nothing,
        watch: CardWatch | None = None,
    ) -> R:
        """Call a function on the cards, in this process; measure it and learn from it.

        `ended` is called when the function has returned or raised; `advice` says what it needed.
        `watch` asks the driver; without one, a child process is started for that.
        """
        ok = out_of_memory = False
        self.watch(driver=watch)
        try:
            result = function()
            ok = True
            return result
        except BaseException as error:
            out_of_memory = is_out_of_memory(error)
            raise
        finally:
            ended()
            device_in_use().empty_cache()  # first: the next holder needs that memory
            self.advice = self.finish(ok=ok, out_of_memory=out_of_memory, sure=sure)

    def finish(
        self, *, ok: bool, out_of_memory: bool = False, sure: bool = False, alone: bool = False
    ) -> str:
        """Learn from how the job ended, release everything, and return a line of advice.

        With `sure` a job without visible memory is taken to be small at once. With `alone` the job
        had its card for itself: if it ran out of memory, it needs more than that card has, even if
        it was never measured.
        """
        if self._finished:
            return ""
        self._finished = True
        peak_mib, seconds, at_least_mib = 0, 0.0, 0
        if self.meter is not None:
            seconds = self.meter.seconds
            peak_mib = self.meter.finish()
        if out_of_memory and (self.meter is not None or alone):
            at_least_mib = self._ran_out_with(peak_mib)
        kind = self.need.kind
        # A failed run says nothing about the peak, unless it used more than is known.
        known_mib = self._profiles.learned(kind).peak_mib
        telling = ok or (known_mib is not None and peak_mib > known_mib and not out_of_memory)
        row = ProfileRow(
            kind.call,
            self._believed(peak_mib, sure=sure) if telling else None,
            at_least_mib,
            seconds if ok else None,
            runs=int(ok),
            failures=int(not ok),
            seen_at=time.time(),
        )
        self._learn(row)
        self.close()
        self.needed = needed(peak_mib, self.cards[0].memory_mib) if peak_mib else ""
        return advice(self.need.name, peak_mib, self.cards[0].memory_mib, seconds)

    def _believed(self, peak_mib: int, *, sure: bool) -> int | None:
        """Return the peak to remember, or None.

        A job without visible memory may have used some between two samples, so this is only
        believed after `UNSEEN_RUNS` runs, and never where the driver does not say who uses what.
        """
        if not peak_mib and self.meter is not None and not self.meter.attributed:
            return None
        if peak_mib or sure:
            return peak_mib or CONTEXT_MIB
        rows = self._profiles.get(self.need.kind.type).rows
        own = next((row for row in rows if row.call == self.need.kind.call), None)
        if own is None or (own.peak_mib or 0) > CONTEXT_MIB:
            return None  # a run of which nothing was seen takes nothing back
        return CONTEXT_MIB if own.runs + 1 >= UNSEEN_RUNS else None

    def _ran_out_with(self, peak_mib: int) -> int:
        """Return how much memory was too little."""
        reserved_mib = self.reserved_mib
        if reserved_mib is not None:
            return max(reserved_mib, peak_mib)
        card = max(self.cards, key=lambda card: card.memory_mib)
        others_mib = card.used_mib or 0
        # A desktop never ends: with no more than that on the card, the job had it alone.
        if others_mib < ALONE * card.memory_mib:
            others_mib = 0
        return max(peak_mib, card.memory_mib - others_mib)

    def _learn(self, row: ProfileRow) -> None:
        with suppress(OSError):  # a full disk must not fail the job
            self._profiles.add(self.need.kind, row)

    def leave_timeline(self, path: str) -> None:
        """Write the samples of memory and utilisation."""
        if self.meter is not None:
            with suppress(OSError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="ascii") as file:
                    file.write(self.meter.timeline())

    def _end_measurement(self) -> None:
        measuring, self._measuring = self._measuring, None
        if measuring is not None:
            measuring.close()

    def close(self) -> None:
        """Release the cards and the right to measure."""
        self._finished = True
        if self.meter is not None:
            self.meter.close()
        if self.lease is not None:
            self.lease.release()
        self._end_measurement()

    def __enter__(self) -> Booking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def book(
    need: Need,
    *,
    ledger: Ledger,
    profiles: Profiles,
    cards: Sequence[Card],
    home: Card | None = None,
    say: Say | None = None,
    wanted: Callable[[], bool] | None = None,
    look: Callable[[], list[Card]] = inventory.cards,
) -> Booking:
    """Wait for enough free memory, or for a whole card to measure an unknown kind.

    Raises GpuError if no card is large enough. With `home` only that card can be used, since the
    process has initialised CUDA on it. The wait ends with CardHeld when `wanted` returns False.
    `look` lists the cards as they are now.
    """
    waiting = None if say is None else _once(lambda why: say(f"{need.name} waits: {why}"))
    while True:
        learned = profiles.learned(need.kind)
        visible = [home] if home is not None else list(cards)
        largest_mib = max((card.memory_mib for card in visible), default=0)
        asked_mib = reservation(learned, need.memory_mib, largest_mib=largest_mib)
        if learned.at_least_mib >= largest_mib > 0:
            raise GpuError(
                f"{need.name} is known to run out of memory with {from_mib(learned.at_least_mib)}, "
                f"and the largest card has {from_mib(largest_mib)}: "
                f"`postroom profiles forget {need.kind.type!r}` lets it try again"
            )
        measuring = None
        if asked_mib is None:
            measuring = profiles.try_measure(need.kind.type)
            if measuring is None:
                roomy = [card for card in visible if card.memory_mib > learned.at_least_mib]
                beside = _on_an_idle_card(need, ledger, roomy, profiles, look)
                if beside is not None:
                    return beside
                if waiting is not None:
                    waiting(f"another run of {need.kind.type} is being measured")
                if wanted is not None and not wanted():
                    raise CardHeld("nobody waits for the card any more")
                time.sleep(MEASURED_POLL_S)
                continue
            visible = [card for card in visible if card.memory_mib > learned.at_least_mib]
        try:
            # If the kind was measured just now, this measurement is not needed: look again.
            if profiles.learned(need.kind) == learned:
                lease = _acquire(need, asked_mib, ledger, visible, waiting, wanted)
                if measuring is not None or not _grown(need, profiles, asked_mib, largest_mib):
                    if measuring is not None:
                        visible = _as_they_are_now(visible, look)
                    granted = [card for card in visible if card.uuid in lease.cards]
                    return Booking(
                        need,
                        granted,
                        profiles=profiles,
                        lease=lease,
                        measuring=measuring,
                        alone=measuring is not None,
                    )
                lease.release()
        except BaseException:
            if measuring is not None:
                measuring.close()
            raise
        if measuring is not None:
            measuring.close()


def _on_an_idle_card(
    need: Need,
    ledger: Ledger,
    cards: list[Card],
    profiles: Profiles,
    look: Callable[[], list[Card]],
) -> Booking | None:
    """Measure a job while another of its type is measured, if a card is idle now."""
    try:
        lease = ledger.acquire(_request(need, None), 0, cards=cards)
    except CardHeld:
        return None
    granted = [card for card in _as_they_are_now(cards, look) if card.uuid in lease.cards]
    beside = Measuring()
    return Booking(need, granted, profiles=profiles, lease=lease, measuring=beside, alone=True)


def _as_they_are_now(cards: list[Card], look: Callable[[], list[Card]]) -> list[Card]:
    """Return the cards after a wait; as they were, if the driver does not answer."""
    with suppress(GpuError):
        uuids = [card.uuid for card in cards]
        return [card for card in look() if card.uuid in uuids] or cards
    return cards


def _request(need: Need, asked_mib: int | None) -> LeaseRequest:
    return LeaseRequest(
        count=need.count,
        memory_mib=asked_mib,
        name=need.name + need.where + ("" if asked_mib is not None else MEASURING),
        pack=need.pack,
        lasts_s=need.lasts_s,
    )


def _acquire(
    need: Need,
    asked_mib: int | None,
    ledger: Ledger,
    cards: list[Card],
    waiting: Callable[[str], None] | None,
    wanted: Callable[[], bool] | None,
) -> Lease:
    request = _request(need, asked_mib)
    planned = [c for c in cards if c.uuid == need.card and c.memory_mib >= (asked_mib or 0)]
    if planned and need.count == 1:
        # If somebody else has taken that card meanwhile, any card is fine.
        with suppress(CardHeld):
            return ledger.acquire(request, 0, cards=planned)
    return ledger.acquire(request, cards=cards, waiting=waiting, wanted=wanted)


def _grown(need: Need, profiles: Profiles, asked_mib: int | None, largest_mib: int) -> bool:
    """Whether the kind turned out to need more while the job waited."""
    now_mib = reservation(profiles.learned(need.kind), need.memory_mib, largest_mib=largest_mib)
    return now_mib is None or (asked_mib is not None and now_mib > asked_mib)


def held_for_us(ledger: Ledger, cards: Sequence[Card]) -> list[Card]:
    """Return the cards that this process or an ancestor holds: a session, a shell or a job."""
    lineage = [os.getpid(), *processes.ancestors()]
    guardian = os.environ.get(
        "POSTROOM_SHARES", ""
    )  # neither it nor its ancestors hold cards for us
    if guardian.isdecimal() and int(guardian) in lineage:
        lineage = lineage[: lineage.index(int(guardian))]
    here = processes.pid_namespace()
    for entry in reversed(ledger.holders()):
        if entry.process.pid in lineage and entry.process.pid_namespace == here:
            return [card for card in cards if card.uuid in entry.cards]
    return []


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    told: list[str] = []

    def say(why: str) -> None:
        if not told:
            told.append(why)
            tell(why)

    return say


def prune_timelines(folder: str) -> None:
    """Remove the oldest files of a folder that holds timelines and nothing else."""
    with suppress(OSError):
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        paths.sort(key=os.path.getmtime)
        for path in paths[:-TIMELINES]:
            os.unlink(path)
