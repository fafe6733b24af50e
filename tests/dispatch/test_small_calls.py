from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from postroom.dispatch.small_calls import MOST_JOBS, SmallCall
from postroom.errors import JobFailed, PayloadError
from postroom.jobs import Job, JobPool
from postroom.store.files import MAP_FROM_BYTES
from tests.in_one_process import InOneProcess, in_one_process, with_worker

KERNELS = f"""
import numpy as np

def double(x):
    return 2 * x

def odd_fails(x):
    assert x % 2 == 0
    return x

def large(x):
    return np.full({MAP_FROM_BYTES // 8}, x)
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[InOneProcess]:
    with in_one_process(tmp_path, KERNELS) as made:
        with_worker(made)
        yield made


def runs(room: InOneProcess) -> list[str]:
    return sorted(os.listdir(room.base.job_pool))


def doubles(*numbers: int, task: str = "kernels:double") -> list[Job]:
    return [Job(task, x=n) for n in numbers]


def test_small_calls_share_a_run_and_have_their_own_numbers(room: InOneProcess) -> None:
    pools = [room.master.run(doubles(n, n + 1)) for n in range(5)]
    assert [pool.results() for pool in pools] == [[2 * n, 2 * n + 2] for n in range(5)]
    assert pools[3][1].result() == 8 and pools[3][1].number == 1 and len(pools[3]) == 2
    assert {pool.run for pool in pools} == set(runs(room)) and len(runs(room)) == 1
    assert str(pools[3].id_of(0)) == f"{pools[3].run}/6"
    assert f"{pools[3].run[-6:]}/6" in pools[3].how_to("show", 0)
    assert all(isinstance(pool, SmallCall) and pool.done for pool in pools)


def test_a_refused_job_is_named_by_its_number_in_the_call(room: InOneProcess) -> None:
    room.master.run(doubles(1, 2, 3))
    jobs = [*doubles(4), *doubles(5, task="kernels:large"), Job("kernels:double", object())]
    with pytest.raises(PayloadError, match=r"^job 2: positional argument 0 is of type object"):
        room.master.run(jobs)


def test_more_jobs_or_wishes_have_a_run_of_their_own(room: InOneProcess) -> None:
    pools = [
        room.master.run(doubles(*range(MOST_JOBS + 1))),
        room.master.run(doubles(1), project="p"),
        room.master.run(doubles(1), keep="arguments"),
        room.master.run([Job("kernels:double", x=1)], shared=[1]),
        room.master.run(iter(doubles(1))),
        room.master.run([Job("kernels:double", x=np.zeros(1 << 16)) for _ in range(3)]),
    ]
    assert not any(isinstance(pool, SmallCall) for pool in pools)
    assert len(runs(room)) == len(pools)


def test_many_calls_leave_what_one_leaves(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.jobs.REMOVE_JOBS", 10)
    pool = room.master.run(doubles(0))
    for n in range(100):
        assert room.master.run(doubles(n)).results() == [2 * n]
    assert len(runs(room)) == 1
    assert len(os.listdir(room.base.result_folder(pool.run))) <= 11
    assert Path(room.base.append_log(pool.run)).stat().st_blocks * 512 < 50 * 300


def test_a_failed_job_stays_to_be_looked_at_and_run_again(room: InOneProcess) -> None:
    room.master.run(doubles(0, 1))
    pool = room.master.run(doubles(4, 5, 6, 7, task="kernels:odd_fails"))
    assert pool.n_failed == 2 and pool[2].result() == 6
    with pytest.raises(JobFailed, match=r"job 1 failed: AssertionError.*/3"):
        pool[1].result()
    assert room.master.run(doubles(8)).run != pool.run
    room.write_kernels(KERNELS.replace("    assert x % 2 == 0\n", ""))
    assert pool.retry().results() == [4, 5, 6, 7]
    assert not pool.failures() and pool.n_done == 4
    assert room.master.look(pool.run).n_failed == 0, "their copies count"


def test_large_results_stay_readable_when_their_files_are_gone(room: InOneProcess) -> None:
    pools = [room.master.run([Job("kernels:large", x=n)]) for n in range(4)]
    for pool in pools:
        pool._within._remove_taken()  # type: ignore[attr-defined]
    assert os.listdir(room.base.result_folder(pools[0].run)) == []
    assert [pool.results()[0][-1] for pool in pools] == [0, 1, 2, 3]


def test_an_edited_kernel_is_used_by_the_next_call(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.session.tasks.LOOK_S", 0.0)
    assert room.master.run(doubles(1)).results() == [2]
    room.write_kernels(KERNELS.replace("2 * x", "3 * x"))
    assert room.master.run(doubles(1)).results() == [3]
    assert len(runs(room)) == 1


def test_progress_is_told(room: InOneProcess) -> None:
    seen: list[int] = []
    room.master.run(doubles(1, 2, 3), progress=lambda pool: seen.append(pool.n_done))
    assert seen == sorted(seen) and seen[-1] == 3


def test_jobs_of_an_interrupted_call_are_resumed(room: InOneProcess) -> None:
    room.master.run(doubles(0))

    def interrupt(pool: JobPool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        room.master.run(doubles(1, 2), progress=interrupt)
    (run,) = runs(room)
    assert room.master.run(doubles(3)).run != run
    pool = room.master.resume(run)
    assert [pool.result(1), pool.result(2)] == [2, 4]


def test_ctrl_c_at_a_prompt_cancels_what_waits_and_says_how_to_end_what_runs(
    room: InOneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(pool: JobPool) -> None:
        if master.jobs_begun(pool):
            raise KeyboardInterrupt

    said: list[str] = []
    master = room.master
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(master, "_say", said.append)
    monkeypatch.setattr(master, "jobs_begun", lambda pool: [len(pool.jobs) - 2])
    with pytest.raises(KeyboardInterrupt):
        master.run(doubles(1, 2), progress=interrupt)
    (run,) = runs(room)
    assert said == [f"a job runs on; to end it: postroom kill {run[-6:]}/0 -b {room.base.root}"]


def test_calls_from_several_threads_get_their_own_results(room: InOneProcess) -> None:
    found: dict[int, list[list[int]]] = {}
    lock, step = threading.Lock(), room.master.step

    def one_at_a_time(now: float) -> bool:
        with lock:  # the inboxes of this test are stepped with it
            return step(now)

    room.master.step = one_at_a_time  # type: ignore[method-assign]

    def call(thread: int) -> None:
        numbers = range(100 * thread, 100 * thread + 20)
        found[thread] = [room.master.run(doubles(n, -n)).results() for n in numbers]

    threads = [threading.Thread(target=call, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for thread in range(4):
        expected = [[2 * n, -2 * n] for n in range(100 * thread, 100 * thread + 20)]
        assert found[thread] == expected
