"""`postroom clean`: remove finished runs."""

from __future__ import annotations

import sys
from functools import partial

import click

from ..queue import actions
from ..queue.queue_view import QueueView
from ..text.durations import format_duration
from .job_options import in_base
from .options import CONTEXT, as_json, duration
from .output import print_answer, talk


@click.command(context_settings=CONTEXT)
@click.option(
    "--older-than",
    type=duration,
    default="7d",
    show_default=True,
    help="Age of a run, since its last job ended: 12h, 7d.",
)
@click.option("-P", "--project", default="", help="Only runs of this project.")
@click.option(
    "--abandoned", is_flag=True, help="Also remove unfinished runs of programs that have ended."
)
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json
@in_base
def command(
    view: QueueView,
    older_than: float,
    project: str,
    abandoned: bool,
    dry_run: bool,
    yes: bool,
    json_: bool,
) -> None:
    """Remove finished runs, with the results, logs, checkpoints and snapshots of their jobs.

    A run holds the jobs that were submitted to a project on one day. It is removed only as a whole,
    when all its jobs have ended. A run is abandoned when its Python program has ended before its
    jobs: with --abandoned, the rest of its jobs is killed, and the run is removed.

    \b
      postroom clean --dry-run
      postroom clean --older-than 30d --project vae
    """
    clean = partial(
        actions.clean, view, older_than_s=older_than, project=project, abandoned=abandoned
    )
    asks = sys.stdin.isatty() and not (yes or dry_run)
    if asks:
        plan = clean(dry_run=True)
        if plan.runs:
            age = format_duration(older_than)
            click.confirm(f"{plan.text}, ended at least {age} ago; continue?", abort=True)
    answer = clean(dry_run=dry_run)
    if json_:
        print_answer(answer)
    else:
        for run in answer.runs:
            click.echo(run)
    talk(answer.text)
