"""The state of a base: which jobs run, wait, are held or have ended, and who runs them.

Folders are read in the order in which jobs pass through them (job_pool, mailboxes, result_pool). A
job that moves meanwhile is then seen twice, never missed, and its later place counts.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ..dispatch.send_order import JobKey, is_held, job_key, run_age, run_priority
from ..errors import BadFileError, OtherVersionError
from ..store.base import Base
from ..store.files import Files
from ..store.job_ids import JobId, UnknownJobError, match_run
from ..store.project_shares import ProjectShares, levels, read_use
from ..store.requests import Orders, list_stops, no_orders, pending, read_orders
from ..store.runs import list_runs
from ..store.scheduling import SchedulingOptions
from ..store.snapshot import AgentStatus, snapshot
from .rows import ENDED
from .run_reader import RunReader, RunReaders
from .waiting_order import WaitingRun, in_order, without

RunJob = tuple[RunReader, int]


@dataclass
class BaseState:
    """The base as it was read."""

    readers: dict[str, RunReader]
    agents: list[AgentStatus]
    master_pid: int | None
    orders: Orders
    requests: list[str]
    at: float
    use: ProjectShares = field(default_factory=ProjectShares)
    other_versions: list[OtherVersionError] = field(default_factory=list)  # runs not read
    troubles: list[str] = field(default_factory=list)  # what cannot be read, and what to do
    running: dict[JobId, AgentStatus] = field(default_factory=dict)
    stopping: set[JobId] = field(default_factory=set)
    ready: list[WaitingRun] = field(default_factory=list)
    paused: list[WaitingRun] = field(default_factory=list)
    abandoned: list[WaitingRun] = field(default_factory=list)  # their program is gone
    waiting: list[RunJob] = field(default_factory=list)  # for other jobs
    held: list[RunJob] = field(default_factory=list)

    def find(self, job: JobId) -> JobId:
        """The job that an id means; the end of the run's id is enough, as people write it."""
        run = job.run if job.run in self.readers else match_run(job.run, list(self.readers))
        if run is None or not 0 <= job.number < self.readers[run].asked:
            raise UnknownJobError(f"there is no job {job}; see `postroom jobs`")
        return JobId(run, job.number)

    # States

    def state(self, reader: RunReader, number: int) -> str:
        """The state of a job."""
        ended = reader.outcome(number)
        if ended is not None:
            return ended
        job = reader.job_id(number)
        if job in self.running:
            return "stopping" if job in self.stopping else "running"
        if self.is_abandoned(reader.run):
            return "abandoned"
        reader.with_options()
        return self._why_not_ready(job, reader.scheduling(number)) or (
            "paused" if self.is_paused(reader) else "queued"
        )

    def _why_not_ready(self, job: JobId, scheduling: SchedulingOptions) -> str:
        """Whether an unfinished job is "held" or "waiting"; "": neither."""
        if is_held(self.orders, job, scheduling):
            return "held"
        early = scheduling.begin_at > self.at
        return "waiting" if early or self.missing(scheduling) else ""

    def is_paused(self, reader: RunReader) -> bool:
        """Whether no more jobs of a run are started."""
        project = reader.info.project if reader.info.queue else ""
        return self.orders.is_paused(reader.run, project)

    def is_abandoned(self, run: str) -> bool:
        """Whether the program that a run belongs to is gone before all its jobs have ended."""
        return any(one.reader.run == run for one in self.abandoned)

    def abandon(self, reader: RunReader) -> None:
        """Sort the waiting jobs of a run whose program is gone."""
        out = {job.number for job in self.running if job.run == reader.run}
        self.abandoned.append(WaitingRun(reader, priority=0, ranges=without(reader.waiting, out)))

    def missing(self, scheduling: SchedulingOptions) -> list[JobId]:
        """The jobs that a job waits for and that have not ended as it needs."""
        missing = [job for job in scheduling.after_any if self.outcome(job) is None]
        return missing + [job for job in scheduling.after if self.outcome(job) != "ok"]

    def outcome(self, job: JobId) -> str | None:
        """How a job ended; None: it has not. Nobody knows how a removed job ended."""
        reader = self.readers.get(job.run)
        return "removed" if reader is None else reader.outcome(job.number)

    def job_key(self, reader: RunReader, job: JobId) -> JobKey:
        """Sorts the waiting jobs of a run; see `dispatch.send_order`."""
        if not reader.info.queue:
            return -run_priority(self.orders, job.run), float(job.number), job.number
        return job_key(self.orders, job, reader.scheduling(job.number))

    def priority(self, reader: RunReader, number: int) -> int:
        """The priority that a job has now."""
        return -self.job_key(reader, reader.job_id(number))[0]

    def add_waiting(self, reader: RunReader) -> None:
        """Sort the waiting jobs of a run: ready, paused, held, or waiting for other jobs."""
        orders, run = self.orders, reader.run
        out = {job.number for job in self.running if job.run == run}
        # Orders name single jobs of the project queue; those of other runs can only be held.
        about = (orders.priorities, orders.held, orders.positions)
        named = {
            job.number
            for orders_about in (about if reader.info.queue else (orders.held,))
            for job in orders_about
            if job.run == run and job.number < reader.asked
        }
        single = {*reader.with_options(), *named} - out
        waiting = WaitingRun(
            reader,
            priority=run_priority(orders, run),
            ranges=without(reader.waiting, out | single),
        )
        for number in sorted(single):
            if reader.outcome(number) is None:
                job = reader.job_id(number)
                state = self._why_not_ready(job, reader.scheduling(number))
                if state == "held":
                    self.held.append((reader, number))
                elif state == "waiting":
                    self.waiting.append((reader, number))
                else:
                    waiting.add(self.job_key(reader, job))
        (self.paused if self.is_paused(reader) else self.ready).append(waiting)

    def counts(self, reader: RunReader) -> dict[str, int]:
        """The jobs of a run, counted by state."""
        found = {"running": 0, "stopping": 0, "queued": 0, "paused": 0}
        for job in self.running:
            if job.run == reader.run:
                found["stopping" if job in self.stopping else "running"] += 1
        found["queued"] = sum(run.count() for run in self.ready if run.reader is reader)
        found["paused"] = sum(run.count() for run in self.paused if run.reader is reader)
        found["abandoned"] = sum(run.count() for run in self.abandoned if run.reader is reader)
        found["waiting"] = sum(job[0] is reader for job in self.waiting)
        found["held"] = sum(job[0] is reader for job in self.held)
        failed = 0
        for failures in reader.failures.values():
            for outcome in failures.values():
                found[outcome] = found.get(outcome, 0) + 1
                failed += 1
        found["ok"] = reader.done - failed
        return {state: count for state, count in found.items() if count}

    def levels(self) -> dict[str, int]:
        """How much each project has used, as far as it matters whose turn it is."""
        used_s = self.use.used_s(self.at)
        for job, agent in self.running.items():
            info = self.readers[job.run].info
            if info.queue and agent.job_since is not None:
                for_s = max(0.0, self.at - agent.job_since) * max(gpu_count(agent), 1)
                used_s[info.project] = used_s.get(info.project, 0.0) + for_s
        waiting = (*self.ready, *self.paused, *self.abandoned)
        return levels(used_s, {run.project for run in waiting})

    # Lists

    def jobs_in(
        self, states: Collection[str], readers: Collection[RunReader]
    ) -> Iterator[tuple[RunReader, int, str]]:
        """Jobs in some states: running, then the queue in its order, then ended, newest first."""
        among = {reader.run for reader in readers}
        for job in sorted(self.running, key=lambda job: self.running[job].job_since or 0.0):
            state = "stopping" if job in self.stopping else "running"
            if job.run in among and state in states:
                yield self.readers[job.run], job.number, state
        for state, runs in (
            ("queued", self.ready),
            ("paused", self.paused),
            ("abandoned", self.abandoned),
        ):
            if state in states:
                chosen = [one for one in runs if one.reader.run in among]
                for reader, number in in_order(chosen, self.levels()):
                    yield reader, number, state
        for state, jobs_in in (("waiting", self.waiting), ("held", self.held)):
            if state in states:
                for reader, number in jobs_in:
                    if reader.run in among:
                        yield reader, number, state
        if "ok" in states:
            yield from _newest(readers, states)
        elif not set(states).isdisjoint(ENDED):
            yield from _newest_failures(readers, states)


def gpu_count(agent: AgentStatus) -> int:
    """How many GPUs a job of an agent gets."""
    if agent.shares:
        return 1  # its job gets a part of one of them
    return 0 if agent.gpu in ("", "cpu") else agent.gpu.count(",") + 1


def _newest(
    readers: Collection[RunReader], states: Collection[str]
) -> Iterator[tuple[RunReader, int, str]]:
    """Ended jobs, newest first; a run is opened only when its newest result may be next."""
    unopened = sorted((reader for reader in readers if reader.results), key=lambda s: s.changed_at)
    heap: list[tuple[float, str, int]] = []  # minus the time, run, place among its newest
    by_run = {reader.run: reader for reader in readers}
    while unopened or heap:
        while unopened and (not heap or unopened[-1].changed_at >= -heap[0][0]):
            reader = unopened.pop()
            heapq.heappush(heap, (-reader.ended_at(reader.newest()[0]), reader.run, 0))
        _, run, place = heapq.heappop(heap)
        reader = by_run[run]
        newest = reader.newest()
        first = newest[place]
        for number in reversed(range(first, first + reader.counts[first])):
            outcome = reader.failures.get(first, {}).get(number, "ok")
            if outcome in states:
                yield reader, number, outcome
        if place + 1 < len(newest):
            heapq.heappush(heap, (-reader.ended_at(newest[place + 1]), run, place + 1))


def _newest_failures(
    readers: Collection[RunReader], states: Collection[str]
) -> Iterator[tuple[RunReader, int, str]]:
    """Jobs that did not end well, newest first: found without opening the other results."""
    found = [
        (-reader.ended_at(first), reader.run, -number, reader, outcome)
        for reader in readers
        for first, failures in reader.failures.items()
        for number, outcome in failures.items()
        if outcome in states
    ]
    for _, _, number, reader, outcome in sorted(found, key=lambda entry: entry[:3]):
        yield reader, -number, outcome


class BaseStateReader:
    """Reads a base again and again; what has not changed is not read again."""

    def __init__(self, files: Files, base: Base) -> None:
        self._files = files
        self._base = base
        self._readers = RunReaders(files, base)

    def read(self) -> BaseState:
        """The base as it is now."""
        runs = list_runs(self._files, self._base)
        now = snapshot(self._base, files=self._files, runs=False)
        found = [reader for run in runs if (reader := self._readers.get(run)) is not None]
        found.sort(key=lambda reader: run_age(reader.info))
        readers = {reader.run: reader for reader in found}
        others = [error for run, error in self._readers.other_versions.items() if run in runs]
        orders, undecided = self._read_orders()
        self._readers.keep_only(readers)
        base_state = BaseState(
            readers=readers,
            agents=now.agents,
            master_pid=now.master_pid,
            orders=orders,
            requests=pending(self._files, self._base),
            at=time.time(),
            use=read_use(self._files, self._base),
            other_versions=others,
            troubles=[*undecided, *map(str, others)],
        )
        self._find_running(base_state)
        for reader in readers.values():
            if reader.pending:
                if reader.info.embedded and not self._is_wanted(reader.run):
                    base_state.abandon(reader)
                else:
                    base_state.add_waiting(reader)
        return base_state

    def _read_orders(self) -> tuple[Orders, list[str]]:
        """The orders, and what to do if they cannot be read."""
        try:
            return read_orders(self._files, self._base), []
        except BadFileError as error:
            return Orders(), [no_orders(error)]

    def _find_running(self, base_state: BaseState) -> None:
        for agent in base_state.agents:
            if agent.run is None or agent.first is None or agent.state == "dead":
                continue
            job = JobId(agent.run, agent.first if agent.job is None else agent.job)
            reader = base_state.readers.get(job.run)
            if reader is not None and job.number < reader.asked and not reader.outcome(job.number):
                base_state.running[job] = agent
        if base_state.running:
            told = {*list_stops(self._files, self._base), *base_state.orders.killed}
            base_state.stopping = told & set(base_state.running)

    def _is_wanted(self, run: str) -> bool:
        """Whether the program of an embedded run still runs: it holds a lock."""
        try:
            lock = self._files.try_lock(self._base.wanted(run))
        except FileNotFoundError:
            return False  # the run is being removed
        if lock is not None:
            lock.release()
        return lock is None
