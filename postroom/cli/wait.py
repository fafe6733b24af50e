"""`postroom wait`: wait until jobs have ended."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import click

from ..errors import PostroomError
from ..queue.queue_view import QueueView
from ..queue.rows import PENDING, RUNNING
from ..store.job_ids import JobId
from . import codes
from .job_options import in_base, jobs_argument, some_jobs
from .options import CONTEXT, as_json, duration
from .output import talk

LOOK_S = 0.3
UNENDED = (*RUNNING, *PENDING)


@click.command(context_settings=CONTEXT)
@jobs_argument(required=False)
@click.option(
    "-P", "--project", default="", help="Wait for all jobs of a project that have not ended."
)
@click.option(
    "--timeout", "timeout_s", type=duration, help="Give up after 90s, 30m, 2h; exit code 124."
)
@as_json
@in_base
def command(
    view: QueueView, jobs: tuple[str, ...], project: str, timeout_s: float | None, json_: bool
) -> int:
    """Wait until JOBs have ended, and print their outcomes. Exit code 1 if any failed.

    \b
      postroom wait 0b859f/17 && postroom logs 0b859f/17
      postroom wait --project vae --timeout 1h
    """
    if bool(jobs) == bool(project):
        raise click.UsageError("name jobs, or a project with --project")
    if jobs:
        return wait_for(view, some_jobs(view, jobs), timeout_s, json_=json_)
    base_state = view.read_state()
    readers = [reader for reader in base_state.readers.values() if reader.project == project]
    if not readers:
        raise PostroomError(f"there is no project {project!r}; see `postroom status`")
    left = [reader.job_id(number) for reader, number, _ in base_state.jobs_in(UNENDED, readers)]
    return wait_for(view, left, timeout_s, json_=json_)


def wait_for(
    view: QueueView, jobs: Sequence[JobId], timeout_s: float | None = None, *, json_: bool = False
) -> int:
    """Print jobs as they end; return the exit code."""
    give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
    left = list(jobs)
    failed = 0
    while True:
        base_state = view.read_state()
        unended = []
        for job in left:
            reader = base_state.readers.get(job.run)
            outcome = "gone" if reader is None else reader.outcome(job.number)
            if reader is not None and outcome is None and base_state.is_abandoned(job.run):
                # Its program is gone: unless it runs now, nobody will ever send it.
                outcome = "abandoned" if base_state.state(reader, job.number) != "running" else None
            if outcome is None:
                unended.append(job)
                continue
            failed += outcome != "ok"
            said = {"job": str(job), "state": outcome}
            click.echo(json.dumps(said) if json_ else f"{job.short} {outcome}")
        left = unended
        if not left:
            break
        if give_up_at is not None and time.monotonic() >= give_up_at:
            talk(f"{len(left)} of {len(jobs)} jobs have not ended, the first {left[0].short}")
            return codes.TIMED_OUT
        time.sleep(LOOK_S)
    if failed:
        talk(f"{failed} of {len(jobs)} jobs did not end well")
    return codes.JOB_FAILED if failed else codes.OK
