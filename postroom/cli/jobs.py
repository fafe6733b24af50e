"""`postroom jobs`: the jobs of a queue, page by page."""

from __future__ import annotations

import click

from ..queue.queue_view import QueueView
from ..queue.rows import FAILED, PENDING, STATES
from ..store.job_ids import find_run
from .queue_options import CONTEXT, as_json, in_base, print_jobs, print_json, talk

# Words for several states at once.
GROUPS = {"pending": PENDING, "unsuccessful": (*FAILED, "cancelled")}


@click.command(context_settings=CONTEXT)
@click.argument("text", required=False, default="")
@click.option(
    "-s", "--state", default="", metavar="STATE", help=f"{', '.join((*STATES, *GROUPS))}; or a,b."
)
@click.option("-P", "--project", default="", help="Only of this project.")
@click.option("-r", "--run", default="", help="Only of this run.")
@click.option("-u", "--user", default="", help="Only of this user.")
@click.option("-n", "count", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--first", type=click.IntRange(0), default=0, help="Leave out so many.")
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
    """List jobs: those that run, then the queue as it will run, then what ended, newest first.

    TEXT is looked for in ids, names and commands.

    \b
      postroom jobs                      the first 50
      postroom jobs -s failed            what failed
      postroom jobs -s pending -P vae    what waits of project vae
      postroom jobs resnet --json        whatever has to do with resnet
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
        talk("no such job" if text or state or project or run or user else "no jobs yet")
    elif page.more:
        shown = f"{first + 1} to {first + len(page.jobs)}{total}"
        talk(f"{shown}; more: --first {first + len(page.jobs)}")
