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

from ..base import Base
from ..contents import JobSheet, OutcomeSheet
from ..control import Orders, list_stops, pending, read_orders
from ..errors import BadFileError
from ..files import Files
from ..ids import JobId
from ..runs import list_runs
from ..status import AgentStatus, snapshot
from ..wishes import Wishes
from .order import Line, in_order, without
from .rows import ENDED
from .shelf import Recent, Shelf

Spot = tuple[Shelf, int]


@dataclass
class Scene:
    """What one look has found."""

    shelves: dict[str, Shelf]
    agents: list[AgentStatus]
    master_pid: int | None
    orders: Orders
    requests: list[str]
    at: float
    running: dict[JobId, AgentStatus] = field(default_factory=dict)
    stopping: set[JobId] = field(default_factory=set)
    ready: list[Line] = field(default_factory=list)
    paused: list[Line] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)  # runs whose submitters are gone
    waiting: list[Spot] = field(default_factory=list)  # for other jobs
    held: list[Spot] = field(default_factory=list)

    # States

    def state(self, shelf: Shelf, number: int) -> str:
        """What a job is."""
        ended = shelf.outcome(number)
        if ended is not None:
            return ended
        job = shelf.job_id(number)
        if job in self.running:
            return "stopping" if job in self.stopping else "running"
        wishes = shelf.special().get(number, Wishes())
        if self.orders.held.get(job, wishes.held):
            return "held"
        if self.missing(wishes):
            return "waiting"
        return "paused" if self.is_paused(shelf) else "queued"

    def is_paused(self, shelf: Shelf) -> bool:
        """Whether nothing more of a run is begun."""
        project = shelf.card.label if shelf.card.queue else ""
        return shelf.run in self.unwanted or self.orders.is_paused(shelf.run, project)

    def missing(self, wishes: Wishes) -> list[JobId]:
        """The jobs that somebody waits for, and that have not ended as they should."""
        missing = [job for job in wishes.after_any if self.outcome(job) is None]
        return missing + [job for job in wishes.after if self.outcome(job) != "ok"]

    def outcome(self, job: JobId) -> str | None:
        """How a job ended; None when it has not. One whose run has left is over."""
        shelf = self.shelves.get(job.run)
        return "ok" if shelf is None else shelf.outcome(job.number)

    def priority(self, shelf: Shelf, number: int) -> int:
        """The priority that counts for a job."""
        in_run = self.orders.run_priorities.get(shelf.run, shelf.wishes(number).priority)
        return self.orders.priorities.get(shelf.job_id(number), in_run)

    def counts(self, shelf: Shelf) -> dict[str, int]:
        """How many jobs of a run are in which state."""
        found = {"running": 0, "stopping": 0, "queued": 0, "paused": 0}
        for job in self.running:
            if job.run == shelf.run:
                found["stopping" if job in self.stopping else "running"] += 1
        found["queued"] = sum(line.count() for line in self.ready if line.shelf is shelf)
        found["paused"] = sum(line.count() for line in self.paused if line.shelf is shelf)
        found["waiting"] = sum(spot[0] is shelf for spot in self.waiting)
        found["held"] = sum(spot[0] is shelf for spot in self.held)
        failed = 0
        for failures in shelf.failures.values():
            for outcome in failures.values():
                found[outcome] = found.get(outcome, 0) + 1
                failed += 1
        found["ok"] = shelf.done - failed
        return {state: count for state, count in found.items() if count}

    # Lists

    def spots(
        self, states: Collection[str], shelves: Collection[Shelf]
    ) -> Iterator[tuple[Shelf, int, str]]:
        """The jobs in some states: running, then as they will run, then ended, newest first."""
        among = {shelf.run for shelf in shelves}
        for job in sorted(self.running, key=lambda job: self.running[job].job_since or 0.0):
            state = "stopping" if job in self.stopping else "running"
            if job.run in among and state in states:
                yield self.shelves[job.run], job.number, state
        for state, lines in (("queued", self.ready), ("paused", self.paused)):
            if state in states:
                for shelf, number in in_order([one for one in lines if one.shelf.run in among]):
                    yield shelf, number, state
        for state, spots in (("waiting", self.waiting), ("held", self.held)):
            if state in states:
                for shelf, number in spots:
                    if shelf.run in among:
                        yield shelf, number, state
        if "ok" in states:
            yield from _newest(shelves, states)
        elif not set(states).isdisjoint(ENDED):
            yield from _newest_failures(shelves, states)


def _newest(
    shelves: Collection[Shelf], states: Collection[str]
) -> Iterator[tuple[Shelf, int, str]]:
    """What has ended, newest first; a run is opened when its newest result may be the next."""
    unopened = sorted((shelf for shelf in shelves if shelf.results), key=lambda s: s.changed_at)
    heap: list[tuple[float, str, int]] = []  # minus the time, run, place among its newest
    by_run = {shelf.run: shelf for shelf in shelves}
    while unopened or heap:
        while unopened and (not heap or unopened[-1].changed_at >= -heap[0][0]):
            shelf = unopened.pop()
            heapq.heappush(heap, (-shelf.ended_at(shelf.newest()[0]), shelf.run, 0))
        _, run, place = heapq.heappop(heap)
        shelf = by_run[run]
        newest = shelf.newest()
        first = newest[place]
        for number in reversed(range(first, first + shelf.counts[first])):
            outcome = shelf.failures.get(first, {}).get(number, "ok")
            if outcome in states:
                yield shelf, number, outcome
        if place + 1 < len(newest):
            heapq.heappush(heap, (-shelf.ended_at(newest[place + 1]), run, place + 1))


def _newest_failures(
    shelves: Collection[Shelf], states: Collection[str]
) -> Iterator[tuple[Shelf, int, str]]:
    """What has not ended well, newest first: their marks say which parcels to look at."""
    found = [
        (-shelf.ended_at(first), shelf.run, -number, shelf, outcome)
        for shelf in shelves
        for first, failures in shelf.failures.items()
        for number, outcome in failures.items()
        if outcome in states
    ]
    for _, _, number, shelf, outcome in sorted(found, key=lambda entry: entry[:3]):
        yield shelf, -number, outcome


class Lookout:
    """Looks at a base again and again; what has not changed is not read again."""

    def __init__(self, files: Files, base: Base) -> None:
        self._files = files
        self._base = base
        self._shelves: dict[str, Shelf] = {}
        self._jobs: Recent[JobSheet] = Recent()
        self._outcomes: Recent[OutcomeSheet] = Recent()

    def look(self) -> Scene:
        """See what there is now."""
        runs = list_runs(self._files, self._base)
        now = snapshot(self._base, files=self._files, runs=False)
        found = [shelf for run in runs if (shelf := self._shelf(run)) is not None]
        # Two that were begun in the same second have names in any order.
        found.sort(key=lambda shelf: (shelf.card.created_at, shelf.run))
        self._shelves = shelves = {shelf.run: shelf for shelf in found}
        scene = Scene(
            shelves=shelves,
            agents=now.agents,
            master_pid=now.master_pid,
            orders=self._read_orders(),
            requests=pending(self._files, self._base),
            at=time.time(),
        )
        self._find_running(scene)
        for shelf in shelves.values():
            if shelf.pending:
                self._line_up(scene, shelf)
        return scene

    def _shelf(self, run: str) -> Shelf | None:
        shelf = self._shelves.get(run)
        try:
            if shelf is None:
                shelf = Shelf(self._files, self._base, run, self._jobs, self._outcomes)
            shelf.refresh()
        except (OSError, BadFileError):  # on its way out, or spoilt: `postroom doctor` says so
            return None
        return shelf

    def _read_orders(self) -> Orders:
        with contextlib.suppress(BadFileError):
            return read_orders(self._files, self._base)
        return Orders()

    def _find_running(self, scene: Scene) -> None:
        for agent in scene.agents:
            if agent.run is None or agent.first is None or agent.state == "dead":
                continue
            job = JobId(agent.run, agent.first if agent.job is None else agent.job)
            shelf = scene.shelves.get(job.run)
            if shelf is not None and job.number < shelf.asked and not shelf.outcome(job.number):
                scene.running[job] = agent
        if scene.running:
            told = {*list_stops(self._files, self._base), *scene.orders.killed}
            scene.stopping = told & set(scene.running)

    def _line_up(self, scene: Scene, shelf: Shelf) -> None:
        """Sort what waits of a run: ready, paused, held, or waiting for others."""
        orders, run = scene.orders, shelf.run
        out = {job.number for job in scene.running if job.run == run}
        wished = shelf.special()
        asked = {
            job.number
            for about in (orders.priorities, orders.held, orders.places)
            for job in about
            if job.run == run and job.number < shelf.asked
        }
        line = Line(
            shelf,
            priority=orders.run_priorities.get(run, 0),
            plain=without(shelf.waiting, {*out, *wished, *asked}),
        )
        for number in sorted({*wished, *asked} - out):
            if shelf.outcome(number) is not None:
                continue
            job = shelf.job_id(number)
            wishes = shelf.wishes(number)
            if orders.held.get(job, wishes.held):
                scene.held.append((shelf, number))
            elif scene.missing(wishes):
                scene.waiting.append((shelf, number))
            else:
                place = orders.places.get(job, float(number))
                ranks = line.special.setdefault(scene.priority(shelf, number), [])
                ranks.append((place, number))
        if shelf.card.embedded and not self._is_wanted(run):
            scene.unwanted.add(run)
        (scene.paused if scene.is_paused(shelf) else scene.ready).append(line)

    def _is_wanted(self, run: str) -> bool:
        """Whether somebody waits for an embedded run."""
        try:
            lock = self._files.try_lock(self._base.wanted(run))
        except OSError:
            return False
        if lock is not None:
            lock.release()
        return lock is None
