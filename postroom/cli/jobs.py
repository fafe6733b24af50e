"""`postroom jobs`: list jobs, page by page."""

from __future__ import annotations

import click

from ..queue.queue_view import QueueView
from ..queue.rows import FAILED, PENDING, STATES
from ..store.job_ids import find_run
from .job_options import in_base
from .options import CONTEXT, as_json
from .output import print_jobs, print_json, talk

# Names for several states at once.
GROUPS = {"pending": PENDING, "unsuccessful": (*FAILED, "cancelled")}


@click.command(context_settings=CONTEXT)
@click.argument("text", required=False, default="")
@click.option(
    "-s",
    "--state",
    default="",
    metavar="STATE",
    help=f"{', '.join((*STATES, *GROUPS))}; or several: ok,lost.",
)
@click.option("-P", "--project", default="", help="Only jobs of this project.")
@click.option("-r", "--run", default="", help="Only jobs of this run.")
@click.option("-u", "--user", default="", help="Only jobs of this user.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Show at most N.",
    metavar="N",
)
@click.option("--first", type=click.IntRange(0), default=0, help="Skip the first N.", metavar="N")
@as_json
@in_base
def command(
    view: QueueView,
    text: str,
    state: str,
    project: str,
    run: str,
    user: str,
    count: int,
    first: int,
    json_: bool,
) -> None:
    """List jobs: first running ones, then the queue in its order, then ended ones, newest first.

    TEXT keeps only jobs with this text in their id, name or command.

    \b
      postroom jobs                      the first 50
      postroom jobs -s failed            failed jobs
      postroom jobs -s pending -P vae    waiting jobs of project vae
      postroom jobs resnet --json        jobs that mention resnet
    """
    states = ",".join(",".join(GROUPS.get(word.strip(), (word,))) for word in state.split(","))
    whole = find_run(view.files, view.base, run) if run else ""
    page = view.jobs(
        state=states, project=project, run=whole, text=text, user=user, first=first, count=count
    )
    if json_:
        print_json(page)
        return
    if page.jobs:
        print_jobs(page.jobs)
    total = "" if page.total is None else f" of {page.total}"
    if not page.jobs:
        talk("no job matches" if text or state or project or run or user else "no jobs yet")
    elif page.more:
        shown = f"{first + 1} to {first + len(page.jobs)}{total}"
        talk(f"{shown}; for more: --first {first + len(page.jobs)}")
