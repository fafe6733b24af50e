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
_SPAN = re.compile(r"([^/]+)/([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
SHORT = 6
LAST = "@"  # means the job that was submitted last
# One request is about at most this many jobs: a few bytes must not claim to be endless work.
MOST_JOBS = 1_000_000


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


class JobIds(tuple[JobId, ...]):
    """Some jobs in their order, written as ranges: `r/0-69999 r/70003`."""

    __slots__ = ()

    def __str__(self) -> str:
        spans: list[tuple[str, int, int]] = []
        for job in self:
            run, first, last = spans[-1] if spans else ("", 0, 0)
            if (run, last + 1) == (job.run, job.number):
                spans[-1] = run, first, job.number
            else:
                spans.append((job.run, job.number, job.number))
        return " ".join(
            f"{run}/{first}" if first == last else f"{run}/{first}-{last}"
            for run, first, last in spans
        )

    @classmethod
    def parse(cls, text: str) -> JobIds:
        """Read what `str` gives; anything else is a ValueError."""
        found: list[JobId] = []
        for word in text.split():
            match = _SPAN.fullmatch(word)
            if match is None or not is_plain_name(match[1]):
                raise ValueError(f"{word!r:.60} is not a range of jobs")
            numbers = range(int(match[2]), int(match[3] or match[2]) + 1)
            if len(found) + len(numbers) > MOST_JOBS:
                raise ValueError(f"it names more than {MOST_JOBS} jobs")
            found += [JobId(match[1], number) for number in numbers]
        return cls(found)


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
    return [JobId(run, number) for number in range(start, stop)]


def find_job(files: Files, base: Base, text: str) -> JobId:
    """The one job that a text means; a run of one job can be named by its run."""
    jobs = find_jobs(files, base, text)
    if len(jobs) != 1:
        raise UnknownJobError(f"{text!r} means {len(jobs)} jobs: name one, as in {text}/0")
    return jobs[0]
