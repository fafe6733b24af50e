"""The pool with a Master, an inbox and a worker in this process; `test_executor` has agents."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.futures.future_pool import FuturePool
from postroom.jobs import Job
from tests.in_one_process import InOneProcess, in_one_process, with_worker


@pytest.fixture
def room(tmp_path: Path) -> Iterator[InOneProcess]:
    with in_one_process(tmp_path, "def double(x):\n    return 2 * x\n") as made:
        yield made


def job() -> Job:
    return Job("kernels:double", x=1)


def test_a_master_is_not_nudged_while_it_is_closed_nor_later(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_worker(room)
    seen: list[str] = []
    pool = FuturePool(room.master, room.master.open, ended=lambda: seen.append("closed"))
    assert pool.submit(job()).result(60) == 2

    def nudge() -> None:
        # Its descriptor may be that of another file as soon as the Master is closed.
        if not seen:
            closer.start()  # it nudges, too, unless the thread sleeps already
        pool.gone.wait(0.2)
        seen.append("nudged")

    closer = threading.Thread(target=pool.close)
    monkeypatch.setattr(room.master, "nudge", nudge)
    pool._nudge()
    assert pool.gone.wait(60)
    closer.join(60)
    pool._nudge()
    assert seen in (["nudged", "closed"], ["nudged", "nudged", "closed"])


def test_whoever_cancels_or_kills_while_the_pool_ends_gets_no_error(room: InOneProcess) -> None:
    with_worker(room)
    pool = FuturePool(room.master, room.master.open, ended=room.master.close)
    future = pool.submit(job())
    assert future.result(60) == 2
    pool.close()
    assert pool.gone.wait(60)
    assert not pool.take_back(future)  # it was pending when its owner looked
    pool.stop(future)
