"""Submitting commands: refused when they could never run, else on disk in a run of the project."""

from __future__ import annotations

from dataclasses import replace

import pytest

from postroom.errors import PostroomError
from postroom.queue import submission
from postroom.queue.queue_view import QueueView
from postroom.queue.submission import QueuedCommand, check, rerun, submit
from postroom.store.base import Base
from tests.queue.kit import FILES

GOOD = QueuedCommand("true", cwd="/")


@pytest.mark.parametrize(
    "changes",
    [
        {"command": " "},
        {"command": "a\0b"},
        {"cwd": "/not/there"},
        {"timeout_s": 0.0},
        {"retries": -1},
    ],
)
def test_a_command_that_could_never_run_is_refused(changes: dict[str, object]) -> None:
    assert check(GOOD) is GOOD
    with pytest.raises(PostroomError):
        check(replace(GOOD, **changes))  # type: ignore[arg-type]


def test_the_jobs_of_a_project_share_a_run_until_it_is_full(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "MOST_JOBS", 3)
    first = submit(FILES, base, [GOOD] * 2, project="p")
    second = submit(FILES, base, [GOOD] * 2, project="p")
    third = submit(FILES, base, [GOOD], project="p")
    other = submit(FILES, base, [GOOD], project="q")
    assert [job.number for job in first + second] == [0, 1, 2, 3]
    assert len({job.run for job in first + second}) == 1
    assert len({first[0].run, third[0].run, other[0].run}) == 3


def test_a_rerun_points_to_the_old_job_and_is_not_held(base: Base, view: QueueView) -> None:
    held = replace(GOOD, scheduling=replace(GOOD.scheduling, held=True))
    (old,) = submit(FILES, base, [held])
    (new,) = rerun(FILES, base, [(old, held, "default")])
    detail = view.job(new)
    assert (detail.job.rerun_of, detail.job.state) == (str(old), "queued")
