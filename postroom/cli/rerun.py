"""`postroom rerun`: queue jobs again."""

from __future__ import annotations

import click

from ..queue import actions
from ..queue.actions import ActionResult
from ..queue.queue_view import QueueView
from ..store.job_ids import JobId, find_run
from .job_options import in_base, jobs_argument, some_jobs
from .options import CONTEXT, as_json
from .output import print_answer, talk


@click.command(context_settings=CONTEXT)
@jobs_argument(required=False)
@click.option("--failed", is_flag=True, help="Rerun all failed jobs that were not rerun yet.")
@click.option("-P", "--project", default="", help="With --failed: only jobs of this project.")
@click.option("-r", "--run", default="", help="With --failed: only jobs of this run.")
@click.option("--dry-run", is_flag=True, help="List the jobs; queue nothing.")
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
    """Queue JOBs again with the same options; print their new ids.

    Earlier logs and results are kept. With a failed job, the jobs that were cancelled because they
    depend on it are queued again, too. A Python task runs with its kernel as it is now, in a run of
    its own. A run without a number means its failed jobs.

    \b
      postroom rerun 0b859f/17
      postroom rerun 0b859f
      postroom rerun --failed --project vae
    """
    if failed == bool(jobs) or ((project or run) and not failed):
        raise click.UsageError("name jobs, or give --failed [--project P] [--run R]")
    whole = find_run(view.files, view.base, run) if run else ""
    if failed:
        chosen = actions.failed_jobs(view, project, whole)
    else:
        chosen = [job for word in jobs for job in _named(view, word)]
    if not chosen:
        talk("no failed job is left to rerun")
    answer = ActionResult(None, "nothing is queued", jobs=chosen)
    if chosen and not dry_run:
        answer = actions.rerun(view, chosen)
    if json_:
        print_answer(answer)
    else:
        for job in answer.jobs:
            click.echo(job.short)
    talk(answer.text)


def _named(view: QueueView, word: str) -> list[JobId]:
    """The jobs that a word names; of a whole run, those that failed."""
    from ..queue.job_words import run_named

    run = run_named(view, word)
    return actions.failed_jobs(view, run=run) if run else some_jobs(view, [word])
