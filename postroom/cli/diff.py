"""`postroom diff`: what has changed since a job's snapshot was taken."""

from __future__ import annotations

import os
import sys

import click

from ..commands.code_snapshot import FOLDER, SnapshotError, changes
from ..commands.job_folder import JobFolder


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("job", type=click.Path(exists=True, file_okay=False))
def command(job: str) -> None:
    """Show what has changed in the working folder since JOB (its folder) was handed in."""
    place = JobFolder(os.path.abspath(job)).read_info().get("folder", "")
    store, found, rest = place.partition(f"/{FOLDER}/")
    if not found:
        raise SnapshotError(f"{job} did not run in a snapshot: use postroom run --snapshot")
    sys.stdout.writelines(changes(f"{store}/{FOLDER}/{rest.partition('/')[0]}/files"))
