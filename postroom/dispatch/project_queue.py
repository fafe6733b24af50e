"""The queue of a project: jobs that each have wishes of their own, sent one by one.

    WAITING --what it waits for has ended, nobody holds it--> READY --its turn--> OUT --> done
       ^------ held again --------------------------------------'        '-- came back --> WAITING

What is ready stands in heaps by what it needs of a session, so that the next job for any session is
found without looking at the others. Entries that are no longer true are left in their heap and
passed over. Like `schedule`, this has no disk and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from ..store.job_ids import JobId
from ..store.requests import Orders
from ..store.scheduling import SchedulingOptions
from .run_queue import RunQueue, Seat, Span

Shape = tuple[int, int]  # cards, and memory of each
Key = tuple[int, float, int]  # the smallest goes first


@dataclass(frozen=True)
class Verdict:
    """How a job that others wait for has ended."""

    ok: bool


class ProjectQueue(RunQueue):
    """The jobs of one project's run."""

    def __init__(
        self,
        run: str,
        orders: Orders,
        *,
        scheduling: Callable[[Span], Iterator[SchedulingOptions]],
        verdict: Callable[[JobId], Verdict | None],
    ) -> None:
        super().__init__(apart=True)
        self._run = run
        self._orders = orders
        self._read = scheduling  # of a range of jobs
        self._verdict = verdict  # of a job that may have ended
        self._scheduling: dict[int, SchedulingOptions] = {}  # of all that are not done
        self._missing: dict[int, set[JobId]] = {}  # what each waits for, and has not got
        self._waiters: dict[JobId, set[int]] = {}  # the same, seen from what is waited for
        self.in_vain: list[tuple[int, JobId]] = []  # who waits for what did not end well
        self._here: set[int] = set()  # neither out nor done
        self._key: dict[int, Key] = {}  # of what is ready
        self._heaps: dict[Shape, list[Key]] = {}

    # What waits

    def waiting(self) -> int:
        """How many jobs are neither out nor done."""
        return len(self._here)

    def extend(self, firsts: Iterable[int], asked: int, places: Iterable[int] = ()) -> None:
        """Take in new parcels, the last of which ends before job `asked`."""
        before = self.asked
        super().extend(firsts, asked, places)
        self._waiting.clear()
        self._take_in(before, self.asked)

    def recover(
        self,
        firsts: list[int],
        asked: int,
        sent: Iterable[tuple[int, int]],
        covered: Iterable[tuple[int, int]],
        places: Iterable[int] = (),
    ) -> None:
        """Start from what the folders say."""
        sent = list(sent)
        super().recover(firsts, asked, sent, covered, places)
        waiting, self._waiting = self._waiting, []
        for first, stop in waiting:
            self._take_in(first, stop)
        for first, stop in sent:
            self._scheduling.update(self._read_scheduling(first, stop))

    def _take_in(self, first: int, stop: int) -> None:
        verdicts: dict[JobId, Verdict | None] = {}  # many wait for the same few
        for job, scheduling in self._read_scheduling(first, stop):
            self._scheduling[job] = scheduling
            self._here.add(job)
            for other in scheduling.after + scheduling.after_any:
                self._missing.setdefault(job, set()).add(other)
                self._waiters.setdefault(other, set()).add(job)
                if other not in verdicts:
                    verdicts[other] = self._verdict(other)
                verdict = verdicts[other]
                if verdict is not None:
                    self._settle(job, other, verdict)
            self.reconsider(job)

    def _read_scheduling(self, first: int, stop: int) -> Iterator[tuple[int, SchedulingOptions]]:
        return zip(range(first, stop), self._read(self.span(first, stop)), strict=True)

    def put_back(self, first: int, stop: int) -> None:
        """Let jobs wait again."""
        for job in range(first, min(stop, self.asked)):
            self._here.add(job)
            self.reconsider(job)

    def withdraw(self, jobs: Collection[int]) -> list[tuple[int, int]]:
        """Take jobs out of the queue for good, as far as they wait; return their ranges."""
        taken: list[tuple[int, int]] = []
        for job in sorted(self._here.intersection(jobs)):
            self._here.discard(job)
            self._key.pop(job, None)
            joins = taken and taken[-1][1] == job
            taken.append((taken.pop()[0] if joins else job, job + 1))
        return taken

    def done_with(self, job: int) -> None:
        """A job has ended: nothing more is known of it."""
        self._here.discard(job)
        for about in (self._scheduling, self._missing, self._key):
            about.pop(job, None)

    # What is ready

    def reconsider(self, job: int) -> None:
        """See again whether a job is ready, and where it stands."""
        if job not in self._here:
            return
        name = JobId(self._run, job)
        scheduling = self._scheduling[job]
        if self._missing.get(job) or self._orders.held.get(name, scheduling.held):
            self._key.pop(job, None)
            return
        in_run = self._orders.run_priorities.get(self._run, scheduling.priority)
        priority = self._orders.priorities.get(name, in_run)
        key = (-priority, self._orders.places.get(name, float(job)), job)
        if self._key.get(job) != key:
            self._key[job] = key
            heapq.heappush(
                self._heaps.setdefault((scheduling.gpus, scheduling.memory_mib), []), key
            )

    def reconsider_all(self) -> None:
        """See again of all jobs whether they are ready, and where they stand."""
        for job in list(self._here):
            self.reconsider(job)

    def ended(self, other: JobId, verdict: Verdict) -> None:
        """A job that others may wait for has ended."""
        for job in self._waiters.pop(other, ()):
            if job in self._scheduling:
                self._settle(job, other, verdict)
                self.reconsider(job)

    def _settle(self, job: int, other: JobId, verdict: Verdict) -> None:
        if other in self._scheduling[job].after and not verdict.ok:
            self.in_vain.append((job, other))  # and it goes on missing it, so that it never starts
        else:
            self._missing[job].discard(other)

    def waits_for(self) -> set[JobId]:
        """All jobs that something here waits for."""
        return set(self._waiters)

    def place_of(self, job: int) -> float:
        """Where a job stands among those of the same priority."""
        return self._orders.places.get(JobId(self._run, job), float(job))

    def places(self) -> tuple[float, float]:
        """The first and the last place that is taken."""
        taken = [self.place_of(job) for job in self._here]
        return min(taken, default=0.0), max(taken, default=0.0)

    def urgency(self, seat: Seat) -> int | None:
        """The priority of the next job for a session; None: nothing is ready for it."""
        head = self._head(seat)
        return None if head is None else -head[0]

    def take(self, *, agents: int = 1, seat: Seat | None = None) -> Span | None:
        """Take the next job for a session out of the queue."""
        head = self._head(seat or Seat())
        if head is None:
            return None
        job = head[2]
        self._here.discard(job)
        del self._key[job]
        return self.span(job, job + 1)

    def _head(self, seat: Seat) -> Key | None:
        found = []
        for (gpus, memory_mib), heap in self._heaps.items():
            while heap and self._key.get(heap[0][2]) != heap[0]:
                heapq.heappop(heap)
            if heap and seat.has(gpus, memory_mib):
                found.append(heap[0])
        return min(found, default=None)
