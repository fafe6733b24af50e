"""`postroom clean`: remove what is over."""

from __future__ import annotations

import sys

import click

from ..queue import actions
from ..queue.queue_view import QueueView
from ..text.values import duration
from .queue_options import CONTEXT, as_json, in_base, print_answer, talk, took


@click.command(context_settings=CONTEXT)
@click.option(
    "--older-than",
    type=duration,
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Since its last job ended.",
)
@click.option("-P", "--project", default="", help="Only of this project.")
@click.option("--dry-run", is_flag=True, help="Say which runs would go, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@as_json
@in_base
def command(
    view: QueueView, older_than: float, project: str, dry_run: bool, yes: bool, json_: bool
) -> None:
    """Remove finished runs, with the results, logs and checkpoints of their jobs.

    A run goes as a whole, when all of its jobs have ended; nothing unfinished is ever touched. The
    jobs of a project of one day are a run.

    \b
      postroom clean --dry-run
      postroom clean --older-than 30d --project vae
    """
    asks = sys.stdin.isatty() and not (yes or dry_run)
    if asks:
        plan = actions.clean(view, older_than_s=older_than, project=project, dry_run=True)
        if plan.runs:
            click.confirm(f"{plan.text}, over for {took(older_than)} or more; go on?", abort=True)
    answer = actions.clean(view, older_than_s=older_than, project=project, dry_run=dry_run)
    if json_:
        print_answer(answer)
    else:
        for run in answer.runs:
            click.echo(run)
    talk(answer.text)
