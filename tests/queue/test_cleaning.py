"""Runs that leave: whole, only when they are over; what was interrupted is finished by the next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from postroom.queue import cleaning
from postroom.queue.cleaning import remove_run, sweep
from postroom.queue.queue_view import QueueView
from postroom.queue.run_reader import Recent, RunReader
from postroom.store.base import Base
from tests.queue.kit import FILES, end, make_old, queue


def test_a_job_that_is_appended_at_the_last_moment_stays(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    reader = view.look().readers[job.run]
    (late,) = queue(base, "late")
    assert late.run == job.run
    assert not remove_run(FILES, base, reader)
    assert [(row.name, row.state) for row in view.jobs().jobs] == [("late", "queued"), ("a", "ok")]


def test_a_run_that_other_jobs_wait_for_stays(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a", project="p")
    end(base, job)
    queue(base, "b", project="q", after_any=(job,))
    make_old(base, job.run)
    assert cleaning.find_over(view.look(), now=time.time(), older_than_s=1) == []


def test_an_interrupted_cleaning_is_finished_by_the_next(
    base: Base, view: QueueView, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    folder = Path(base.job_folder(job.run, 0))
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "_remove_rest", lambda *_: None)  # as if killed here
        assert remove_run(FILES, base, view.look().readers[job.run])
    assert folder.exists() and view.jobs().jobs == []
    sweep(FILES, base, now=time.time())
    assert not folder.exists() and not os.path.exists(base.result_folder(job.run))
    assert os.listdir(base.trash) == []


def test_what_somebody_is_just_making_is_not_swept(base: Base) -> None:
    for folder in (base.result_folder("new"), base.attempts("new")):
        os.mkdir(folder)
    sweep(FILES, base, now=time.time())
    assert os.path.isdir(base.result_folder("new"))
    sweep(FILES, base, now=time.time() + 2 * cleaning.LEFT_S)
    assert not os.path.isdir(base.result_folder("new"))


def test_two_results_of_one_tick_are_both_seen(base: Base) -> None:
    first, second = queue(base, "a", "b")
    reader = RunReader(FILES, base, first.run, Recent(), Recent())
    end(base, first)
    reader.refresh()
    before = os.stat(base.result_folder(first.run)).st_mtime_ns
    end(base, second)
    os.utime(base.result_folder(first.run), ns=(before, before))  # as coarse as a clock may be
    reader.refresh()
    assert reader.done == 2
