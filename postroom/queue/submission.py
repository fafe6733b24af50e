"""Submitting commands to the queue.

Each project has an open run: anybody may append commands to it, many at the same time. A new run is
begun each day, and when the last has grown large, so that a whole run can be removed when it is
over; also when the last is just being removed. Two submitters that begin a run at the same moment
begin two, which does no harm.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..commands.job_environment import JobEnvironment, read_environment
from ..commands.spec import COMMAND, CommandSpec
from ..dispatch.job_writer import log_jobs
from ..errors import BadFileError, BaseFolderError, PostroomError, RunRemovedError
from ..jobs import Job
from ..store.append_log import AppendLogWriter, logged_until
from ..store.base import Base, new_run_id
from ..store.files import Files, new_token
from ..store.job_ids import JobId
from ..store.runs import (
    RunInfo,
    appending,
    check_project,
    create_run,
    list_runs,
    read_run_info,
    user_name,
)
from ..store.scheduling import PROJECT_GROUP, check_priority
from ..system.processes import host_name
from ..system.shortage import explain

if TYPE_CHECKING:
    from ..commands.code_snapshot import CodeSnapshot

DEFAULT_PROJECT = "default"
# A run with this many jobs is followed by a new one.
MOST_JOBS = 10_000


def check(spec: CommandSpec) -> CommandSpec:
    """Refuse a command that could never run, before it is queued."""
    if not spec.command.strip():
        raise PostroomError("there is no command to submit: postroom submit python train.py")
    spec.check()
    if not spec.snapshot and not os.path.isdir(spec.cwd):
        raise PostroomError(f"the folder {spec.cwd!r} to run in does not exist")
    if spec.timeout_s is not None and spec.timeout_s <= 0:
        raise PostroomError("a time limit must be longer than 0 s")
    if spec.retries is not None and spec.retries < 0:
        raise PostroomError("retries must be 0 or more")
    check_priority(spec.scheduling.priority)
    return spec


def spread(
    lines: Sequence[CommandSpec],
    common: CommandSpec,
    numbers: Sequence[int] | None = None,
    *,
    limit: int = 0,
    failures: int = 0,
    joint: str = ".",
) -> list[CommandSpec]:
    """The commands of one submission: each line, once for each number of an array.

    Each has what is common to all, and its number behind the common name. Together at most `limit`
    of them run at once, and after that many failures the rest is held.
    """
    count = len(lines) * len(numbers or [0])
    if limit or failures:
        group = PROJECT_GROUP if count == 1 else new_token(6)
        scheduling = replace(
            common.scheduling, group=group, group_limit=limit, group_failures=failures
        )
        common = replace(common, scheduling=scheduling)
    found = []
    for place, line in enumerate(lines, 1):
        for number in numbers or [place]:
            name = f"{common.name}{joint}{number}" if common.name and count > 1 else common.name
            found.append(check(line.with_defaults(common).but(name=name, number=number)))
    return found


def submit(
    files: Files,
    base: Base,
    specs: Sequence[CommandSpec],
    *,
    project: str = DEFAULT_PROJECT,
    environment: JobEnvironment | None = None,
    snapshot: CodeSnapshot | None = None,
) -> list[JobId]:
    """Queue commands and return their ids. By then they are on disk, and survive a power loss.

    They get the environment and the umask of this process, unless another `environment` is given,
    and run in copies of the `snapshot`, if there is one.
    """
    if not specs:
        return []
    if not check_project(project).strip():
        raise PostroomError("a project's name cannot be empty")
    now = time.time()
    environment = environment or JobEnvironment.of_this_process()
    given = {"checkpoint": True, "environment": environment.name}
    needs: list[JobEnvironment | CodeSnapshot] = [environment]
    if snapshot is not None:
        given |= {"snapshot": snapshot.name, "source": snapshot.source}
        needs.append(snapshot)
    jobs = [
        # One log, in which stdout and stderr are in the order in which they came.
        check(spec)
        .but(
            **given,
            merged=spec.merged is not False,
            # Where sessions share a GPU, what was declared is reserved.
            memory_mib=spec.memory_mib or spec.scheduling.memory_mib or None,
        )
        .to_job()
        for spec in specs
    ]
    for job in jobs:
        job.arguments["submitted_at"] = now
    awaited = {
        job.run for spec in specs for job in spec.scheduling.after + spec.scheduling.after_any
    }
    leaving: set[str] = set()
    try:
        with contextlib.ExitStack() as stack:
            # They stay until it is on disk that somebody waits for them.
            for run in sorted(awaited):
                stack.enter_context(appending(files, base, run))
            while True:
                info, asked = _open_run(files, base, project, leaving)
                try:
                    return _append(files, base, info, jobs, asked, needs)
                except RunRemovedError:
                    leaving.add(info.run)
    except OSError as error:
        some = "; `postroom jobs` shows whether some of them are in" if len(jobs) > 1 else ""
        raise BaseFolderError(
            f"cannot submit to {base.root}: {explain(error, base.root)}{some}"
        ) from error


def _append(
    files: Files,
    base: Base,
    info: RunInfo,
    jobs: list[Job],
    asked: int,
    needs: Sequence[JobEnvironment | CodeSnapshot],
) -> list[JobId]:
    # Nobody waits for a cleaner here, which may be stopped: a new run takes the jobs as well.
    with appending(files, base, info.run, wait=False):
        for need in needs:
            need.put(files, base, info.run)
        append_log = AppendLogWriter(files, base, info.run, durable=info.durable)
        try:
            records = log_jobs(append_log, jobs, guess=asked)
        finally:
            append_log.close()
        with contextlib.suppress(OSError):  # they are in, and will be found without this event
            files.touch(base.run_folder(info.run))  # a Master that had finished the run looks again
    return [JobId(info.run, n) for record in records for n in range(record.number, record.stop)]


def rerun(files: Files, base: Base, jobs: Sequence[tuple[JobId, CommandSpec, str]]) -> list[JobId]:
    """Queue commands again, each in its project; their earlier results stay."""
    from ..commands.code_snapshot import CodeSnapshot  # late: few jobs have one

    alike: dict[tuple[str, ...], dict[JobId, CommandSpec]] = {}
    for job, spec, project in jobs:
        again = replace(spec, rerun_of=job, scheduling=replace(spec.scheduling, held=False))
        group = (project, job.run, spec.environment, spec.snapshot, spec.source)
        alike.setdefault(group, {})[job] = again
    new: dict[JobId, JobId] = {}
    for (project, run, name, snapshot, source), specs in alike.items():
        with appending(files, base, run):  # what they need of it stays until they have that
            path = base.code_snapshot(run, snapshot)
            ids = submit(
                files,
                base,
                list(specs.values()),
                project=project,
                environment=read_environment(files, base, run, name) if name else None,
                snapshot=CodeSnapshot(snapshot, path, source) if snapshot else None,
            )
        new |= zip(specs, ids, strict=True)
    return [new[job] for job, _, _ in jobs]


def _open_run(
    files: Files, base: Base, project: str, leaving: Collection[str]
) -> tuple[RunInfo, int]:
    """The project's open run, and how many jobs it holds; not one that is being removed."""
    today = time.strftime("%Y%m%d", time.gmtime())
    for run in reversed(list_runs(files, base)):
        if run[:8] < today:
            break
        if run in leaving:
            continue
        try:
            info = read_run_info(files, base, run)
            if info.queue and info.project == project:
                asked = logged_until(files, base.append_log(run))
                if asked < MOST_JOBS:
                    return info, asked
        except (FileNotFoundError, BadFileError):
            continue
    info = RunInfo(
        run=new_run_id(),
        project=project,
        import_folder=base.root,
        shared=None,
        embedded=False,
        durable=True,
        created_at=time.time(),
        host=host_name(),
        user=user_name(),
        kernels={COMMAND: ""},
        queue=True,
    )
    create_run(files, base, info)
    return info, 0
