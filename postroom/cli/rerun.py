"""`postroom rerun`: queue jobs again."""

from __future__ import annotations

import click

from ..queue import actions
from ..queue.actions import ActionResult
from ..queue.queue_view import QueueView
from ..store.job_ids import find_run
from .queue_options import CONTEXT, as_json, in_base, jobs_argument, print_answer, some_jobs, talk


@click.command(context_settings=CONTEXT)
@jobs_argument(required=False)
@click.option("--failed", is_flag=True, help="All that failed, and were not rerun since.")
@click.option("-P", "--project", default="", help="With --failed: only of this project.")
@click.option("-r", "--run", default="", help="With --failed: only of this run.")
@click.option("--dry-run", is_flag=True, help="Say which, and do nothing.")
@as_json
@in_base
def command(
    view: QueueView,
    jobs: tuple[str, ...],
    failed: bool,
    project: str,
    run: str,
    dry_run: bool,
    json_: bool,
) -> None:
    """Queue JOBs again, with all that was asked of them; print their new ids.

    What they did before stays where it is. What was cancelled because a job it waited for failed
    is queued again with that job, and waits for it again.

    \b
      postroom rerun 0b859f/17
      postroom rerun --failed --project vae
    """
    if failed == bool(jobs) or ((project or run) and not failed):
        raise click.UsageError("name jobs, or say --failed [--project P] [--run R]")
    whole = find_run(view.files, view.base, run) if run else ""
    chosen = actions.failed_jobs(view, project, whole) if failed else some_jobs(view, jobs)
    if not chosen:
        talk("no job failed that was not rerun")
    answer = ActionResult(None, "nothing is queued", jobs=chosen)
    if chosen and not dry_run:
        answer = actions.rerun(view, chosen)
    if json_:
        print_answer(answer)
    else:
        for job in answer.jobs:
            click.echo(job.short)
    talk(answer.text)
