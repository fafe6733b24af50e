"""`postroom logs`: print the output of a job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click

from ..errors import PostroomError
from ..queue.job_logs import Follower, PrintedLog, follow, path_of
from ..queue.queue_view import QueueView
from ..queue.rows import ENDED, PENDING
from ..store.job_ids import LAST
from ..store.kernel_output import OutputReader
from ..text.safe_text import for_terminal, printable
from .job_options import in_base, job_or_last, one_job
from .options import CONTEXT
from .output import talk

LOOK_S = 0.2
FOLLOW_LINES = 20  # shown of what was printed before


@click.command(context_settings=CONTEXT)
@job_or_last
@click.option(
    "-f", "--follow", "follow_", is_flag=True, help="Follow the output until the job ends."
)
@click.option("-e", "--err", is_flag=True, help="Print stderr, where it has a log of its own.")
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
    """Print the output of JOB, or of the job that was submitted last.

    It is stdout and stderr, in the order in which they came. Lines of `postroom run` and jobs of
    `submit --split-output` have two logs: stdout is printed, or with --err stderr.

    On a terminal, only the colours of the output take effect: other escape codes are removed. In a
    pipe or a file, and with --raw, every byte is printed as it is.

    \b
      postroom logs                      of the last job; @~1: of the one before
      postroom logs 17                   of job 17 of the same run; or by its name
      postroom logs 0b859f/17            of any job
      postroom logs 0b859f/17 -n 50      the last 50 lines
      postroom logs 0b859f/17 -f         follow it; Ctrl-C does not stop the job
      postroom logs 0b859f/17 -a 1 -e    stderr of the first attempt
    """
    job_id = one_job(view, job)
    detail = view.job(job_id)
    if attempt is not None and attempt not in [one.number for one in detail.attempts]:
        known = ", ".join(str(one.number) for one in detail.attempts) or "none yet"
        raise PostroomError(f"{job_id.short} has no attempt {attempt}; attempts: {known}")
    if err and detail.out_path and not detail.err_path:
        raise PostroomError(
            f"stdout and stderr of {job_id.short} are in one log: leave out --err; to have two, "
            "submit with --split-output"
        )
    state, reason = detail.job.state, detail.job.reason
    if job.startswith(LAST):
        talk(f"{job_id.short}: {detail.job.name or printable(detail.job.summary)}")
    if state in PENDING:
        talk(f"{job_id.short} is {state}: {reason}")
    follow_ = follow_ and attempt is None
    start = FOLLOW_LINES if follow_ and lines is None else lines
    path = path_of(detail, err=err, attempt=attempt)
    log: Follower | PrintedLog
    if path:
        log = Follower(path, start)
    else:
        log = PrintedLog(
            OutputReader(view.base, job_id.run, job_id.number, err=err), start, attempt
        )

    def ended() -> bool:
        return not follow_ or view.job(job_id).job.state in ENDED

    _print(follow(log, over=ended, pause=lambda: time.sleep(LOOK_S)), raw=raw)
    row = view.job(job_id).job
    if follow_:
        talk(f"{job_id.short} is {row.state}" + (f": {row.error}" if row.error else ""))
    elif state not in PENDING and path and not os.path.exists(path):
        talk(f"{job_id.short} is {state} and left no {os.path.basename(path)}")
    elif path and state not in PENDING and attempt is None and not os.path.getsize(path):
        talk(
            f"{job_id.short} is {state}, and has printed nothing{'' if state in ENDED else ' yet'}"
        )
    elif not path and detail.traceback:
        talk(f"{job_id.short} is {state}: {row.error}; traceback: postroom show {job_id.short}")


def _print(blocks: Iterator[bytes], *, raw: bool) -> None:
    for block in blocks if raw or not sys.stdout.isatty() else for_terminal(blocks):
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()
