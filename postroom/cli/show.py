"""`postroom show`: show everything about one job."""

from __future__ import annotations

import textwrap
import time

import click

from ..queue.queue_view import QueueView
from ..queue.rows import FAILED, JobDetail
from ..text.durations import format_duration, format_time
from ..text.safe_text import printable
from ..text.sizes import from_mib
from .job_options import in_base, job_or_last, one_job
from .options import CONTEXT, as_json
from .output import paint, print_json, print_table


@click.command(context_settings=CONTEXT)
@job_or_last
@click.option("--env", is_flag=True, help="Print the environment of its submission, with values.")
@as_json
@in_base
def command(view: QueueView, job: str, env: bool, json_: bool) -> None:
    """Show everything about JOB, or the job that was submitted last; a failure comes first.

    It shows the command, PID, attempts, why it waits, and when it may start.

    \b
      postroom show                the last job; @~1: the one before
      postroom show 17             job 17 of the same run; or its name
      postroom show 0b859f/17      any job
    """
    if env:
        found = view.environment(one_job(view, job))
        if json_:
            print_json(found)
        else:
            for name, value in sorted(found.items()):
                click.echo(f"{printable(name)}={printable(value)}")
        return
    detail = view.job(one_job(view, job))
    if json_:
        print_json(detail)
        return
    if detail.job.state in FAILED:
        _print_failure(detail)
    for name, value in facts(detail).items():
        if value:
            text = printable(value).replace("\n", "\n" + " " * 11)
            click.echo(f"{name + ':':<11}" + (paint(text, value) if name == "state" else text))
    if detail.attempts:
        click.echo()
        print_table(attempt_rows(detail))
    if detail.job.state in FAILED:
        click.echo(
            f"\noutput: postroom logs {detail.job.short};  "
            f"run it again: postroom rerun {detail.job.short}"
        )


def _print_failure(detail: JobDetail) -> None:
    """Print why a job failed, and the end of what it said."""
    row = detail.job
    click.echo(paint(f"{row.short} {row.state}: {printable(row.error)}", row.state))
    if detail.traceback:
        click.echo("its last output:" if detail.out_path else "traceback:")
        click.echo(textwrap.indent(printable(detail.traceback.rstrip().expandtabs()), "  "))
    click.echo()


def facts(detail: JobDetail) -> dict[str, str]:
    """Return the facts about a job, the most asked for first."""
    row = detail.job
    lasted = "took" if row.ended_at else "runs for"
    return {
        "job": f"{row.short}   ({row.id})",
        "name": row.name,
        "state": row.state,
        "why": row.reason or ("" if row.state in FAILED else row.error),
        "starts": _starts(detail),
        "pid": str(detail.pid or ""),
        "command": row.command,
        "folder": detail.cwd,
        "output": detail.out_path,
        "errors": detail.err_path,
        "timeline": detail.timeline,
        "project": row.project,
        "user": row.user,
        "priority": str(row.priority) if row.priority else "",
        "needs": _needs(detail),
        "after": "; ".join(
            f"{one.short} ({one.state}{', any outcome' if one.any_end else ''})"
            for one in detail.after
        ),
        "limit": format_duration(detail.timeout_s) if detail.timeout_s else "",
        "retries": str(detail.retries or ""),
        "rerun of": row.rerun_of,
        "env": f"{', '.join(detail.env)} (values: --env)" if detail.env else "",
        "submitted": format_time(row.submitted_at),
        "started": format_time(row.started_at) if row.started_at else "",
        "ended": format_time(row.ended_at) if row.ended_at else "",
        lasted: format_duration(row.seconds) if row.seconds is not None else "",
        "exit": "" if row.exit is None else str(row.exit),
    }


def _starts(detail: JobDetail) -> str:
    if detail.position is None:
        return ""
    place = f"number {detail.position} in the queue"
    if detail.starts_at is None:
        return f"{place}; start time unknown"
    wait_s = max(0.0, detail.starts_at - time.time())
    return f"{place}; in about {format_duration(wait_s)}, at {format_time(detail.starts_at)}"


def _needs(detail: JobDetail) -> str:
    gpus, memory_mib = detail.scheduling.get("gpus", 1), detail.scheduling.get("memory_mib", 0)
    words = [f"{gpus} GPUs"] if gpus != 1 else []
    if detail.scheduling.get("shares"):
        words.append(f"{from_mib(memory_mib) if memory_mib else 'a measured part'} of a GPU")
    elif memory_mib:
        words.append(f"{from_mib(memory_mib)} per GPU")
    return ", ".join(words)


def attempt_rows(detail: JobDetail) -> list[list[str]]:
    """Return the table of attempts."""
    found = [["ATTEMPT", "OUTCOME", "AGENT", "STARTED", "ENDED", "WHY"]]
    for one in detail.attempts:
        times = [format_time(one.started_at), format_time(one.ended_at)]
        found.append([str(one.number), one.outcome, one.agent or "-", *times, one.reason])
    return found
