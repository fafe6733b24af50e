"""A kernel that forks: its child never becomes a second worker on the same mailbox."""

from __future__ import annotations

import pytest

from postroom import Job
from postroom.store.files import LocalFiles
from postroom.store.runs import count_covered, count_jobs, list_firsts
from postroom.testing import RealSessions

WAYS = ("returns", "raises", "exits", "thread", "multiprocessing")
FILES = LocalFiles()


@pytest.mark.parametrize("way", WAYS)
def test_the_child_of_a_kernel_touches_nothing(sessions: RealSessions, way: str) -> None:
    sessions.start("0")
    sessions.start("1")
    with sessions.master() as master:
        forking = [Job("kernels:fork", how=way, x=n) for n in range(20)]
        first = master.run(forking)
        second = master.run([Job("kernels:double", x=n) for n in range(400)])
        for pool in (first, second):
            assert pool.results() == [2 * n for n in range(len(pool))]
            folder = master.base.result_folder(pool.run)
            spans = [
                (one, one + count_jobs(FILES, master.base.result(pool.run, one)))
                for one in list_firsts(FILES, folder)
            ]
            assert count_covered(spans) == (len(pool), 0)
    with sessions.master() as fresh:  # and what is on disk can be read
        assert fresh.resume(first.run).results() == first.results()
