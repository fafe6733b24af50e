"""Options of the verbs that work on the queue: a view of its base, and the jobs in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import PostroomError
from ..queue.job_words import LAST, job_named, jobs_named
from ..queue.queue_view import QueueView
from ..store.base import Base, create_base, default_base, open_base, up_command
from ..store.job_ids import JobId
from .options import base_option
from .output import talk

F = TypeVar("F", bound=Callable[..., Any])


def in_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -b/--base; the function gets a QueueView of the base, which must exist."""
    return _with_view(function, may_be_new=False)


def in_new_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `in_base`, but the base may be missing: `make_base` creates it."""
    return _with_view(function, may_be_new=True)


def _with_view(function: Callable[..., Any], *, may_be_new: bool) -> Callable[..., Any]:
    @base_option
    @functools.wraps(function)
    def wrapped(*arguments: Any, base: str, **options: Any) -> Any:
        if not _is_missing(Base(base)):
            opened = open_base(base, write=False)
        elif may_be_new:
            opened = Base(base)
        else:
            raise PostroomError(
                f"there is no queue at {os.path.abspath(base)}: start it: `{up_command(base)}`, "
                "or name another folder with -b BASE or POSTROOM_BASE"
            )
        with QueueView(opened) as view:
            return function(view, *arguments, **options)

    return wrapped


def _is_missing(base: Base) -> bool:
    try:
        os.stat(base.format)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # `open_base` says what is wrong
    return False


def make_base(view: QueueView) -> None:
    """Create the base if it does not exist."""
    if not os.path.exists(view.base.format):
        create_base(view.base.root)
        talk(f"created a new queue: {view.base.root}")


def complete_jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the job ids that a shell offers, each with its state and name."""
    try:
        with QueueView(open_base(ctx.params.get("base") or default_base(), write=False)) as view:
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


def job_or_last(function: F) -> F:
    """Add the argument JOB, which may be left out: the job that was submitted last."""
    return click.argument("job", metavar="[JOB]", default=LAST, shell_complete=complete_jobs)(
        function
    )


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
    """Return the job that a word names."""
    return job_named(view, word)


def some_jobs(view: QueueView, words: Sequence[str]) -> list[JobId]:
    """Return the jobs that some words name, each once."""
    found = [job for word in words for job in jobs_named(view, word)]
    return list(dict.fromkeys(found))
