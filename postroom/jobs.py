"""Jobs as the user submits them, and the pool of their results."""

from __future__ import annotations

import bisect
import contextlib
import copy
import enum
import itertools
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

from .calls.by_value import BY_VALUE, FUNCTION
from .errors import BadFileError, JobFailed, OtherVersionError, PostroomError, RemoteTraceback
from .parcel.jsonable import POSITIONAL
from .parcel.sheets import Failure, JobEnd, JobOptions, Outcome, OutcomeSheet
from .store.base import Base, default_base
from .store.files import MAP_FROM_BYTES, Files
from .store.job_ids import JobId
from .store.runs import RunInfo, gaps, list_firsts, read_parcel_bytes
from .store.taken import Ranges, ResultRemover, read_taken
from .system.page_cache import LARGE
from .system.shortage import explaining
from .text.safe_text import printable
from .text.table import html_table, table_lines

# What only a summary or a look at one job needs is imported there: `postroom submit` makes a Job,
# and runs in shell loops.
if TYPE_CHECKING:
    from .parcel.failure_groups import FailureGroup
    from .store.append_log import Record


class Driver(Protocol):
    """What a pool needs from its Master: append jobs, and work until results are there."""

    def append(self, pool: JobPool, job: Job, /) -> int:
        """Append one job to the pool, and return its number."""
        ...

    def extend(self, pool: JobPool, jobs: Sequence[Job], /) -> list[int]:
        """Append jobs to the pool, and return their numbers."""
        ...

    def rounds(
        self,
        pool: JobPool,
        timeout_s: float | None = None,
        *,
        until: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Work round by round until the pool is done (or `until`), or the time is up."""
        ...

    def wait(self, pool: JobPool, timeout_s: float | None = None) -> None:
        """Work until the pool is done; TimeoutError: the time is up."""
        ...

    def jobs_sent(self, pool: JobPool) -> list[int]:
        """The jobs of the pool that agents have."""
        ...

    def stop_jobs(self, pool: JobPool, numbers: Collection[int], by: str) -> None:
        """Cancel jobs that wait, and end those that run."""
        ...

    def run(self, jobs: Iterable[Job], /) -> JobPool:
        """Run jobs, and return their pool."""
        ...


class Status(enum.Enum):
    """Where a job is, or how it ended, in the words of listings.

    A job of this program is never abandoned, and waits for no other job; listings show those, too.
    """

    QUEUED = "queued"
    WAITING = "waiting"
    PAUSED = "paused"
    HELD = "held"
    ABANDONED = "abandoned"
    RUNNING = "running"
    STOPPING = "stopping"
    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def done(self) -> bool:
        """Whether the job has ended."""
        return self in _ENDED


_ENDED = (Status.OK, Status.FAILED, Status.TIMED_OUT, Status.LOST, Status.CANCELLED)


class Job:
    """One unit of work: a function by name, and what it is passed.

    Subclass it to convert data on the way: `deploy` returns the arguments that go into the parcel,
    `collect` turns the output into the result that the pool returns.
    """

    def __init__(self, task: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """`task` is "module:function", or the function; all else is passed to it.

        A function that sessions cannot import, of a script or a notebook, travels by value.
        """
        self.name: str | None = None
        self.settings = _PLAIN
        self.arguments: dict[str, Any] = {POSITIONAL: args, **kwargs} if args else kwargs
        if isinstance(task, str):
            self.task = task_name(task)
        elif not callable(task):
            raise PostroomError(f"{task!r} is not a task: pass a function, or 'module:function'")
        else:
            self.task, by_value = _task_of(task)
            if by_value is not None:
                self.arguments = {FUNCTION: by_value, **self.arguments}

    def options(
        self,
        *,
        name: str | None = None,
        retries: int = 0,
        timeout_s: float | None = None,
        exclusive: bool = False,
        tensors: bool = False,
        pickle: bool = False,
        batched: bool = False,
    ) -> Self:
        """Say how the job is to run, and return it: `Job(train, lr=0.1).options(retries=2)`.

        `name`: a label for listings. `retries`: attempts after a failure. `timeout_s`: time limit.
        `exclusive`: no other job on its GPU meanwhile. `tensors`: all arrays arrive as tensors.
        `pickle`: arguments and results may be objects that only pickle can carry.
        `batched`: jobs that are alike may share a call, with their arguments stacked.
        """
        self.name = name if name is None else check_name(name)
        self.settings = _options(retries, timeout_s, exclusive, tensors, pickle, batched)
        return self

    def deploy(self) -> dict[str, Any]:
        """The keyword arguments that the kernel gets."""
        return self.arguments

    def collect(self, output: Any) -> Any:
        """The result that the pool returns for the kernel's output."""
        return output

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name is not None else ""
        return f"<Job{label} {self.task}({', '.join(self.arguments)})>"


def check_job(job: Any) -> None:
    """Refuse what is not a Job."""
    if not isinstance(job, Job):
        raise PostroomError(f"{job!r} is not a Job: write Job('module:function', x=...)")


def task_name(task: str | Callable[..., Any]) -> str:
    """Return the `module:function` that a session can import."""
    if isinstance(task, str):
        if not _names_a_task(task):
            raise PostroomError(f"{task!r} is not a task: write 'module:function'")
        return task
    home, name = getattr(task, "__module__", None), getattr(task, "__qualname__", None)
    if not home or not name or "<" in name:
        raise PostroomError(f"{task!r} cannot be imported by name: define it in a module")
    if home == "__main__":
        raise PostroomError(
            f"{name} is defined in the script itself, which sessions cannot import: move it to a "
            "module of its own, such as expensive_task.py"
        )
    return f"{home}:{name}"


def check_name(name: Any) -> str:
    """Return the name of a job, or refuse what is none: it would be missing in every listing."""
    if not isinstance(name, str):
        raise PostroomError(
            f"the name of a job is a text, not {name!r:.40}: pass what the kernel gets by name, as "
            "in Job('module:function', x=5)"
        )
    return name


# Thousands of jobs with the same options share one object, and are checked once.
@lru_cache(maxsize=256)
def _options(
    retries: int,
    timeout_s: float | None,
    exclusive: bool,
    tensors: bool,
    pickle: bool,
    batched: bool,
) -> JobOptions:
    try:
        return JobOptions(retries, timeout_s, exclusive, tensors, pickle, batched).checked()
    except ValueError as error:
        raise PostroomError(f"a job cannot have the option {error}") from None


@lru_cache(maxsize=256)
def _names_a_task(text: str) -> bool:
    module, _, function = text.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), *function.split(".")])


_PLAIN = JobOptions()


def _task_of(function: Callable[..., Any]) -> tuple[str, bytes | None]:
    """The task of a function, and its pickle if sessions cannot import it."""
    calls = _calls()
    address: str | None = calls.address_of(function)
    if address is not None and _names_a_task(address):
        return address, None
    return BY_VALUE, calls.pack_function(function)


@cache
def _calls() -> Any:
    from .calls import call  # late: most jobs name their task

    return call


# What users of a pool may rely on, and what `dir` shows. The rest is for other modules.
POOL_CALLS = (
    *("run", "jobs", "done", "n_done", "n_failed", "total", "submit", "wait", "as_completed"),
    *("results", "failures", "summary", "status", "output", "retry", "cancel"),
    *("to_pandas", "save"),
)

# How many kinds of errors a summary lists.
MOST_ERRORS = 10

# In the place of a job whose result was handed out and not kept.
_HANDED_OUT = Job("postroom:handed_out")
# Results that were handed out are removed when they are this many jobs, or bytes.
REMOVE_JOBS = 1_000
REMOVE_BYTES = 16 << 20


class JobList(Sequence[Job]):
    """The jobs of a pool by number. Those at the front that are not kept take no memory."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._jobs = list(jobs)
        self._dropped = 0  # how many were at the front
        self._kept: dict[int, Job] = {}  # of those

    def __len__(self) -> int:
        return self._dropped + len(self._jobs)

    @overload
    def __getitem__(self, place: int) -> Job: ...
    @overload
    def __getitem__(self, place: slice) -> list[Job]: ...
    def __getitem__(self, place: int | slice) -> Job | list[Job]:
        if isinstance(place, slice):
            if not self._dropped:
                return self._jobs[place]
            return [self[number] for number in range(*place.indices(len(self)))]
        at = place - self._dropped if place >= 0 else place + len(self._jobs)
        return self._jobs[at] if at >= 0 else self._kept.get(place, _HANDED_OUT)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, JobList)) and list(self) == list(other)

    def __setitem__(self, number: int, job: Job) -> None:
        if number >= self._dropped:
            self._jobs[number - self._dropped] = job

    def __iadd__(self, jobs: Iterable[Job]) -> JobList:
        self._jobs += jobs
        return self

    def drop(self, count: int, *, but: Iterable[int]) -> None:
        """Keep nothing of the first so many jobs, but some."""
        if count >= self._dropped + REMOVE_JOBS:  # seldom: the others are moved in memory
            self._kept = {number: self[number] for number in but if number < count}
            del self._jobs[: count - self._dropped]
            self._dropped = count


@dataclass(frozen=True)
class Finished:
    """One finished job of a pool."""

    number: int
    job: Job
    done: JobEnd
    agent: str
    pool: JobPool = field(repr=False)

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return self.done.failure.outcome if self.done.failure else Outcome.OK

    @property
    def error(self) -> JobFailed | None:
        """The error, with the worker's traceback as its cause; None when it ended well."""
        failure = self.done.failure
        if failure is None:
            return None
        return _job_failed(self.pool, self.number, failure)

    @property
    def output(self) -> str:
        """What the job has printed."""
        return self.pool.output(self.number)

    def result(self) -> Any:
        """The output, converted by `Job.collect`; raises JobFailed when there is none."""
        error = self.error
        if error is not None:
            raise error
        return self.job.collect(self.done.value)


def _job_failed(pool: JobPool, number: int, failure: Failure) -> JobFailed:
    job = pool.jobs[number]
    name = f" ({job.name})" if job.name is not None else ""
    how = f"{failure.outcome.value}: {failure.text}"
    text = f"job {number}{name} {how} [see: {pool.how_to('show', number)}]"
    error = JobFailed(printable(text))  # Python prints it on a terminal as it is
    if failure.traceback:
        error.__cause__ = RemoteTraceback(printable(failure.traceback.expandtabs()))
    return error


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job that was submitted: its number, and later its result."""

    pool: JobPool
    number: int

    def done(self) -> bool:
        """Whether it has an outcome."""
        return self.pool.has_outcome(self.number)

    def result(self, timeout_s: float | None = None) -> Any:
        """Work until the job is done, and return its output.

        Raises JobFailed when it has none, TimeoutError when the time is up.
        """
        return self.pool.result(self.number, timeout_s)


@dataclass
class AgentTotals:
    """What one agent did for a pool."""

    jobs: int = 0
    failed: int = 0
    busy_s: float = 0.0
    pids: set[int] = field(default_factory=set)


class JobSource(Protocol):
    """Jobs of a pool that are still to be written."""

    @property
    def ended(self) -> bool:
        """Whether there are no more."""
        ...

    @property
    def total(self) -> int | None:
        """How many there are in all; None: nobody knows."""
        ...


@dataclass(slots=True)
class _ParcelFile:
    first: int
    stop: int
    path: str
    nbytes: int
    left: int  # jobs without a result


class ParcelFiles:
    """The files with arguments that a pool has written, until their jobs are done."""

    def __init__(self, files: Files, base: Base, info: RunInfo) -> None:
        self._files = files
        self._base = base
        self.recycled = info.recycled
        self._program = info.program
        self.keep_small = True
        self._waiting: list[_ParcelFile] = []  # in the order of their jobs
        self.nbytes = 0  # of those that wait

    def add(self, first: int, jobs: int, path: str, nbytes: int) -> None:
        """Note a file that was written."""
        self._waiting.append(_ParcelFile(first, first + jobs, path, nbytes, jobs))
        self.nbytes += nbytes

    @property
    def next_size(self) -> int:
        """How large the next one will be, if it is like those that wait."""
        return 2 * self.nbytes // max(len(self._waiting), 1)

    def done(self, numbers: Sequence[int], failed: Collection[int]) -> None:
        """These jobs have results: files that nobody needs any more make room for others."""
        first = bisect.bisect_right(self._waiting, numbers[0], key=lambda parcel: parcel.first)
        over: list[int] = []
        for at in range(max(first - 1, 0), len(self._waiting)):
            parcel = self._waiting[at]
            start = bisect.bisect_left(numbers, parcel.first)
            stop = bisect.bisect_left(numbers, parcel.stop, start)
            if start == len(numbers):
                break
            if any(parcel.first <= number < parcel.stop for number in failed):
                parcel.path = ""  # it stays, for another try
            parcel.left -= stop - start
            if not parcel.left:
                over.append(at)
        for at in reversed(over):
            parcel = self._waiting.pop(at)
            self.nbytes -= parcel.nbytes
            if parcel.path:
                self._give_back(parcel)

    def _give_back(self, parcel: _ParcelFile) -> None:
        if self.recycled and not (self.keep_small and parcel.nbytes < MAP_FROM_BYTES):
            with contextlib.suppress(OSError):  # then it stays until its run is removed
                self._files.recycle(parcel.path, self._base.recycled(self._program))
        elif parcel.nbytes >= LARGE:
            self._files.let_go(parcel.path)


class JobPool:
    """The jobs of one run, in the order given, and their results.

    Results stay on disk; the pool keeps small ones in memory too. Iterate with `as_completed`, or
    get all with `results`. A failed job that is run again (`retry`) is appended to the run as a
    copy; what the copy returns is then the result of the job.
    """

    def __init__(
        self, files: Files, base: Base, info: RunInfo, jobs: Sequence[Job], master: Driver
    ) -> None:
        self.info = info
        self.run = info.run
        self.jobs = JobList(jobs)
        self.agents: dict[str, AgentTotals] = {}
        self.hold: object = None  # what says that this program may still read results
        self.is_stored = False  # True: its jobs were read from disk
        self.is_open = False  # True: more jobs may come, so the run stays wanted
        self.source: JobSource | None = None  # where more jobs come from
        self.parcels = ParcelFiles(files, base, info)
        self._files = files
        self._base = base
        self._master = master
        self._n_done = 0
        self._sheet_of: dict[int, OutcomeSheet | None] = {}  # by first job; None: read it again
        self._not_taken: dict[int, int] = {}  # by first job: how many results were not dropped
        self._taken = Ranges()  # the jobs whose results were handed out and are not kept
        self._missed = False  # True: a result came while nobody here could read what was taken
        self._seen_taken: tuple[list[tuple[int, int]], int] = [], 0  # what others have taken
        self._failed_in: set[int] = set()  # first jobs of parcels with failures
        self._to_remove: list[tuple[int, int]] = []  # parcels of results, by their jobs
        self._to_remove_jobs = self._to_remove_bytes = 0
        self._remover = ResultRemover(
            files, base, info.run, durable=info.durable, hands_on=info.hands_on
        )
        self._in_turn = False  # True: results are handed out and not kept
        self._cut: set[int] = set()  # first jobs of parcels that go beyond our last job
        self._first_of: dict[int, int] = {}  # job number: first of its result parcel
        self._failures: dict[int, Failure] = {}
        self._arrived: list[int] = []
        self._copies: dict[int, int] = {}  # job: its last copy
        self._replaced: set[int] = set()  # jobs, and copies, that have a later copy
        self._last: OutcomeSheet | None = None

    def __dir__(self) -> tuple[str, ...]:
        return POOL_CALLS

    def __len__(self) -> int:
        """How many jobs there are; a job and its copies are one."""
        return len(self.jobs) - len(self._replaced)

    def __getitem__(self, number: int) -> Finished:
        return self._finished(self._newest(self._checked(number)))

    def __iter__(self) -> Iterator[Finished]:
        """Yield the jobs in the order given, each when it is done; what is kept: as_completed."""
        keep = self._keeps
        number = 0
        try:
            while True:
                if not self._is_over(number):
                    for _ in self._master.rounds(self, until=partial(self._is_over, number)):
                        pass
                if number >= len(self.jobs):
                    return
                if number not in self._replaced.union(self._copies.values()) - self._copies.keys():
                    yield self[number]
                if not keep:
                    self._forget(number)
                    self.take_arrived()
                number += 1
        finally:
            if not keep:
                self.leave()

    def _is_over(self, number: int) -> bool:
        return self.has_outcome(number) or self.done

    @property
    def _keeps(self) -> bool:
        """Whether results that were handed out are kept: not those of a generator."""
        return self.source is None or self.source.total is not None

    def _checked(self, number: int) -> int:
        """The number of a job; negative ones count from the end."""
        if not -len(self) <= number < len(self.jobs):
            raise IndexError(number)
        return number if number >= 0 else self._originals()[number]

    def _finished(self, number: int) -> Finished:
        if number not in self._first_of:
            if number in self._taken:
                raise PostroomError(
                    f"the result of job {number} of run {self.run} was handed out and is not kept; "
                    "use as_completed(keep=True) to look at results again"
                )
            raise PostroomError(f"job {number} of run {self.run} is not done: wait() first")
        sheet = self._sheet(self._first_of[number])
        return Finished(number, self.jobs[number], sheet.done(number), sheet.ran_by.agent, self)

    @property
    def done(self) -> bool:
        """Whether every job has an outcome."""
        more = self.source is not None and not self.source.ended
        return not more and self._n_done >= len(self.jobs)

    @property
    def n_done(self) -> int:
        """How many jobs have an outcome."""
        return self._n_done - len(self._replaced)

    @property
    def total(self) -> int | None:
        """How many jobs it will have; None: nobody knows, since a generator makes them."""
        if self.source is None or self.source.ended:
            return len(self)
        return self.source.total

    @property
    def n_failed(self) -> int:
        """How many of them failed."""
        return len(self._failures) - len(self._replaced.intersection(self._failures))

    @property
    def arrived(self) -> Sequence[int]:
        """The numbers of the jobs that have an outcome, in the order of arrival."""
        return self._arrived

    def take_arrived(self) -> list[int]:
        """The jobs that have an outcome since the last call; `arrived` forgets them."""
        arrived = self._arrived[:]
        del self._arrived[: len(arrived)]  # others may be added meanwhile
        return arrived

    def release(self, number: int) -> int:
        """Give back the memory of a job and its result, which was taken; the size of its parcel.

        They stay on disk.
        """
        first = self._first_of[number]
        self.jobs[number] = _HANDED_OUT
        self._not_taken[first] -= 1
        if self._not_taken[first]:
            return 0
        sheet = self._sheet_of[first]
        if self._last is not None and self._last.first == first:
            sheet, self._last = self._last, None
        self._sheet_of[first] = None
        return sheet.nbytes if sheet is not None else 0

    def status(self, number: int) -> Status:
        """Where one job is."""
        failure = self._failures.get(number)
        if failure is not None:
            return Status(failure.outcome.value)
        if number in self._first_of or number in self._taken:
            return Status.OK
        from .store.requests import read_orders

        with explaining("say where a job is", self._base.root):
            orders, job = read_orders(self._files, self._base), self.id_of(number)
        if number in self._master.jobs_sent(self):
            return Status.STOPPING if job in orders.killed else Status.RUNNING
        if orders.held.get(job):
            return Status.HELD
        return Status.PAUSED if orders.is_paused(self.run, "") else Status.QUEUED

    def has_outcome(self, number: int) -> bool:
        """Whether one job has ended."""
        return number in self._first_of or number in self._taken

    def is_cancelled(self, number: int) -> bool:
        """Whether a job was cancelled."""
        failure = self._failures.get(number)
        return failure is not None and failure.outcome is Outcome.CANCELLED

    def submit(self, job: Job) -> SubmittedJob:
        """Append a job to the run; it is on disk when this returns, and sent if an agent is idle.

        The Master has no thread: it sends jobs and collects results whenever this process submits
        or waits. While an agent is working, jobs of microseconds wait until there are some more.
        """
        return SubmittedJob(self, self._master.append(self, job))

    def wait_for(self, number: int, timeout_s: float | None = None) -> Finished:
        """Work until one job is done; raises TimeoutError when the time is up."""
        self._await(self._newest(number), timeout_s)
        return self[number]

    def result(self, number: int, timeout_s: float | None = None) -> Any:
        """Work until one job is done, and return its output.

        Raises JobFailed when it has none, TimeoutError when the time is up.
        """
        number = self._newest(number)
        self._await(number, timeout_s)
        return self._finished(number).result() if number in self._failures else self._value(number)

    def _await(self, number: int, timeout_s: float | None) -> None:
        known = self._first_of
        if number in self._taken:
            self._finished(number)  # says that it is not kept
        for _ in self._master.rounds(self, timeout_s, until=lambda: self.has_outcome(number)):
            pass
        if number not in known:
            if number in self._taken:  # by another program
                self._finished(number)
            raise TimeoutError(f"job {number} of run {self.run} is not done")

    def wait(self, timeout_s: float | None = None) -> JobPool:
        """Work until every job is done; raises TimeoutError when the time is up."""
        self._master.wait(self, timeout_s)
        return self

    def as_completed(
        self, timeout_s: float | None = None, *, keep: bool | None = None
    ) -> Iterator[Finished]:
        """Yield the jobs as they finish; raises TimeoutError when the time is up.

        What was yielded is kept, for `results` and a second look, unless the jobs come from a
        generator: then it is removed from memory and disk. `keep` says otherwise.
        """
        if keep is None:
            keep = self._keeps
        seen = 0
        try:
            for _ in self._master.rounds(self, timeout_s):
                while seen < len(self._arrived):
                    number = self._arrived[seen]
                    yield self._finished(number)
                    seen += 1
                    if not keep:
                        self._forget(number)
                if not keep:
                    del self._arrived[:seen]
                    seen = 0
            while seen < len(self._arrived):
                yield self._finished(self._arrived[seen])
                seen += 1
                if not keep:
                    self._forget(self._arrived[seen - 1])
        finally:
            if not keep:
                del self._arrived[:seen]
                self.leave()
        if not self.done:
            raise TimeoutError(f"{len(self) - self.n_done} jobs of run {self.run} are not done")

    def results(self, *, return_exceptions: bool = False) -> list[Any]:
        """Every output in the order of the jobs.

        The first failure is raised; with `return_exceptions`, failures are in the list instead.
        """
        self.wait()
        if not return_exceptions:
            self.raise_for_failed()
        if not self._failures and not self._copies:
            return self._all_values()
        numbers = map(self._newest, self._originals())
        failures = self._failures
        return [
            self._value(n) if n not in failures else _job_failed(self, n, failures[n])
            for n in numbers
        ]

    def _all_values(self) -> list[Any]:
        """What all jobs returned that ended well, a parcel at a time."""
        found: list[Any] = []
        for first, group in itertools.groupby(range(len(self.jobs)), self._first_of.get):
            numbers = list(group)
            if first is None or len(numbers) == 1:
                found += map(self._value, numbers)
                continue
            start, stop = numbers[0], numbers[-1] + 1
            outputs = self._sheet(first).values(start, stop)
            jobs = self.jobs[start:stop]
            found += [job.collect(output) for job, output in zip(jobs, outputs, strict=True)]
        return found

    def _value(self, number: int) -> Any:
        """What a job that ended well returned, without a Finished: a list has many."""
        first = self._first_of.get(number)
        if first is None:
            return self._finished(number).result()  # says why it is not there
        return self.jobs[number].collect(self._sheet(first).value(number))

    def failures(self) -> list[JobFailed]:
        """The errors of the jobs that have no result, in the order of the jobs."""
        return [
            _job_failed(self, number, failure)
            for number, failure in sorted(self._failures.items())
            if number not in self._replaced
        ]

    def retry(self) -> JobPool:
        """Submit every job that failed once more, with its kernel as it is now.

        They are appended to the run as copies. `results`, `failures` and `pool[3]` then say what
        came of the copies; the earlier outcomes stay on disk.
        """
        self._append_failed(self)
        self.find_copies()
        return self

    def _append_failed(self, pool: JobPool) -> dict[int, int]:
        """Append copies of the failed jobs to a pool; their numbers there, by those here."""
        failed = [number for number in sorted(self._failures) if number not in self._replaced]
        copies = [self.copy_of(number) for number in failed]
        for job in copies:
            self.info.kernels.pop(job.task, None)  # it is checked again
        return dict(zip(failed, self._master.extend(pool, copies), strict=True))

    def copy_of(self, number: int) -> Job:
        """A job once more, as a copy that names the job that it replaces."""
        job = self.jobs[number]
        again = copy.copy(job)
        original = job.settings.rerun_of or str(self.id_of(number))
        again.settings = job.settings._replace(rerun_of=original)
        if self.is_stored:  # it was deployed when it was submitted
            again.deploy = lambda: job.arguments  # type: ignore[method-assign]
        return again

    def find_copies(self) -> None:
        """See which jobs were run again, and by which copy last."""
        for number, job in enumerate(self.jobs):
            run, _, original = job.settings.rerun_of.rpartition("/")
            if run == self.run and original.isdecimal():
                before = self._newest(int(original))
                if before < number:
                    self._replaced.add(before)
                    self._copies[int(original)] = number

    def _newest(self, number: int) -> int:
        return self._copies.get(number, number)

    def _originals(self) -> Sequence[int]:
        if not self._copies:
            return range(len(self.jobs))
        copies = self._replaced.union(self._copies.values()).difference(self._copies)
        return [number for number in range(len(self.jobs)) if number not in copies]

    def cancel(self) -> JobPool:
        """Cancel the jobs that wait, and end those that run."""
        left = [number for number in range(len(self.jobs)) if not self.has_outcome(number)]
        if left:
            self._master.stop_jobs(self, left, "cancel()")
        return self

    def raise_for_failed(self) -> JobPool:
        """Raise the first failure, if there is one; its notes say what else failed, and where."""
        failures = self.failures()
        if failures:
            if len(failures) > 1:
                failures[0].add_note(f"{len(failures)} of {len(self)} jobs of run {self.run}:")
                for line in self._described():
                    failures[0].add_note(f"  {line}")
            raise failures[0]
        return self

    def _described(self) -> list[str]:
        """What failed, in a few lines."""
        from .parcel.failure_groups import described

        return list(described(self._grouped(), MOST_ERRORS))

    def _grouped(self) -> list[FailureGroup]:
        """What failed: equal errors as one."""
        from .parcel.failure_groups import group_failures

        return group_failures(
            {n: failure for n, failure in self._failures.items() if n not in self._replaced}
        )

    def summary(self) -> str:
        """What each agent did, what failed and where, equal errors as one, and where results are.

        The traceback of the first failure is shown.
        """
        lines = [f"run {self.run}"]
        lines += table_lines(self._agent_rows(), indent="  ")
        groups = self._grouped()
        lines += [f"  {line}" for line in self._described()]
        if groups:
            number = min(group.numbers[0] for group in groups)
            first = _job_failed(self, number, self._failures[number])
            lines += [f"the first of them: {first}", *str(first.__cause__ or "").splitlines()[2:]]
        lines.append(f"{self.n_done - self.n_failed} of {len(self)} ok, {self.n_failed} failed")
        lines.append(f"results: {self._base.result_folder(self.run)}")
        return "\n".join(lines)

    def _agent_rows(self) -> list[list[str]]:
        rows = [["agent", "GPU", "jobs", "failed", "busy", "worker pids"]]
        for agent_id, share in sorted(self.agents.items()):
            from .store.agents import read_agent_info

            info = read_agent_info(self._files, self._base, agent_id)
            pids = " ".join(str(pid) for pid in sorted(share.pids) if pid)
            gpu = info.gpu_name if info else "gone"
            counts = [str(share.jobs), str(share.failed), f"{share.busy_s:.1f} s"]
            rows.append([agent_id, gpu, *counts, pids])
        return rows

    def output(self, number: int) -> str:
        """What a job has printed or logged so far, on stdout and stderr; the newest part is kept.

        It is there when the job is done, and while it runs.
        """
        job_id = self.id_of(self._newest(self._checked(number)))
        from .store.kernel_output import read_output

        return read_output(self._base, job_id.run, job_id.number)

    def how_to(self, verb: str, number: int) -> str:
        """The command line that does this to a job: `show`, with its traceback, or `kill`."""
        root = self._base.root
        base = "" if os.path.abspath(default_base()) == root else f" -b {shlex.quote(root)}"
        return f"postroom {verb} {self.id_of(number).short}{base}"

    def id_of(self, number: int) -> JobId:
        """The id of a job."""
        return JobId(self.run, number)

    def to_pandas(self) -> Any:
        """A pandas frame with a row for each job: status, seconds, and what fits a cell.

        That is every argument and every result that is a number, text, a time or a path; a dict or
        an object with fields has a column for each of its items, such as `config.lr`.
        """
        try:
            import pandas
        except ImportError as error:
            raise PostroomError(
                f"to_pandas() needs pandas ({error}): pip install 'postroom[frames]'"
            ) from None
        from .parcel.columns import cells, merged

        fixed, arguments, results = [], [], []
        self.wait()
        for number in self._originals():
            finished = self._finished(self._newest(number))
            fixed.append(self._row(number, finished))
            passed = dict(finished.job.arguments)
            positional = enumerate(passed.pop(POSITIONAL, ()))
            arguments.append(cells({f"argument.{n}": one for n, one in positional} | passed))
            results.append({} if finished.error else cells(finished.result()))
        return pandas.DataFrame(merged({"": fixed, "argument.": arguments, "result.": results}))

    def _row(self, number: int, finished: Finished) -> dict[str, Any]:
        return {
            "job": number,
            "name": finished.job.name,
            "status": finished.outcome.value,
            "seconds": finished.done.seconds,
            "agent": finished.agent,
            "error": str(finished.error) if finished.error else None,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all results into one `.npz` that `numpy.load` reads as arrays; never replaces one.

        A result that has the same shape in all jobs is one array with a row for each; any other is
        an array for each job. `job` has the numbers of the rows: failed jobs have none.
        """
        from .parcel.columns import save_arrays

        results = self.results(return_exceptions=True)
        originals = self._originals()
        rows = {number: results[row] for row, number in enumerate(originals)}
        numbers = [number for number in originals if self._newest(number) not in self._failures]
        names = [self.jobs[number].name or "" for number in numbers]
        save_arrays(
            os.fspath(path),
            {"job": numbers, "name": names},
            numbers,
            [rows[number] for number in numbers],
        )

    # Results

    def deliver(self, sheet: OutcomeSheet) -> None:
        """Add a parcel of results; one that is known already, or was taken, changes nothing."""
        if self._learn_taken():
            self._add(sheet)
        else:
            self._missed = True

    def _add(self, sheet: OutcomeSheet) -> None:
        stop = sheet.first + sheet.count
        numbers: Sequence[int] = range(sheet.first, min(stop, len(self.jobs)))
        if not self._first_of.keys().isdisjoint(numbers):
            numbers = [number for number in numbers if number not in self._first_of]
        if self._taken:
            numbers = [number for number in numbers if number not in self._taken]
        if not numbers:
            return
        # Jobs that others appended behind our last one are added when they join the pool.
        (self._cut.add if stop > len(self.jobs) else self._cut.discard)(sheet.first)
        small = sheet.nbytes < MAP_FROM_BYTES
        self._sheet_of[sheet.first] = sheet if small else None
        self._first_of.update(dict.fromkeys(numbers, sheet.first))
        failures = {n: one for n, one in sheet.failures.items() if n in numbers}
        self._failures.update(failures)
        if sheet.failures:
            self._failed_in.add(sheet.first)
        self._arrived.extend(numbers)
        self._n_done += len(numbers)
        self._not_taken[sheet.first] = self._not_taken.get(sheet.first, 0) + len(numbers)
        self.parcels.done(numbers, failures)
        share = self.agents.setdefault(sheet.ran_by.agent, AgentTotals())
        share.jobs += len(numbers)
        share.failed += len(failures)
        share.busy_s += sum([sheet.seconds[number - sheet.first] for number in numbers])
        share.pids.add(sheet.ran_by.pid)

    def _forget(self, number: int) -> None:
        """Give back the memory, and soon the disk space, of a result that was handed out."""
        first = self._first_of.pop(number)
        self._taken.add(number, number + 1)
        if number not in self._failures:  # a failed one may be run again
            self.jobs[number] = _HANDED_OUT
        self._not_taken[first] -= 1
        if self._not_taken[first]:
            return
        del self._not_taken[first]
        sheet = self._sheet_of.pop(first) or self._last
        if self._last is not None and self._last.first == first:
            self._last = None
        # What holds results of jobs that are not in this pool yet was not handed out as a whole.
        stays = first in self._failed_in or first in self._cut
        if stays or sheet is None or sheet.first != first:
            self._failed_in.discard(first)
            return
        self._to_remove.append((first, first + sheet.count))
        self._to_remove_jobs += sheet.count
        self._to_remove_bytes += sheet.nbytes
        if self._to_remove_jobs >= REMOVE_JOBS or self._to_remove_bytes >= REMOVE_BYTES:
            self._remove_taken()

    def sheet_of(self, number: int) -> OutcomeSheet | None:
        """The parcel with the result of a job; None: it has none yet."""
        first = self._first_of.get(number)
        return None if first is None else self._sheet(first)

    def take(self, numbers: Iterable[int]) -> None:
        """The results of these jobs were handed out; those that failed stay."""
        for number in numbers:
            if number not in self._failures:
                self._forget(number)
        self.take_arrived()

    def leave(self) -> None:
        """Nothing more is handed out: remove what was, and leave nothing in `tmp/`."""
        self._remove_taken()
        self._remover.close()

    def logged(self, record: Record) -> None:
        """Note a record of the append log, if its space is given back later."""
        if self._in_turn:
            self._remover.logged(record.number, record.stop, record.at, record.end)

    def take_in_turn(self) -> None:
        """The results of this pool will be handed out and not kept."""
        self._in_turn = True

    def pass_taken(self, taken: Iterable[tuple[int, int]]) -> None:
        """Results of these jobs were handed out, here or elsewhere, and are not kept."""
        for first, stop in taken:
            known = [(0, first), *self._taken, *((number, number + 1) for number in self._first_of)]
            for start, end in gaps(min(stop, len(self.jobs)), known):
                self._taken.add(start, end)
                self._n_done += end - start

    def catch_up(self) -> None:
        """See what is not delivered: what other programs have taken."""
        if self._learn_taken() and self._missed:
            self._missed = False
            self.refresh()

    def _learn_taken(self) -> bool:
        """See what other programs have taken; False: nobody here can read that."""
        if self._remover.has_begun:
            return True
        try:
            taken = read_taken(self._files, self._base, self.run).ranges
        except OtherVersionError:
            return False
        if (seen := (taken, len(self.jobs))) != self._seen_taken:
            self.pass_taken(taken)
            self._seen_taken = seen
        return True

    def _remove_taken(self) -> None:
        """Remove the results that were handed out, unless another process does that."""
        self._to_remove_jobs = self._to_remove_bytes = 0
        if not self._to_remove:
            return
        with contextlib.suppress(OSError):  # on a full disk, say: then they go with the next ones
            if not self._remover.has_begun and self._remover.begin():
                self.pass_taken(self._remover.taken)
            if self._remover.has_begun:
                self._remover.remove(self._to_remove)
                self.jobs.drop(self._taken.prefix, but=self._failures)
            self._to_remove = []

    def refresh(self) -> bool:
        """Read new results from disk; True when there are some."""
        before = self.n_done
        folder = self._base.result_folder(self.run)
        listed = list_firsts(self._files, folder)
        fresh = [n for n in listed if n not in self._sheet_of or n in self._cut]
        if self._taken:
            fresh = [n for n in fresh if n not in self._taken or n in self._cut]
        if fresh and self.info.durable:
            # A result is visible before its name is synced: what is returned must stay.
            self._files.sync_folder(folder)
        for first in fresh:
            try:
                self.deliver(self._read(first))
            except OtherVersionError:
                raise
            except BadFileError:
                pass  # the acting Master puts it aside
        self._learn_taken()
        return self.n_done > before

    def _sheet(self, first: int) -> OutcomeSheet:
        sheet = self._sheet_of[first]
        if sheet is not None:
            return sheet
        if self._last is None or self._last.first != first:
            with explaining("read results", self._base.root):
                before, self._last = self._last, self._read(first)
            if before is not None and before.nbytes >= LARGE:
                self._files.let_go(before.parcel.path)
        return self._last

    def _read(self, first: int) -> OutcomeSheet:
        path = self._base.result(self.run, first)
        data = read_parcel_bytes(self._files, path, recycled=self.info.hands_on)
        return OutcomeSheet(path, data)

    # Display

    def __repr__(self) -> str:
        waiting = len(self) - self.n_done
        parts = [f"{self.n_done - self.n_failed} ok", f"{self.n_failed} failed"]
        if waiting:
            parts.append(f"{waiting} to come")
        return f"<JobPool {self.run}: {len(self)} jobs, {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        rows = [["run", self.run], ["jobs", str(len(self))]]
        rows += [["ok", str(self.n_done - self.n_failed)]]
        rows += [["failed", line] for line in self._described()]
        rows += [["to come", str(len(self) - self.n_done)]]
        return html_table(rows) + (html_table(self._agent_rows()) if self.agents else "")
