"""The queue of a project: jobs that each have scheduling options of their own.

    WAITING --what it waits for has ended, nobody holds it--> READY --its turn--> OUT --> done
       ^------ held again --------------------------------------'        '-- came back --> WAITING

Jobs that are ready are in heaps, one for each combination of what jobs ask for, and one for each
group of jobs of which only some may run at once: the next job for a session is found without
looking at all of them. Outdated entries are left in their heap and skipped. Like `run_queue`, this
knows neither disk nor clock: `begin_due` is told the time.

A letter has one job, unless the jobs of this queue have been so short that sending them takes
longer than running them. Then it has as many as take some 30 ms together, and only such as would be
sent one after the other anyway. A session gives back what it has not begun when a job takes longer
than that (`Inbox.linger`) or fails, so no job waits long behind another of its letter.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from ..store.job_ids import JobId
from ..store.requests import Orders
from ..store.scheduling import SchedulingOptions
from .run_queue import NEAR_LETTER, Capacity, JobRange, RunQueue
from .send_order import JobKey, is_held, job_key, position_of

# Cards, memory of each, where, kinds of cards, how long it can take, if it shares; and its group.
Shape = tuple[int, int, str, str, float, bool, str]


class ProjectQueue(RunQueue):
    """The jobs of one project's run."""

    def __init__(
        self,
        run: str,
        orders: Orders,
        *,
        scheduling: Callable[[JobRange], Iterator[SchedulingOptions]],
        ended_well: Callable[[JobId], bool | None],
    ) -> None:
        super().__init__()
        self._run = run
        self._orders = orders
        self._read = scheduling  # of a range of jobs
        self._ended_well = ended_well  # None: the job has not ended
        self._scheduling: dict[int, SchedulingOptions] = {}  # of all that are not done
        self._missing: dict[int, set[JobId]] = {}  # what each job still waits for
        self._waiters: dict[JobId, set[int]] = {}  # the same, by the job that is waited for
        self.unreachable: list[tuple[int, JobId]] = []  # job, and the failed job that it waits for
        self._here: set[int] = set()  # neither out nor done
        self._key: dict[int, JobKey] = {}  # of what is ready
        self._heaps: dict[Shape, list[JobKey]] = {}
        self._later: list[tuple[float, int]] = []  # jobs with a time to begin, the next first
        self._due = 0.0  # until when jobs have begun to be due
        self._out_of_group: dict[str, set[int]] = {}
        self._failed_of_group: dict[str, int] = {}

    # What waits

    def waiting(self) -> int:
        """How many jobs are neither out nor done."""
        return len(self._here)

    def fitting(self, capacity: Capacity) -> int:
        """How many jobs are ready that a session with this capacity could begin now."""
        shapes = Counter(_shape(self._scheduling[job]) for job in self._key)
        return sum(count for shape, count in shapes.items() if capacity.has(*shape[:6]))

    def fitting_at_most(self, capacity: Capacity) -> int:
        """The same, or a little more, without looking at all of them."""
        return sum(len(heap) for shape, heap in self._heaps.items() if capacity.has(*shape[:6]))

    def extend(self, firsts: Iterable[int], n_jobs: int, offsets: Iterable[int] = ()) -> None:
        """Add new parcels; the run now has `n_jobs` jobs."""
        before = self.n_jobs
        super().extend(firsts, n_jobs, offsets)
        self._waiting.clear()
        self._take_in(before, self.n_jobs)

    def recover(
        self,
        firsts: list[int],
        n_jobs: int,
        sent: Iterable[tuple[int, int]],
        covered: Iterable[tuple[int, int]],
        offsets: Iterable[int] = (),
    ) -> None:
        """Start from what the folders say."""
        sent = list(sent)
        super().recover(firsts, n_jobs, sent, covered, offsets)
        waiting, self._waiting = self._waiting, []
        for first, stop in waiting:
            self._take_in(first, stop)
        for first, stop in sent:
            for job, scheduling in self._read_scheduling(first, stop):
                self._scheduling[job] = scheduling
                if scheduling.group:
                    self._out_of_group.setdefault(scheduling.group, set()).add(job)

    def _take_in(self, first: int, stop: int) -> None:
        endings: dict[JobId, bool | None] = {}  # many wait for the same few
        for job, scheduling in self._read_scheduling(first, stop):
            self._here.add(job)
            self._enter(job, scheduling, endings)

    def _enter(
        self, job: int, scheduling: SchedulingOptions, endings: dict[JobId, bool | None]
    ) -> None:
        """A job is to run when these options say."""
        self._scheduling[job] = scheduling
        if scheduling.begin_at > self._due:
            heapq.heappush(self._later, (scheduling.begin_at, job))
        for other in scheduling.after + scheduling.after_any:
            self._missing.setdefault(job, set()).add(other)
            self._waiters.setdefault(other, set()).add(job)
            if other not in endings:
                endings[other] = self._ended_well(other)
            ended_well = endings[other]
            if ended_well is not None:
                self._settle(job, other, ended_well)
        self.reconsider(job)

    def is_here(self, job: int) -> bool:
        """Whether a job is neither out nor done."""
        return job in self._here

    def edit(self, job: int, scheduling: SchedulingOptions) -> None:
        """A job that waits has other options from now on."""
        before = self._scheduling.get(job)
        if before is None:
            return
        self._key.pop(job, None)
        # Not left behind to be skipped: the job may get the same key in another heap.
        heap = self._heaps.get(_shape(before), [])
        heap[:] = [key for key in heap if key[2] != job]
        heapq.heapify(heap)
        for other in self._missing.pop(job, ()):
            self._waiters.get(other, set()).discard(job)
        self.unreachable = [one for one in self.unreachable if one[0] != job]
        self._enter(job, scheduling, {})

    def _read_scheduling(self, first: int, stop: int) -> Iterator[tuple[int, SchedulingOptions]]:
        return zip(range(first, stop), self._read(self.span(first, stop)), strict=True)

    def _first_waiting(self) -> int:
        return min(self._here, default=self.n_jobs)

    def put_back(self, first: int, stop: int) -> None:
        """Requeue jobs."""
        for job in range(first, min(stop, self.n_jobs)):
            self._here.add(job)
            self._is_back(job)
            self.reconsider(job)

    def withdraw(self, jobs: Collection[int]) -> list[tuple[int, int]]:
        """Take waiting jobs out of the queue for good; return their ranges."""
        taken: list[tuple[int, int]] = []
        for job in sorted(self._here.intersection(jobs)):
            self._here.discard(job)
            self._key.pop(job, None)
            joins = taken and taken[-1][1] == job
            taken.append((taken.pop()[0] if joins else job, job + 1))
        return taken

    def forget(self, job: int) -> None:
        """Drop all that is known about a job that has ended."""
        self._here.discard(job)
        self._is_back(job)
        for about in (self._scheduling, self._missing, self._key):
            about.pop(job, None)

    def _is_back(self, job: int) -> None:
        """A job is with no agent any more."""
        scheduling = self._scheduling.get(job)
        if scheduling is not None and scheduling.group:
            self._out_of_group.get(scheduling.group, set()).discard(job)

    def begin_due(self, now: float) -> None:
        """Let jobs start whose time has come."""
        self._due = max(self._due, now)
        while self._later and self._later[0][0] <= now:
            self.reconsider(heapq.heappop(self._later)[1])

    def failed(self, job: int) -> list[int]:
        """A job has failed; return the waiting jobs of its group if these are too many."""
        scheduling = self._scheduling.get(job)
        if scheduling is None or not scheduling.group_failures:
            return []
        count = self._failed_of_group.get(scheduling.group, 0) + 1
        self._failed_of_group[scheduling.group] = count
        if count < scheduling.group_failures:
            return []
        return [one for one in self._here if self._scheduling[one].group == scheduling.group]

    # What is ready

    def reconsider(self, job: int) -> None:
        """Update whether a job is ready, and its position."""
        if job not in self._here:
            return
        name = JobId(self._run, job)
        scheduling = self._scheduling[job]
        early = scheduling.begin_at > self._due
        if early or self._missing.get(job) or is_held(self._orders, name, scheduling):
            self._key.pop(job, None)
            return
        key = job_key(self._orders, name, scheduling)
        if self._key.get(job) != key:
            self._key[job] = key
            heapq.heappush(self._heaps.setdefault(_shape(scheduling), []), key)

    def reconsider_all(self) -> None:
        """Update all jobs."""
        for job in list(self._here):
            self.reconsider(job)

    def dependency_ended(self, other: JobId, ended_well: bool) -> None:
        """A job that jobs of this queue may wait for has ended."""
        for job in self._waiters.pop(other, ()):
            if job in self._scheduling:
                self._settle(job, other, ended_well)
                self.reconsider(job)

    def _settle(self, job: int, other: JobId, ended_well: bool) -> None:
        if other in self._scheduling[job].after and not ended_well:
            self.unreachable.append((job, other))  # it stays in `_missing`, so it never starts
        else:
            self._missing[job].discard(other)

    def waits_for(self) -> set[JobId]:
        """All jobs that jobs of this queue wait for."""
        return set(self._waiters)

    def scheduling_of(self, job: int) -> SchedulingOptions:
        """The options of a job that is not done."""
        return self._scheduling[job]

    def priority_of(self, job: int) -> int:
        """The priority of a job that is not done, by its options and the orders."""
        return -job_key(self._orders, JobId(self._run, job), self._scheduling[job])[0]

    def position_of(self, job: int) -> float:
        """The position of a job among those of the same priority; the smallest goes first."""
        return position_of(self._orders, JobId(self._run, job))

    def first_and_last_position(self) -> tuple[float, float]:
        """The first and the last position that is taken."""
        taken = [self.position_of(job) for job in self._here]
        return min(taken, default=0.0), max(taken, default=0.0)

    def urgency(self, capacity: Capacity) -> int | None:
        """The priority of the next job for a session; None: nothing is ready for it."""
        head = self._head(capacity)
        return None if head is None else -head[0]

    def take(self, *, agents: int = 1, capacity: Capacity | None = None) -> JobRange | None:
        """Take the next job for a session out of the queue, or a few if they are short."""
        capacity = capacity or Capacity()
        head = self._head(capacity)
        if head is None:
            return None
        priority, first = head[0], head[2]
        stop = first
        most = self._length(agents, NEAR_LETTER, len(self._key)) if capacity.lasting else 1
        while head is not None and (head[0], head[2]) == (priority, stop):
            if stop > first and not (self._is_plain(first) and self._is_plain(stop)):
                break
            self._here.discard(stop)
            del self._key[stop]
            if group := self._scheduling[stop].group:
                self._out_of_group.setdefault(group, set()).add(stop)
            stop += 1
            head = self._head(capacity) if stop - first < most else None
        return self.span(first, stop)

    def _is_plain(self, job: int) -> bool:
        """Whether a job may share a letter: nothing has to be decided when it begins or ends.

        A letter has one attempt number; how many of a group may run, and what a job books of a GPU,
        is decided job by job.
        """
        scheduling = self._scheduling[job]
        return not (job in self.history or scheduling.group or scheduling.shares)

    def _head(self, capacity: Capacity) -> JobKey | None:
        found = []
        empty = []
        for shape, heap in self._heaps.items():
            while heap and self._key.get(heap[0][2]) != heap[0]:
                heapq.heappop(heap)
            if not heap:
                empty.append(shape)
            elif capacity.has(*shape[:6]) and self._has_room(shape[6], heap[0][2]):
                found.append(heap[0])
        for shape in empty:
            del self._heaps[shape]
        return min(found, default=None)

    def _has_room(self, group: str, job: int) -> bool:
        """Whether one more job of a group may run."""
        most = self._scheduling[job].group_limit
        return not (group and most) or len(self._out_of_group.get(group, ())) < most


def _shape(scheduling: SchedulingOptions) -> Shape:
    return (
        scheduling.gpus,
        scheduling.memory_mib,
        scheduling.where,
        scheduling.require,
        scheduling.lasts_s,
        scheduling.shares,
        scheduling.group,
    )
