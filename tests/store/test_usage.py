from __future__ import annotations

from pathlib import Path

import numpy as np

from postroom.jobs import Job
from postroom.queue.disk_usage import look, usage_line, usage_rows
from postroom.store.files import LocalFiles, SystemClock
from postroom.store.usage import KINDS, BaseUsage, read_usage, run_for, surveying
from tests.in_one_process import InOneProcess, in_one_process

FILES = LocalFiles()
KERNELS = "import numpy\ndef make(x):\n    return numpy.full((1 << 18), x)\n"


def survey(room: InOneProcess) -> BaseUsage:
    work = surveying(FILES, room.base, SystemClock())
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def test_space_is_told_by_kind_and_by_run(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.run([Job("kernels:make", x=n) for n in range(2)], shared=np.ones(1 << 17))
        Path(room.base.code_snapshot(pool.run, "a")).write_bytes(bytes(300_000))
        Path(room.base.trash, "left").write_bytes(bytes(200_000))
        found = survey(room)
        kinds = found.by_kind()
        assert tuple(kinds) == KINDS
        assert 4 << 20 <= kinds["results"] < 5 << 20
        assert 1 << 20 <= kinds["shared data"] < 2 << 20
        assert 300_000 <= kinds["snapshots"] < 400_000
        assert 200_000 <= kinds["trash"] < 300_000
        assert found.runs[pool.run].is_over and found.runs[pool.run].jobs == 2
        assert usage_rows(found)[-1][0] == "in all"
        assert "4 MiB of results" in usage_line(FILES, room.base, found)


def test_a_run_that_is_over_is_measured_once_and_one_that_grows_again(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.run([Job("kernels:make", x=1)])
        before = survey(room)
        assert read_usage(FILES, room.base) == before
        Path(room.base.kept_result(pool.run, 0)).write_bytes(bytes(1 << 20))
        assert survey(room).runs == before.runs, "nobody looks at its files again"
        room.master.extend(pool, [Job("kernels:make", x=1)])
        after = survey(room).runs[pool.run]
        assert not after.is_over and after.results > before.runs[pool.run].results


def test_whoever_looks_stops_after_a_moment(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        room.run([Job("kernels:make", x=1)])
        assert run_for(surveying(FILES, room.base, SystemClock()), SystemClock(), 0.0)
        assert look(FILES, room.base).runs
        Path(room.base.usage).write_bytes(b"{torn")
        assert look(FILES, room.base).runs
