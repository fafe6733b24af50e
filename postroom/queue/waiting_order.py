"""The order in which waiting jobs will be sent, found lazily: a page of it costs a page.

By priority, then each run in turn, then by place: the acting Master's own order. Almost all jobs
of a long queue are plain, and stand in it as ranges of numbers; only those with a wish, or about
which somebody has asked something, are looked at one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .run_reader import RunReader

Place = tuple[float, int]  # where a job stands in its run, and its number


@dataclass
class WaitingLine:
    """What waits of one run."""

    reader: RunReader
    priority: int  # of its plain jobs
    plain: list[tuple[int, int]]  # ranges
    special: dict[int, list[Place]] = field(default_factory=dict)  # by priority

    def count(self) -> int:
        """How many jobs stand in it."""
        ranges = sum(stop - first for first, stop in self.plain)
        return ranges + sum(map(len, self.special.values()))

    def priorities(self) -> set[int]:
        """The priorities that occur in it."""
        return {*self.special, *([self.priority] if self.plain else [])}

    def at(self, priority: int) -> Iterator[int]:
        """The jobs of one priority, in their order."""
        special = sorted(self.special.get(priority, ()))
        plain = self._plain() if priority == self.priority else iter(())
        if not special:
            return (number for _, number in plain)
        return (number for _, number in heapq.merge(special, plain))

    def _plain(self) -> Iterator[Place]:
        for first, stop in self.plain:
            for number in range(first, stop):
                yield float(number), number


def in_order(lines: Sequence[WaitingLine]) -> Iterator[tuple[RunReader, int]]:
    """All jobs of some runs, as they will be sent."""
    by_priority: dict[int, list[WaitingLine]] = {}
    for line in lines:
        for priority in line.priorities():
            by_priority.setdefault(priority, []).append(line)
    for priority, among in sorted(by_priority.items(), key=lambda item: -item[0]):
        yield from _in_turn([(line.reader, line.at(priority)) for line in among])


def _in_turn(lines: Iterable[tuple[RunReader, Iterator[int]]]) -> Iterator[tuple[RunReader, int]]:
    left = list(lines)
    while left:
        for entry in list(left):
            number = next(entry[1], None)
            if number is None:
                left.remove(entry)
            else:
                yield entry[0], number


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
