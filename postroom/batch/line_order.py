"""Lines that wait for slots which have whole cards: as they come, unless some are more urgent."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

from ..commands.command_source import CommandSourceError
from ..commands.spec import CommandSpec
from ..jobs import Job


class Waiting(Protocol):
    """The lines of a batch that were read and not begun."""

    choosy: bool  # it has to know more lines than slots could take, to choose among them

    def __len__(self) -> int: ...

    def check(self, line: CommandSpec) -> CommandSpec:
        """Return a line that can be run at all; else raise FeedError."""

    def add(self, job: Job, line: CommandSpec) -> None:
        """Have a line wait."""

    def jobs(self) -> Iterable[Job]:
        """What waits."""

    def ended(self, job: Job) -> None:
        """A line that had begun has ended."""

    def begin(self, now: float, free: int) -> list[Job]:
        """Return what is to begin now, with so many slots that are free."""


class InOrder:
    """Lines of a batch whose slots have whole cards: the most urgent first, else as they come."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Job]] = []  # a heap
        self._count = 0
        self.choosy = False  # some line has a priority

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, line: CommandSpec) -> CommandSpec:
        """Refuse a line that asks for a part of a card, where slots have whole ones."""
        if line.memory:
            raise CommandSourceError(
                f"{line.command!r} asks for memory={line.memory!r}, and the slots of this batch "
                "have whole cards: with --memory auto its lines share them"
            )
        return line

    def add(self, job: Job, line: CommandSpec) -> None:
        """Have a line wait."""
        self.choosy |= line.scheduling.priority != 0
        self._count += 1
        heapq.heappush(self._waiting, (-line.scheduling.priority, self._count, job))

    def jobs(self) -> Iterable[Job]:
        """What waits."""
        return (job for *_, job in self._waiting)

    def ended(self, job: Job) -> None:
        """A line has ended."""

    def begin(self, now: float, free: int) -> list[Job]:
        """Return what is next: `free` jobs at most where the order matters, else all of them."""
        count = min(len(self._waiting), max(free, 0)) if self.choosy else len(self._waiting)
        return [heapq.heappop(self._waiting)[2] for _ in range(count)]
