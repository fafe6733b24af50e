"""Which jobs of a run wait, are sent, or are done: numbers and ranges, no disk and no clock."""

from __future__ import annotations

import bisect
import heapq
from array import array
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from ..store.runs import Note, count_covered, gaps
from ..store.scheduling import will_do

# A job with which three workers died is probably the cause: it is not sent to a fourth.
MOST_LOST = 3
# A letter holds about this much work: long enough to hide the cost of a round trip, short enough
# that agents finish together and a progress bar moves.
LETTER_S = 0.03
# With large arguments longer: the first of a letter is read, and the last result written, while
# nothing is computed. But their files take memory until the results of the letter are collected.
LARGE_LETTER_S = 0.1
LARGE_LETTER_BYTES = 80 << 20
# To another machine longer still: while a letter and its answer travel, nothing is computed.
FAR_LETTER_S = 3.0
# Less work than this in a letter, so that another agent gets some, costs more than it gains.
LEAST_S = 0.0005
# If each agent needs no longer than this for what is left, all of it is shared out at once.
LAST_S = 0.01
# What an agent needs for a job of a list beside the time that its kernel takes.
AROUND_S = 1e-5
# From this many parcels on, finished ones are looked for.
FORGET_FROM = 4096
# To another machine, less than this: each letter costs a round trip.
FAR_LEAST_S = 0.25
# Never more jobs in one letter, however short they are.
MOST_JOBS = 512


class LetterSize(NamedTuple):
    """How much a letter holds."""

    seconds: float
    least_s: float
    nbytes: int


NEAR_LETTER = LetterSize(LETTER_S, LEAST_S, LARGE_LETTER_BYTES)
LARGE_LETTER = LetterSize(LARGE_LETTER_S, LEAST_S, LARGE_LETTER_BYTES)
FAR_LETTER = LetterSize(FAR_LETTER_S, FAR_LEAST_S, 1 << 40)


@dataclass(frozen=True, slots=True)
class JobRange:
    """A range of jobs that may go into one letter."""

    parcel: int
    first: int
    stop: int
    attempt: int = 1
    failed: int = 0
    lost: int = 0
    offset: int = 0  # of the parcel's record, in an append log


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a session offers to jobs."""

    gpus: int = 1
    memory_mib: int = 0  # of each card; 0: not known
    where: str = "local"  # the engine that carries the session elsewhere; "local": on this host
    gpu_name: str = ""
    left_s: float = inf  # until somebody's reservation of its card begins
    lives_s: float = inf  # until its engine ends it: a longer time limit does not fit
    only_shares: bool = False  # it is there for jobs that share a GPU, and for no others
    leaves_shares: bool = False  # ... and it leaves them to such agents
    seen: bool = True  # False: of a pilot that is to come; what GPU that will have, nobody knows

    @property
    def lasting(self) -> bool:
        """Whether it is on this host, and nobody ends it: a few short jobs may be sent at once."""
        return self.where == "local" and self.left_s == self.lives_s == inf

    def has(
        self,
        gpus: int,
        memory_mib: int,
        where: str = "",
        require: str = "",
        lasts_s: float = 0.0,
        shares: bool = False,
    ) -> bool:
        """Whether a job that asks for this can run here; a job that asks for one GPU runs anywhere.

        So on a machine without GPUs, CPU sessions run the jobs that ask for nothing special.
        """
        if where and where != self.where:
            return False
        if self.leaves_shares if shares else self.only_shares:
            return False
        return (
            (gpus <= 1 or gpus <= self.gpus)
            and (memory_mib <= self.memory_mib or not self.seen)
            and (not require or not self.seen or will_do(require, self.gpu_name, self.memory_mib))
            and (self.left_s == inf or 0 < lasts_s <= self.left_s)
            and lasts_s <= self.lives_s
        )


@dataclass
class AttemptHistory:
    """The attempts of one job that ended with no result."""

    notes: dict[int, Note] = field(default_factory=dict)  # by attempt

    @property
    def attempt(self) -> int:
        """The number of the next attempt."""
        return max(self.notes, default=0) + 1

    @property
    def failed(self) -> int:
        """How many attempts were the job's own failures."""
        return sum(note.kind == "failed" for note in self.notes.values())

    @property
    def lost(self) -> int:
        """How many attempts died with their worker."""
        return sum(note.kind == "lost" for note in self.notes.values())


class RunQueue:
    """The jobs of one run."""

    def __init__(self, *, one_job_per_letter: bool = False) -> None:
        self._one_job_per_letter = one_job_per_letter  # the next may take a thousand times as long
        self.n_jobs = 0
        self.done = 0
        self.mean_s: float | None = None
        self.history: dict[int, AttemptHistory] = {}
        self._parcels = array("q")  # the first numbers of all
        self._offsets = array("q")  # of their records in the append log, if there is one
        self._forget_from = FORGET_FROM
        self._waiting: list[tuple[int, int]] = []  # a heap of disjoint ranges
        self.job_bytes = 0  # of each, if they have large arguments
        self._far = False  # whether an agent on another machine has taken some
        self.grows = False  # True: more jobs are about to come, so the end is not near
        self.priority = 0
        self._held: set[int] = set()  # not to be sent
        self._aside: set[int] = set()  # those of them that would wait otherwise

    @property
    def finished(self) -> bool:
        """Whether every job is done."""
        return self.done >= self.n_jobs

    def waiting(self) -> int:
        """How many jobs wait to be sent."""
        return sum(stop - first for first, stop in self._waiting)

    def fitting(self, capacity: Capacity) -> int:
        """How many jobs wait that a session with this capacity could begin now."""
        return self.waiting() if self.urgency(capacity) is not None else 0

    def extend(self, firsts: Iterable[int], n_jobs: int, offsets: Iterable[int] = ()) -> None:
        """Add new parcels; the run now has `n_jobs` jobs."""
        self._parcels.extend(firsts)
        self._offsets.extend(offsets)
        if n_jobs > self.n_jobs:
            heapq.heappush(self._waiting, (self.n_jobs, n_jobs))
            self.n_jobs = n_jobs

    def recover(
        self,
        firsts: list[int],
        n_jobs: int,
        sent: Iterable[tuple[int, int]],
        covered: Iterable[tuple[int, int]],
        offsets: Iterable[int] = (),
    ) -> None:
        """Start from what the folders say: jobs that are neither sent nor covered by results wait.

        Results of letters that agents still have are counted when they are collected.
        """
        self._parcels = array("q", firsts)
        self._offsets = array("q", offsets)
        self.n_jobs = n_jobs
        sent, covered = list(sent), list(covered)
        self._waiting = gaps(n_jobs, [*sent, *covered])
        self.done = count_covered([*sent, *covered])[0] - count_covered(sent)[0]
        heapq.heapify(self._waiting)
        self.hold(self._held)

    def note(self, note: Note) -> AttemptHistory:
        """Add a note about an attempt."""
        history = self.history.setdefault(note.job, AttemptHistory())
        history.notes[note.attempt] = note
        return history

    def urgency(self, capacity: Capacity) -> int | None:
        """The priority of what is next for a session; None: nothing waits."""
        return self.priority if self._waiting and not capacity.only_shares else None

    def take(self, *, agents: int = 1, capacity: Capacity | None = None) -> JobRange | None:
        """Take the next range out of the queue, as long as it should be for one letter."""
        if not self._waiting:
            return None
        first, stop = heapq.heappop(self._waiting)
        far = capacity is not None and capacity.where != "local"
        left = max(stop - first, self.n_jobs - self.done)
        size = FAR_LETTER if far else self._letter
        self._far = self._far or far
        length = self._length(agents, size, left)
        # Jobs that were submitted one by one may be sent together.
        while stop < first + length and self._waiting and self._waiting[0][0] == stop:
            stop = heapq.heappop(self._waiting)[1]
        limit = min(stop, first + length)
        history = self.history.get(first)
        if history is not None:
            limit = first + 1  # a letter has one attempt number: such a job is sent alone
        elif self.history:
            limit = min([limit, *(job for job in self.history if first < job < limit)])
        if limit < stop:
            heapq.heappush(self._waiting, (limit, stop))
        return self.span(first, limit)

    @property
    def is_long(self) -> bool:
        """Whether it knows many parcels, so that finished ones should be forgotten."""
        return len(self._parcels) >= self._forget_from

    def forget_parcels(self, out: Iterable[tuple[int, int]]) -> None:
        """Forget parcels whose jobs neither wait nor are `out` with agents: they are over.

        A run that is appended to for weeks has millions.
        """
        left = min([self._first_waiting(), *(first for first, _ in out)])
        over = bisect.bisect_right(self._parcels, left) - 1
        if over > 0:
            del self._parcels[:over]
            del self._offsets[:over]
        self._forget_from = max(FORGET_FROM, 2 * len(self._parcels))

    def _first_waiting(self) -> int:
        """The first job that waits, also if it is held."""
        return min([self.n_jobs, *self._aside, *(first for first, _ in self._waiting[:1])])

    def span(self, first: int, stop: int) -> JobRange:
        """A range with what a letter says about it: the parcel that it begins in, the attempt."""
        index = bisect.bisect_right(self._parcels, first) - 1
        # If a power loss took the parcel, name it anyway: the session reports that it is missing.
        parcel = self._parcels[index] if index >= 0 else first
        offset = self._offsets[index] if index >= 0 and self._offsets else 0
        history = self.history.get(first)
        if history is None:
            return JobRange(parcel, first, stop, offset=offset)
        attempt, failed, lost = history.attempt, history.failed, history.lost
        return JobRange(parcel, first, stop, attempt, failed, lost, offset)

    @property
    def _letter(self) -> LetterSize:
        return LARGE_LETTER if self.job_bytes else NEAR_LETTER

    def is_ahead(self, agents: int) -> bool:
        """Whether so many large jobs wait that more would only take memory."""
        if self._far:
            return False  # a letter to another machine takes all that there is
        letter = self._length(agents, self._letter, self.n_jobs - self.done)
        return self.job_bytes > 0 and self.waiting() >= letter * agents // 2 + 2

    def is_short(self, jobs: int) -> bool:
        """Whether this many jobs are too little work for a letter."""
        if self.mean_s is None or self._one_job_per_letter:
            return False
        return jobs * self.mean_s < LEAST_S

    def put_back(self, first: int, stop: int) -> None:
        """Requeue a range, without jobs that a power loss took from the end of the run."""
        stop = min(stop, self.n_jobs)
        if first < stop:
            heapq.heappush(self._waiting, (first, stop))
            if self._held:
                self.hold(self._held)

    def hold(self, jobs: Collection[int]) -> None:
        """Do not send these jobs until they are released; what was sent is not called back."""
        self._held.update(jobs)
        for first, stop in self._pull(jobs):
            self._aside.update(range(first, stop))

    def release(self, jobs: Collection[int]) -> None:
        """Requeue jobs that were held."""
        self._held.difference_update(jobs)
        for job in sorted(self._aside.intersection(jobs)):
            self._aside.discard(job)
            self.put_back(job, job + 1)

    def withdraw(self, jobs: Collection[int]) -> list[tuple[int, int]]:
        """Take waiting jobs out of the queue for good; return their ranges."""
        for job in self._aside.intersection(jobs):
            self._aside.discard(job)
            heapq.heappush(self._waiting, (job, job + 1))
        return self._pull(jobs)

    def _pull(self, jobs: Collection[int]) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        for job in sorted(jobs):
            for first, stop in self._waiting:
                if first <= job < stop:
                    self._waiting.remove((first, stop))
                    self._waiting += [s for s in ((first, job), (job + 1, stop)) if s[0] < s[1]]
                    joins = taken and taken[-1][1] == job
                    start = taken.pop()[0] if joins else job
                    taken.append((start, job + 1))
                    break
        heapq.heapify(self._waiting)
        return taken

    def covered(self, jobs: int, seconds: float) -> None:
        """Count finished jobs and learn from their time."""
        self.done += jobs
        mean = seconds / jobs
        self.mean_s = mean if self.mean_s is None else 0.7 * self.mean_s + 0.3 * mean

    def taken(self, jobs: int) -> None:
        """Count finished jobs whose results were removed before they were collected here."""
        self.done += jobs

    def _length(self, agents: int, size: LetterSize, left: int) -> int:
        """How many of the jobs that are `left` should share a letter."""
        if self.mean_s is None or self._one_job_per_letter:
            return 1
        by_time = int(size.seconds / max(self.mean_s, 1e-6))
        if self.job_bytes:
            by_time = min(by_time, size.nbytes // self.job_bytes)
        # Near the end, share what is left, so that no agent has to finish alone: half of it, and
        # half of what is left then, until there is so little that more letters would take longer.
        agents = max(agents, 1)
        at_once = self.grows or left * (self.mean_s + AROUND_S) <= LAST_S * agents
        by_share = -(-left // (agents if at_once else 2 * agents))
        least = int(size.least_s / max(self.mean_s, 1e-6))
        return max(1, min(by_time, max(by_share, least), MOST_JOBS))
