"""Lists waiting jobs in the order in which they will be sent, and reads only those it shows.

The rule is the dispatcher's own (`dispatch.send_order`). Almost all jobs of a long queue have no
options and are kept as ranges of numbers; only jobs with options, and jobs that an order names, are
kept one by one.

The list starts with the oldest run: which run the dispatcher served last is known to nobody else.
A letter may hold many short jobs of a run, and a session that lacks the GPUs or the memory for a
job gets the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..dispatch.send_order import NO_RUN, JobKey, RunAge, run_age, turn_key
from .run_reader import RunReader

NO_LEVELS: Mapping[str, int] = {}


@dataclass
class WaitingRun:
    """The waiting jobs of one run."""

    reader: RunReader
    priority: int  # of the jobs in `ranges`
    ranges: list[tuple[int, int]]  # of jobs without options
    single: dict[int, list[JobKey]] = field(default_factory=dict)  # other jobs, by priority

    @property
    def project(self) -> str:
        """The project whose queue it is; empty for any other run."""
        return self.reader.info.project if self.reader.info.queue else ""

    @property
    def age(self) -> RunAge:
        """Its place among runs that take turns."""
        return run_age(self.reader.info)

    def add(self, key: JobKey) -> None:
        """Add a single job."""
        self.single.setdefault(-key[0], []).append(key)

    def count(self) -> int:
        """How many jobs wait."""
        ranges = sum(stop - first for first, stop in self.ranges)
        return ranges + sum(map(len, self.single.values()))

    def priorities(self) -> set[int]:
        """The priorities of its jobs."""
        return {*self.single, *([self.priority] if self.ranges else [])}

    def numbers(self, priority: int) -> Iterator[int]:
        """The jobs of one priority, in their order."""
        single = sorted(self.single.get(priority, ()))
        if priority != self.priority:
            return (key[2] for key in single)
        usual = (number for first, stop in self.ranges for number in range(first, stop))
        if not single:
            return usual
        keys = ((-priority, float(number), number) for number in usual)
        return (key[2] for key in heapq.merge(single, keys))


def in_order(
    runs: Sequence[WaitingRun], level: Mapping[str, int] = NO_LEVELS
) -> Iterator[tuple[RunReader, int]]:
    """The waiting jobs of some runs, as they will be sent.

    `level` is how much each project has used (`store.project_shares`). What jobs will use that are
    not sent yet is not known: those of a project that has used more are listed behind the others.
    """
    by_priority: dict[int, list[WaitingRun]] = {}
    for run in runs:
        for priority in run.priorities():
            by_priority.setdefault(priority, []).append(run)
    last = NO_RUN
    for priority in sorted(by_priority, reverse=True):
        by_level: dict[int, list[WaitingRun]] = {}
        for run in by_priority[priority]:
            by_level.setdefault(level.get(run.project, 0), []).append(run)
        for used in sorted(by_level):
            among = sorted(by_level[used], key=lambda run: turn_key(priority, run.age, last))
            left = [(run, run.numbers(priority)) for run in among]
            while left:
                for turn in list(left):
                    run, numbers = turn
                    number = next(numbers, None)
                    if number is None:
                        left.remove(turn)
                    else:
                        last = run.age
                        yield run.reader, number


def without(spans: Sequence[tuple[int, int]], jobs: Iterable[int]) -> list[tuple[int, int]]:
    """Ranges without some of their numbers."""
    found: list[tuple[int, int]] = []
    out = sorted(jobs)
    at = 0
    for first, stop in spans:
        while at < len(out) and out[at] < first:
            at += 1
        while at < len(out) and out[at] < stop:
            if first < out[at]:
                found.append((first, out[at]))
            first = out[at] + 1
            at += 1
        if first < stop:
            found.append((first, stop))
    return found
