"""What the verbs of the queue share: the base, how jobs are named, and how things are printed."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import PostroomError
from ..queue.actions import ActionResult, wait_settled
from ..queue.queue_view import QueueView
from ..queue.rows import FAILED, JobView
from ..store.base import Base, create_base, open_base
from ..store.job_ids import JobId, find_job, find_jobs
from ..text.safe_text import printable

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}
DEFAULT_BASE = "./base"
SETTLE_S = 5.0
WIDE = 120
_COLOURS = {
    "running": "cyan",
    "stopping": "yellow",
    "ok": "green",
    "failed": "red",
    "timed out": "red",
    "lost": "red",
    "held": "yellow",
    "paused": "yellow",
}


def in_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --base, and hand the function a View of it."""
    return _with_view(function, may_be_new=False)


def in_new_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --base, and hand the function a View of it, also where `make_base` has yet to make it."""
    return _with_view(function, may_be_new=True)


def make_base(view: QueueView) -> None:
    """Make a base that is not there yet."""
    if not os.path.exists(view.base.format):
        create_base(view.base.root)
        talk(f"made a new queue: {view.base.root}")


def _with_view(function: Callable[..., Any], *, may_be_new: bool) -> Callable[..., Any]:
    @click.option(
        "-b",
        "--base",
        "base_folder",
        envvar="POSTROOM_BASE",
        default=DEFAULT_BASE,
        metavar="BASE",
        help="The folder of the queue; else $POSTROOM_BASE, else ./base.",
    )
    @functools.wraps(function)
    def wrapped(*arguments: Any, base_folder: str, **options: Any) -> Any:
        if os.path.exists(Base(base_folder).format):
            base = open_base(base_folder, write=False)
        elif may_be_new:
            base = Base(base_folder)
        else:
            raise PostroomError(
                f"there is no queue at {os.path.abspath(base_folder)}: name it with -b BASE or "
                "POSTROOM_BASE, or make it by submitting the first job"
            )
        with QueueView(base) as view:
            return function(view, *arguments, **options)

    return wrapped


def as_json(function: F) -> F:
    """Add --json."""
    return click.option("--json", "json_", is_flag=True, help="As JSON, for scripts.")(function)


def complete_jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for the id of a job: the id, with its name and state beside it."""
    folder = ctx.params.get("base_folder") or os.environ.get("POSTROOM_BASE") or DEFAULT_BASE
    try:
        with QueueView(open_base(folder, write=False)) as view:
            rows = view.jobs(count=200).jobs
    except (PostroomError, OSError):
        return []
    return [
        CompletionItem(row.short, help=f"{row.state}: {row.name or row.command}"[:60])
        for row in rows
        if row.short.startswith(incomplete) or row.run.startswith(incomplete)
    ]


def job_argument(function: F) -> F:
    """Add the argument JOB."""
    return click.argument("job", metavar="JOB", shell_complete=complete_jobs)(function)


def jobs_argument(*, required: bool = True) -> Callable[[F], F]:
    """Add the arguments JOB..."""
    return click.argument(
        "jobs",
        nargs=-1,
        required=required,
        metavar="JOB..." if required else "[JOB...]",
        shell_complete=complete_jobs,
    )


def one_job(view: QueueView, word: str) -> JobId:
    """The job that a word means."""
    return find_job(view.files, view.base, word)


def some_jobs(view: QueueView, words: Sequence[str]) -> list[JobId]:
    """The jobs that words mean, each once."""
    found = [job for word in words for job in find_jobs(view.files, view.base, word)]
    return list(dict.fromkeys(found))


# Printing


def talk(text: str) -> None:
    """Say something to the user: never on stdout, which is data."""
    click.echo(printable(text), err=True)


def print_json(value: Any) -> None:
    """Print a row, or a list of rows, as one JSON document."""
    plain = [dataclasses.asdict(v) for v in value] if isinstance(value, list) else None
    document = dataclasses.asdict(value) if plain is None else plain
    click.echo(json.dumps(document, indent=1 if sys.stdout.isatty() else None))


def settle(view: QueueView, answer: ActionResult, *, json_: bool = False) -> None:
    """Say what was asked; where a Master acts, wait until it is done."""
    acting = answer.request is not None and view.read_state().master_pid is not None
    settled = wait_settled(view, answer, SETTLE_S if acting else 0.0)
    late = f"; asked, but the Master has not done it within {SETTLE_S:g} s"
    talk(answer.text + (late if acting and not settled else ""))
    if json_:
        print_answer(answer, settled=settled)


def print_answer(answer: ActionResult, *, settled: bool = True) -> None:
    """Print what became of a wish as JSON; `settled` is false while a Master has yet to do it."""
    jobs = [str(job) for job in answer.jobs]
    fields = {"request": answer.request, "settled": settled, "text": answer.text}
    click.echo(json.dumps({**fields, "jobs": jobs, "runs": answer.runs}))


def paint(text: str, state: str) -> str:
    """A text in the colour of a state, where colours are wanted."""
    if state not in _COLOURS or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return click.style(text, fg=_COLOURS[state])


def table(rows: Sequence[Sequence[str]], *, states: Sequence[str] = (), indent: str = "") -> None:
    """Print aligned columns under a heading; on a terminal no line is longer than it is wide."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for number, row in enumerate(shown):
        notebook_functions = [cell.ljust(size) for cell, size in zip(row, widths, strict=True)]
        line = (indent + "  ".join(notebook_functions)).rstrip()
        if width is not None and len(line) > width:
            line = line[: width - 1] + "…"
        state = states[number - 1] if number and states else ""
        click.echo(paint(line, state))


def took(seconds: float | None) -> str:
    """A length of time as people say it: 4 s, 3 min 20, 5 h 07, 2 d 4 h."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, left_s = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {left_s:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d}"
    return f"{hours // 24} d {hours % 24} h"


def clock(at: float | None) -> str:
    """A moment as people read it: the time for today, with its day for any other."""
    if not at:
        return "-"
    then, now = time.localtime(at), time.localtime()
    form = "%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M"
    return time.strftime(form, then)


def note(row: JobView) -> str:
    """The one thing to know about a job now: where it runs, why it waits, why it failed."""
    if row.reason:
        return row.reason
    if row.state in (*FAILED, "cancelled"):
        return row.error
    return f"agent {row.agent}" if row.agent else ""


def job_rows(rows: Sequence[JobView], *, narrow: bool = False) -> list[list[str]]:
    """The table of some jobs; a narrow one says of each why it waits or failed, or what it runs."""
    last = ["WHAT"] if narrow else ["NOTE", "COMMAND"]
    found = [["JOB", "STATE", "PROJECT", "NAME", "FOR", *last]]
    for row in rows:
        seconds = row.seconds
        if seconds is None and row.ended_at is None:
            seconds = time.time() - row.submitted_at
        name = row.name if row.name != row.command else ""
        said = note(row)
        if narrow:
            last = [row.command if row.state in ("running", "ok") else said or row.command]
        else:
            last = [said, row.command]
        found.append([row.short, row.state, row.project, name or "-", took(seconds), *last])
    return found


def print_jobs(rows: Sequence[JobView], *, indent: str = "") -> None:
    """Print the table of some jobs."""
    narrow = sys.stdout.isatty() and shutil.get_terminal_size().columns < WIDE
    table(job_rows(rows, narrow=narrow), states=[row.state for row in rows], indent=indent)
