"""Results that were handed out and removed: their jobs are done, for everybody and for good."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from postroom.errors import OtherVersionError, PostroomError
from postroom.jobs import REMOVE_JOBS, Job, JobList
from postroom.master import Master
from postroom.queue.queue_view import QueueView
from postroom.store.append_log import GoneParcel, logged_until, lost_jobs, read_sheets
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.runs import first_missing
from postroom.store.snapshot import count_done
from postroom.store.taken import Ranges, ResultRemover, Taken, read_taken
from tests.in_one_process import InOneProcess, in_one_process

KERNELS = """
import os

def note(x, log):
    with open(log, "a") as file:
        print(x, file=file)
    assert x != 3 or os.environ.get("THREE_IS_FINE")
    return x * 2
"""
FILES = LocalFiles()


def jobs(folder: Path, count: int) -> list[Job]:
    return [Job("kernels:note", x=n, log=str(folder / "ran")) for n in range(count)]


def times_run(folder: Path) -> list[int]:
    """How often each job was run."""
    ran = [int(line) for line in (folder / "ran").read_text().split()]
    return [ran.count(n) for n in range(max(ran) + 1)]


class TestRanges:
    def test_they_hold_what_was_added(self) -> None:
        rng = random.Random(7)
        for _ in range(300):
            ranges, held = Ranges(), set()
            for _ in range(rng.randrange(12)):
                first = rng.randrange(30)
                stop = first + rng.randrange(1, 6)
                ranges.add(first, stop)
                held.update(range(first, stop))
            assert {n for n in range(40) if n in ranges} == held
            assert {n for a, b in ranges for n in range(a, b)} == held
            assert ranges.total == len(held)
            assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
            free = min(set(range(40)) - held)
            assert ranges.prefix == free
            assert all(ranges.end_of(n) == n for n in range(40) if n not in held)


class TestJobList:
    def test_what_is_dropped_takes_no_memory_and_keeps_its_numbers(self) -> None:
        made = [Job("m:f").options(name=str(n)) for n in range(REMOVE_JOBS + 10)]
        found = JobList(made)
        found.drop(REMOVE_JOBS + 5, but=[7])
        assert len(found) == len(made) and found[-1] is made[-1] and found[7] is made[7]
        assert found[8].task == "postroom:handed_out"
        assert found[REMOVE_JOBS + 5 :] == made[REMOVE_JOBS + 5 :]
        found += [made[0]]
        assert found[len(made)] is made[0]
        found[REMOVE_JOBS + 6] = made[1]
        assert found[REMOVE_JOBS + 6] is made[1]
        assert len(found._jobs) == 6


class TestResultRemover:
    def test_one_process_at_a_time_removes(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            run = room.run(jobs(tmp_path, 3)).run
            one, other = (ResultRemover(FILES, room.base, run, durable=False) for _ in range(2))
            assert one.begin() and one.begin() and not other.begin()
            one.close()
            assert other.begin()
            other.close()

    def test_what_a_killed_process_left_is_removed_by_the_next(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            run = room.run(jobs(tmp_path, 3)).run
            Path(room.base.taken(run)).write_bytes(Taken([(0, 3)]).encode())
            remover = ResultRemover(FILES, room.base, run, durable=False)
            assert remover.begin() and os.listdir(room.base.result_folder(run)) == []
            remover.close()

    def test_in_a_durable_run_nothing_goes_before_it_is_synced(self, tmp_path: Path) -> None:
        made: list[str] = []

        class Watching(LocalFiles):
            def sync_folder(self, path: str) -> None:
                made.append("sync")

            def move(self, source: str, target: str) -> None:
                made.append("name")
                super().move(source, target)

            def remove(self, path: str) -> None:
                made.append("remove")
                super().remove(path)

        with in_one_process(tmp_path, KERNELS) as room:
            run = room.run(jobs(tmp_path, 1)).run
            remover = ResultRemover(Watching(), room.base, run, durable=True)
            assert remover.begin()
            remover.remove([(0, 1)])
            remover.close()
        assert made == ["name", "sync", "remove"]

    def test_a_list_that_cannot_be_read_names_none(self, tmp_path: Path) -> None:
        base = create_base(tmp_path / "base")
        os.mkdir(base.run_folder("run"))
        assert read_taken(FILES, base, "run").ranges == []
        Path(base.taken("run")).write_bytes(b"{torn")
        assert read_taken(FILES, base, "run").ranges == []
        Path(base.taken("run")).write_bytes(b'{"version": 9}')
        with pytest.raises(OtherVersionError):
            read_taken(FILES, base, "run")


class TestTakenResults:
    def stream(self, room: InOneProcess, folder: Path, count: int) -> str:
        """Run jobs of a generator, and take all results."""
        pool = room.master.start(iter(jobs(folder, count)))
        room.finish(pool)
        taken = [done.number for done in pool.as_completed() if done.error is None]
        assert taken == [n for n in range(count) if n != 3]
        return pool.run

    def test_everybody_knows_that_the_jobs_are_done(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            run = self.stream(room, tmp_path, 1200)
            base = room.base
            assert read_taken(FILES, base, run).ranges[0] == (0, 3)
            assert count_done(FILES, base, run) == logged_until(FILES, base.append_log(run)) == 1200
            assert first_missing(FILES, base, run, 0, 1200) == 1200
            assert lost_jobs(FILES, base, run, recycled=True) == []
            with QueueView(base) as view:
                reader = view.read_state().readers[run]
                assert reader.pending == 0
                assert (reader.outcome(2), reader.outcome(3)) == ("ok", "failed")

    def test_a_resumed_pool_has_nothing_to_do_and_says_what_is_not_kept(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            run = self.stream(room, tmp_path, 5)
        with Master(room.base.root, import_folder="/") as master:
            pool = master.resume(run)
            assert pool.done and pool.n_failed == 1 and pool.status(0).done
            with pytest.raises(PostroomError, match="handed out and is not kept"):
                pool[0]

    def test_the_results_of_failed_jobs_stay(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            run = self.stream(room, tmp_path, 5)
            assert 3 not in Ranges(read_taken(FILES, room.base, run).ranges)
            assert room.master.look(run).failures()[0].args

    def test_a_scheduler_that_has_not_seen_a_result_does_not_run_its_job_again(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            room.master.step(0.0)
            assert room.master.acting
            with Master(room.base.root, import_folder=str(room.import_folder)) as client:
                pool = client.start(iter(jobs(tmp_path, 3)))
                now = time.monotonic()
                for at in range(200):
                    room.inboxes[0].step()
                    # What came is taken before the scheduler looks.
                    pool.refresh()
                    for number in pool._arrived:
                        pool._forget(number)
                    pool._arrived.clear()
                    pool._remove_taken()
                    room.master.step(now + at)
                    serving = room.master._dispatcher.runs  # type: ignore[union-attr]
                    if pool.run in serving and serving[pool.run].queue.finished:
                        break
                assert pool.done and os.listdir(room.base.result_folder(pool.run)) == []
                assert times_run(tmp_path) == [1, 1, 1]

    def test_a_new_scheduler_does_not_run_them_again(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(iter(jobs(tmp_path, 3)))
            room.finish(pool)
            pool.is_open = True
            list(pool.as_completed())
            room.master.append(pool, Job("kernels:note", x=0, log=str(tmp_path / "again")))
            assert room.master.let_go()
            room.finish(pool)
            assert times_run(tmp_path) == [1, 1, 1]
            assert os.listdir(room.base.result_folder(pool.run)) == ["000000003.npz"]

    def test_a_late_result_of_a_job_that_was_taken_counts_for_nothing(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.start(iter(jobs(tmp_path, 1)))
            room.finish(pool)
            path = Path(room.base.result(pool.run, 0))
            late = path.read_bytes()
            assert len(list(pool.as_completed())) == 1 and not path.exists()
            path.write_bytes(late)
            assert not pool.refresh() and pool.n_done == 1 and not pool.arrived
            pool.deliver(pool._read(0))
            assert pool.n_done == 1 and not pool.arrived

    def test_the_space_of_the_append_log_is_given_back(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.open()
            pool.take_in_turn()
            for n in range(300):
                room.master.extend(pool, [Job("kernels:note", x=n + 10, log=str(tmp_path / "ran"))])
            room.finish(pool)
            for number in list(pool.arrived):
                pool._forget(number)
            pool._remove_taken()
            base, run = room.base, pool.run
            log = os.stat(base.append_log(run))
            assert log.st_size > 100_000 > 8192 >= log.st_blocks * 512
            assert logged_until(FILES, base.append_log(run)) == 300
            last = list(read_sheets(FILES, base, run))
            assert isinstance(last[0], GoneParcel) and last[0].jobs == 299 and len(last) == 2
            room.master.append(pool, Job("kernels:note", x=1, log=str(tmp_path / "ran")))
            room.master.let_go()
            assert room.finish(pool).result(300) == 2
