"""Options of the verbs that work on the queue: a view of its base, and the jobs in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import PostroomError
from ..store.base import Base, create_base, default_base, open_base, up_command
from ..store.job_ids import LAST, JobId
from .options import base_option
from .output import talk

# Reading the queue takes longer to import than submitting to it takes.
if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..queue.queue_view import QueueView

F = TypeVar("F", bound=Callable[..., Any])


def in_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -b/--base; the function gets a QueueView of the base, which must exist."""

    @base_option
    @functools.wraps(function)
    def wrapped(*arguments: Any, base: str, **options: Any) -> Any:
        from ..queue.queue_view import QueueView

        if _is_missing(Base(base)):
            raise PostroomError(
                f"there is no queue at {os.path.abspath(base)}: start it with "
                f"`{up_command(base)}`, or name another folder with -b BASE or POSTROOM_BASE"
            )
        with QueueView(open_base(base, write=False)) as view:
            return function(view, *arguments, **options)

    return wrapped


def in_new_base(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add -b/--base; the function gets the Base, which may be missing: `make_base` creates it."""

    @base_option
    @functools.wraps(function)
    def wrapped(*arguments: Any, base: str, **options: Any) -> Any:
        opened = Base(base) if _is_missing(Base(base)) else open_base(base, write=False)
        return function(opened, *arguments, **options)

    return wrapped


def _is_missing(base: Base) -> bool:
    try:
        os.stat(base.format)
    except FileNotFoundError:
        return True
    except OSError:
        pass  # `open_base` says what is wrong
    return False


def make_base(base: Base) -> None:
    """Create the base if it does not exist."""
    if not os.path.exists(base.format):
        create_base(base.root)
        talk(f"created a new queue: {base.root}")


def complete_jobs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the job ids that a shell offers, each with its state and name."""
    from click.shell_completion import CompletionItem

    from ..queue.queue_view import QueueView

    try:
        with QueueView(open_base(ctx.params.get("base") or default_base(), write=False)) as view:
            rows = view.jobs(count=200).jobs
    except (PostroomError, OSError):
        return []
    return [
        CompletionItem(row.short, help=f"{row.state}: {row.name or row.summary}"[:60])
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
    from ..queue.job_words import job_named

    return job_named(view, word)


def some_jobs(view: QueueView, words: Sequence[str]) -> list[JobId]:
    """Return the jobs that some words name, each once."""
    from ..queue.job_words import jobs_named

    found = [job for word in words for job in jobs_named(view, word)]
    return list(dict.fromkeys(found))
