"""How the verbs print: data on stdout, messages to the user on stderr."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ..text.durations import format_duration
from ..text.safe_text import printable
from ..text.strict_json import strict_json
from ..text.table import cut, table_lines

# `postroom submit` runs in shell loops, and needs no more of this than `talk`.
if TYPE_CHECKING:
    from ..queue.actions import ActionResult
    from ..queue.queue_view import QueueView
    from ..queue.rows import JobView

SETTLE_S = 5.0
WIDE = 120
LONG = 60  # characters of a name: the rest is in `postroom show` and --json
COLOURS = {
    "running": "cyan",
    "stopping": "yellow",
    "ok": "green",
    "failed": "red",
    "timed out": "red",
    "lost": "red",
    "held": "yellow",
    "paused": "yellow",
    "abandoned": "yellow",
}


def talk(text: str) -> None:
    """Print a message to the user on stderr, since stdout is data."""
    click.echo(printable(text), err=True)


def print_json(value: Any) -> None:
    """Print a row, a list of rows, or plain values as one JSON document."""
    document = [_plain(one) for one in value] if isinstance(value, list) else _plain(value)
    click.echo(strict_json(document, indent=1 if sys.stdout.isatty() else None))


def _plain(value: Any) -> Any:
    is_row = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_row else value


def settle(
    view: QueueView, answer: ActionResult, *, json_: bool = False, here: bool = False
) -> None:
    """Report a request; if a scheduler is running, wait until it has carried it out.

    `here`: without a scheduler, carry out requests about agents in this process.
    """
    from ..queue.actions import carry_out_now, wait_settled

    acting = answer.request is not None and view.read_state().master_pid is not None
    if here and not acting:
        carry_out_now(view)
        acting, answer = True, dataclasses.replace(answer, text=answer.text.partition(";")[0])
    settled = wait_settled(view, answer, SETTLE_S if acting else 0.0)
    late = f"; requested, but the scheduler has not done it within {SETTLE_S:g} s"
    talk(answer.text + (late if acting and not settled else ""))
    if json_:
        print_answer(answer, settled=settled)


def print_answer(answer: ActionResult, *, settled: bool = True) -> None:
    """Print a request as JSON; `settled` is false until a scheduler has carried it out."""
    jobs = [str(job) for job in answer.jobs]
    fields = {"request": answer.request, "settled": settled, "text": answer.text}
    print_json({**fields, "jobs": jobs, "runs": answer.runs})


def paint(text: str, state: str) -> str:
    """Colour a text by a job's state, if stdout is a terminal."""
    if state not in COLOURS or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=COLOURS[state])


def print_table(
    rows: Sequence[Sequence[str]], *, states: Sequence[str] = (), indent: str = ""
) -> None:
    """Print rows below a heading; on a terminal, lines are cut to its width."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = table_lines(rows, indent=indent, width=width)
    for line, state in zip(lines, ["", *(states or [""] * len(rows))], strict=False):
        click.echo(paint(line, state))


def seconds_of(row: JobView) -> float | None:
    """Return how long a job ran, or how long it has been waiting; None: unknown."""
    if row.seconds is None and row.ended_at is None:
        return time.time() - row.submitted_at
    return row.seconds


def note(row: JobView) -> str:
    """Return the most important fact about a job: why it waits or failed, or its agent."""
    from ..queue.rows import FAILED

    if row.reason:
        return row.reason
    if row.state in (*FAILED, "cancelled"):
        return row.error
    return f"agent {row.agent}" if row.agent else ""


def job_rows(rows: Sequence[JobView], *, narrow: bool = False) -> list[list[str]]:
    """Return the table of some jobs; a narrow one has a single column for note and command."""
    last = ["WHAT"] if narrow else ["NOTE", "COMMAND"]
    found = [["JOB", "STATE", "PROJECT", "NAME", "FOR", *last]]
    for row in rows:
        name = row.name if row.name != row.command else ""
        said = note(row)
        if narrow:
            last = [row.summary if row.state in ("running", "ok") else said or row.summary]
        else:
            last = [said, row.summary]
        duration = format_duration(seconds_of(row))
        project, name = cut(row.project, LONG), cut(name or "-", LONG)
        found.append([row.short, row.state, project, name, duration, *last])
    return found


def print_jobs(rows: Sequence[JobView], *, indent: str = "") -> None:
    """Print the table of some jobs."""
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
    print_table(job_rows(rows, narrow=narrow), states=[row.state for row in rows], indent=indent)
