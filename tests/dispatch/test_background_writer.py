from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from postroom.dispatch.background_writer import BackgroundWriter, Writing
from postroom.dispatch.job_writer import PARCEL_BYTES, Batch
from postroom.errors import BaseFolderError, PayloadError
from postroom.jobs import Job
from postroom.session.inbox import Step
from postroom.store.append_log import AppendLogWriter, ParcelFile
from postroom.store.files import LocalFiles
from tests.in_one_process import InOneProcess, in_one_process, with_worker

KERNELS = """
def first(x):
    return int(x[0])
"""
ITEMS = PARCEL_BYTES // 8


@pytest.fixture
def room(tmp_path: Path) -> Iterator[InOneProcess]:
    with in_one_process(tmp_path, KERNELS) as made:
        yield made


def large(numbers: range) -> list[Job]:
    return [Job("kernels:first", x=np.full(ITEMS, n)) for n in numbers]


def test_jobs_count_only_from_their_slip_on(room: InOneProcess) -> None:
    woken = threading.Event()
    writer = BackgroundWriter(woken.set)
    pool = room.master.start(large(range(1)))
    log = AppendLogWriter(LocalFiles(), room.base, pool.run, durable=False)
    size = Path(room.base.append_log(pool.run)).stat().st_size
    (job,) = large(range(1, 2))
    writing = writer.begin(log, [(job, job.deploy())], called=1)
    assert woken.wait(10)
    assert Path(room.base.append_log(pool.run)).stat().st_size == size
    log.name_file(1, writing.file.result(), task=job.task)
    log.close()
    assert Path(room.base.append_log(pool.run)).stat().st_size > size
    writer.close()
    room.finish(pool)
    assert room.master.look(pool.run).jobs[1].arguments["x"][0] == 1


def test_a_file_that_is_given_up_is_removed_also_if_it_is_written_later(room: InOneProcess) -> None:
    writer = BackgroundWriter(lambda: None)
    pool = room.master.start(large(range(1)))
    log = AppendLogWriter(LocalFiles(), room.base, pool.run, durable=False)
    before = os.listdir(room.base.run_folder(pool.run))
    for job in large(range(2)):
        batch = [(job, job.deploy())]
        assert writer.begin(log, batch, called=1).drop() is batch
    writer.close()
    log.close()
    assert os.listdir(room.base.run_folder(pool.run)) == before
    room.finish(pool)


def test_jobs_keep_their_order_whichever_file_is_written_first(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = threading.Event()
    write = AppendLogWriter.write_file
    calls = []

    def out_of_order(self: AppendLogWriter, chunks: list[bytes]) -> object:
        if threading.current_thread() is threading.main_thread():
            return write(self, chunks)
        calls.append(1)
        if len(calls) == 1:
            assert second.wait(20)
            return write(self, chunks)
        written = write(self, chunks)
        second.set()
        return written

    monkeypatch.setattr(AppendLogWriter, "write_file", out_of_order)
    pool = room.master.start(large(range(12)))
    with_worker(room)
    assert pool.results() == list(range(12)) and len(calls) == 11


def test_what_cannot_travel_is_named_with_its_job(room: InOneProcess) -> None:
    jobs = large(range(6))
    jobs.insert(5, Job("kernels:first", x=np.zeros(ITEMS), y=object()))
    pool = room.master.start(iter(jobs))
    with_worker(room)
    with pytest.raises(PayloadError, match=r"job 5: .*y"):
        pool.wait()


def test_jobs_that_could_not_be_written_are_written_when_somebody_waits_again(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = AppendLogWriter.write_file
    failing: list[bool] = []

    def full(self: AppendLogWriter, chunks: list[bytes]) -> object:
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, chunks)

    monkeypatch.setattr(AppendLogWriter, "write_file", full)
    pool = room.master.start(iter(large(range(8))))
    failing.append(True)
    with_worker(room)
    with pytest.raises(BaseFolderError):
        pool.wait()
    failing.clear()
    assert pool.results() == list(range(8))


def test_a_file_for_which_there_was_no_room_is_tried_again_when_all_before_it_is_done(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: Future[ParcelFile] = Future()

    def begin(_: object, log: AppendLogWriter, batch: Batch, *, called: int) -> Writing:
        monkeypatch.undo()
        return Writing(batch, full, log)

    monkeypatch.setattr(BackgroundWriter, "begin", begin)
    pool = room.master.start(large(range(2)))
    for _ in room.master.rounds(pool, timeout_s=60):
        while room.inboxes[0].step() is Step.WORKED:
            pass
        if pool.n_done == len(pool.jobs) == 1 and not full.done():
            full.set_exception(OSError(errno.ENOSPC, "No space left on device"))
    assert pool.results() == [0, 1]


def test_without_a_thread_it_is_written_at_once(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    pool = room.master.start(iter(large(range(5))))
    with_worker(room)
    assert pool.results() == list(range(5))


def test_small_jobs_behind_large_ones_keep_their_place(room: InOneProcess) -> None:
    small = [Job("kernels:first", x=np.full(3, n)) for n in range(100, 140)]
    mixed = [job for pair in zip(large(range(40)), small, strict=True) for job in pair]
    pool = room.master.start(iter(mixed))
    with_worker(room)
    assert pool.results() == [
        n for pair in zip(range(40), range(100, 140), strict=True) for n in pair
    ]
