"""`postroom logs`: what a job has printed, and prints."""

from __future__ import annotations

import os
import sys
import time

import click

from ..errors import PostroomError
from ..queue.job_logs import follow, last_lines, path_of
from ..queue.queue_view import QueueView
from ..queue.rows import ENDED, PENDING
from .queue_options import CONTEXT, in_base, job_argument, one_job, talk

LOOK_S = 0.2
FOLLOWED = 20


@click.command(context_settings=CONTEXT)
@job_argument
@click.option("-f", "--follow", "follow_", is_flag=True, help="Go on until the job has ended.")
@click.option("-e", "--err", is_flag=True, help="What it printed on stderr.")
@click.option("-a", "--attempt", type=click.IntRange(1), help="Of an earlier attempt.")
@click.option("-n", "lines", type=click.IntRange(0), help="Only the last so many lines.")
@in_base
def command(
    view: QueueView, job: str, follow_: bool, err: bool, attempt: int | None, lines: int | None
) -> None:
    """Print what JOB has printed on stdout, or with --err on stderr.

    \b
      postroom logs 0b859f/17            all of it
      postroom logs 0b859f/17 -n 50      the end of it
      postroom logs 0b859f/17 -f         as it comes; Ctrl-C ends only the looking
      postroom logs 0b859f/17 -a 1 -e    of the first attempt, stderr
    """
    job_id = one_job(view, job)
    detail = view.job(job_id)
    path = path_of(detail, err=err, attempt=attempt)
    if not path:
        if attempt is not None:
            known = ", ".join(str(one.number) for one in detail.attempts) or "none yet"
            raise PostroomError(f"{job_id.short} has no attempt {attempt}; attempts: {known}")
        raise PostroomError(f"{job_id.short} is a task: what it prints goes into {view.base.log}")
    state, reason = detail.job.state, detail.job.reason
    if state in PENDING:
        talk(f"{job_id.short} is {state}: {reason}")
    if not follow_ or attempt is not None:
        for block in last_lines(path, lines):
            sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
        if state not in PENDING and not os.path.exists(path):
            talk(f"{job_id.short} is {state} and left no {os.path.basename(path)}")
        return

    def over() -> bool:
        return view.job(job_id).job.state in ENDED

    start = FOLLOWED if lines is None else lines
    for block in follow(path, start, over=over, pause=lambda: time.sleep(LOOK_S)):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
    row = view.job(job_id).job
    talk(f"{job_id.short} is {row.state}" + (f": {row.error}" if row.error else ""))
