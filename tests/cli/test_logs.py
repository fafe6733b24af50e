"""`postroom logs`: any part of the output of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.errors import PostroomError
from postroom.store.base import Base
from tests.queue.kit import end, queue

from .kit import call


def test_logs_of_a_job_are_printed_from_any_line_on(base: Base) -> None:
    (job,) = queue(base, "a", merged=False)
    assert "is queued: no scheduler is running" in call(base, "logs", job.short).stderr
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    (folder / f"{job.number}.OUT").write_text("".join(f"line {n}\n" for n in range(50_000)))
    (folder / f"{job.number}.ERR").write_text("no newline")
    end(base, job)
    assert call(base, "logs", job.short).stdout.count("\n") == 50_000
    assert call(base, "logs", job.short, "-n", "2").stdout == "line 49998\nline 49999\n"
    assert call(base, "logs", job.short, "-n", "20000").stdout.startswith("line 30000\n")
    assert call(base, "logs", job.short, "-n", "0").stdout == ""
    assert call(base, "logs", job.short, "--err", "-n", "1").stdout == "no newline"
    assert call(base, "logs", job.short, "-f", "-n", "1").stdout == "line 49999\n"


def test_a_job_with_one_log_is_not_asked_for_its_stderr(base: Base) -> None:
    (job,) = queue(base, "a")
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    (folder / f"{job.number}.OUT").write_text("out\nerr\n")
    end(base, job)
    done = call(base, "logs")
    assert (done.stdout, done.stderr) == ("out\nerr\n", f"{job.short}: a\n")
    with pytest.raises(PostroomError, match="are in one log: leave out --err"):
        call(base, "logs", "a", "--err")


def test_an_empty_log_is_said_to_be_empty(base: Base) -> None:
    (job,) = queue(base, "a")
    folder = Path(base.job_folder(job.run, job.number))
    folder.mkdir(parents=True)
    (folder / f"{job.number}.OUT").touch()
    end(base, job)
    done = call(base, "logs", job.short)
    assert (done.stdout, done.stderr) == (
        "",
        f"{job.short} is ok, and has printed nothing\n",
    )
