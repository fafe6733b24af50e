"""Commands that are queued and ended with no process to run them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from postroom.commands.spec import CommandSpec
from postroom.parcel.sheets import Failure, JobEnd, Outcome, RanBy, pack_outcomes
from postroom.queue.submission import submit
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.runs import publish_results, read_run_info
from postroom.store.scheduling import SchedulingOptions

FILES = LocalFiles()
FAILURE = Failure(Outcome.FAILED, "failed", "exit code 3: no such data", "Traceback: ...")


def queue(
    base: Base,
    *commands: str,
    project: str = "p",
    merged: bool | None = None,
    **scheduling: object,
) -> list[JobId]:
    options = SchedulingOptions(**scheduling)  # type: ignore[arg-type]
    common = CommandSpec("", cwd="/", scheduling=options, merged=merged)
    specs = [replace(common, command=one, name=one) for one in commands]
    return submit(FILES, base, specs, project=project)


def end(base: Base, job: JobId, failure: Failure | None = None, *, at: float | None = None) -> None:
    """Publish how a job ended, as a minder does."""
    done = JobEnd(None if failure else {"exit": 0}, failure, 1.5)
    ran_by = RanBy("0", "cpu", 1, time.time() - 1.5)
    publish_results(
        FILES,
        base,
        read_run_info(FILES, base, job.run),
        job.number,
        job.number + 1,
        lambda number: pack_outcomes(number, [done], ran_by),
    )
    if at is not None:
        os.utime(base.result(job.run, job.number), (at, at))


def make_old(base: Base, run: str, *, days: float = 10) -> None:
    """Make a run look as if it was created and last changed long ago."""
    at = time.time() - days * 86_400
    info = replace(read_run_info(FILES, base, run), created_at=at)
    Path(base.run_info(run)).write_bytes(info.encode())
    for place in (base.run_folder(run), base.append_log(run), base.result_folder(run)):
        if os.path.exists(place):
            os.utime(place, (at, at))
