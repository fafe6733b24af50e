"""Pack 200 simulated jobs onto four cards of 24 GB: python -m benchmarks.packing [--picture FILE]

Six kinds of 1 to 20 GB, with ramps of several seconds; two kinds fail, one job is killed. Time is
simulated, the decisions are not: `packing` says how much each job asks for, and `plan` which jobs
begin and where, as in `postroom run --memory auto`. At every instant it is checked that no card is
over-booked, by what is reserved and by what is used.

The makespan is compared with lower bounds, and with one job per card in the same simulation:

    area   GB times seconds over what the cards have, or the longest job: once with what each job
           has to be kept, its peak, and once with what is really used, ramps and all
    cover  no schedule beats it that keeps a job's peak for it from its first moment: see `cover_s`;
           also with the margins of memory that we keep beside the peak

The mix of the issue is packed in several orders; then come mixes of random sizes, times and counts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from postroom.gpus.ledger.allocation import AvailableCard, CardAllocator, CardShare
from postroom.gpus.memory.packing import Growth, Learned, reservation
from postroom.gpus.memory.placement import PlacementRequest, place_jobs

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
        """The memory it uses, over the time it runs."""
        ramp_s = min(self.kind.ramp_s, self.ends_after_s)
        return self.kind.peak_mib * (self.ends_after_s - ramp_s / 2) / 1024


def random_kinds(seed: int) -> tuple[Kind, ...]:
    """Six kinds of random sizes, times and counts, 200 jobs together."""
    chance = random.Random(seed)
    cuts = [0, *sorted(chance.sample(range(10, 190), 5)), 200]
    counts = [stop - start for start, stop in pairwise(cuts)]
    chance.shuffle(counts)
    sizes = [1.0, 20.0, *(chance.uniform(1, 20) for _ in range(4))]
    return tuple(
        Kind(
            f"{size:.1f} GB",
            int(size * 1024),
            ramp_s=chance.uniform(3, 10),
            seconds=chance.uniform(40, 160),
            count=count,
            fails=place in (2, 4),
        )
        for place, (size, count) in enumerate(zip(sizes, counts, strict=True))
    )


def tasks(seed: int, mix: Sequence[Kind] = KINDS) -> list[Task]:
    """The jobs of a mix, in random order."""
    chance = random.Random(seed)
    kinds = [kind for kind in mix for _ in range(kind.count)]
    chance.shuffle(kinds)
    made = []
    seen: dict[str, int] = {}
    for number, kind in enumerate(kinds):
        nth = seen[kind.name] = seen.get(kind.name, 0) + 1
        seconds = kind.seconds * chance.uniform(0.9, 1.1)
        task = Task(number, kind, seconds)
        if kind.fails and nth % 8 == 1:
            task.ends_after_s, task.ending = seconds / 2, "failed"
        elif kind.peak_mib == 20 * 1024 and nth == 1:
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
        self.learned = {task.kind.name: Learned() for task in waiting}
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
        """Begin what there is room for."""
        available = [AvailableCard(card, CARD_MIB, rank) for rank, card in enumerate(CARDS)]
        held = [CardShare(task.card, task.reserved_mib, 0) for task in self.running]
        allocator = CardAllocator(available, held, most_drained=len(CARDS))
        gates = {task.kind.name for task in self.running if task.measuring}
        asking: list[tuple[Task, PlacementRequest]] = []
        for task in self.waiting:
            asked_mib = None
            if self.packed:
                known = self.learned[task.kind.name]
                asked_mib = reservation(known, None, largest_mib=CARD_MIB)
                if asked_mib is None and task.kind.name in gates:
                    continue  # one of its kind measures, or is about to
                if asked_mib is None:
                    gates.add(task.kind.name)
            asking.append((task, PlacementRequest(asked_mib, CARDS)))
        for place, card in place_jobs(allocator, [ask for _, ask in asking]):
            task, ask = asking[place]
            self.start(task, card, ask.memory_mib)

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


def area_s(done: Sequence[Task], *, peaks: bool = False) -> float:
    """No schedule is shorter: the memory used, or kept, over what there is; or the longest job."""
    if peaks:
        area = sum(task.kind.peak_mib / 1024 * task.ends_after_s for task in done)
    else:
        area = sum(task.gib_s for task in done)
    capacity = len(CARDS) * CARD_MIB / 1024
    return max(area / capacity, max(task.ends_after_s for task in done))


def cover_s(done: Sequence[Task], *, margins: bool = False) -> float:
    """No schedule is shorter that keeps for each job its peak from its first moment.

    With `margins`, none that keeps what we keep: a little more, since no two runs are quite equal.

    At every instant the jobs on a card are a set that fits: their peaks add up to no more than it
    has. Give each kind a weight such that no set that fits weighs more than one. Then all cards
    together do no more weight in a second than there are cards, so that each job's weight times its
    seconds, added up and divided by the cards, takes at least so long. Any such weights are proof;
    those that prove most are the prices of Gilmore and Gomory's linear programme for cutting stock,
    found here by the simplex method, and scaled so that they hold whatever was rounded.
    """
    kinds = sorted({task.kind for task in done}, key=lambda kind: -kind.peak_mib)
    seconds = np.array([sum(t.ends_after_s for t in done if t.kind == kind) for kind in kinds])
    sizes = [kept_mib(kind.peak_mib) if margins else kind.peak_mib for kind in kinds]
    sets = np.array(list(_fitting(sizes, CARD_MIB)), dtype=float)
    columns = np.vstack([sets, -np.eye(len(kinds))])  # a card's second on a set; time left over
    costs = np.array([1.0] * len(sets) + [0.0] * len(kinds))
    basis = np.diag([float(CARD_MIB // size) for size in sizes])
    paid = np.ones(len(kinds))
    amounts = seconds / np.diag(basis)
    while True:
        weights = np.linalg.solve(basis.T, paid)
        gains = columns @ weights - costs
        best = int(gains.argmax())
        if gains[best] <= 1e-9:
            break
        change = np.linalg.solve(basis, columns[best])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(change > 1e-12, amounts / change, np.inf)
        leaving = int(ratios.argmin())
        step = ratios[leaving]
        amounts = np.maximum(amounts - step * change, 0)
        amounts[leaving], basis[:, leaving], paid[leaving] = step, columns[best], costs[best]
    weights = np.maximum(weights, 0)
    weights /= max(1.0, float((sets @ weights).max()))
    return max(float(seconds @ weights) / len(CARDS), max(task.ends_after_s for task in done))


def kept_mib(peak_mib: int) -> int:
    """What is reserved for a job whose peak is known."""
    return reservation(Learned(peak_mib), None, largest_mib=CARD_MIB) or CARD_MIB


def _fitting(sizes: list[int], room: int) -> Iterator[list[int]]:
    """List the sets of jobs that fit, by how many of each size; the last as many as there can."""
    if len(sizes) == 1:
        yield [room // sizes[0]]
        return
    for count in range(room // sizes[0] + 1):
        for rest in _fitting(sizes[1:], room - count * sizes[0]):
            yield [count, *rest]


@dataclass(frozen=True)
class Result:
    """One simulated afternoon."""

    seed: int
    packed_s: float
    alone_s: float
    area_s: float
    peak_area_s: float
    cover_s: float
    kept_s: float
    endings: dict[str, int]

    @property
    def by_area(self) -> float:
        """The makespan over the bound of what is used."""
        return self.packed_s / self.area_s

    @property
    def by_peaks(self) -> float:
        """The makespan over the bound of peaks times seconds."""
        return self.packed_s / self.peak_area_s

    @property
    def by_cover(self) -> float:
        """The makespan over the bound of what fits together."""
        return self.packed_s / self.cover_s

    @property
    def by_kept(self) -> float:
        """The same, with the margins that are kept."""
        return self.packed_s / self.kept_s


def simulate(seed: int, mix: Sequence[Kind] = KINDS) -> tuple[Result, list[Task]]:
    """Pack one mix, and run it with one job per card, too."""
    packed, alone = tasks(seed, mix), tasks(seed, mix)
    packed_s = Simulation(packed, packed=True).run()
    alone_s = Simulation(alone, packed=False).run()
    endings: dict[str, int] = {}
    for task in packed:
        assert task.ended is not None
        endings[task.ending] = endings.get(task.ending, 0) + 1
    result = Result(
        seed,
        packed_s,
        alone_s,
        area_s=area_s(packed),
        peak_area_s=area_s(packed, peaks=True),
        cover_s=cover_s(packed),
        kept_s=cover_s(packed, margins=True),
        endings=endings,
    )
    return result, packed


def tell(title: str, results: Sequence[Result]) -> None:
    """Print the middle and the worst of some mixes."""
    jobs = sum(results[0].endings.values())
    print(f"{title}: {len(results)} times {jobs} jobs, the first {results[0].endings}")
    for bound, ratios in (
        ("what fits together", [result.by_cover for result in results]),
        ("what fits with margins", [result.by_kept for result in results]),
        ("peaks times seconds", [result.by_peaks for result in results]),
        ("what is used", [result.by_area for result in results]),
    ):
        middle = statistics.median(ratios)
        print(f"  makespan over the bound of {bound}: median {middle:.3f}, worst {max(ratios):.3f}")
    slower = statistics.median(result.alone_s / result.packed_s for result in results)
    print(f"  one job per card takes {slower:.2f} times as long")


def main() -> int:
    """Simulate several mixes and tell the middle and the worst of them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mixes", type=int, default=20, help="how many of each sort")
    parser.add_argument("--json", action="store_true", help="print every figure")
    parser.add_argument("--picture", metavar="FILE", help="write cards over time, as SVG")
    options = parser.parse_args()
    runs = [simulate(seed) for seed in range(options.mixes)]
    chosen = [result for result, _ in runs]
    mixed = [simulate(seed, random_kinds(seed))[0] for seed in range(options.mixes)]
    if options.json:
        print(json.dumps({"mix": [*map(vars, chosen)], "random": [*map(vars, mixed)]}))
    else:
        tell("one mix in random order", chosen)
        tell("random mixes", mixed)
        print("never over-booked, none stuck")
    if options.picture:
        result, done = runs[0]
        with open(options.picture, "w", encoding="utf-8") as file:
            file.write(draw(done, CARDS, CARD_MIB, result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
