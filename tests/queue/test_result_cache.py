"""Results are read once and cached; the cache is never trusted more than the results."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.queue.actions import clean
from postroom.queue.disk_usage import look
from postroom.queue.queue_view import QueueView
from postroom.queue.result_cache import ResultCache
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from tests.queue.kit import FAILURE, FILES, end, make_old, queue

COUNTS = {"failed": 3, "ok": 22}


class Counting(LocalFiles):
    """Counts how many trailers were read."""

    def __init__(self) -> None:
        super().__init__()
        self.tails = 0

    def tail(self, path: str, size: int) -> bytes:
        self.tails += "/result_pool/" in path
        return super().tail(path, size)


@pytest.fixture
def run(base: Base) -> str:
    """A finished run whose folder has not changed for a while."""
    jobs = queue(base, *map(str, range(25)))
    for job in jobs:
        end(base, job, FAILURE if job.number in (3, 7, 24) else None)
    settle(base, jobs[0].run)
    look(LocalFiles(), base)  # how much space it takes is known: that is a matter of its own
    return jobs[0].run


def settle(base: Base, run: str) -> None:
    place = base.result_folder(run)
    os.utime(place, (os.stat(place).st_mtime - 1,) * 2)


def count_jobs(base: Base) -> tuple[dict[str, int], int]:
    files = Counting()
    with QueueView(base, files) as view:
        return view.overview().counts, files.tails


def test_results_are_read_once(base: Base, run: str) -> None:
    assert count_jobs(base) == (COUNTS, 25)
    assert count_jobs(base) == (COUNTS, 0)
    with QueueView(base) as view:
        assert [row.number for row in view.jobs(state="failed").jobs] == [24, 7, 3]


def test_new_results_are_seen(base: Base, run: str) -> None:
    count_jobs(base)
    (job,) = queue(base, "more")
    end(base, job, FAILURE)
    assert count_jobs(base) == ({"failed": 4, "ok": 22}, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "[]",
        '{"version": 2}',
        '{"version":1,"changed_ns":1,"counts":{"x":1},"failures":{},"ended_at":{}}',
        '{"version":1,"changed_ns":1,"counts":{},"failures":{"1":{"1":"hm"}},"ended_at":{}}',
        '{"version":1,"changed_ns":1,"counts":[],"failures":{},"ended_at":{}}',
    ],
)
def test_a_bad_cache_is_ignored(base: Base, run: str, text: str) -> None:
    Path(base.result_cache(run)).write_text(text)
    Path(base.result_cache(run)).chmod(0o600)
    assert count_jobs(base) == (COUNTS, 25)


def test_a_result_that_was_moved_away_is_not_counted(base: Base, run: str) -> None:
    count_jobs(base)
    os.unlink(base.result(run, 3))
    assert count_jobs(base)[0] == {"queued": 1, "failed": 2, "ok": 22}


def test_a_bad_result_is_read_again_when_a_good_one_takes_its_place(
    base: Base, view: QueueView
) -> None:
    (job,) = queue(base, "a")
    place = Path(base.result(job.run, job.number))
    place.write_bytes(b"garbage")
    place.chmod(0o600)
    assert view.overview().counts == {"queued": 1}
    place.unlink()
    end(base, job)
    assert view.overview().counts == {"ok": 1}


def test_a_cache_is_read_as_it_was_written_and_removed_with_its_run(base: Base, run: str) -> None:
    cache = ResultCache(5, {0: 1, 7: 3}, {7: {8: "timed out"}}, {0: 1.5})
    assert ResultCache.decode("cache", cache.encode()) == cache
    count_jobs(base)
    assert FILES.exists(base.result_cache(run))
    make_old(base, run)
    assert clean(QueueView(base), older_than_s=60).runs == [run]
    assert not FILES.exists(base.result_cache(run))
