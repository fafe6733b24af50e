from __future__ import annotations

from pathlib import Path

import pytest

from postroom.jobs import Job
from postroom.parcel.sheets import JobSheet, OutcomeSheet
from postroom.queue.cleaning import remove_run
from postroom.queue.run_reader import Recent, RunReader
from postroom.store.files import LocalFiles
from tests.in_one_process import InOneProcess, in_one_process

KERNELS = "def double(x):\n    return x * 2\n"


def shelf_of(room: InOneProcess, run: str) -> RunReader:
    return RunReader(LocalFiles(), room.base, run, Recent[JobSheet](), Recent[OutcomeSheet]())


def test_a_roll_is_followed_as_it_grows(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.open(project="sweep")
        reader = shelf_of(room, pool.run)
        reader.refresh()
        assert (reader.asked, reader.pending) == (0, 0)
        for x in range(5):
            pool.submit(Job("kernels:double", x=x))
            reader.refresh()
            assert (reader.asked, reader.pending) == (x + 1, x + 1)
            assert reader.read_jobs(x).arguments(x) == {"x": x}
        assert reader.read_jobs(2).arguments(2) == {"x": 2}
        room.finish(pool)
        reader.refresh()
        assert (reader.asked, reader.pending) == (5, 0)
        assert reader.submitted_at(3) > 0


@pytest.mark.parametrize("how", ["one by one", "in a list"])
def test_a_run_that_was_appended_to_meanwhile_stays(tmp_path: Path, how: str) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        jobs = [Job("kernels:double", x=1)]
        pool = room.master.open() if how == "one by one" else room.master.submit(jobs)
        pool.submit(jobs[0])
        room.finish(pool)
        reader = shelf_of(room, pool.run)
        reader.refresh()
        pool.submit(Job("kernels:double", x=2))
        room.finish(pool)
        room.master.close()
        assert not remove_run(room.files, room.base, reader)
        assert room.files.exists(room.base.run_folder(pool.run))
        reader.refresh()
        assert remove_run(room.files, room.base, reader)
        assert not room.files.exists(room.base.run_folder(pool.run))
