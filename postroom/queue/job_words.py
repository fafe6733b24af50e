"""The words by which people name jobs on the command line.

0b859f/17  0b859f/3-9  0b859f     a job, a range, a run
@  @~2                            the job that was submitted last, and two before it
17  3-9                           a number alone: in the run of the job that was submitted last
train-a                           a name that one job has
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator

from ..store.job_ids import SHORT, JobId, UnknownJobError, find_jobs, match_run
from ..store.runs import list_runs
from .job_rows import read_sheet
from .queue_view import QueueView
from .run_reader import RunReader, name_of

_BACK = re.compile(r"@(?:~(\d{1,9}))?", re.ASCII)
_NUMBERS = re.compile(r"\d{1,9}(?:-\d{1,9})?", re.ASCII)
DAY = len("20261116")


def jobs_named(view: QueueView, word: str) -> list[JobId]:
    """The jobs that a word means; none is an error that says how to name one."""
    if back := _BACK.fullmatch(word):
        return [_last(view, int(back[1] or 0))]
    if _NUMBERS.fullmatch(word) and not _is_run(view, word):
        run = _last(view, 0).run
        return find_jobs(view.files, view.base, f"{run}/{word}")
    # The end of a run's id means that run, but a short name must never mean a whole run by chance.
    named = _with_name(view, word) if len(word) < SHORT else []
    if not named:
        try:
            return find_jobs(view.files, view.base, word)
        except UnknownJobError as error:
            named = _with_name(view, word)
            if not named:
                raise UnknownJobError(f"no job has the name {word!r}, and {error}") from None
    if len(named) > 1:
        shown = ", ".join(job.short for job in named[:5])
        raise UnknownJobError(
            f"{len(named)} jobs have the name {word!r}: name one by its id: {shown}"
        )
    return named


def run_named(view: QueueView, word: str) -> str:
    """The run that a word means as a whole; "": it means jobs, or nothing."""
    if (
        "/" in word
        or _BACK.fullmatch(word)
        or (_NUMBERS.fullmatch(word) and not _is_run(view, word))
    ):
        return ""
    if len(word) < SHORT and _with_name(view, word):
        return ""
    return match_run(word, list_runs(view.files, view.base)) or ""


def job_named(view: QueueView, word: str) -> JobId:
    """The one job that a word means."""
    jobs = jobs_named(view, word)
    if len(jobs) != 1:
        raise UnknownJobError(f"{word!r} means {len(jobs)} jobs: name one, as in {jobs[0].short}")
    return jobs[0]


def _is_run(view: QueueView, word: str) -> bool:
    """Whether digits are the end of a run's id: people write its last six characters."""
    return len(word) >= SHORT and match_run(word, list_runs(view.files, view.base)) is not None


def _last(view: QueueView, back: int) -> JobId:
    newest = list(itertools.islice(_newest_first(view), back + 1))
    if not newest:
        raise UnknownJobError(
            f"nothing was submitted to {view.base.root} yet; queue a command: "
            "postroom submit python train.py"
        )
    if len(newest) <= back:
        raise UnknownJobError(f"there is no @~{back}: {len(newest)} jobs were submitted")
    return newest[back]


def _newest_first(view: QueueView) -> Iterator[JobId]:
    """All jobs of the queue, the one that was submitted last first."""
    readers = [one for one in view.read_state().readers.values() if one.info.queue]
    # A run takes the jobs of one day, so those of earlier days are not opened for its newest.
    days = itertools.groupby(
        sorted(readers, key=lambda one: one.run, reverse=True), key=lambda one: one.run[:DAY]
    )
    for _, of_the_day in days:
        for _, _, job in heapq.merge(*map(_backwards, of_the_day)):
            yield job


def _backwards(reader: RunReader) -> Iterator[tuple[float, int, JobId]]:
    for number in reversed(range(reader.asked)):
        yield -reader.submitted_at(number), -number, reader.job_id(number)


def _with_name(view: QueueView, name: str) -> list[JobId]:
    if not name:
        return []  # an unset variable of a script means no job, and not one without a name
    return [
        reader.job_id(number)
        for reader in reversed(view.read_state().readers.values())
        for number in reversed(range(reader.asked))
        if name_of(read_sheet(reader, number), number) == name
    ]
