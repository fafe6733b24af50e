"""The order of a batch's waiting lines if slots have whole GPUs: priority, then file order."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Protocol

from ..commands.command_source import CommandSourceError
from ..commands.spec import CommandSpec
from ..jobs import Job


class Waiting(Protocol):
    """The lines of a batch that were read and not started."""

    order_matters: bool  # it has to see more lines than there are free slots

    def __len__(self) -> int: ...

    def check(self, line: CommandSpec) -> CommandSpec:
        """Return a line that can run; else raise CommandSourceError."""

    def add(self, job: Job, line: CommandSpec) -> None:
        """Add a waiting line."""

    def jobs(self) -> Iterable[Job]:
        """Return the waiting jobs."""

    def ended(self, job: Job) -> None:
        """Note that a job has ended."""

    def begin(self, now: float, free: int) -> list[Job]:
        """Return the jobs to start now, with `free` slots."""


class InOrder:
    """Waiting lines by priority, then in their order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Job]] = []  # a heap
        self._count = 0
        self.order_matters = False  # some line has a priority

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, line: CommandSpec) -> CommandSpec:
        """Refuse a line that declares memory: the slots have whole GPUs."""
        if line.memory:
            raise CommandSourceError(
                f"{line.command!r} declares memory={line.memory!r}, but slots have whole GPUs: to "
                "share them, run the batch with --memory auto"
            )
        return line

    def add(self, job: Job, line: CommandSpec) -> None:
        """Add a waiting line."""
        self.order_matters |= line.scheduling.priority != 0
        self._count += 1
        heapq.heappush(self._waiting, (-line.scheduling.priority, self._count, job))

    def jobs(self) -> Iterable[Job]:
        """Return the waiting jobs."""
        return (job for *_, job in self._waiting)

    def ended(self, job: Job) -> None:
        """Do nothing: a slot that is free again is counted elsewhere."""

    def begin(self, now: float, free: int) -> list[Job]:
        """Return the next jobs: at most `free` if there are priorities, else all."""
        count = min(len(self._waiting), max(free, 0)) if self.order_matters else len(self._waiting)
        return [heapq.heappop(self._waiting)[2] for _ in range(count)]
