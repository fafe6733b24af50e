from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.jobs import Job
from postroom.parcel.sheets import JobEnd
from postroom.session.background_publisher import BackgroundPublisher
from postroom.session.inbox import Inbox, Step
from postroom.session.tasks import own
from postroom.store.files import MAP_FROM_BYTES
from tests.in_one_process import InOneProcess, in_one_process

ITEMS = MAP_FROM_BYTES // 8
KERNELS = f"""
import numpy as np

buffer = np.zeros({ITEMS})

def same_buffer(n):
    buffer[:] = n
    return buffer

def small(n):
    return n

def unsendable(n):
    return [np.full({ITEMS}, n), object()] if n == 1 else np.full({ITEMS}, n)
"""


@pytest.fixture
def publisher() -> Iterator[BackgroundPublisher]:
    made = BackgroundPublisher(own)
    yield made
    made.close()


@pytest.fixture
def room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, publisher: BackgroundPublisher
) -> Iterator[InOneProcess]:
    monkeypatch.setattr("postroom.dispatch.run_queue.RunQueue._length", lambda *_: 8)
    monkeypatch.setattr("postroom.session.inbox.HOLD_S", 600.0)  # a slow machine keeps its letter
    with in_one_process(tmp_path, KERNELS) as made:
        for inbox in made.inboxes:
            inbox._publisher = publisher
        yield made


def end(value: Any, nbytes: int = MAP_FROM_BYTES) -> JobEnd:
    return JobEnd(value, None, 0.0, nbytes)


def test_a_result_that_the_kernel_keeps_is_copied(publisher: BackgroundPublisher) -> None:
    kept = np.zeros(3)
    view = np.zeros(3)[1:]
    made = publisher.owned([end(kept), end(view), end({"a": kept})])
    assert made is not None
    kept[:] = view[:] = 1
    assert [made[0].value.sum(), made[1].value.sum(), made[2].value["a"].sum()] == [0, 0, 0]


def test_a_result_that_nobody_else_has_is_not_copied(publisher: BackgroundPublisher) -> None:
    done = [end(np.zeros(3))]
    place = done[0].value.ctypes.data
    made = publisher.owned(done)
    assert made is not None and made[0].value.ctypes.data == place


def test_what_is_too_large_or_cannot_be_copied_is_published_at_once(
    publisher: BackgroundPublisher,
) -> None:
    assert publisher.owned([end(np.zeros(3), 1 << 40)]) is None
    assert publisher.owned([end(object())]) is None


def test_results_of_one_buffer_are_those_of_their_own_jobs(room: InOneProcess) -> None:
    pool = room.master.submit_all([Job("kernels:same_buffer", n=n) for n in range(8)])
    assert [result[-1] for result in room.finish(pool).results()] == list(range(8))


def held_back(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have nothing published behind before the event."""
    go = threading.Event()
    begin = inbox._publisher.begin  # type: ignore[union-attr]
    monkeypatch.setattr(
        inbox._publisher, "begin", lambda publish: begin(lambda: go.wait(20) and publish())
    )
    return go


def test_the_next_job_runs_while_a_large_result_is_published(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inbox,) = room.inboxes
    go = held_back(inbox, monkeypatch)
    pool = room.master.submit_all([Job("kernels:same_buffer", n=n) for n in range(3)])
    room.master.step(1.0)
    for _ in range(3):  # take the letter, run two jobs: the second waits for the first's result
        if inbox._done_from == 1:
            go.set()
        assert inbox.step() is Step.WORKED
    assert inbox._done_from == 2
    assert [result[-1] for result in room.finish(pool).results()] == [0, 1, 2]


@pytest.mark.parametrize("options", [{"timeout_s": 60}, {}])
def test_what_must_come_before_the_next_job_does(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch, options: dict[str, int]
) -> None:
    """A guardian that ends a job, and a minder, publish right behind what came before."""
    (inbox,) = room.inboxes
    go = held_back(inbox, monkeypatch)
    second = "kernels:same_buffer" if options else "kernels:small"
    jobs = [Job("kernels:same_buffer", n=1), Job(second, n=2)]
    pool = room.master.submit_all([job.options(**options) for job in jobs])
    room.master.step(1.0)
    while not inbox._done_from:
        inbox.step()
    go.set()
    first = Path(room.base.result(pool.run, 0))
    run, seen = inbox._run, []
    monkeypatch.setattr(inbox, "_run", lambda *a: (seen.append(first.exists()), run(*a))[1])
    room.finish(pool)
    assert seen == [True]


def test_a_full_disk_behind_is_a_full_disk(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inbox,) = room.inboxes
    write = room.files.write_new
    full = [True]

    def fail(path: str, chunks: Any, *, sync: bool = False, **_: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, chunks, sync=sync)

    pool = room.master.submit_all([Job("kernels:same_buffer", n=n) for n in range(3)])
    room.master.step(1.0)
    monkeypatch.setattr(inbox._files, "write_new", fail)
    steps = [inbox.step() for _ in range(4)]
    assert steps[-1] is Step.BLOCKED
    assert inbox._done_from == 0 and len(inbox._done) == 2
    full.clear()
    assert [result[-1] for result in room.finish(pool).results()] == [0, 1, 2]


def test_a_result_that_cannot_travel_spares_its_neighbours(room: InOneProcess) -> None:
    pool = room.master.submit_all([Job("kernels:unsendable", n=n) for n in range(3)])
    room.finish(pool)
    assert list(pool._failures) == [1] and pool[2].result()[0] == 2
