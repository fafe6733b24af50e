"""What the queue looks like: the one reader behind the command line and the page.

A `View` looks at the folders anew for each question and keeps what cannot change, so that a page
that asks every second pays for what is new. It changes nothing but a tally of what it has read, and
needs nobody to answer it.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable

from ..base import Base
from ..errors import PostroomError
from ..files import Files, LocalFiles
from ..gpus import inventory
from ..ids import JobId, UnknownJobError
from .history import intervals
from .record import Records, read_sheet
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
from .scene import Lookout, Scene
from .seats import agent_views, card_views
from .shelf import Shelf, command_of

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
    "View",
]

SHOWN = 20
HOUR_S = 3600.0
_EXIT = re.compile(r"exit code (\d+)")


class View:
    """The queue of one base, for one thread at a time."""

    def __init__(self, base: Base, files: Files | None = None) -> None:
        self.base = base
        self.files: Files = files or LocalFiles()
        self._lookout = Lookout(self.files, base)
        self._watch: inventory.Watch | None = None

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the child that asks the driver about cards."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def look(self) -> Scene:
        """What there is now, unprinted."""
        return self._lookout.look()

    def overview(self) -> Overview:
        """The whole base, in figures, with the jobs that matter now."""
        scene = self.look()
        shelves = list(scene.shelves.values())
        records = Records(self.files, self.base, scene)
        if self._watch is None:
            self._watch = inventory.Watch()
        today = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        now = time.time()
        counts = {shelf.run: scene.counts(shelf) for shelf in shelves}
        return Overview(
            base=self.base.root,
            at=now,
            master_pid=scene.master_pid,
            paused=scene.orders.paused_all,
            pending_requests=len(scene.requests),
            cards=card_views(scene, self._watch),
            agents=agent_views(scene),
            counts=_sum(counts.values()),
            running=records.rows(RUNNING, shelves, 1000),
            queued=records.rows(("queued",), shelves, SHOWN),
            finished=records.rows(ENDED, shelves, SHOWN),
            failed=records.rows(FAILED, shelves, SHOWN),
            done_today=sum(_ended_since(shelf, today) for shelf in shelves),
            failed_today=sum(_failed_since(shelf, today) for shelf in shelves),
            rate_per_hour=float(sum(_ended_since(shelf, now - HOUR_S) for shelf in shelves)),
            projects=_projects(scene, counts),
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
        scene = self.look()
        states = _states(state)
        shelves = [
            shelf
            for shelf in scene.shelves.values()
            if project in ("", shelf.project)
            and (not run or shelf.run.endswith(run))
            and user in ("", shelf.card.user)
        ]
        records = Records(self.files, self.base, scene)
        spots = scene.spots(states, shelves)
        total = None
        if text:
            spots = (spot for spot in spots if _mentions(*spot[:2], text.casefold()))
        chosen = itertools.islice(spots, first, first + count + 1)
        page = [records.row(*spot) for spot in chosen]
        if not text:
            counted = _sum(scene.counts(shelf) for shelf in shelves)
            total = sum(counted.get(state, 0) for state in states)
        return JobPage(page[:count], first, total, more=len(page) > count)

    def job(self, job: JobId) -> JobDetail:
        """Everything about one job."""
        scene = self.look()
        shelf = scene.shelves.get(job.run)
        if shelf is None or not 0 <= job.number < shelf.asked:
            raise UnknownJobError(f"there is no job {job.short} in {self.base.root}")
        return Records(self.files, self.base, scene).detail(shelf, job.number)

    def projects(self) -> list[ProjectView]:
        """Every project, with its jobs counted."""
        scene = self.look()
        return _projects(scene, {run: scene.counts(one) for run, one in scene.shelves.items()})

    def history(self, *, since: float, until: float) -> list[Interval]:
        """Who ran what on which card in a time."""
        return intervals(self.look(), since, until)


def _projects(scene: Scene, counts: dict[str, dict[str, int]]) -> list[ProjectView]:
    by_name: dict[str, list[Shelf]] = {}
    for shelf in scene.shelves.values():
        by_name.setdefault(shelf.project, []).append(shelf)
    return [
        ProjectView(
            name,
            _sum(counts[shelf.run] for shelf in shelves),
            paused=scene.orders.paused_all or name in scene.orders.paused_projects,
        )
        for name, shelves in sorted(by_name.items())
    ]


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total = dict.fromkeys(STATES, 0)
    for one in counts:
        for state, count in one.items():
            total[state] += count
    return {state: count for state, count in total.items() if count}


def _ended_since(shelf: Shelf, since: float) -> int:
    if shelf.changed_at < since:
        return 0
    return sum(shelf.counts[first] for first in shelf.results if shelf.ended_at(first) >= since)


def _failed_since(shelf: Shelf, since: float) -> int:
    return sum(
        outcome in FAILED
        for first, failures in shelf.failures.items()
        if shelf.changed_at >= since and shelf.ended_at(first) >= since
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


def _mentions(shelf: Shelf, number: int, text: str) -> bool:
    """Whether a text is in a job's id, project, name or command."""
    if text in f"{shelf.run}/{number}".casefold() or text in shelf.project.casefold():
        return True
    sheet = read_sheet(shelf, number)
    if sheet is None:
        return False
    name = sheet.name(number) if sheet.names else ""
    return text in name.casefold() or text in command_of(sheet, number).casefold()
