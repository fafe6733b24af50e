from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from postroom.dispatch.feeder import FIRST_JOBS, QUIET_S, Feeder, Window
from postroom.dispatch.job_writer import PARCEL_BYTES, PARCEL_JOBS
from postroom.errors import PostroomError
from postroom.jobs import Job, JobPool
from postroom.master import Master
from postroom.store.append_log import logged_until
from postroom.store.runs import list_firsts
from postroom.system.page_cache import LARGE
from tests.in_one_process import InOneProcess, in_one_process, with_worker

KERNELS = """
def double(x):
    return x * 2

def first(x):
    return int(x[0])

def fail_odd(x):
    assert x[0] % 2 == 0
    return int(x[0])
"""


def jobs(count: int) -> Iterator[Job]:
    return (Job("kernels:double", x=n) for n in range(count))


def large(count: int, task: str = "kernels:first") -> Iterator[Job]:
    return (Job(task, x=np.full(LARGE // 8, n)) for n in range(count))


def parcels(room: InOneProcess, pool: JobPool) -> list[str]:
    return sorted(n for n in os.listdir(room.base.run_folder(pool.run)) if n.endswith(".npz"))


class TestFeeder:
    def test_what_could_not_be_written_keeps_its_order(self) -> None:
        feeder = Feeder(jobs(3 * FIRST_JOBS), Window())
        first, second = feeder.next_batch(), feeder.next_batch()
        feeder.put_back([first, second])
        feeder.put_back([feeder.next_batch()])  # again in vain
        assert [feeder.next_batch(), feeder.next_batch()] == [first, second]

    def test_batches_grow_so_that_all_agents_get_work_at_once(self) -> None:
        feeder = Feeder(list(jobs(1000)), Window())
        sizes = [len(feeder.next_batch()) for _ in range(12)]
        assert sizes[:2] == [FIRST_JOBS, 2 * FIRST_JOBS]
        assert max(sizes) == PARCEL_JOBS and sum(sizes) == 1000 and feeder.ended

    def test_large_jobs_have_a_parcel_each(self) -> None:
        made = [Job("kernels:double", x=np.zeros(PARCEL_BYTES)) for _ in range(3)]
        feeder = Feeder(made, Window())
        batches = [[job for job, _ in feeder.next_batch()] for _ in range(4)]
        assert batches == [[made[0]], [made[1]], [made[2]], []]

    def test_jobs_of_another_task_or_with_other_options_begin_a_parcel(self) -> None:
        made = [*jobs(2), Job("kernels:first", x=1), Job("kernels:first", x=2).options(retries=1)]
        feeder = Feeder(made, Window())
        assert [len(feeder.next_batch()) for _ in range(4)] == [2, 1, 1, 0]

    def test_a_window_limits_jobs_and_bytes(self) -> None:
        feeder = Feeder(jobs(5), Window(jobs=10, nbytes=100))
        assert feeder.total is None
        assert feeder.has_room(9, 99, 1.0)
        assert not feeder.has_room(10, 0, 1.0)
        assert not feeder.has_room(0, 100, 1.0)
        assert not feeder.has_room(10, 0, 1e9), "a generator is never read beyond its window"

    def test_a_list_is_written_on_when_no_result_comes(self) -> None:
        feeder = Feeder(list(jobs(5)), Window(jobs=1))
        feeder.came(7.0)
        assert not feeder.has_room(1, 0, 7.0 + QUIET_S / 2)
        assert feeder.has_room(1, 0, 7.0 + QUIET_S)

    def test_nothing_is_written_while_all_agents_have_enough_but_a_list_when_it_is_quiet(
        self,
    ) -> None:
        for made, written_on in ((jobs(5), False), (list(jobs(5)), True)):
            feeder = Feeder(made, Window())
            feeder.came(7.0)
            assert feeder.has_room(1, 0, 7.0)
            assert not feeder.has_room(1, 0, 7.0, is_ahead=True)
            assert feeder.has_room(1, 0, 7.0 + QUIET_S, is_ahead=True) is written_on

    def test_a_window_without_room_is_refused(self) -> None:
        with pytest.raises(PostroomError, match="at least one job"):
            Window(jobs=0)

    def test_what_is_not_a_job_is_refused(self) -> None:
        with pytest.raises(PostroomError, match="is not a Job"):
            Feeder([1], Window()).next_batch()  # type: ignore[list-item]


class TestStreaming:
    def test_the_first_job_runs_when_the_first_parcel_is_written(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(list(jobs(1000)))
            assert logged_until(room.files, room.base.append_log(pool.run)) == FIRST_JOBS
            assert pool.total == 1000
            assert room.finish(pool).results() == [2 * n for n in range(1000)]

    def test_a_list_is_on_disk_whole_although_nobody_works(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
            pool = room.master.start(list(jobs(300)), window=Window(jobs=1))
            for _ in room.master.rounds(pool, until=lambda: len(pool) == 300):
                pass
            assert logged_until(room.files, room.base.append_log(pool.run)) == 300
            assert len(room.master.resume(pool.run)) == 300

    def test_an_endless_generator_is_read_by_a_window(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            endless = (Job("kernels:double", x=n) for n in itertools.count())
            pool = room.master.start(endless, window=Window(jobs=50))
            assert pool.total is None
            ahead = 0
            with_worker(room)
            for _ in room.master.rounds(pool, until=lambda: pool.n_done > 500):
                ahead = max(ahead, len(pool) - pool.n_done)
            assert 50 <= ahead < 50 + PARCEL_JOBS

    def test_a_pool_that_is_under_way_is_iterated_in_order(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            with_worker(room)
            for made, count, kept in ((jobs(40), 40, 0), (list(jobs(40)), 40, 40)):
                pool = room.master.start(made)
                assert [done.result() for done in pool] == [2 * n for n in range(count)]
                left = list_firsts(room.files, room.base.result_folder(pool.run))
                assert bool(left) is bool(kept)
            pool = room.master.start(large(4, "kernels:fail_odd"))
            assert [done.number for done in pool if done.error] == [1, 3]

    def test_results_of_a_generator_are_handed_out_and_dropped(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(jobs(700), window=Window(jobs=100))
            with_worker(room)
            found = {done.number: done.result() for done in pool.as_completed(timeout_s=60)}
            assert found == {n: 2 * n for n in range(700)}
            assert pool.done and pool.total == 700
            assert os.listdir(room.base.result_folder(pool.run)) == []
            assert parcels(room, pool) == []
            assert not any(pool.jobs[n].arguments for n in range(700))

    def test_failed_jobs_of_a_generator_can_be_run_again(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(large(4, "kernels:fail_odd"))
            with_worker(room)
            assert [done.number for done in pool.as_completed(60) if done.error] == [1, 3]
            room.write_kernels(KERNELS.replace("    assert x[0] % 2 == 0\n", ""))
            pool.retry()
            assert [pool.result(number, 60) for number in (1, 3)] == [1, 3]

    def test_results_of_a_list_are_kept(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(list(jobs(20)))
            with_worker(room)
            assert len(list(pool.as_completed(timeout_s=60))) == 20
            assert pool.results() == [2 * n for n in range(20)]

    def test_an_empty_list_and_an_empty_generator_are_done_at_once(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            assert room.master.run([]).results() == []
            assert room.master.run(jobs(0)).results() == []

    def test_a_list_that_holds_something_else_is_refused_before_anything_is_written(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            with pytest.raises(PostroomError, match="is not a Job"):
                room.master.start([*jobs(1000), 7])  # type: ignore[list-item]
            assert os.listdir(room.base.job_pool) == []

    def test_whoever_resumes_half_a_list_is_told(self, tmp_path: Path) -> None:
        said: list[str] = []
        with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
            pool = room.master.start(list(jobs(300)))  # and its program is killed
        with Master(room.base.root, import_folder="/", say=said.append) as master:
            assert len(master.resume(pool.run)) == FIRST_JOBS
        assert f"{FIRST_JOBS} of 300 jobs" in said[0]

    def test_an_unknown_word_for_keep_is_refused(self, tmp_path: Path) -> None:
        with (
            in_one_process(tmp_path, KERNELS) as room,
            pytest.raises(PostroomError, match="keep='arguments'"),
        ):
            room.master.start([], keep="all")


class TestRecycling:
    def test_the_space_of_arguments_is_used_again(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(large(12), window=Window(nbytes=2 * LARGE))
            most = 0
            for _ in room.master.rounds(pool, timeout_s=60):
                for inbox in room.inboxes:
                    inbox.step()
                most = max(most, len(parcels(room, pool)))
            assert pool.results() == list(range(12))
            assert most <= 3 and parcels(room, pool) == []
        assert [name for name in os.listdir(room.base.tmp) if "outbox" not in name] == []

    def test_arguments_are_kept_if_the_user_says_so(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.finish(room.master.start(list(large(3)), keep="arguments"))
            assert len(parcels(room, pool)) == 3
            again = room.master.resume(pool.run)
            assert [int(job.arguments["x"][0]) for job in again.jobs] == [0, 1, 2]

    def test_the_arguments_of_failed_jobs_stay(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.finish(room.master.start(list(large(4, "kernels:fail_odd"))))
            assert pool.n_failed == 2
            again = room.master.resume(pool.run)
            assert [int(again.jobs[n].arguments["x"][0]) for n in (1, 3)] == [1, 3]
            assert again.jobs[0].task == "kernels:fail_odd" and not again.jobs[0].arguments
            assert again.done and again[0].result() == 0

    def test_an_older_parcel_under_a_new_name_is_never_taken_for_it(self, tmp_path: Path) -> None:
        """A power loss may leave it so, if a file was written over another."""
        with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
            pool = room.master.start(list(large(2)), keep="arguments")
            for _ in room.master.rounds(pool, until=lambda: len(pool) == 2):
                pass
            folder = Path(room.base.run_folder(pool.run))
            older, newer = (folder / name for name in parcels(room, pool))
            newer.write_bytes(older.read_bytes())
            room.inboxes.append(room.add_inbox("0"))
            room.finish(pool)
            assert pool[0].result() == 0
            assert "is not the parcel that its append log names" in str(pool[1].error)
