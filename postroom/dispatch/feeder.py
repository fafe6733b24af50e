"""Writes the jobs of an iterable to its run while earlier ones are being worked on.

    iterable --next batch--> the append log --letters--> agents --results--> pool
                  ^                                                           |
                  '------------- as long as the window has room <-------------'

A window limits how far writing is ahead of the results, in jobs and in bytes. So a generator passes
through constant memory and disk, and the parcels of large jobs are written over earlier ones. A
list is to be resumable: when no result comes for a moment, the rest of it is written, too.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import PostroomError
from ..jobs import Job, check_job
from .background_writer import Writing
from .job_writer import PARCEL_JOBS, Batch, BatchFiller

# The first parcels are small, so that all agents get work at once.
FIRST_JOBS = 4
# A batch is not longer in the making than this, if its jobs come slowly.
BATCH_S = 0.01
# A batch of at least this many bytes is written by a thread of its own.
LARGE_BATCH = 512 << 10
# If no result came for so long, a list is written on beyond the window.
QUIET_S = 0.25


@dataclass(frozen=True)
class Window:
    """How far writing may be ahead of the results."""

    jobs: int = 10_000
    nbytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.nbytes < 1:
            raise PostroomError("a window has room for at least one job and one byte")


class Feeder:
    """The jobs that are still to be written."""

    def __init__(self, jobs: Iterable[Job], window: Window) -> None:
        self.total = len(jobs) if isinstance(jobs, Sequence) else None  # None: nobody knows
        self._used_up = False
        self._jobs: Iterator[Job] = iter(jobs)
        self._next: tuple[Job, dict[str, Any]] | None = None  # it did not go into the last batch
        self._block: deque[Job] = deque()  # the next ones of a list; they differ
        self._window = window
        self._most = FIRST_JOBS
        self._quiet_since = 0.0
        self.writing: deque[Writing] = deque()  # batches that are being written, in order
        self.is_large = False  # whether the last batch is a large one
        self._returned: deque[Batch] = deque()  # batches that could not be written

    def came(self, now: float) -> None:
        """A result has come."""
        self._quiet_since = now

    @property
    def ended(self) -> bool:
        """Whether all are written."""
        return self._used_up and not self.writing and not self._returned

    def has_room(self, jobs: int, nbytes: int, now: float, *, is_ahead: bool = False) -> bool:
        """Whether there are more, and may be written, if so much is written and has no result.

        `is_ahead`: all agents have enough to do for now.
        """
        if self._used_up and not self._returned:
            return False
        if jobs < self._window.jobs and nbytes < self._window.nbytes and not is_ahead:
            return True
        return self.total is not None and now >= self._quiet_since + QUIET_S

    def put_back(self, batches: Sequence[Batch]) -> None:
        """These could not be written: they come first, in this order, when somebody tries again."""
        self._returned.extendleft(reversed(batches))

    def next_batch(self) -> Batch:
        """The next jobs that share a parcel; empty at the end."""
        if self._returned:
            batch = self._returned.popleft()
            self.is_large = False  # in the thread that meets the error
            return batch
        filler = BatchFiller(self._most)
        if self.total is not None and self._next is None and not self._block:
            block = list(itertools.islice(self._jobs, self._most))
            if not filler.fill(block):
                self._block.extend(block)
        until = time.monotonic() + BATCH_S
        while not self._used_up and not filler.is_full:
            next_one, self._next = self._next, None
            if next_one is None:
                job = self._block.popleft() if self._block else next(self._jobs, None)
                if job is None:
                    self._used_up = True
                    break
                check_job(job)
                next_one = job, job.deploy()
            if not filler.add(*next_one):
                self._next = next_one
                break
            if time.monotonic() >= until:
                break
        self._most = min(2 * self._most, PARCEL_JOBS)
        self.is_large = filler.nbytes >= LARGE_BATCH
        return filler.batch
