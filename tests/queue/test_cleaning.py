"""Finished runs are removed as a whole; an interrupted cleaning is finished by the next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from postroom.jobs import Job
from postroom.queue import cleaning
from postroom.queue.cleaning import remove_run, sweep
from postroom.queue.queue_view import QueueView
from postroom.queue.run_reader import RunReader, SheetCache
from postroom.store.base import Base
from tests.in_one_process import in_one_process
from tests.queue.kit import FILES, end, make_old, queue


def test_a_job_that_is_appended_at_the_last_moment_stays(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    reader = view.read_state().readers[job.run]
    (late,) = queue(base, "late")
    assert late.run == job.run
    assert not remove_run(FILES, base, reader)
    assert [(row.name, row.state) for row in view.jobs().jobs] == [("late", "queued"), ("a", "ok")]


def test_a_run_that_other_jobs_wait_for_stays(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a", project="p")
    end(base, job)
    queue(base, "b", project="q", after_any=(job,))
    make_old(base, job.run)
    assert cleaning.find_over(view.read_state(), now=time.time(), older_than_s=1) == []


def test_an_interrupted_cleaning_is_finished_by_the_next(
    base: Base, view: QueueView, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    folder = Path(base.job_folder(job.run, 0))
    folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(cleaning, "_remove_others", lambda *_: None)  # as if killed here
        assert remove_run(FILES, base, view.read_state().readers[job.run])
    assert folder.exists() and view.jobs().jobs == []
    sweep(FILES, base, now=time.time())
    assert not folder.exists() and not os.path.exists(base.result_folder(job.run))
    assert os.listdir(base.trash) == []


def test_a_run_that_is_being_made_is_not_removed(base: Base) -> None:
    for folder in (base.result_folder("new"), base.attempts("new")):
        os.mkdir(folder)
    sweep(FILES, base, now=time.time())
    assert os.path.isdir(base.result_folder("new"))
    sweep(FILES, base, now=time.time() + 2 * cleaning.LEFT_S)
    assert not os.path.isdir(base.result_folder("new"))


@pytest.mark.parametrize("how", ["one by one", "in a list"])
def test_a_run_that_was_appended_to_meanwhile_stays(tmp_path: Path, how: str) -> None:
    with in_one_process(tmp_path, "def double(x):\n    return x * 2\n") as running:
        jobs = [Job("kernels:double", x=1)]
        pool = running.master.open() if how == "one by one" else running.master.submit(jobs)
        pool.submit(jobs[0])
        running.finish(pool)
        reader = RunReader(FILES, running.base, pool.run, SheetCache(), SheetCache())
        reader.refresh()
        pool.submit(Job("kernels:double", x=2))
        running.finish(pool)
        running.master.close()
        assert not remove_run(running.files, running.base, reader)
        assert running.files.exists(running.base.run_folder(pool.run))
        reader.refresh()
        assert remove_run(running.files, running.base, reader)
        assert not running.files.exists(running.base.run_folder(pool.run))
