"""`postroom diff`: show what has changed since a job's snapshot."""

from __future__ import annotations

import os
import sys

import click

from ..commands.code_snapshot import SnapshotError, changes
from ..commands.job_folder import JobFolder
from ..text.safe_text import strip_escapes
from .options import CONTEXT


@click.command(context_settings=CONTEXT)
@click.argument("job", type=click.Path(exists=True, file_okay=False))
def command(job: str) -> None:
    """Show what has changed in the working folder since the snapshot of a job.

    JOB is the job's folder.

    \b
      postroom run jobs.txt --gpus all --snapshot
      postroom diff postroom_run/job_3
    """
    info = JobFolder(os.path.abspath(job)).read_info()
    if "snapshot" not in info:
        raise SnapshotError(f"{job} did not run in a snapshot: use postroom run --snapshot")
    lines = changes(info["snapshot"], info["source"])
    sys.stdout.writelines(map(strip_escapes, lines) if sys.stdout.isatty() else lines)
