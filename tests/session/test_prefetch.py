from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.errors import BadFileError
from postroom.jobs import Job
from postroom.parcel.sheets import JobSheet
from postroom.session.prefetch import Prefetcher
from postroom.system.page_cache import LARGE
from tests.by_hand import jobs
from tests.in_one_process import InOneProcess, in_one_process

KERNELS = """
import numpy as np

kept = []

def total(x):
    kept.append(x)
    return [int(one[0]) for one in kept]
"""


@pytest.fixture
def prefetcher() -> Iterator[Prefetcher]:
    made = Prefetcher()
    yield made
    made.close()


def sheet(first: int) -> JobSheet:
    return JobSheet("parcel", b"".join(jobs(first, 1)), number=first)


def test_a_parcel_is_opened_by_another_thread(prefetcher: Prefetcher) -> None:
    threads = []

    def opening() -> JobSheet:
        threads.append(threading.current_thread().name)
        return sheet(7)

    prefetcher.begin(7, opening)
    found = prefetcher.take(7)
    assert found is not None and found.arguments(7) == {"x": 7}
    assert threads == ["postroom prefetch"]
    assert prefetcher.take(7) is None, "it was taken"


def test_only_the_parcel_that_is_asked_for_is_handed_out(prefetcher: Prefetcher) -> None:
    assert prefetcher.take(0) is None
    prefetcher.begin(7, lambda: sheet(7))
    assert prefetcher.take(8) is None
    prefetcher.begin(8, lambda: sheet(8))
    prefetcher.begin(9, lambda: sheet(9))
    found = prefetcher.take(9)
    assert found is not None and found.first == 9


def test_an_error_is_left_to_whoever_opens_it(prefetcher: Prefetcher) -> None:
    def opening() -> JobSheet:
        raise BadFileError("parcel", "is bad")

    prefetcher.begin(7, opening)
    assert prefetcher.take(7) is None
    prefetcher.begin(8, lambda: sheet(8))
    assert prefetcher.take(8) is not None


@pytest.fixture
def room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetcher: Prefetcher
) -> Iterator[InOneProcess]:
    monkeypatch.setattr("postroom.dispatch.run_queue.RunQueue._length", lambda *_: 8)
    with in_one_process(tmp_path, KERNELS) as made:
        for inbox in made.inboxes:
            inbox._prefetcher = prefetcher
        yield made
    if "kernels" in sys.modules:
        sys.modules["kernels"].kept.clear()  # each holds a mapping, with its descriptor


def test_the_next_large_argument_is_read_while_a_job_runs(room: InOneProcess) -> None:
    begun: list[int] = []
    (inbox,) = room.inboxes
    assert inbox._prefetcher is not None
    begin = inbox._prefetcher.begin
    inbox._prefetcher.begin = lambda first, opening: (begun.append(first), begin(first, opening))  # type: ignore[method-assign, assignment, func-returns-value]
    pool = room.master.submit_all(
        [Job("kernels:total", x=np.full(LARGE // 8, n)) for n in range(6)]
    )
    assert room.finish(pool).results()[-1] == [0, 1, 2, 3, 4, 5]
    assert begun == [1, 2, 3, 4, 5]


def test_an_argument_that_a_kernel_keeps_never_changes(room: InOneProcess) -> None:
    made = (Job("kernels:total", x=np.full(LARGE // 8, n)) for n in range(12))
    pool = room.finish(room.master.start(made))
    assert pool.results()[-1] == list(range(12))


TENSORS = """
def total(x: "torch.Tensor"):
    return int(x[0])

def plain(x):
    return int(x[0])
"""


def test_only_what_is_read_ahead_for_a_card_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "1")
    monkeypatch.setattr("postroom.dispatch.run_queue.RunQueue._length", lambda *_: 8)
    before = os.getcwd()

    def jobs(kernel: str) -> list[Job]:
        return [Job(f"kernels:{kernel}", x=np.full(LARGE // 8, n)) for n in range(6)]

    with in_one_process(tmp_path, TENSORS, gpu="FAKE-0") as room:
        (inbox,), (runner,), (tasks,) = room.inboxes, room.runners, room.tasks
        device: Any = tasks.device
        inbox._prefetcher = Prefetcher(runner.read_ahead)
        placed: list[bool] = []
        pinned: list[Any] = []
        put, pin = device.put, device.pin

        def keep(nbytes: int) -> Any:
            pinned.append(pin(nbytes))
            return pinned[-1]

        def see(tensor: Any) -> Any:
            placed.append(any(np.shares_memory(tensor.numpy(), memory) for memory in pinned))
            return put(tensor)

        monkeypatch.setattr(device, "put", see)
        monkeypatch.setattr(device, "pin", keep)
        assert room.run(jobs("plain")).results() == list(range(6))
        assert device.pinned_bytes == 0, "no kernel has asked for tensors yet"
        assert room.finish(room.master.submit_all(jobs("total"))).results() == list(range(6))
        assert (placed[0], placed[2:]) == (False, [True] * 4), "the second was begun before"
        assert len(pinned) == 2 and device.pinned_bytes == 4 * LARGE, "for all of them"
        inbox._prefetcher.close()
    os.chdir(before)
    sys.modules.pop("kernels", None)


def test_a_bad_parcel_in_the_middle_fails_its_own_job_only(room: InOneProcess) -> None:
    pool = room.master.submit_all(
        [Job("kernels:total", x=np.full(LARGE // 8, n)) for n in range(4)]
    )
    sorted(Path(room.base.run_folder(pool.run)).glob("*.npz"))[1].write_bytes(b"torn")
    room.finish(pool)
    assert list(pool._failures) == [1] and pool[3].result() == [0, 2, 3]
