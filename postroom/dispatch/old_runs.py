"""Removes runs that are over, as the base's retention says: the acting Master, a little at a time.

`store.retention` says what stays, `store.removal` how a run is removed. This is done between other
work, never while somebody waits for it: `step` returns after some milliseconds, and goes on there
the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from ..errors import BadFileError
from ..store.append_log import logged_until
from ..store.base import Base
from ..store.files import Clock, Files
from ..store.journal import Journal
from ..store.removal import close_run, deleting, remove_unused_data, trashed_runs
from ..store.retention import Retention, is_in_use, program_lives, remove_dead_programs
from ..store.usage import BaseUsage, RunUsage, run_for, surveying

# How often a base is looked at.
SURVEY_S = 60.0
# How long one step goes on.
STEP_S = 0.005
# A run that has just ended stays, however large it is: somebody may want to look at it.
QUIET_S = 60.0


class Going(NamedTuple):
    """A run that is over, and when it will go."""

    run: str
    at: float  # when it is too old; infinite: never by its age
    nbytes: int
    over_limit: bool  # it goes now, because all results together are too large


def plan(usage: BaseUsage, retention: Retention, now: float) -> list[Going]:
    """The runs of programs that are over, oldest first, and when each of them goes.

    Those that are in use are among them; they go when they are let go.
    """
    over = [(run, one) for run, one in usage.runs.items() if one.embedded and one.is_over]
    over.sort(key=lambda entry: (entry[1].ended_at, entry[0]))
    total = sum(one.nbytes for _, one in over)
    found = []
    for run, one in over:
        most = retention.results_bytes
        large = most is not None and total > most and now - one.ended_at >= QUIET_S
        age_s = retention.results_s
        at = float("inf") if age_s is None else one.ended_at + age_s
        found.append(Going(run, at, one.nbytes, large))
        total -= one.nbytes if large or at <= now else 0
    return found


class OldRuns:
    """The runs of a base that are over, for its Dispatcher."""

    def __init__(
        self,
        files: Files,
        base: Base,
        *,
        clock: Clock,
        journal: Journal,
        retention: Callable[[], Retention],
        is_awaited: Callable[[str], bool],
    ) -> None:
        self._files = files
        self._base = base
        self._clock = clock
        self._journal = journal
        self._retention = retention
        self._is_awaited = is_awaited
        self._work: Generator[None, None, None] | None = None
        self._survey_at = clock.monotonic()

    def step(self, seconds: float = STEP_S) -> bool:
        """Go on for a moment; False: there is nothing to do now."""
        now = self._clock.monotonic()
        if self._work is None:
            if now < self._survey_at:
                return False
            self._survey_at = now + SURVEY_S
            self._work = self._working()
        try:
            if run_for(self._work, self._clock, seconds):
                return True
        except (OSError, BadFileError) as error:
            self._journal.log("warning", f"old runs stay for now: {error}")
        self._work = None
        return False

    def _working(self) -> Generator[None, None, None]:
        files, base = self._files, self._base
        for run in trashed_runs(files, base):
            yield from deleting(files, base, run)
        usage = yield from surveying(files, base, self._clock)
        now, gone = self._clock.wall(), 0
        for going in plan(usage, self._retention(), now):
            due = going.at <= now or going.over_limit
            if due and self._close(going.run, usage.runs[going.run]):
                self._journal.event("removed", run=going.run, nbytes=going.nbytes)
                gone += 1
                yield from deleting(files, base, going.run)
            yield
        yield from self._remove_spares(usage)
        yield from remove_dead_programs(files, base)
        if gone:
            remove_unused_data(files, base, now=now)

    def _remove_spares(self, usage: BaseUsage) -> Iterator[None]:
        """Remove the files that a program would have written over again, if it is gone."""
        files, base = self._files, self._base
        for name in files.names(base.tmp):
            run = base.run_of_spare(name)
            one = usage.runs.get(run)
            program = base.program_of_recycled(name)
            is_free = run and (one is None or not is_in_use(files, base, run, one.program))
            if is_free or (program and not program_lives(files, base, program)):
                files.remove(f"{base.tmp}/{name}")
            yield

    def _close(self, run: str, one: RunUsage) -> bool:
        def over() -> bool:
            # Results are never taken back: it is over as long as no job was added.
            if logged_until(files, base.append_log(run)) != one.jobs:
                return False
            return not is_in_use(files, base, run, one.program) and not self._is_awaited(run)

        files, base = self._files, self._base
        return close_run(files, base, run, over)
