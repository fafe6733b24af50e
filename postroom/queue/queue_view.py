"""Everything that listings show, read from the folders: for the command line and the page.

A `QueueView` reads the folders again for each question and keeps what cannot change, so a page that
asks every second pays only for what is new. It writes nothing but two caches, of results
and of sizes (`result_cache`, `store.usage`), and needs no other process.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Iterable

from ..commands.spec import CommandSpec
from ..errors import PostroomError
from ..gpus.cards import inventory
from ..store.base import Base
from ..store.files import Files, LocalFiles
from ..store.job_ids import JobId
from ..store.usage import BaseUsage
from .base_state import BaseState, BaseStateReader
from .disk_usage import look, usage_line
from .gpu_rows import agent_views, card_views
from .history import intervals
from .job_rows import JobRows, read_sheet, spec_of
from .rows import (
    FAILED,
    PENDING,
    RUNNING,
    STATES,
    EqualFailures,
    Interval,
    JobDetail,
    JobPage,
    JobView,
    Overview,
    ProjectView,
)
from .run_reader import RunReader, command_text, name_of

SHOWN = 20
# Equal failures are grouped among this many of the newest failed jobs.
GROUPED = 60
# A list is sorted by reading its jobs: at most this many.
MOST_SORTED = 10_000
# Errors that differ in such words alone are equal: numbers, and what holds some, but no exit code.
_VARYING = re.compile(
    r"""(?<!exit code )(?<![^\s'"(),:;=])[^\s'"(),:;=]*\d[^\s'"(),:;=]*""", re.ASCII
)
HOUR_S = 3600.0


class QueueView:
    """The queue of one base, for one thread at a time."""

    def __init__(self, base: Base, files: Files | None = None) -> None:
        self.base = base
        self.files: Files = files or LocalFiles()
        self._state_reader = BaseStateReader(self.files, base)
        self._watch: inventory.CardWatch | None = None

    def __enter__(self) -> QueueView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child process that asks the GPU driver."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def cards(self) -> list[inventory.Card]:
        """The visible GPUs of this machine."""
        return self._card_watch().cards()

    def _card_watch(self) -> inventory.CardWatch:
        if self._watch is None:
            self._watch = inventory.CardWatch()
        return self._watch

    def read_state(self) -> BaseState:
        """The base as it is now."""
        return self._state_reader.read()

    def overview(self) -> Overview:
        """The whole base: GPUs, agents, counts, and the first jobs of each list."""
        base_state = self.read_state()
        readers = list(base_state.readers.values())
        job_rows = JobRows(self.files, self.base, base_state)
        today = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        now = time.time()
        counts = {reader.run: base_state.counts(reader) for reader in readers}
        usage = self.usage()
        failed = job_rows.rows(FAILED, readers, GROUPED)
        return Overview(
            base=self.base.root,
            at=now,
            master_pid=base_state.master_pid,
            paused=base_state.orders.paused_all,
            pending_requests=len(base_state.requests),
            cards=card_views(base_state, self._card_watch()),
            agents=agent_views(base_state),
            counts=_sum(counts.values()),
            running=job_rows.rows(RUNNING, readers, 1000),
            queued=job_rows.rows(("queued",), readers, SHOWN),
            finished=job_rows.rows(("cancelled", "ok"), readers, SHOWN),
            failed=failed[:SHOWN],
            failures=group_failures(failed),
            done_today=sum(_ended_since(reader, today) for reader in readers),
            failed_today=sum(_failed_since(reader, today) for reader in readers),
            rate_per_hour=float(sum(_ended_since(reader, now - HOUR_S) for reader in readers)),
            projects=_projects(base_state, counts),
            troubles=base_state.troubles,
            disk=usage_line(self.files, self.base, usage),
            disk_bytes=usage.by_kind() if usage.at else {},
            paused_why=base_state.orders.paused_why.get("", ""),
        )

    def usage(self) -> BaseUsage:
        """The space that the base takes; measured at most once a minute, for a moment."""
        return look(self.files, self.base)

    def jobs(
        self,
        *,
        state: str = "",
        project: str = "",
        run: str = "",
        text: str = "",
        user: str = "",
        sort: str = "",
        first: int = 0,
        count: int = 50,
    ) -> JobPage:
        """A page of jobs: running, then the queue in its order, then ended jobs, newest first.

        `state` may name several, with commas; `text` is searched in ids, names and commands. `sort`
        is one of `SORTS`, or with a minus before it for the reverse; it reads the first 10,000.
        """
        base_state = self.read_state()
        states = _states(state)
        readers = _readers(base_state, project, run, user)
        job_rows = JobRows(self.files, self.base, base_state)
        found = base_state.jobs_in(states, readers)
        total = None
        if text:
            found = (job for job in found if _mentions(*job[:2], text.casefold()))
        if sort:
            found = iter(job_rows.in_order(itertools.islice(found, MOST_SORTED), sort))
        first = min(first, sys.maxsize - count - 1)  # what `islice` takes
        chosen = itertools.islice(found, first, first + count + 1)
        page = [job_rows.row(*job) for job in chosen]
        counted = _sum(base_state.counts(reader) for reader in readers)
        if not text:
            total = sum(counted.get(state, 0) for state in states)
        return JobPage(page[:count], first, total, more=len(page) > count, counts=counted)

    def matching(
        self, *, state: str = "", project: str = "", run: str = "", text: str = "", most: int
    ) -> list[JobId]:
        """All jobs that a list would show, on all its pages; more than `most` are an error."""
        base_state = self.read_state()
        found = base_state.jobs_in(_states(state), _readers(base_state, project, run))
        chosen = [
            reader.job_id(number)
            for reader, number, _ in itertools.islice(
                (job for job in found if not text or _mentions(*job[:2], text.casefold())), most + 1
            )
        ]
        if len(chosen) > most:
            raise PostroomError(f"more than {most} jobs match: narrow the filter")
        return chosen

    def job(self, job: JobId) -> JobDetail:
        """All details of one job; the end of its run's id is enough."""
        base_state = self.read_state()
        job = base_state.find(job)
        rows = JobRows(self.files, self.base, base_state)
        return rows.detail(base_state.readers[job.run], job.number)

    def command(self, job: JobId) -> tuple[JobId, CommandSpec, str]:
        """What was asked for a command, so that it can be submitted again, and its project."""
        base_state = self.read_state()
        job = base_state.find(job)
        reader = base_state.readers[job.run]
        return job, spec_of(reader, job.number), reader.project if reader.info.queue else ""

    def environment(self, job: JobId) -> dict[str, str]:
        """The environment that a job was submitted with."""
        base_state = self.read_state()
        job = base_state.find(job)
        rows = JobRows(self.files, self.base, base_state)
        return rows.environment(base_state.readers[job.run], job.number)

    def projects(self) -> list[ProjectView]:
        """Every project, with its jobs counted by state."""
        base_state = self.read_state()
        return _projects(
            base_state, {run: base_state.counts(one) for run, one in base_state.readers.items()}
        )

    def history(self, *, since: float, until: float) -> list[Interval]:
        """Which job ran on which GPU between two times."""
        return intervals(self.read_state(), since, until)


def _readers(base_state: BaseState, project: str, run: str, user: str = "") -> list[RunReader]:
    return [
        reader
        for reader in base_state.readers.values()
        if project in ("", reader.project)
        and (not run or reader.run.endswith(run))
        and user in ("", reader.info.user)
    ]


def _projects(base_state: BaseState, counts: dict[str, dict[str, int]]) -> list[ProjectView]:
    """Those with running jobs first, then those with waiting ones, then by their last change."""
    orders = base_state.orders
    by_name: dict[str, list[RunReader]] = {}
    for reader in base_state.readers.values():
        by_name.setdefault(reader.project, []).append(reader)
    found = [
        ProjectView(
            name,
            _sum(counts[reader.run] for reader in readers),
            paused=orders.paused_all or name in orders.paused_projects,
            limit=orders.limits.get(name, 0),
            active_at=max(max(reader.asked_at, reader.changed_at) for reader in readers),
            paused_why=orders.paused_why.get(name, ""),
        )
        for name, readers in sorted(by_name.items())
    ]
    return sorted(found, key=_activity)


def _activity(project: ProjectView) -> tuple[bool, bool, float]:
    counts = project.counts
    pending = any(counts.get(state) for state in PENDING)
    return not any(counts.get(state) for state in RUNNING), not pending, -project.active_at


def group_failures(failed: Iterable[JobView]) -> list[EqualFailures]:
    """Jobs of one project whose errors differ in nothing but numbers, together."""
    alike: dict[tuple[str, str, str], list[JobView]] = {}
    for job in failed:
        alike.setdefault((job.project, job.state, _VARYING.sub("#", job.error)), []).append(job)
    return [
        EqualFailures(jobs[0].project, jobs[0].state, jobs[0].error, jobs)
        for jobs in alike.values()
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
        raise PostroomError(f"there is no state {unknown[0]!r}: use one of {', '.join(STATES)}")
    return chosen


def _mentions(reader: RunReader, number: int, text: str) -> bool:
    """Whether a job's id, project, name or command holds a text."""
    if text in f"{reader.run}/{number}".casefold() or text in reader.project.casefold():
        return True
    sheet = read_sheet(reader, number)
    if sheet is None:
        return False
    return (
        text in name_of(sheet, number).casefold() or text in command_text(sheet, number).casefold()
    )
