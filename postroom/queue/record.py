"""One job as it is shown: in a line, or with everything that is known of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..base import Base
from ..commands.errand import COMMAND
from ..commands.folder import JobFolder
from ..contents import JobSheet
from ..errors import BadFileError
from ..files import Files
from ..ids import JobId
from ..runs import read_note
from .estimate import Oracle
from .process import find_process
from .rows import PENDING, AttemptView, JobDetail, JobLink, JobView
from .scene import Scene
from .shelf import Shelf, command_of, folder_of, plain, words_of

_EXIT = re.compile(r"exit code (\d+)")


class Records:
    """The jobs of one look at a base."""

    def __init__(self, files: Files, base: Base, scene: Scene) -> None:
        self._files = files
        self._base = base
        self._scene = scene
        self._oracle = Oracle(scene, base.root)

    def rows(self, states: Sequence[str], shelves: Sequence[Shelf], most: int) -> list[JobView]:
        """The first jobs in some states, in the order in which they are listed."""
        spots = itertools.islice(self._scene.spots(states, shelves), most)
        return [self.row(*spot) for spot in spots]

    def row(self, shelf: Shelf, number: int, state: str) -> JobView:
        """A job in one line."""
        scene = self._scene
        sheet = read_sheet(shelf, number)
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
            fields["reason"] = self._oracle.why(shelf, number, state)
        elif job in scene.running:
            agent = scene.running[job]
            fields |= {"agent": agent.agent, "gpu": agent.gpu_name, "attempt": agent.attempt}
            fields["started_at"] = agent.job_since
            if agent.job_since is not None:
                fields["seconds"] = max(0.0, time.time() - agent.job_since)
        else:
            fields |= _ending(shelf, number, is_command=sheet is not None and sheet.task == COMMAND)
        return JobView(**fields)

    def detail(self, shelf: Shelf, number: int) -> JobDetail:
        """Everything about a job."""
        scene = self._scene
        sheet = read_sheet(shelf, number)
        asked = _asked(sheet, number)
        job = shelf.job_id(number)
        row = self.row(shelf, number, scene.state(shelf, number))
        wishes = shelf.wishes(number)
        if row.state not in PENDING:
            with contextlib.suppress(ValueError):
                wishes = wishes.decode(asked.get("wishes", {}))
        folder = folder_of(self._base, shelf, number) if sheet is not None else ""
        paths = JobFolder(folder) if folder else None
        starts_at = position = None
        if row.state in PENDING:
            position, starts_at = self._oracle.when(shelf, number, row.state)
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
            pid=find_process(self._base, agent.agent, job) if agent else None,
            starts_at=starts_at,
            position=position,
            after=[_link(scene, one, any_end=False) for one in wishes.after]
            + [_link(scene, one, any_end=True) for one in wishes.after_any],
            traceback=_traceback(shelf, number),
            timeline=paths.timeline if paths and os.path.exists(paths.timeline) else "",
        )

    def _attempts(
        self, shelf: Shelf, number: int, row: JobView, paths: JobFolder | None
    ) -> list[AttemptView]:
        """Every try: those that left a note, then the one that runs or has ended."""
        found = []
        for attempt in range(1, shelf.attempts.get(number, 0) + 1):
            note = read_note(self._files, self._base, shelf.run, number, attempt)
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


def read_sheet(shelf: Shelf, number: int) -> JobSheet | None:
    """What a job was asked to do; None when that cannot be read."""
    with contextlib.suppress(BadFileError, OSError, IndexError):
        return shelf.read_jobs(number)
    return None


def _asked(sheet: JobSheet | None, number: int) -> dict[str, Any]:
    """What a command was asked; nothing for a task, whose arguments may be large."""
    return plain(sheet, number) if sheet is not None and sheet.task == COMMAND else {}


def _ending(shelf: Shelf, number: int, *, is_command: bool) -> dict[str, Any]:
    """What is known of a job that has ended."""
    first = shelf.result_of(number)
    if first is None:
        return {}
    ended_at = shelf.ended_at(first)
    try:
        sheet = shelf.read_outcomes(first)
    except (BadFileError, OSError) as spoilt:
        return {"ended_at": ended_at, "error": str(spoilt)}
    seconds = sheet.seconds[number - first]
    failure = sheet.failures.get(number)
    error, code = "", 0 if is_command else None
    if failure is not None:
        error = words_of(failure)
        match = _EXIT.match(failure.message)
        code = int(match[1]) if match else None
    ran = bool(sheet.maker.agent)
    started_at = sheet.maker.started_at + sum(sheet.seconds[: number - first])
    return {
        "started_at": started_at if ran else None,
        "ended_at": started_at + seconds if ran else ended_at,
        "seconds": seconds if ran else None,
        "agent": sheet.maker.agent,
        "gpu": sheet.maker.gpu,
        "attempt": sheet.maker.attempt if ran else shelf.attempts.get(number, 0),
        "exit": code,
        "error": error,
    }


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
    sheet = read_sheet(shelf, job.number)
    name = sheet.name(job.number) if sheet and sheet.names else ""
    return JobLink(str(job), job.short, name, scene.state(shelf, job.number), any_end)
