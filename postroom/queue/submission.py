"""Handing in commands to the standing queue.

Each project has a run that is open: commands are appended to it, by anybody, without a lock. A new
one is begun each day, and when one has grown large, so that what is over can be cleaned away as a
whole. Two who begin one at the same moment begin two, which does no harm.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..commands.attempt import COMMAND
from ..dispatch.job_writer import log_jobs
from ..errors import BadFileError, PostroomError
from ..jobs import Job
from ..store.append_log import AppendLogWriter
from ..store.base import Base, new_run_id
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.runs import (
    RunInfo,
    count_submitted,
    create_run,
    list_firsts,
    list_runs,
    read_run_info,
    user_name,
)
from ..store.scheduling import SchedulingOptions, check_priority

DEFAULT_PROJECT = "default"
# A project's run is followed by a new one when it holds so many jobs.
MOST_JOBS = 10_000
MOST_PROJECT = 80


@dataclass(frozen=True)
class QueuedCommand:
    """One command, and what is asked for it."""

    command: str
    name: str = ""
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    retries: int = 0
    scheduling: SchedulingOptions = field(default_factory=SchedulingOptions)
    grace_s: float | None = None
    shell: str = "bash"
    number: int = 0  # of an array, as grid engine's SGE_TASK_ID is
    rerun_of: JobId | None = None
    arguments: dict[str, Any] = field(default_factory=dict)  # of a sweep, for the table

    def to_job(self, submitted_at: float) -> Job:
        """The job that goes into the run."""
        passed: dict[str, Any] = {
            "command": self.command,
            "cwd": self.cwd,
            "env": self.env,
            "shell": self.shell,
            "number": self.number,
            "scheduling": self.scheduling.encode(),
            "label": self.name,
            "checkpoint": True,
            "submitted_at": submitted_at,
        }
        if self.grace_s is not None:
            passed["grace_s"] = self.grace_s
        if self.arguments:
            passed["arguments"] = self.arguments
        if self.rerun_of is not None:
            passed["rerun_of"] = str(self.rerun_of)
        return Job(
            COMMAND, self.name or None, retries=self.retries, timeout_s=self.timeout_s, **passed
        )


def check(ask: QueuedCommand) -> QueuedCommand:
    """Refuse what could never run, before it is queued."""
    if not ask.command.strip():
        raise PostroomError("there is no command to submit: postroom submit -- python train.py")
    if "\0" in ask.command:
        raise PostroomError("a command cannot hold a zero byte")
    if not os.path.isdir(ask.cwd):
        raise PostroomError(f"the folder {ask.cwd!r} to run in does not exist")
    if ask.timeout_s is not None and ask.timeout_s <= 0:
        raise PostroomError("a time limit is longer than nothing")
    if ask.retries < 0:
        raise PostroomError("retries are 0 or more")
    check_priority(ask.scheduling.priority)
    return ask


def submit(
    files: Files, base: Base, asks: Sequence[QueuedCommand], *, project: str = DEFAULT_PROJECT
) -> list[JobId]:
    """Queue commands, and return their ids. They are on disk, through a power loss, by then."""
    if not asks:
        return []
    if not project.strip() or len(project) > MOST_PROJECT or not project.isprintable():
        raise PostroomError(f"a project's name is one line of at most {MOST_PROJECT} characters")
    now = time.time()
    jobs = [check(ask).to_job(now) for ask in asks]
    info, asked = _open_run(files, base, project)
    append_log = AppendLogWriter(files, base, info.run, durable=info.durable)
    try:
        records = log_jobs(append_log, jobs, guess=asked)
    finally:
        append_log.close()
    files.touch(base.run_folder(info.run))  # so that a Master that has put it by looks again
    return [JobId(info.run, n) for record in records for n in range(record.number, record.stop)]


def rerun(
    files: Files, base: Base, jobs: Sequence[tuple[JobId, QueuedCommand, str]]
) -> list[JobId]:
    """Queue commands again, each with its project; what they did before stays where it is."""
    found: list[JobId] = []
    by_project: dict[str, list[QueuedCommand]] = {}
    for job, ask, project in jobs:
        again = replace(ask, rerun_of=job, scheduling=replace(ask.scheduling, held=False))
        by_project.setdefault(project, []).append(again)
    for project, asks in by_project.items():
        found += submit(files, base, asks, project=project)
    return found


def _open_run(files: Files, base: Base, project: str) -> tuple[RunInfo, int]:
    """The project's open run, and how many jobs it holds."""
    today = time.strftime("%Y%m%d", time.gmtime())
    for run in reversed(list_runs(files, base)):
        if run[:8] < today:
            break
        try:
            info = read_run_info(files, base, run)
        except (FileNotFoundError, BadFileError):
            continue
        if info.queue and info.project == project:
            asked = count_submitted(files, base, run, list_firsts(files, base.run_folder(run)))
            if asked < MOST_JOBS:
                return info, asked
    info = RunInfo(
        run=new_run_id(),
        project=project,
        import_folder=base.root,
        shared=None,
        embedded=False,
        durable=True,
        created_at=time.time(),
        host=socket.gethostname(),
        user=user_name(),
        kernels={COMMAND: ""},
        one_job_per_letter=True,
        append_log=True,
        queue=True,
    )
    create_run(files, base, info)
    return info, 0
