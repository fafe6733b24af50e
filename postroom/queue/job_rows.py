"""Makes the rows that show one job: a line of a list, or all details."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from ..commands.job_environment import read_environment
from ..commands.job_folder import JobFolder, working_folder
from ..commands.spec import COMMAND, CommandSpec
from ..errors import BadFileError, OtherVersionError, PostroomError
from ..parcel.sheets import JobSheet
from ..store.base import Base
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.runs import read_note
from ..text.safe_text import encodable
from .base_state import BaseState
from .estimate import Estimator
from .job_process import find_process
from .rows import PENDING, AttemptView, JobDetail, JobLink, JobView
from .run_reader import (
    RunReader,
    command_fields,
    command_text,
    name_of,
    output_folder,
    scheduling_in,
)

# What a list of jobs can be sorted by.
SORTS = ("name", "priority", "submitted", "duration")
ListedJob = tuple[RunReader, int, str]
_EXIT = re.compile(r"exit code (\d+)")
_NUMBERS = re.compile(r"([0-9]+)")  # "arr.9" comes before "arr.10"


class JobRows:
    """Rows of one state of a base."""

    def __init__(self, files: Files, base: Base, base_state: BaseState) -> None:
        self._files = files
        self._base = base
        self._base_state = base_state
        self._estimator = Estimator(base_state, base.root)

    def rows(self, states: Sequence[str], readers: Sequence[RunReader], most: int) -> list[JobView]:
        """The first jobs in some states, in listing order."""
        jobs_in = itertools.islice(self._base_state.jobs_in(states, readers), most)
        return [self.row(*job) for job in jobs_in]

    def row(self, reader: RunReader, number: int, state: str) -> JobView:
        """One job in one line."""
        base_state = self._base_state
        sheet = read_sheet(reader, number)
        asked = _asked(sheet, number)
        job = reader.job_id(number)
        fields: dict[str, Any] = {
            "id": str(job),
            "short": job.short,
            "run": job.run,
            "number": number,
            "name": name_of(sheet, number),
            "project": reader.project,
            "user": reader.info.user,
            "command": command_text(sheet, number) if sheet is not None else "?",
            "state": state,
            "priority": base_state.priority(reader, number),
            "submitted_at": reader.submitted_at(number),
            "attempt": reader.attempts.get(number, 0),
            "rerun_of": _rerun_of(sheet) or str(asked.get("rerun_of", "")),
        }
        if state in PENDING:
            fields["reason"] = self._estimator.why(reader, number, state)
        elif job in base_state.running:
            agent = base_state.running[job]
            fields |= {"agent": agent.agent, "gpu": agent.gpu_name, "attempt": agent.attempt}
            fields["started_at"] = agent.job_since
            if agent.job_since is not None:
                fields["seconds"] = max(0.0, time.time() - agent.job_since)
            if agent.shares:
                fields["reason"] = agent.note  # it waits for a part of a GPU
        else:
            fields |= _ending(
                reader, number, is_command=sheet is not None and sheet.task == COMMAND
            )
        # A page or a terminal that cannot show one of them would show none.
        fields |= {key: encodable(v) for key, v in fields.items() if isinstance(v, str)}
        return JobView(**fields)

    def in_order(self, jobs: Iterable[ListedJob], sort: str) -> list[ListedJob]:
        """Jobs sorted by name, priority, submission or duration; those without one come last."""
        by = sort.removeprefix("-")
        if by not in SORTS:
            raise PostroomError(
                f"{by[:20]!r} is not an order of jobs: use one of {', '.join(SORTS)}"
            )
        keyed = [(self._key(by, *job), job) for job in jobs]
        known = [(key, job) for key, job in keyed if key is not None]
        known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
        return [job for _, job in known] + [job for key, job in keyed if key is None]

    def _key(self, by: str, reader: RunReader, number: int, state: str) -> Any:
        if by == "priority":
            return self._base_state.priority(reader, number)
        if by == "submitted":
            return reader.submitted_at(number)
        if by == "name":
            sheet = read_sheet(reader, number)
            text = name_of(sheet, number) or (command_text(sheet, number) if sheet else "")
            return [int(part) if part.isdigit() else part for part in _NUMBERS.split(text.lower())]
        if state in PENDING:
            return None
        agent = self._base_state.running.get(reader.job_id(number))
        if agent is not None:
            return time.time() - agent.job_since if agent.job_since else None
        return _ending(reader, number, is_command=True).get("seconds")

    def detail(self, reader: RunReader, number: int) -> JobDetail:
        """All details of a job."""
        base_state = self._base_state
        sheet = read_sheet(reader, number)
        asked = _asked(sheet, number)
        job = reader.job_id(number)
        row = self.row(reader, number, base_state.state(reader, number))
        scheduling = reader.scheduling(number)
        if row.state not in PENDING:
            scheduling = scheduling_in(asked)
        folder = output_folder(self._base, reader, number) if sheet is not None else ""
        paths = JobFolder(folder) if folder else None
        merged = bool(asked.get("merged"))
        starts_at = position = None
        if row.state in PENDING:
            position, starts_at = self._estimator.when(reader, number, row.state)
        agent = base_state.running.get(job)
        return JobDetail(
            job=row,
            cwd=working_folder(folder, str(asked.get("cwd", "")), str(asked.get("source", ""))),
            env=sorted(asked.get("env") or {}),
            arguments=dict(asked.get("arguments") or {}),
            folder=folder,
            out_path=paths.out if paths else "",
            err_path=paths.err if paths and not merged else "",
            timeout_s=sheet.options.timeout_s if sheet else None,
            retries=sheet.options.retries if sheet else 0,
            scheduling=scheduling.encode(),
            attempts=self._attempts(reader, number, row, paths, merged=merged),
            pid=find_process(self._base, agent.agent, job) if agent else None,
            starts_at=starts_at,
            position=position,
            after=[_link(base_state, one, any_end=False) for one in scheduling.after]
            + [_link(base_state, one, any_end=True) for one in scheduling.after_any],
            traceback=encodable(_traceback(reader, number)),
            timeline=paths.timeline if paths and os.path.exists(paths.timeline) else "",
        )

    def environment(self, reader: RunReader, number: int) -> dict[str, str]:
        """The environment that a command was submitted with; its agent adds some variables."""
        asked = _asked(read_sheet(reader, number), number)
        name = asked.get("environment")
        found = read_environment(self._files, self._base, reader.run, name) if name else None
        return {**(found.variables if found else {}), **(asked.get("env") or {})}

    def _attempts(
        self,
        reader: RunReader,
        number: int,
        row: JobView,
        paths: JobFolder | None,
        *,
        merged: bool,
    ) -> list[AttemptView]:
        """Every attempt: those that left a note, then the one that is running or has ended."""
        found = []
        for attempt in range(1, reader.attempts.get(number, 0) + 1):
            note = None
            with contextlib.suppress(OtherVersionError):
                note = read_note(self._files, self._base, reader.run, number, attempt)
            if note is None:
                continue
            earlier = _attempt_folder(paths, attempt)
            info = _info(earlier)
            found.append(
                AttemptView(
                    attempt,
                    note.kind,
                    note.reason.removeprefix(f"{note.kind}: "),
                    note.agent,
                    info.get("gpu", ""),
                    started_at=_started_at(info),
                    ended_at=note.at or None,
                    out_path=earlier.out if earlier else "",
                    err_path=earlier.err if earlier and not merged else "",
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
                    paths.err if paths and not merged else "",
                )
            )
        return found


def read_sheet(reader: RunReader, number: int) -> JobSheet | None:
    """The sheet that holds a job; None when it cannot be read."""
    with contextlib.suppress(BadFileError, OSError, IndexError):
        return reader.read_jobs(number)
    return None


def spec_of(reader: RunReader, number: int) -> CommandSpec:
    """The spec of a job, so that it can be submitted again."""
    job = reader.job_id(number)
    try:
        sheet = reader.read_jobs(number)
        return CommandSpec.of_job(sheet, number)
    except (BadFileError, OSError, TypeError) as error:
        raise PostroomError(f"job {job.short} cannot be read: {error}") from None


def _asked(sheet: JobSheet | None, number: int) -> dict[str, Any]:
    """The fields of a command; {} for a task, whose arguments may be large."""
    return command_fields(sheet, number) if sheet is not None and sheet.task == COMMAND else {}


def _rerun_of(sheet: JobSheet | None) -> str:
    return sheet.options.rerun_of if sheet is not None else ""


def _ending(reader: RunReader, number: int, *, is_command: bool) -> dict[str, Any]:
    """The fields of a job that has ended."""
    first = reader.result_of(number)
    if first is None:
        return {}
    ended_at = reader.ended_at(first)
    try:
        sheet = reader.read_outcomes(first)
    except (BadFileError, OSError) as bad:
        return {"ended_at": ended_at, "error": str(bad)}
    seconds = sheet.seconds[number - first]
    failure = sheet.failures.get(number)
    error, code = "", 0 if is_command else None
    if failure is not None:
        error = failure.text
        match = _EXIT.match(failure.message)
        code = int(match[1]) if match else None
    ran = bool(sheet.ran_by.agent)
    started_at = sheet.ran_by.started_at + sum(sheet.seconds[: number - first])
    return {
        "started_at": started_at if ran else None,
        "ended_at": started_at + seconds if ran else ended_at,
        "seconds": seconds if ran else None,
        "agent": sheet.ran_by.agent,
        "gpu": sheet.ran_by.gpu,
        "attempt": sheet.ran_by.attempt if ran else reader.attempts.get(number, 0),
        "exit": code,
        "error": error,
    }


def _traceback(reader: RunReader, number: int) -> str:
    first = reader.result_of(number)
    if first is not None:
        with contextlib.suppress(BadFileError, OSError):
            failure = reader.read_outcomes(first).failures.get(number)
            return failure.traceback if failure is not None else ""
    return ""


def _attempt_folder(folder: JobFolder | None, attempt: int) -> JobFolder | None:
    """The folder of an attempt's output: moved to attempts/ once another attempt has started."""
    if folder is None or not os.path.isdir(f"{folder.path}/attempts/{attempt}"):
        return folder
    return JobFolder(f"{folder.path}/attempts/{attempt}", name=folder.name)


def _info(folder: JobFolder | None) -> dict[str, str]:
    with contextlib.suppress(ValueError):
        return folder.read_info() if folder else {}
    return {}


def _started_at(info: dict[str, str]) -> float | None:
    with contextlib.suppress(ValueError, KeyError):
        return datetime.fromisoformat(info["started"]).timestamp()
    return None


def _link(base_state: BaseState, job: JobId, *, any_end: bool) -> JobLink:
    reader = base_state.readers.get(job.run)
    if reader is None or job.number >= reader.asked:
        return JobLink(str(job), job.short, "", "gone", any_end)
    sheet = read_sheet(reader, job.number)
    name = name_of(sheet, job.number)
    return JobLink(str(job), job.short, name, base_state.state(reader, job.number), any_end)
