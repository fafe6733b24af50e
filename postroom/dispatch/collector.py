"""What comes back: the acting Master walks the chains of results, counts them and hands them on.

It also says itself how some jobs ended, which nobody will run: those that killed too many workers,
and those that were cancelled. Such a result is published as any other is, and then read.
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
from ..store.runs import publish_results
from .agent import Agent
from .registry import ActiveRun, Registry
from .run_queue import gaps

Deliver: TypeAlias = Callable[[str, OutcomeSheet], None]


class Collector:
    """Takes in the results of a base; exists where a Dispatcher does."""

    def __init__(
        self,
        files: Files,
        base: Base,
        register: Registry,
        *,
        clock: Clock,
        journal: Journal,
        deliver: Deliver,
        ended: Deliver,
    ) -> None:
        self._files = files
        self._base = base
        self._registry = register
        self._clock = clock
        self._journal = journal
        self._deliver = deliver  # to whoever waits for them
        self._ended = ended  # told of every job that has a result

    def gather(self, agent: Agent, letter: Letter) -> bool:
        """Walk the chain of results behind what was seen already."""
        found = []
        while agent.reached < letter.stop:
            sheet = self._registry.read_results(letter.run, agent.reached)
            if sheet is None:
                break
            agent.reached += sheet.count
            found.append(sheet)
        if found:
            self.expect(agent, letter)
            self._count(letter.run, found)
        return bool(found)

    def expect(self, agent: Agent, letter: Letter) -> None:
        """Know where the next result of a letter will lie.

        In a durable run its name has to be synced first: whoever publishes it does that, and
        empties the mailbox when it is done.
        """
        active = self._registry.runs.get(letter.run)
        early = active is not None and not active.info.durable and agent.reached < letter.stop
        agent.answer = self._base.result(letter.run, agent.reached) if early else ""

    def gather_behind(self, letter: Letter, reached: int) -> list[tuple[int, int]]:
        """What of a letter is left behind a hole in its chain, which a power loss may have torn."""
        behind = [
            first
            for first, _ in self._registry.covered(letter.run)
            if reached <= first < letter.stop
        ]
        sheets = [self._registry.read_results(letter.run, first) for first in behind]
        found = [sheet for sheet in sheets if sheet is not None]
        self._count(letter.run, found)
        return gaps(letter.stop, [(0, reached), *((s.first, s.first + s.count) for s in found)])

    def _count(self, run: str, sheets: list[OutcomeSheet]) -> None:
        active = self._registry.runs.get(run)
        if sheets and active is not None and active.info.durable:
            # A result is there before its maker has synced its name: what is handed out must stay.
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
            self._deliver(run, sheet)
            self._ended(run, sheet)

    def give_up(self, active: ActiveRun, job: int) -> None:
        """Publish that a job is lost, instead of letting it kill one more worker."""
        history = active.queue.history[job]
        last = history.notes[history.attempt - 1]
        message = f"poison: {history.lost} attempts were lost, the last because {last.reason}"
        ran_by = RanBy(last.agent, "", 0, self._clock.wall(), attempt=last.attempt)
        self._decide(active, job, job + 1, Failure(Outcome.LOST, "lost", message), ran_by)

    def cancel(self, run: str, jobs: Collection[int], reason: str) -> None:
        """Publish that jobs are cancelled, as far as they still wait."""
        active = self._registry.runs.get(run)
        if active is None:
            return
        failure = Failure(Outcome.CANCELLED, "cancelled", reason)
        ran_by = RanBy("", "", 0, self._clock.wall())
        for start, stop in active.queue.withdraw(jobs):
            self._decide(active, start, stop, failure, ran_by)

    def _decide(
        self, active: ActiveRun, start: int, stop: int, failure: Failure, ran_by: RanBy
    ) -> None:
        """Publish how jobs ended that were taken out of their queue; else they wait again."""
        done = JobEnd(failure=failure)

        def pack(first: int) -> list[Buffer]:
            return pack_outcomes(first, [done] * (stop - first), ran_by)

        publish_results(self._files, self._base, active.info, start, stop, pack)
        sheet = self._registry.read_results(active.info.run, start)
        if sheet is None:
            active.queue.put_back(start, stop)
        else:
            self._count(active.info.run, [sheet])
