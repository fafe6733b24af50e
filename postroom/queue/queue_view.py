"""What the queue looks like: the one reader behind the command line and the page.

A `QueueView` looks at the folders anew for each question and keeps what cannot change, so that a
page that asks every second pays only for what is new. It writes nothing but a cache of what it has
read, and needs no other process to answer it.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable

from ..errors import PostroomError
from ..gpus.cards import inventory
from ..store.base import Base
from ..store.files import Files, LocalFiles
from ..store.job_ids import JobId, UnknownJobError
from .base_state import BaseState, BaseStateReader
from .gpu_rows import agent_views, card_views
from .history import intervals
from .job_rows import JobRows, read_sheet
from .rows import (
    ENDED,
    FAILED,
    RUNNING,
    STATES,
    AgentView,
    AttemptView,
    CardView,
    Interval,
    JobDetail,
    JobLink,
    JobPage,
    JobView,
    Overview,
    ProjectView,
)
from .run_reader import RunReader, command_of

__all__ = [
    "AgentView",
    "AttemptView",
    "CardView",
    "Interval",
    "JobDetail",
    "JobLink",
    "JobPage",
    "JobView",
    "Overview",
    "ProjectView",
    "QueueView",
]

SHOWN = 20
HOUR_S = 3600.0
_EXIT = re.compile(r"exit code (\d+)")


class QueueView:
    """The queue of one base, for one thread at a time."""

    def __init__(self, base: Base, files: Files | None = None) -> None:
        self.base = base
        self.files: Files = files or LocalFiles()
        self._lookout = BaseStateReader(self.files, base)
        self._watch: inventory.CardWatch | None = None

    def __enter__(self) -> QueueView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the child that asks the driver about cards."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def look(self) -> BaseState:
        """What there is now, unprinted."""
        return self._lookout.look()

    def overview(self) -> Overview:
        """The whole base, in figures, with the jobs that matter now."""
        base_state = self.look()
        readers = list(base_state.readers.values())
        records = JobRows(self.files, self.base, base_state)
        if self._watch is None:
            self._watch = inventory.CardWatch()
        today = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        now = time.time()
        counts = {reader.run: base_state.counts(reader) for reader in readers}
        return Overview(
            base=self.base.root,
            at=now,
            master_pid=base_state.master_pid,
            paused=base_state.orders.paused_all,
            pending_requests=len(base_state.requests),
            cards=card_views(base_state, self._watch),
            agents=agent_views(base_state),
            counts=_sum(counts.values()),
            running=records.rows(RUNNING, readers, 1000),
            queued=records.rows(("queued",), readers, SHOWN),
            finished=records.rows(ENDED, readers, SHOWN),
            failed=records.rows(FAILED, readers, SHOWN),
            done_today=sum(_ended_since(reader, today) for reader in readers),
            failed_today=sum(_failed_since(reader, today) for reader in readers),
            rate_per_hour=float(sum(_ended_since(reader, now - HOUR_S) for reader in readers)),
            projects=_projects(base_state, counts),
        )

    def jobs(
        self,
        *,
        state: str = "",
        project: str = "",
        run: str = "",
        text: str = "",
        user: str = "",
        first: int = 0,
        count: int = 50,
    ) -> JobPage:
        """A page of jobs: those that run, then the queue as it will run, then what has ended.

        `state` may name several, with commas; `text` is looked for in ids, names and commands.
        """
        base_state = self.look()
        states = _states(state)
        readers = [
            reader
            for reader in base_state.readers.values()
            if project in ("", reader.project)
            and (not run or reader.run.endswith(run))
            and user in ("", reader.info.user)
        ]
        records = JobRows(self.files, self.base, base_state)
        spots = base_state.spots(states, readers)
        total = None
        if text:
            spots = (spot for spot in spots if _mentions(*spot[:2], text.casefold()))
        chosen = itertools.islice(spots, first, first + count + 1)
        page = [records.row(*spot) for spot in chosen]
        if not text:
            counted = _sum(base_state.counts(reader) for reader in readers)
            total = sum(counted.get(state, 0) for state in states)
        return JobPage(page[:count], first, total, more=len(page) > count)

    def job(self, job: JobId) -> JobDetail:
        """Everything about one job."""
        base_state = self.look()
        reader = base_state.readers.get(job.run)
        if reader is None or not 0 <= job.number < reader.asked:
            raise UnknownJobError(f"there is no job {job.short} in {self.base.root}")
        return JobRows(self.files, self.base, base_state).detail(reader, job.number)

    def projects(self) -> list[ProjectView]:
        """Every project, with its jobs counted."""
        base_state = self.look()
        return _projects(
            base_state, {run: base_state.counts(one) for run, one in base_state.readers.items()}
        )

    def history(self, *, since: float, until: float) -> list[Interval]:
        """Who ran what on which card in a time."""
        return intervals(self.look(), since, until)


def _projects(base_state: BaseState, counts: dict[str, dict[str, int]]) -> list[ProjectView]:
    by_name: dict[str, list[RunReader]] = {}
    for reader in base_state.readers.values():
        by_name.setdefault(reader.project, []).append(reader)
    return [
        ProjectView(
            name,
            _sum(counts[reader.run] for reader in readers),
            paused=base_state.orders.paused_all or name in base_state.orders.paused_projects,
        )
        for name, readers in sorted(by_name.items())
    ]


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total = dict.fromkeys(STATES, 0)
    for one in counts:
        for state, count in one.items():
            total[state] += count
    return {state: count for state, count in total.items() if count}


def _ended_since(reader: RunReader, since: float) -> int:
    if reader.changed_at < since:
        return 0
    return sum(reader.counts[first] for first in reader.results if reader.ended_at(first) >= since)


def _failed_since(reader: RunReader, since: float) -> int:
    return sum(
        outcome in FAILED
        for first, failures in reader.failures.items()
        if reader.changed_at >= since and reader.ended_at(first) >= since
        for outcome in failures.values()
    )


def _states(text: str) -> tuple[str, ...]:
    if not text:
        return STATES
    chosen = tuple(word.strip() for word in text.split(","))
    unknown = [word for word in chosen if word not in STATES]
    if unknown:
        raise PostroomError(f"no job is ever {unknown[0]!r}: say one of {', '.join(STATES)}")
    return chosen


def _mentions(reader: RunReader, number: int, text: str) -> bool:
    """Whether a text is in a job's id, project, name or command."""
    if text in f"{reader.run}/{number}".casefold() or text in reader.project.casefold():
        return True
    sheet = read_sheet(reader, number)
    if sheet is None:
        return False
    name = sheet.name(number) if sheet.names else ""
    return text in name.casefold() or text in command_of(sheet, number).casefold()
