"""A base at one moment, as the queue sees it: who runs what, what waits, and what it waits for.

The folders are read in the direction of the flow (job_pool, mailboxes, result_pool), so that a job
that moves meanwhile is seen twice, never missed; where it is seen twice, the later place counts.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ..errors import BadFileError
from ..parcel.sheets import JobSheet, OutcomeSheet
from ..store.base import Base
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.requests import Orders, list_stops, pending, read_orders
from ..store.runs import list_runs
from ..store.scheduling import SchedulingOptions
from ..store.snapshot import AgentStatus, snapshot
from .rows import ENDED
from .run_reader import Recent, RunReader
from .waiting_order import WaitingLine, in_order, without

Spot = tuple[RunReader, int]


@dataclass
class BaseState:
    """What one look has found."""

    readers: dict[str, RunReader]
    agents: list[AgentStatus]
    master_pid: int | None
    orders: Orders
    requests: list[str]
    at: float
    running: dict[JobId, AgentStatus] = field(default_factory=dict)
    stopping: set[JobId] = field(default_factory=set)
    ready: list[WaitingLine] = field(default_factory=list)
    paused: list[WaitingLine] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)  # runs whose submitters are gone
    waiting: list[Spot] = field(default_factory=list)  # for other jobs
    held: list[Spot] = field(default_factory=list)

    # States

    def state(self, reader: RunReader, number: int) -> str:
        """What a job is."""
        ended = reader.outcome(number)
        if ended is not None:
            return ended
        job = reader.job_id(number)
        if job in self.running:
            return "stopping" if job in self.stopping else "running"
        scheduling = reader.special().get(number, SchedulingOptions())
        if self.orders.held.get(job, scheduling.held):
            return "held"
        if self.missing(scheduling):
            return "waiting"
        return "paused" if self.is_paused(reader) else "queued"

    def is_paused(self, reader: RunReader) -> bool:
        """Whether nothing more of a run is begun."""
        project = reader.info.project if reader.info.queue else ""
        return reader.run in self.unwanted or self.orders.is_paused(reader.run, project)

    def missing(self, scheduling: SchedulingOptions) -> list[JobId]:
        """The jobs that somebody waits for, and that have not ended as they should."""
        missing = [job for job in scheduling.after_any if self.outcome(job) is None]
        return missing + [job for job in scheduling.after if self.outcome(job) != "ok"]

    def outcome(self, job: JobId) -> str | None:
        """How a job ended; None when it has not. One whose run has left is over."""
        reader = self.readers.get(job.run)
        return "ok" if reader is None else reader.outcome(job.number)

    def priority(self, reader: RunReader, number: int) -> int:
        """The priority that counts for a job."""
        in_run = self.orders.run_priorities.get(reader.run, reader.scheduling(number).priority)
        return self.orders.priorities.get(reader.job_id(number), in_run)

    def counts(self, reader: RunReader) -> dict[str, int]:
        """How many jobs of a run are in which state."""
        found = {"running": 0, "stopping": 0, "queued": 0, "paused": 0}
        for job in self.running:
            if job.run == reader.run:
                found["stopping" if job in self.stopping else "running"] += 1
        found["queued"] = sum(line.count() for line in self.ready if line.reader is reader)
        found["paused"] = sum(line.count() for line in self.paused if line.reader is reader)
        found["waiting"] = sum(spot[0] is reader for spot in self.waiting)
        found["held"] = sum(spot[0] is reader for spot in self.held)
        failed = 0
        for failures in reader.failures.values():
            for outcome in failures.values():
                found[outcome] = found.get(outcome, 0) + 1
                failed += 1
        found["ok"] = reader.done - failed
        return {state: count for state, count in found.items() if count}

    # Lists

    def spots(
        self, states: Collection[str], readers: Collection[RunReader]
    ) -> Iterator[tuple[RunReader, int, str]]:
        """The jobs in some states: running, then as they will run, then ended, newest first."""
        among = {reader.run for reader in readers}
        for job in sorted(self.running, key=lambda job: self.running[job].job_since or 0.0):
            state = "stopping" if job in self.stopping else "running"
            if job.run in among and state in states:
                yield self.readers[job.run], job.number, state
        for state, lines in (("queued", self.ready), ("paused", self.paused)):
            if state in states:
                for reader, number in in_order([one for one in lines if one.reader.run in among]):
                    yield reader, number, state
        for state, spots in (("waiting", self.waiting), ("held", self.held)):
            if state in states:
                for reader, number in spots:
                    if reader.run in among:
                        yield reader, number, state
        if "ok" in states:
            yield from _newest(readers, states)
        elif not set(states).isdisjoint(ENDED):
            yield from _newest_failures(readers, states)


def _newest(
    readers: Collection[RunReader], states: Collection[str]
) -> Iterator[tuple[RunReader, int, str]]:
    """What has ended, newest first; a run is opened when its newest result may be the next."""
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
    """What has not ended well, newest first: their marks say which parcels to look at."""
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
    """Looks at a base again and again; what has not changed is not read again."""

    def __init__(self, files: Files, base: Base) -> None:
        self._files = files
        self._base = base
        self._readers: dict[str, RunReader] = {}
        self._jobs: Recent[JobSheet] = Recent()
        self._outcomes: Recent[OutcomeSheet] = Recent()

    def look(self) -> BaseState:
        """See what there is now."""
        runs = list_runs(self._files, self._base)
        now = snapshot(self._base, files=self._files, runs=False)
        found = [reader for run in runs if (reader := self._reader(run)) is not None]
        # Two that were begun in the same second have names in any order.
        found.sort(key=lambda reader: (reader.info.created_at, reader.run))
        self._readers = readers = {reader.run: reader for reader in found}
        base_state = BaseState(
            readers=readers,
            agents=now.agents,
            master_pid=now.master_pid,
            orders=self._read_orders(),
            requests=pending(self._files, self._base),
            at=time.time(),
        )
        self._find_running(base_state)
        for reader in readers.values():
            if reader.pending:
                self._line_up(base_state, reader)
        return base_state

    def _reader(self, run: str) -> RunReader | None:
        reader = self._readers.get(run)
        try:
            if reader is None:
                reader = RunReader(self._files, self._base, run, self._jobs, self._outcomes)
            reader.refresh()
        except (OSError, BadFileError):  # on its way out, or spoilt: `postroom doctor` says so
            return None
        return reader

    def _read_orders(self) -> Orders:
        with contextlib.suppress(BadFileError):
            return read_orders(self._files, self._base)
        return Orders()

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

    def _line_up(self, base_state: BaseState, reader: RunReader) -> None:
        """Sort what waits of a run: ready, paused, held, or waiting for others."""
        orders, run = base_state.orders, reader.run
        out = {job.number for job in base_state.running if job.run == run}
        wished = reader.special()
        asked = {
            job.number
            for about in (orders.priorities, orders.held, orders.positions)
            for job in about
            if job.run == run and job.number < reader.asked
        }
        line = WaitingLine(
            reader,
            priority=orders.run_priorities.get(run, 0),
            plain=without(reader.waiting, {*out, *wished, *asked}),
        )
        for number in sorted({*wished, *asked} - out):
            if reader.outcome(number) is not None:
                continue
            job = reader.job_id(number)
            scheduling = reader.scheduling(number)
            if orders.held.get(job, scheduling.held):
                base_state.held.append((reader, number))
            elif base_state.missing(scheduling):
                base_state.waiting.append((reader, number))
            else:
                place = orders.positions.get(job, float(number))
                ranks = line.special.setdefault(base_state.priority(reader, number), [])
                ranks.append((place, number))
        if reader.info.embedded and not self._is_wanted(run):
            base_state.unwanted.add(run)
        (base_state.paused if base_state.is_paused(reader) else base_state.ready).append(line)

    def _is_wanted(self, run: str) -> bool:
        """Whether somebody waits for an embedded run."""
        try:
            lock = self._files.try_lock(self._base.wanted(run))
        except OSError:
            return False
        if lock is not None:
            lock.release()
        return lock is None
