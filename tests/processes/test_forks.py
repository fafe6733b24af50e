"""A kernel that forks: its child never becomes a second worker on the same mailbox."""

from __future__ import annotations

import pytest

from postroom import Job
from postroom.store.files import LocalFiles
from postroom.store.runs import count_covered, list_firsts, reach
from postroom.testing import Sessions

WAYS = ("returns", "raises", "exits", "thread", "multiprocessing")
FILES = LocalFiles()


@pytest.mark.parametrize("way", WAYS)
def test_the_child_of_a_kernel_touches_nothing(room: Sessions, way: str) -> None:
    room.start("0")
    room.start("1")
    with room.master() as master:
        forking = [Job("kernels:fork", how=way, x=n) for n in range(20)]
        first = master.run(forking)
        second = master.run([Job("kernels:double", x=n) for n in range(400)])
        for pool in (first, second):
            assert pool.results() == [2 * n for n in range(len(pool))]
            folder = master.base.answered(pool.run)
            spans = [
                (one, one + reach(FILES, master.base.result(pool.run, one), "results"))
                for one in list_firsts(FILES, folder)
            ]
            assert count_covered(spans) == (len(pool), 0)
    with room.master() as fresh:  # and what is on disk can be read
        assert fresh.resume(first.run).results() == first.results()
