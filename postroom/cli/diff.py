"""`postroom diff`: show what has changed since a job's snapshot."""

from __future__ import annotations

import os
import sys

import click

from ..commands.code_snapshot import FOLDER, SnapshotError, changes
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
    place = JobFolder(os.path.abspath(job)).read_info().get("folder", "")
    store, found, rest = place.partition(f"/{FOLDER}/")
    if not found:
        raise SnapshotError(f"{job} did not run in a snapshot: use postroom run --snapshot")
    lines = changes(f"{store}/{FOLDER}/{rest.partition('/')[0]}/files")
    sys.stdout.writelines(map(strip_escapes, lines) if sys.stdout.isatty() else lines)
