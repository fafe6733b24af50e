"""`postroom logs`: print the output of a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click

from ..errors import PostroomError
from ..queue.job_logs import follow, last_lines, path_of
from ..queue.queue_view import QueueView
from ..queue.rows import ENDED, PENDING
from ..text.safe_text import for_terminal
from .job_options import in_base, job_argument, one_job
from .options import CONTEXT
from .output import talk

LOOK_S = 0.2
FOLLOW_LINES = 20  # shown of what was printed before


@click.command(context_settings=CONTEXT)
@job_argument
@click.option(
    "-f", "--follow", "follow_", is_flag=True, help="Follow the output until the job ends."
)
@click.option("-e", "--err", is_flag=True, help="Print stderr instead of stdout.")
@click.option("-a", "--attempt", type=click.IntRange(1), metavar="N", help="Output of attempt N.")
@click.option("--raw", is_flag=True, help="On a terminal too: print every byte as it is.")
@click.option("-n", "lines", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@in_base
def command(
    view: QueueView,
    job: str,
    follow_: bool,
    err: bool,
    attempt: int | None,
    raw: bool,
    lines: int | None,
) -> None:
    """Print the stdout of JOB, or with --err its stderr.

    On a terminal, only the colours of the output take effect: other escape codes are removed. In a
    pipe or a file, and with --raw, every byte is printed as it is.

    \b
      postroom logs 0b859f/17            all of it
      postroom logs 0b859f/17 -n 50      the last 50 lines
      postroom logs 0b859f/17 -f         follow it; Ctrl-C does not stop the job
      postroom logs 0b859f/17 -a 1 -e    stderr of the first attempt
    """
    job_id = one_job(view, job)
    detail = view.job(job_id)
    path = path_of(detail, err=err, attempt=attempt)
    if not path:
        if attempt is not None:
            known = ", ".join(str(one.number) for one in detail.attempts) or "none yet"
            raise PostroomError(f"{job_id.short} has no attempt {attempt}; attempts: {known}")
        raise PostroomError(f"{job_id.short} is a Python task: its output is in {view.base.log}")
    state, reason = detail.job.state, detail.job.reason
    if state in PENDING:
        talk(f"{job_id.short} is {state}: {reason}")
    if not follow_ or attempt is not None:
        _print(last_lines(path, lines), raw=raw)
        if state not in PENDING and not os.path.exists(path):
            talk(f"{job_id.short} is {state} and left no {os.path.basename(path)}")
        return

    def ended() -> bool:
        return view.job(job_id).job.state in ENDED

    start = FOLLOW_LINES if lines is None else lines
    _print(follow(path, start, over=ended, pause=lambda: time.sleep(LOOK_S)), raw=raw)
    row = view.job(job_id).job
    talk(f"{job_id.short} is {row.state}" + (f": {row.error}" if row.error else ""))


def _print(blocks: Iterator[bytes], *, raw: bool) -> None:
    for block in blocks if raw or not sys.stdout.isatty() else for_terminal(blocks):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
