"""Collects results: reads the result parcels of each letter in order, counts them, hands them out.

The acting Master also publishes results itself, for jobs that nobody will run: those that killed
too many workers, and those that were cancelled. It publishes them like any other result, then reads
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from ..parcel.container import Buffer
from ..parcel.sheets import Failure, JobEnd, Outcome, OutcomeSheet, RanBy, pack_outcomes
from ..store.base import Base
from ..store.files import Clock, Files
from ..store.journal import Journal
from ..store.mailbox import Letter
from ..store.runs import gaps, publish_results
from .agent import Agent
from .registry import ActiveRun, Registry

# Called with the run and the outcomes of some of its jobs.
OnOutcomes: TypeAlias = Callable[[str, OutcomeSheet], None]


class Collector:
    """Collects the results of a base, for its Dispatcher."""

    def __init__(
        self,
        files: Files,
        base: Base,
        registry: Registry,
        *,
        clock: Clock,
        journal: Journal,
        deliver: OnOutcomes,
    ) -> None:
        self._files = files
        self._base = base
        self._registry = registry
        self._clock = clock
        self._journal = journal
        self._listeners = [deliver]
        self.on_taken: Callable[[str, int, int], None] = lambda run, first, stop: None

    def listen(self, listener: OnOutcomes) -> None:
        """Have a function called with all outcomes that are collected from now on."""
        self._listeners.append(listener)

    def collect(self, agent: Agent, letter: Letter, *, last: bool = False) -> bool:
        """Read the results of a letter that have come since; True when there are some.

        For the `last` time, before jobs without a result are requeued, those that another process
        has taken and removed are found, too.
        """
        found = []
        while agent.reached < letter.stop:
            sheet = self._registry.read_results(letter.run, agent.reached)
            if sheet is None:
                if last and self._pass_taken(agent, letter):
                    continue
                break
            agent.reached += sheet.count
            found.append(sheet)
        if found:
            self.expect(agent, letter)
            self._count(letter.run, found)
        return bool(found)

    def _pass_taken(self, agent: Agent, letter: Letter) -> bool:
        """Go on behind results that were handed out and removed before they were seen here."""
        end = min(self._registry.taken(letter.run).end_of(agent.reached), letter.stop)
        passed = end > agent.reached
        if passed:
            self._count_taken(letter.run, agent.reached, end)
            agent.reached = end
        return passed

    def _count_taken(self, run: str, first: int, stop: int) -> None:
        active = self._registry.runs.get(run)
        if active is not None:
            active.queue.taken(stop - first)
        self.on_taken(run, first, stop)

    def expect(self, agent: Agent, letter: Letter) -> None:
        """Note the path of the next result of a letter, so that waiting can look for it.

        Not in a durable run: there a result counts only when its name is synced. Its publisher does
        that, and empties the mailbox afterwards.
        """
        active = self._registry.runs.get(letter.run)
        early = active is not None and not active.info.durable and agent.reached < letter.stop
        agent.answer = self._base.result(letter.run, agent.reached) if early else ""

    def collect_behind_gap(self, letter: Letter, reached: int) -> list[tuple[int, int]]:
        """Collect results behind a missing one, which a power loss may have taken.

        Returns the ranges of the letter that have no result.
        """
        run, stop = letter.run, letter.stop
        behind = [first for first, _ in self._registry.covered(run) if reached <= first < stop]
        sheets = [self._registry.read_results(run, first) for first in behind]
        found = [sheet for sheet in sheets if sheet is not None]
        self._count(run, found)
        spans = [(0, reached), *((sheet.first, sheet.first + sheet.count) for sheet in found)]
        taken = self._registry.taken(run)
        for first, end in gaps(stop, [*spans, *gaps(stop, taken)]):  # taken, and not found
            self._count_taken(run, first, end)
        return gaps(stop, [*spans, *taken])

    def _count(self, run: str, sheets: list[OutcomeSheet]) -> None:
        active = self._registry.runs.get(run)
        if sheets and active is not None and active.info.durable:
            # A result is visible before its name is synced: what is handed out must stay.
            self._files.sync_folder(self._base.result_folder(run))
        for sheet in sheets:
            seconds = sum(sheet.seconds)
            if active is not None:
                active.queue.covered(sheet.count, seconds)
            self._journal.event_soon(
                "done",
                run=run,
                first=sheet.first,
                count=sheet.count,
                failed=len(sheet.failures),
                agent=sheet.ran_by.agent,
                seconds=round(seconds, 6),
            )
            for listener in self._listeners:
                listener(run, sheet)

    def give_up(self, active: ActiveRun, job: int) -> None:
        """Publish that a job is lost, instead of letting it kill one more worker."""
        history = active.queue.history[job]
        last = history.notes[history.attempt - 1]
        message = f"{history.lost} attempts were lost, the last because {last.reason}"
        ran_by = RanBy(last.agent, "", 0, self._clock.wall(), attempt=last.attempt)
        self._publish(active, job, job + 1, Failure(Outcome.LOST, "lost", message), ran_by)

    def cancel(self, run: str, jobs: Collection[int], reason: str) -> None:
        """Publish that jobs are cancelled; those that do not wait in the queue are left alone."""
        active = self._registry.runs.get(run)
        if active is None:
            return
        failure = Failure(Outcome.CANCELLED, "cancelled", reason)
        ran_by = RanBy("", "", 0, self._clock.wall())
        for start, stop in active.queue.withdraw(jobs):
            self._publish(active, start, stop, failure, ran_by)

    def _publish(
        self, active: ActiveRun, start: int, stop: int, failure: Failure, ran_by: RanBy
    ) -> None:
        """Publish how jobs ended that were taken out of their queue; on failure requeue them."""
        done = JobEnd(failure=failure)

        def pack(first: int) -> list[Buffer]:
            return pack_outcomes(first, [done] * (stop - first), ran_by)

        publish_results(self._files, self._base, active.info, start, stop, pack)
        sheet = self._registry.read_results(active.info.run, start)
        if sheet is None:
            active.queue.put_back(start, stop)
        else:
            self._count(active.info.run, [sheet])
