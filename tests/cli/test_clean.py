"""`postroom clean`: what it removes, and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

from postroom.queue.queue_view import QueueView
from postroom.store.base import Base
from tests.queue.kit import end, make_old, queue

from .kit import call


def test_clean_removes_what_is_long_over_and_nothing_else(base: Base, view: QueueView) -> None:
    (old,) = queue(base, "old", project="old")
    (new,) = queue(base, "new", project="new")
    done, _ = queue(base, "done", "not done", project="half")
    for job in (old, new, done):
        end(base, job)
    folder = Path(base.job_folder(old.run, old.number))
    folder.mkdir(parents=True)
    for run in (old.run, done.run):
        make_old(base, run)
    assert call(base, "clean", "--dry-run").stdout.split() == [old.run]
    assert folder.exists()
    assert call(base, "clean").stdout.split() == [old.run]
    assert not folder.exists() and os.listdir(base.trash) == []
    assert {one.name for one in view.projects()} == {"new", "half"}
    assert call(base, "clean", "--older-than", "0").stdout == ""  # it changed just now
