from __future__ import annotations

import os
from pathlib import Path

from postroom.jobs import Job
from postroom.parcel.sheets import JobSheet, OutcomeSheet
from postroom.queue.run_reader import RunReader, SheetCache
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from tests.in_one_process import InOneProcess, in_one_process
from tests.queue.kit import FILES, end, queue

KERNELS = "def double(x):\n    return x * 2\n"


def reader_of(running: InOneProcess, run: str) -> RunReader:
    return RunReader(
        LocalFiles(), running.base, run, SheetCache[JobSheet](), SheetCache[OutcomeSheet]()
    )


def test_an_append_log_is_followed_as_it_grows(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as running:
        pool = running.master.open(project="sweep")
        reader = reader_of(running, pool.run)
        reader.refresh()
        assert (reader.asked, reader.pending) == (0, 0)
        for x in range(5):
            pool.submit(Job("kernels:double", x=x))
            reader.refresh()
            assert (reader.asked, reader.pending) == (x + 1, x + 1)
            assert reader.read_jobs(x).arguments(x) == {"x": x}
        assert reader.read_jobs(2).arguments(2) == {"x": 2}
        running.finish(pool)
        reader.refresh()
        assert (reader.asked, reader.pending) == (5, 0)
        assert reader.submitted_at(3) > 0


def test_two_results_of_one_tick_are_both_seen(base: Base) -> None:
    first, second = queue(base, "a", "b")
    reader = RunReader(FILES, base, first.run, SheetCache(), SheetCache())
    end(base, first)
    reader.refresh()
    before = os.stat(base.result_folder(first.run)).st_mtime_ns
    end(base, second)
    os.utime(base.result_folder(first.run), ns=(before, before))  # as coarse as a clock may be
    reader.refresh()
    assert reader.done == 2
