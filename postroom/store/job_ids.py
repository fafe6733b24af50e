"""How people name a job: the run's last six characters and a number, as in `0b859f/17`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PostroomError
from .append_log import logged_until
from .base import Base
from .files import Files
from .mailbox import is_plain_name
from .runs import list_runs

_TARGET = re.compile(r"([A-Za-z0-9_-]+)(?:/(\d{1,9})(?:-(\d{1,9}))?)?")
SHORT = 6
# A request lists at most this many jobs one by one.
MOST_JOBS = 10_000


class UnknownJobError(PostroomError):
    """The base has no such job or run."""


@dataclass(frozen=True, order=True)
class JobId:
    """One job of one run."""

    run: str
    number: int

    def __str__(self) -> str:
        return f"{self.run}/{self.number}"

    @property
    def short(self) -> str:
        """The short form that people type."""
        return f"{self.run[-SHORT:]}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Read what `str` gives; anything else is a ValueError."""
        run, slash, number = text.rpartition("/")
        if not (slash and is_plain_name(run) and re.fullmatch(r"\d{1,9}", number, re.ASCII)):
            raise ValueError(f"{text!r} is not a job's id")
        return cls(run, int(number))


def match_run(text: str, runs: Sequence[str]) -> str | None:
    """The run that a text means: its whole id, or the end of it; None: none of these runs."""
    if not text:
        return None
    found = [run for run in runs if run == text] or [run for run in runs if run.endswith(text)]
    if len(found) > 1:
        raise UnknownJobError(f"{text!r} may mean {', '.join(found[:5])}: write more characters")
    return found[0] if found else None


def find_run(files: Files, base: Base, text: str) -> str:
    """The run of a base that a text means, or an error."""
    found = match_run(text, list_runs(files, base))
    if found is None:
        raise UnknownJobError(f"there is no run {text!r} in {base.root}; see `postroom jobs`")
    return found


def find_jobs(files: Files, base: Base, text: str) -> list[JobId]:
    """The jobs that a text means: `0b859f/17`, `0b859f/3-9`, or all of `0b859f`."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise UnknownJobError(f"{text!r} is not a job: write 0b859f/17, or 0b859f/3-9")
    word, first, last = match.groups()
    run = find_run(files, base, word)
    asked = logged_until(files, base.append_log(run))
    if first is None:
        start, stop = 0, asked
    else:
        start = int(first)
        stop = int(last if last is not None else first) + 1
        if not start < stop <= asked:
            has = f"jobs 0 to {asked - 1}" if asked else "no jobs"
            raise UnknownJobError(f"there is no job {text} in {base.root}: run {word} has {has}")
    if stop - start > MOST_JOBS:
        raise UnknownJobError(
            f"{text} means {stop - start} jobs: name at most {MOST_JOBS} of them, as in "
            f"{word}/0-{MOST_JOBS - 1}"
        )
    return [JobId(run, number) for number in range(start, stop)]


def find_job(files: Files, base: Base, text: str) -> JobId:
    """The one job that a text means; a run of one job can be named by its run."""
    jobs = find_jobs(files, base, text)
    if len(jobs) != 1:
        raise UnknownJobError(f"{text!r} means {len(jobs)} jobs: name one, as in {text}/0")
    return jobs[0]
