from __future__ import annotations

from pathlib import Path

import pytest

from postroom.contents import JobSheet, OutcomeSheet
from postroom.files import LocalFiles
from postroom.jobs import Job
from postroom.queue.cleaning import remove_run
from postroom.queue.shelf import Recent, Shelf
from tests.office import Office, office

KERNELS = "def double(x):\n    return x * 2\n"


def shelf_of(room: Office, run: str) -> Shelf:
    return Shelf(LocalFiles(), room.base, run, Recent[JobSheet](), Recent[OutcomeSheet]())


def test_a_roll_is_followed_as_it_grows(tmp_path: Path) -> None:
    with office(tmp_path, KERNELS) as room:
        pool = room.master.open(label="sweep")
        shelf = shelf_of(room, pool.run)
        shelf.refresh()
        assert (shelf.asked, shelf.pending) == (0, 0)
        for x in range(5):
            pool.submit(Job("kernels:double", x=x))
            shelf.refresh()
            assert (shelf.asked, shelf.pending) == (x + 1, x + 1)
            assert shelf.read_jobs(x).arguments(x) == {"x": x}
        assert shelf.read_jobs(2).arguments(2) == {"x": 2}
        room.finish(pool)
        shelf.refresh()
        assert (shelf.asked, shelf.pending) == (5, 0)
        assert shelf.submitted_at(3) > 0


@pytest.mark.parametrize("how", ["one by one", "in a list"])
def test_a_run_that_was_appended_to_meanwhile_stays(tmp_path: Path, how: str) -> None:
    with office(tmp_path, KERNELS) as room:
        jobs = [Job("kernels:double", x=1)]
        pool = room.master.open() if how == "one by one" else room.master.submit(jobs)
        pool.submit(jobs[0])
        room.finish(pool)
        shelf = shelf_of(room, pool.run)
        shelf.refresh()
        pool.submit(Job("kernels:double", x=2))
        room.finish(pool)
        room.master.close()
        assert not remove_run(room.files, room.base, shelf)
        assert room.files.exists(room.base.asked(pool.run))
        shelf.refresh()
        assert remove_run(room.files, room.base, shelf)
        assert not room.files.exists(room.base.asked(pool.run))
