"""Pack 200 simulated jobs onto four cards of 24 GB: python -m benchmarks.packing [--picture FILE]

Six kinds of 1 to 20 GB, with ramps of several seconds; two kinds fail, one job is killed. Time is
simulated, the decisions are not: `packing` says how much each job asks for and `allocation` who
gets which card, as on real cards. At every instant it is checked that no card is over-booked, by
what is reserved and by what is used. The makespan is compared with a lower bound that no schedule
can beat (each job's memory times its seconds, over what the cards have; or the longest job), and
with one job per card in the same simulation.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import dataclass, field

from postroom.gpus.allocation import Share, Slot, Table, Want, serve
from postroom.gpus.packing import Growth, Learned, order, reservation

from .gantt import draw

CARD_MIB = 24 * 1024
CARDS = tuple(f"card {number}" for number in range(4))


@dataclass(frozen=True)
class Kind:
    """One kind of job: how much, how soon, how long, how many, and what goes wrong with it."""

    name: str
    peak_mib: int
    ramp_s: float
    seconds: float
    count: int
    fails: bool = False  # the first to run, and one in eight, raise half-way


KINDS = (
    Kind("probe", 1 * 1024, 3, 40, 46),
    Kind("small", 2 * 1024, 4, 60, 44),
    Kind("tune", 3 * 1024, 5, 80, 36, fails=True),
    Kind("train", 15 * 512, 8, 120, 30),
    Kind("large", 23 * 512, 8, 150, 22, fails=True),
    Kind("huge", 20 * 1024, 10, 160, 22),
)


@dataclass
class Task:
    """One job on its way through the simulation."""

    number: int
    kind: Kind
    ends_after_s: float  # the whole of it, or less where it fails or is killed
    ending: str = "ok"
    card: str = ""
    reserved_mib: int | None = None
    started: float = 0.0
    ended: float | None = None
    measuring: bool = False
    growth: Growth = field(default_factory=lambda: Growth(0.0))

    def used_mib(self, now: float) -> int:
        """What it uses of its card at a moment: a ramp, then all of it."""
        part = min(1.0, (now - self.started) / self.kind.ramp_s)
        return int(self.kind.peak_mib * part)

    @property
    def gib_s(self) -> float:
        """The memory it needs, over the time it runs: a promise is kept through the ramp, too."""
        return self.kind.peak_mib * self.ends_after_s / 1024


def tasks(seed: int) -> list[Task]:
    """The mix, in random order."""
    chance = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(kind.count)]
    chance.shuffle(kinds)
    made = []
    seen: dict[str, int] = {}
    for number, kind in enumerate(kinds):
        nth = seen[kind.name] = seen.get(kind.name, 0) + 1
        seconds = kind.seconds * chance.uniform(0.9, 1.1)
        task = Task(number, kind, seconds)
        if kind.fails and nth % 8 == 1:
            task.ends_after_s, task.ending = seconds / 2, "failed"
        elif kind.name == "huge" and nth == 1:
            task.ends_after_s, task.ending = seconds / 3, "killed"
        made.append(task)
    return made


class OverBooked(Exception):
    """A card has less memory than was promised or is used."""


class Simulation:
    """Cards, a line and a clock that jumps from event to event."""

    def __init__(self, waiting: list[Task], *, packed: bool) -> None:
        self.waiting = list(waiting)
        self.running: list[Task] = []
        self.packed = packed
        self.learned: dict[str, Learned] = {kind.name: Learned() for kind in KINDS}
        self.now = 0.0
        self.fullest_mib = 0

    def run(self) -> float:
        """Run until nothing is left, and return when that was."""
        while self.waiting or self.running:
            self.hand_out()
            self.check()
            if not self.running:
                raise AssertionError(f"stuck with {len(self.waiting)} waiting")
            self.now = min(self._next(task) for task in self.running)
            for task in list(self.running):
                self.look(task)
        return self.now

    def _next(self, task: Task) -> float:
        """When something may happen to a task: it grows, settles or ends."""
        end = task.started + task.ends_after_s
        if task.measuring:
            return min(end, self.now + 1.0)  # a reading every second
        full = task.started + task.kind.ramp_s
        return full if self.now < full < end else end

    def hand_out(self) -> None:
        """Walk the line once, as everybody in it does for themselves."""
        slots = [Slot(card, CARD_MIB, rank) for rank, card in enumerate(CARDS)]
        held = [Share(task.card, task.reserved_mib, 0) for task in self.running]
        table = Table(slots, held, drains=len(CARDS))
        gates = {task.kind.name for task in self.running if task.measuring}
        asking: list[tuple[Task, int | None]] = []
        for task in self.waiting:
            asked_mib = None
            if self.packed:
                known = self.learned[task.kind.name]
                asked_mib = reservation(known, None, largest_mib=CARD_MIB)
                if asked_mib is None and task.kind.name in gates:
                    continue  # one of its kind measures, or is about to: it is not in the line
                if asked_mib is None:
                    gates.add(task.kind.name)
            asking.append((task, asked_mib))
        for place in order([asked_mib for _, asked_mib in asking]):
            task, asked_mib = asking[place]
            chosen = serve(table, Want(1, CARDS, asked_mib, pack=True))
            if chosen is not None:
                self.start(task, chosen[0], asked_mib)

    def start(self, task: Task, card: str, reserved_mib: int | None) -> None:
        """Start a task on a card."""
        self.waiting.remove(task)
        self.running.append(task)
        task.card, task.reserved_mib, task.started = card, reserved_mib, self.now
        task.measuring = self.packed and reserved_mib is None
        task.growth = Growth(self.now)

    def look(self, task: Task) -> None:
        """Read a task's memory; end it when its time has come."""
        if self.now >= task.started + task.ends_after_s - 1e-9:
            self.running.remove(task)
            task.ended = self.now
            if task.measuring and task.ending == "ok":
                self.learn(task)
        elif task.measuring:
            task.growth.add(self.now, task.used_mib(self.now))
            if task.growth.settled(self.now):
                self.learn(task)
                known = self.learned[task.kind.name]
                task.reserved_mib = reservation(known, None, largest_mib=CARD_MIB)
                task.measuring = False

    def learn(self, task: Task) -> None:
        """Take in the peak of a measuring run."""
        task.growth.add(self.now, task.used_mib(self.now))
        self.learned[task.kind.name] = Learned(task.growth.peak_mib)

    def check(self) -> None:
        """Nothing is over-booked, neither by what is promised nor by what is used."""
        for card in CARDS:
            on_card = [task for task in self.running if task.card == card]
            wholes = [task for task in on_card if task.reserved_mib is None]
            reserved = sum(task.reserved_mib or 0 for task in on_card)
            # Between events use only grows along ramps, up to the peaks: so these are checked.
            used = sum(task.kind.peak_mib for task in on_card)
            if (wholes and len(on_card) > 1) or max(reserved, used) > CARD_MIB:
                raise OverBooked(f"{card} at {self.now:.1f} s: {on_card}")
            self.fullest_mib = max(self.fullest_mib, used)


def bound_s(done: list[Task]) -> float:
    """No schedule is shorter: the memory needed over what there is, or the longest job."""
    area = sum(task.gib_s for task in done) / (len(CARDS) * CARD_MIB / 1024)
    return max(area, max(task.ends_after_s for task in done))


@dataclass(frozen=True)
class Result:
    """One simulated afternoon."""

    seed: int
    packed_s: float
    alone_s: float
    bound_s: float
    endings: dict[str, int]

    @property
    def ratio(self) -> float:
        """The makespan over the lower bound."""
        return self.packed_s / self.bound_s


def simulate(seed: int) -> tuple[Result, list[Task]]:
    """Pack one mix, and run it with one job per card, too."""
    packed, alone = tasks(seed), tasks(seed)
    packed_s = Simulation(packed, packed=True).run()
    alone_s = Simulation(alone, packed=False).run()
    endings: dict[str, int] = {}
    for task in packed:
        assert task.ended is not None
        endings[task.ending] = endings.get(task.ending, 0) + 1
    return Result(seed, packed_s, alone_s, bound_s(packed), endings), packed


def main() -> int:
    """Simulate several mixes and tell the worst of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mixes", type=int, default=20, help="how many orders of the jobs")
    parser.add_argument("--json", action="store_true", help="print every figure")
    parser.add_argument("--picture", metavar="FILE", help="write cards over time, as SVG")
    options = parser.parse_args()
    runs = [simulate(seed) for seed in range(options.mixes)]
    results = [result for result, _ in runs]
    if options.json:
        print(json.dumps([vars(result) | {"ratio": result.ratio} for result in results]))
    else:
        worst = max(results, key=lambda result: result.ratio)
        median = statistics.median(result.ratio for result in results)
        faster = statistics.median(result.alone_s / result.packed_s for result in results)
        print(f"{sum(worst.endings.values())} jobs, {len(results)} orders: {worst.endings}")
        print(f"makespan over the lower bound: median {median:.3f}, worst {worst.ratio:.3f}")
        print(f"one job per card takes {faster:.2f} times as long; never over-booked, none stuck")
    if options.picture:
        result, done = runs[0]
        with open(options.picture, "w", encoding="utf-8") as file:
            file.write(draw(done, CARDS, CARD_MIB, result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
