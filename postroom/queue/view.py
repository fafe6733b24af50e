"""What the queue looks like: the one reader behind the command line and the page.

A `View` looks at the folders anew for each question and keeps what cannot change, so that a page
that asks every second pays for what is new. It changes nothing, and needs nobody to answer it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from ..base import Base
from ..commands.errand import COMMAND
from ..commands.folder import JobFolder
from ..contents import Done, JobSheet, OutcomeSheet
from ..errors import BadFileError, GpuError, PostroomError
from ..files import Files, LocalFiles
from ..gpus import inventory
from ..gpus.ledger import open_ledger
from ..gpus.overview import overview
from ..ids import JobId, UnknownJobError
from ..runs import read_note
from .estimate import Oracle
from .history import intervals
from .process import find_process
from .rows import (
    FAILED,
    PENDING,
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
from .shelf import Shelf, command_of, folder_of, plain

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
        oracle = Oracle(scene, self.base.root)
        today = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        now = time.time()
        counts = {shelf.run: scene.counts(shelf) for shelf in shelves}
        return Overview(
            base=self.base.root,
            at=now,
            master_pid=scene.master_pid,
            paused=scene.orders.paused_all,
            pending_requests=len(scene.requests),
            cards=self._cards(scene),
            agents=[_agent(scene, agent.agent) for agent in scene.agents],
            counts=_sum(counts.values()),
            running=self._rows(scene, ("running", "stopping"), shelves, oracle, most=1000),
            queued=self._rows(scene, ("queued",), shelves, oracle),
            finished=self._rows(scene, ("ok", *FAILED, "cancelled"), shelves, oracle),
            failed=self._rows(scene, FAILED, shelves, oracle),
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
        oracle = Oracle(scene, self.base.root)
        spots = scene.spots(states, shelves)
        total = None
        if text:
            spots = (spot for spot in spots if _mentions(*spot[:2], text.casefold()))
        chosen = itertools.islice(spots, first, first + count + 1)
        page = [self._row(scene, *spot, oracle) for spot in chosen]
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
        return self._detail(scene, shelf, job.number)

    def projects(self) -> list[ProjectView]:
        """Every project, with its jobs counted."""
        scene = self.look()
        return _projects(scene, {run: scene.counts(one) for run, one in scene.shelves.items()})

    def history(self, *, since: float, until: float) -> list[Interval]:
        """Who ran what on which card in a time."""
        return intervals(self.look(), since, until)

    # Rows

    def _rows(
        self,
        scene: Scene,
        states: Sequence[str],
        shelves: Sequence[Shelf],
        oracle: Oracle,
        *,
        most: int = SHOWN,
    ) -> list[JobView]:
        spots = itertools.islice(scene.spots(states, shelves), most)
        return [self._row(scene, *spot, oracle) for spot in spots]

    def _row(self, scene: Scene, shelf: Shelf, number: int, state: str, oracle: Oracle) -> JobView:
        sheet = _read_sheet(shelf, number)
        asked = _asked(sheet, number)
        job = shelf.job_id(number)
        fields: dict[str, Any] = {
            "id": str(job),
            "short": job.short,
            "run": job.run,
            "number": number,
            "name": sheet.name(number) if sheet and sheet.names else "",
            "project": shelf.project,
            "user": shelf.card.user,
            "command": command_of(sheet, number) if sheet is not None else "?",
            "state": state,
            "priority": scene.priority(shelf, number),
            "submitted_at": shelf.submitted_at(number),
            "attempt": shelf.attempts.get(number, 0),
            "rerun_of": str(asked.get("rerun_of", "")),
        }
        if state in PENDING:
            fields["reason"] = oracle.why(shelf, number, state)
        elif job in scene.running:
            agent = scene.running[job]
            fields |= {"agent": agent.agent, "gpu": agent.gpu_name, "attempt": agent.attempt}
            fields["started_at"] = agent.job_since
            if agent.job_since is not None:
                fields["seconds"] = max(0.0, time.time() - agent.job_since)
        else:
            fields |= _ending(shelf, number)
        return JobView(**fields)

    def _detail(self, scene: Scene, shelf: Shelf, number: int) -> JobDetail:
        sheet = _read_sheet(shelf, number)
        asked = _asked(sheet, number)
        job = shelf.job_id(number)
        oracle = Oracle(scene, self.base.root)
        row = self._row(scene, shelf, number, scene.state(shelf, number), oracle)
        wishes = shelf.wishes(number)
        if row.state not in PENDING:
            with contextlib.suppress(ValueError):
                wishes = wishes.decode(asked.get("wishes", {}))
        folder = folder_of(self.base, shelf, number) if sheet is not None else ""
        paths = JobFolder(folder) if folder else None
        starts_at = position = None
        if row.state in PENDING:
            position, starts_at = oracle.when(shelf, number, row.state)
        agent = scene.running.get(job)
        return JobDetail(
            job=row,
            cwd=str(asked.get("cwd", "")),
            env=dict(asked.get("env") or {}),
            arguments=dict(asked.get("arguments") or {}),
            folder=folder,
            out_path=paths.out if paths else "",
            err_path=paths.err if paths else "",
            timeout_s=sheet.options.timeout_s if sheet else None,
            retries=sheet.options.retries if sheet else 0,
            wishes=wishes.encode(),
            attempts=self._attempts(shelf, number, row, paths),
            pid=find_process(self.base, agent.agent, job) if agent else None,
            starts_at=starts_at,
            position=position,
            after=[_link(scene, one, any_end=False) for one in wishes.after]
            + [_link(scene, one, any_end=True) for one in wishes.after_any],
            traceback=_traceback(shelf, number),
        )

    def _attempts(
        self, shelf: Shelf, number: int, row: JobView, paths: JobFolder | None
    ) -> list[AttemptView]:
        """Every try: those that left a note, then the one that runs or has ended."""
        found = []
        for attempt in range(1, shelf.attempts.get(number, 0) + 1):
            note = read_note(self.files, self.base, shelf.run, number, attempt)
            if note is None:
                continue
            earlier = _attempt_folder(paths, attempt)
            found.append(
                AttemptView(
                    attempt,
                    note.kind,
                    note.reason,
                    note.agent,
                    started_at=_started_at(earlier) if earlier else None,
                    ended_at=note.at or None,
                    out_path=earlier.out if earlier else "",
                    err_path=earlier.err if earlier else "",
                )
            )
        if row.started_at is not None or row.ended_at is not None:
            found.append(
                AttemptView(
                    row.attempt,
                    row.state,
                    row.error,
                    row.agent,
                    row.gpu,
                    row.started_at,
                    row.ended_at,
                    paths.out if paths else "",
                    paths.err if paths else "",
                )
            )
        return found

    # Cards and agents

    def _cards(self, scene: Scene) -> list[CardView]:
        try:
            if self._watch is None:
                self._watch = inventory.Watch()
            views = overview(open_ledger(), self._watch.cards())
        except (GpuError, PostroomError, OSError) as error:
            return [CardView("", 0, "?", 0, None, None, None, None, str(error), [], "")]
        agents = {agent.agent: agent for agent in scene.agents if agent.state != "dead"}
        pids = {agent.pid for agent in agents.values()}
        found = []
        for view in views:
            card = view.card
            others = [lease for lease in view.leases if lease.process.pid not in pids]
            holder = "; ".join(lease.describe() for lease in others)
            if not holder and view.foreign:
                used_by = view.foreign[0]
                holder = f"user {used_by.user}, pid {used_by.pid}, without a lease"
            found.append(
                CardView(
                    uuid=card.uuid,
                    index=card.index,
                    name=card.name,
                    memory_total_mib=card.memory_mib,
                    memory_used_mib=card.used_mib,
                    utilization=card.utilisation,
                    temperature=card.temperature,
                    power=card.power,
                    problem=card.problem or view.reason,
                    agents=[a for a, agent in agents.items() if card.uuid in agent.gpu.split(",")],
                    holder=holder,
                )
            )
        return found


def _agent(scene: Scene, agent_id: str) -> AgentView:
    agent = next(one for one in scene.agents if one.agent == agent_id)
    jobs = [job.short for job, at in scene.running.items() if at.agent == agent_id]
    return AgentView(
        agent=agent.agent,
        state=agent.state,
        gpu=agent.gpu,
        gpu_name=agent.gpu_name,
        pid=agent.pid,
        since=agent.since,
        job=jobs[0] if jobs else None,
        drained=agent_id in scene.orders.drained,
        done=agent.done,
    )


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
    sheet = _read_sheet(shelf, number)
    if sheet is None:
        return False
    name = sheet.name(number) if sheet.names else ""
    return text in name.casefold() or text in command_of(sheet, number).casefold()


def _read_sheet(shelf: Shelf, number: int) -> JobSheet | None:
    with contextlib.suppress(BadFileError, OSError, IndexError):
        return shelf.read_jobs(number)
    return None


def _asked(sheet: JobSheet | None, number: int) -> dict[str, Any]:
    """What a command was asked; nothing for a task, whose arguments may be large."""
    return plain(sheet, number) if sheet is not None and sheet.task == COMMAND else {}


def _ending(shelf: Shelf, number: int) -> dict[str, Any]:
    """What is known of a job that has ended."""
    first = shelf.result_of(number)
    if first is None:
        return {}
    ended_at = shelf.ended_at(first)
    try:
        sheet, done = _read_done(shelf, first, number)
    except (BadFileError, OSError) as spoilt:
        return {"ended_at": ended_at, "error": str(spoilt)}
    before = sum(sheet.seconds[: number - first])
    error, code = "", None
    if done.failure is not None:
        error = done.failure.message
        if done.failure.kind != done.failure.outcome.value:
            error = f"{done.failure.kind}: {error}"
        match = _EXIT.match(done.failure.message)
        code = int(match[1]) if match else None
    elif isinstance(done.value, dict) and shelf.card.apart:
        code = done.value.get("exit")
    ran = bool(sheet.maker.agent)
    started_at = sheet.maker.started_at + before
    return {
        "started_at": started_at if ran else None,
        "ended_at": started_at + done.seconds if ran else ended_at,
        "seconds": done.seconds if ran else None,
        "agent": sheet.maker.agent,
        "gpu": sheet.maker.gpu,
        "attempt": sheet.maker.attempt if ran else shelf.attempts.get(number, 0),
        "exit": code,
        "error": error,
    }


def _read_done(shelf: Shelf, first: int, number: int) -> tuple[OutcomeSheet, Done]:
    """How a job ended, without its value where that would need numpy."""
    sheet = shelf.read_outcomes(first)
    if number in sheet.failures or sheet.count == 1:
        return sheet, sheet.done(number)
    return sheet, Done(seconds=sheet.seconds[number - first])


def _traceback(shelf: Shelf, number: int) -> str:
    first = shelf.result_of(number)
    if first is not None:
        with contextlib.suppress(BadFileError, OSError):
            failure = shelf.read_outcomes(first).failures.get(number)
            return failure.traceback if failure is not None else ""
    return ""


def _attempt_folder(folder: JobFolder | None, attempt: int) -> JobFolder | None:
    """Where an attempt's output is: aside, once another has begun."""
    if folder is None or not os.path.isdir(f"{folder.path}/attempts/{attempt}"):
        return folder
    return JobFolder(f"{folder.path}/attempts/{attempt}", name=folder.name)


def _started_at(folder: JobFolder) -> float | None:
    with contextlib.suppress(ValueError, KeyError):
        return datetime.fromisoformat(folder.read_info()["started"]).timestamp()
    return None


def _link(scene: Scene, job: JobId, *, any_end: bool) -> JobLink:
    shelf = scene.shelves.get(job.run)
    if shelf is None or job.number >= shelf.asked:
        return JobLink(str(job), job.short, "", "gone", any_end)
    sheet = _read_sheet(shelf, job.number)
    name = sheet.name(job.number) if sheet and sheet.names else ""
    return JobLink(str(job), job.short, name, scene.state(shelf, job.number), any_end)
