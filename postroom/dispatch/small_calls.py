"""The jobs of one small call of `Master.run`, in a run that many such calls share.

A run of its own costs some milliseconds and ten files. So a Master keeps one run open for small
calls. Each call appends its jobs there and waits for them. What it returns has its results in
memory, under numbers of its own that begin at 0; on disk they are removed, since they were handed
out. A call that is interrupted leaves its jobs in the run, to be resumed, and the next call begins
another. So does one with a job that failed: that stays on disk, for a look at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..jobs import Driver, Job, JobPool, check_job
from ..parcel.jsonable import weight
from ..parcel.sheets import JobEnd, OutcomeSheet
from ..store.base import Base
from ..store.files import Files
from ..store.job_ids import JobId

# More jobs, or more bytes of several jobs, have a run of their own, which is written as it is done.
MOST_JOBS = 16
MOST_BYTES = 1 << 20


def is_small_call(jobs: Sequence[Job]) -> bool:
    """Whether jobs may share a run with those of other calls: one job, or a few small ones."""
    if not 0 < len(jobs) <= MOST_JOBS:
        return False
    for job in jobs:
        check_job(job)
    return len(jobs) == 1 or sum(weight(job.arguments) for job in jobs) <= MOST_BYTES


class SmallCall(JobPool):
    """The pool of one small call: its jobs lie somewhere in a run."""

    def __init__(
        self, files: Files, base: Base, within: JobPool, jobs: Sequence[Job], master: Driver
    ) -> None:
        """The jobs are the last ones of the pool that they lie `within`."""
        super().__init__(files, base, within.info, jobs, master)
        self.is_open = True  # the end of a wait for it does not end the run
        self._within = within
        # The numbers of its jobs in the run; those of their copies, if they were run again.
        self.numbers = list(range(len(within.jobs) - len(jobs), len(within.jobs)))

    def gather(self) -> bool:
        """Take over the results that have come; whether all have."""
        for number, place in enumerate(self.numbers):
            if number not in self._first_of:
                self._take_over(number, self._within, place)
        return self.done

    def _take_over(self, number: int, pool: JobPool, place: int) -> None:
        """Take over one result, if it has come."""
        sheet = pool.sheet_of(place)
        if sheet is not None:
            moved = MovedOutcome(sheet, place, number)
            self._add(moved)
            self._sheet_of[number] = moved  # a large one stays mapped when its file is gone

    def id_of(self, number: int) -> JobId:
        return self._within.id_of(self.numbers[number])

    def retry(self) -> JobPool:
        """Run every job that failed once more, with its kernel as it is now."""
        within = self._within
        places = self._append_failed(within)
        done = places.values()
        for _ in self._master.rounds(within, until=lambda: all(map(within.sheet_of, done))):
            pass
        for number, place in places.items():
            del self._failures[number], self._first_of[number]
            self._arrived.remove(number)
            self._n_done -= 1
            self.numbers[number] = place
            self._take_over(number, within, place)
        return self


class MovedOutcome(OutcomeSheet):
    """One outcome of a sheet, under another number."""

    def __init__(self, sheet: OutcomeSheet, place: int, number: int) -> None:
        self._moved, self._place = sheet, place
        self.parcel, self.nbytes, self.ran_by = sheet.parcel, sheet.nbytes, sheet.ran_by
        self.first, self.count = number, 1
        self.seconds = [sheet.seconds[place - sheet.first]]
        self.failures = {number: sheet.failures[place]} if place in sheet.failures else {}

    def done(self, job: int) -> JobEnd:
        return self._moved.done(self._place)

    def value(self, job: int) -> Any:
        return self._moved.value(self._place)

    def values(self, first: int, stop: int) -> list[Any]:
        return [self.value(job) for job in range(first, stop)]
