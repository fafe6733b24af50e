"""Results that were handed out and removed: their jobs are done, for everybody and for good."""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path

import pytest

from postroom.errors import OtherVersionError, PostroomError
from postroom.jobs import REMOVE_JOBS, Job, JobList, JobPool, Status
from postroom.master import Master
from postroom.parcel.sheets import Failure, JobEnd, JobSheet, Outcome, RanBy, pack_outcomes
from postroom.queue.queue_view import QueueView
from postroom.store.append_log import GoneParcel, logged_until, lost_jobs, read_sheets
from postroom.store.base import Base, create_base
from postroom.store.files import LocalAppendFile, LocalFiles
from postroom.store.runs import first_missing
from postroom.store.snapshot import count_done
from postroom.store.taken import Ranges, ResultRemover, Taken, read_taken
from tests.by_hand import results
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
            first, stop = read_taken(FILES, base, run).ranges[0]
            assert first == 0 and 1 <= stop <= 3, "but for those that share the failure's parcel"
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
                theirs = room.master._watch(room.master.look(pool.run))
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
                room.master.step(now + 300)
                assert theirs.done and not theirs.arrived

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

    def test_the_log_around_a_failed_job_is_given_back_and_the_job_can_be_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            base = room.base
            pool = room.master.open()
            pool.take_in_turn()
            for job in jobs(tmp_path, 300):
                room.master.extend(pool, [job])
            room.finish(pool)
            for number in list(pool.arrived):
                pool._forget(number)
            pool._remove_taken()
            log = os.stat(base.append_log(pool.run))
            # The page of the failed job, and that of the last one.
            assert log.st_size > 100_000 > 4 * 4096 >= log.st_blocks * 512
            found = {sheet.first: sheet for sheet in read_sheets(FILES, base, pool.run)}
            kept = found[3]
            assert isinstance(kept, JobSheet) and kept.arguments(3)["x"] == 3
            assert lost_jobs(FILES, base, pool.run, recycled=True) == []
            room.master.let_go()  # a new scheduler reads the log
            monkeypatch.setenv("THREE_IS_FINE", "1")
            assert room.finish(room.master.resume(pool.run).retry()).result(3) == 6
            assert times_run(tmp_path) == [1, 1, 1, 2] + [1] * 296

    def test_a_program_that_waits_sees_what_another_has_taken(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.open()
            room.master.extend(pool, jobs(tmp_path, 2))
            with Master(room.base.root, import_folder="/") as other:
                theirs = other.look(pool.run)
                room.finish(pool)
                assert len(list(pool.as_completed(keep=False))) == 2
                assert theirs.refresh() and theirs.done and not theirs.arrived
                with pytest.raises(PostroomError, match="handed out and is not kept"):
                    theirs.result(0)

    def test_a_result_that_comes_after_one_was_taken_elsewhere_counts_for_nothing(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.open()
            room.master.extend(pool, jobs(tmp_path, 1))
            with Master(room.base.root, import_folder="/") as other:
                theirs = other.look(pool.run)
                room.finish(pool)
                assert len(list(pool.as_completed(keep=False))) == 1
                failure = Failure(Outcome.FAILED, "late", "late")
                late = pack_outcomes(0, [JobEnd(failure=failure)], RanBy("0", "cpu", 1, 0.0))
                FILES.write_new(room.base.result(pool.run, 0), late)
                theirs.deliver(theirs._read(0))
                assert theirs.status(0) is Status.OK and not theirs.arrived
                with QueueView(room.base) as view:
                    assert view.read_state().readers[pool.run].outcome(0) == "ok"

    def test_a_result_waits_until_it_can_be_read_what_was_taken(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.open()
            room.master.extend(pool, jobs(tmp_path, 1))
            taken = Path(room.base.taken(pool.run))
            taken.write_bytes(b'{"version": 9}')
            FILES.write_new(room.base.result(pool.run, 0), results(0, [7]))
            pool.deliver(pool._read(0))
            assert not pool.done
            taken.unlink()
            room.master.step(time.monotonic())
            assert pool.result(0) == 7

    def test_a_parcel_with_the_result_of_a_job_that_joins_the_pool_later_stays(
        self, tmp_path: Path
    ) -> None:
        with in_one_process(tmp_path, KERNELS) as room:
            pool = room.master.open()
            pool.take_in_turn()
            with Master(room.base.root, import_folder="/") as other:
                room.master.extend(pool, jobs(tmp_path, 1))
                other.extend(other.resume(pool.run), jobs(tmp_path, 1))
                FILES.write_new(room.base.result(pool.run, 0), results(0, [7, 8]))
                pool.refresh()
                take(pool, [0])
                assert read_taken(FILES, room.base, pool.run).ranges == []
                room.master.extend(pool, jobs(tmp_path, 1))
                pool.refresh()
                assert pool.arrived == [0, 1] and pool.result(1) == 8
                take(pool, [1])
                assert read_taken(FILES, room.base, pool.run).ranges == [(0, 2)]


def take(pool: JobPool, numbers: list[int]) -> None:
    """Hand out results that are not kept."""
    for number in numbers:
        pool._forget(number)
    pool._remove_taken()


class TestTheLog:
    """Which records of the append log are given back: only those whose jobs are named as taken."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> FollowedLog:
        return FollowedLog(create_base(tmp_path / "base"))

    def test_a_record_stays_until_all_its_jobs_are_taken(self, log: FollowedLog) -> None:
        log.append((0, 2), (2, 3), (3, 4))
        assert log.remove((0, 1)) == []
        assert log.remove((2, 3)) == [(2, 3)]
        assert log.remove((1, 2)) == [(0, 3)]  # in a row, so it is one stretch

    def test_a_record_that_another_program_wrote_stays(self, log: FollowedLog) -> None:
        log.append((3, 4), (6, 7), (7, 8))
        assert log.remove((0, 1)) == []
        assert log.remove((1, 7)) == [(3, 4), (6, 7)]
        assert read_taken(FILES, log.base, "run").offset == 0

    def test_the_last_record_stays_until_there_is_another(self, log: FollowedLog) -> None:
        log.append((0, 1), (1, 2))
        assert log.remove((0, 2)) == [(0, 1)]
        log.append((2, 3), (3, 4))
        assert log.remove((2, 3)) == [(0, 3)]
        taken = read_taken(FILES, log.base, "run")
        assert (taken.number, taken.offset) == (3, 300)

    def test_what_was_torn_between_two_records_goes_with_them(self, log: FollowedLog) -> None:
        log.remover.logged(0, 1, 64, 100)
        log.remover.logged(1, 2, 300, 400)
        log.remover.logged(2, 3, 400, 500)
        log.remover.remove([(0, 2)])
        assert log.files.given_back == [(0, 400)]

    def test_another_process_goes_on_where_one_has_ended(self, log: FollowedLog) -> None:
        log.append((0, 1), (1, 2))
        assert log.remove((0, 1)) == [(0, 1)]
        log.remover.close()
        log.open()
        log.append((1, 2), (2, 3))
        assert log.remove((1, 2)) == [(0, 2)]

    def test_nothing_is_given_back_before_it_is_named(self, log: FollowedLog) -> None:
        log.append((0, 1), (1, 2))
        log.files.full = True
        with pytest.raises(OSError, match="full"):
            log.remove((0, 1))
        assert log.files.given_back == []
        log.files.full = False
        assert log.remove((0, 1)) == [(0, 1)]


class FollowedLog:
    """An append log of which only is noted what is given back: each job has a hundred bytes."""

    def __init__(self, base: Base) -> None:
        self.base = base
        os.mkdir(base.run_folder("run"))
        self.files = Noting()
        self.open()

    def open(self) -> None:
        self.remover = ResultRemover(self.files, self.base, "run", durable=False)
        assert self.remover.begin()

    def append(self, *records: tuple[int, int]) -> None:
        for number, stop in records:
            self.remover.logged(number, stop, 100 * number, 100 * stop)

    def remove(self, *parcels: tuple[int, int]) -> list[tuple[int, int]]:
        """Remove results; which jobs were given back."""
        self.files.given_back.clear()
        self.remover.remove(parcels)
        return [(at // 100, end // 100) for at, end in self.files.given_back]


class Noting(LocalFiles):
    """Files that note what is given back, on a disk that may be full."""

    def __init__(self) -> None:
        super().__init__()
        self.given_back: list[tuple[int, int]] = []
        self.full = False

    def move(self, source: str, target: str) -> None:
        if self.full:
            raise OSError("full")
        super().move(source, target)

    def make_append_file(self, path: str) -> LocalAppendFile:
        file = super().make_append_file(path)
        file.give_back = lambda at, end: self.given_back.append((at, end))  # type: ignore[method-assign]
        return file
