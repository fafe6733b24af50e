"""Runs that are over go as the base's retention says, and no others."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom import master
from postroom.dispatch.old_runs import QUIET_S, OldRuns, plan
from postroom.errors import RunRemovedError
from postroom.jobs import Job, JobPool
from postroom.master import Master
from postroom.queue.notices import Notice, save_notice
from postroom.store.files import LocalFiles, SystemClock
from postroom.store.job_ids import JobId
from postroom.store.journal import Journal
from postroom.store.retention import Retention, RetentionSettings
from postroom.store.runs import list_runs
from postroom.store.usage import BaseUsage, RunUsage
from tests.in_one_process import InOneProcess, in_one_process
from tests.queue.kit import queue

FILES = LocalFiles()
KERNELS = "def double(x):\n    return x * 2\n"
NOTHING = Retention(0.0, None)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[InOneProcess]:
    with in_one_process(tmp_path, KERNELS) as opened:
        yield opened


def run(room: InOneProcess, count: int = 2) -> JobPool:
    return room.run([Job("kernels:double", x=n) for n in range(count)])


def remover(room: InOneProcess, kept: Retention = NOTHING, steps: int = 10**6) -> OldRuns:
    """Remove what may go, in so many steps; the Master of the room acts."""
    acting = room.master
    if not acting.acting:
        acting.step(time.monotonic())
    acting._let_go_of_dropped()
    old_runs = OldRuns(
        FILES,
        room.base,
        clock=SystemClock(),
        journal=Journal(room.base, "test"),
        retention=lambda: kept,
        is_awaited=acting._dispatcher.is_awaited,  # type: ignore[union-attr]
    )
    for _ in range(steps):
        if not old_runs.step(0.0):
            break
    return old_runs


def runs(room: InOneProcess) -> list[str]:
    return list_runs(FILES, room.base)


def anything_of(room: InOneProcess, run: str) -> list[str]:
    return [str(path) for path in Path(room.base.root).rglob(f"*{run}*")]


class TestWhatGoes:
    def test_a_run_whose_pool_was_dropped_goes_with_all_that_it_has(
        self, room: InOneProcess
    ) -> None:
        name = run(room).run
        gc.collect()
        remover(room)
        assert anything_of(room, name) == [] and os.listdir(room.base.trash) == []

    def test_a_run_stays_while_its_program_has_the_pool(self, room: InOneProcess) -> None:
        pool = run(room)
        remover(room)
        assert pool.results() == [0, 2]
        room.master.close()
        with Master(room.base.root) as other:  # the pool outlives its Master
            other.step(time.monotonic())
            room.master = other
            remover(room)
            assert runs(room) == [pool.run] and pool.results() == [0, 2]
            del pool
            gc.collect()
            remover(room)
            assert runs(room) == []

    def test_a_run_that_another_program_has_resumed_stays(self, room: InOneProcess) -> None:
        name = run(room).run
        gc.collect()
        with Master(room.base.root, import_folder="/") as reader:
            pool = reader.resume(name)
            reader._release(pool)
            remover(room)
            assert pool.results() == [0, 2]
            del pool
            gc.collect()
            reader._let_go_of_dropped()
            remover(room)
            assert runs(room) == []

    def test_files_to_write_over_go_with_the_program_that_had_them(
        self, room: InOneProcess
    ) -> None:
        pool = run(room)
        spare, other = Path(room.base.spare(pool.run)), Path(room.base.temporary())
        own = Path(room.base.recycled(pool.info.program))
        dead = Path(room.base.recycled("0123456789ab"))
        for path in (spare, other, own, dead):
            path.touch()
        remover(room)
        assert spare.exists() and own.exists() and not dead.exists()
        del pool  # as if its program had been killed
        gc.collect()
        remover(room, Retention(None, None))
        assert not spare.exists() and other.exists()

    def test_what_is_unfinished_or_promised_stays(self, room: InOneProcess) -> None:
        keep = room.finish(room.master.submit_all([Job("kernels:double", x=1)], keep=True)).run
        room.inboxes, busy = [], room.inboxes
        unfinished = room.master.start([Job("kernels:double", x=1)]).run
        gc.collect()
        room.master._wanted.pop(unfinished).release()
        remover(room)
        assert runs(room) == sorted([keep, unfinished])
        room.inboxes = busy

    def test_what_a_job_waits_for_stays(self, room: InOneProcess) -> None:
        name = run(room).run
        gc.collect()
        queue(room.base, "later", held=True, after=(JobId(name, 0),))
        remover(room)
        assert name in runs(room)

    def test_what_a_message_is_due_about_stays(self, room: InOneProcess) -> None:
        name = run(room).run
        gc.collect()
        save_notice(FILES, room.base, Notice("echo", name), token="t")
        remover(room)
        assert runs(room) == [name]

    def test_a_run_that_got_a_job_meanwhile_stays(self, room: InOneProcess) -> None:
        name = run(room).run
        gc.collect()
        old_runs = remover(room, Retention(1e9, None))
        pool = room.master.resume(name)
        room.master.extend(pool, [Job("kernels:double", x=1)])
        room.master._release(pool)
        usage = BaseUsage(runs={name: RunUsage(True, "", jobs=2)})
        assert not old_runs._close(name, usage.runs[name]) and runs(room) == [name]

    def test_whoever_resumes_a_removed_run_is_told(self, room: InOneProcess) -> None:
        pool = run(room)
        room.master._release(pool)
        Path(room.base.closed(pool.run)).touch()
        with pytest.raises(RunRemovedError, match="postroom retention"):
            room.master.resume(pool.run)


class TestPlan:
    RUNS = {  # noqa: RUF012
        name: RunUsage(True, "", jobs=1, ended_at=at, results=nbytes)
        for name, at, nbytes in (("c", 3000.0, 50), ("a", 1000.0, 20), ("b", 2000.0, 30))
    }

    def going(self, kept: Retention, now: float = 1e6) -> list[str]:
        found = plan(BaseUsage(runs=self.RUNS), kept, now)
        return [one.run for one in found if one.over_limit or one.at <= now]

    def test_the_oldest_go_first_until_the_rest_fits(self) -> None:
        assert self.going(Retention(None, 80)) == ["a"]
        assert self.going(Retention(None, 79)) == ["a", "b"]
        assert self.going(Retention(None, 100)) == []
        assert self.going(Retention(None, None)) == []

    def test_what_is_too_old_goes(self) -> None:
        assert self.going(Retention(500.0, None), now=2400.0) == ["a"]
        assert self.going(Retention(500.0, 80), now=2400.0) == ["a"]

    def test_a_run_that_has_just_ended_stays_however_large_it_is(self) -> None:
        assert self.going(Retention(None, 0), now=3000.0 + QUIET_S / 2) == ["a", "b"]

    def test_runs_of_the_queue_and_unfinished_ones_neither_go_nor_count(self) -> None:
        others = {
            "queue": RunUsage(False, "", jobs=1, results=10**9),
            "open": RunUsage(True, "", results=10**9),
        }
        assert plan(BaseUsage(runs=others), Retention(0.0, 0), 1e6) == []


class TestALittleAtATime:
    def test_a_step_is_short_however_much_there_is(self, room: InOneProcess) -> None:
        name = run(room).run
        gc.collect()
        for number in range(500):
            Path(room.base.result_folder(name), f"{number:09d}.pickle").touch()
        old_runs, steps = remover(room, steps=1), 0
        while old_runs.step(0.0):
            steps += 1
        assert steps > 500 and anything_of(room, name) == []

    def test_whenever_it_is_killed_the_next_one_finishes(self, tmp_path: Path) -> None:
        steps, left = 0, True
        while left:
            steps += 3
            (folder := tmp_path / str(steps)).mkdir()
            with in_one_process(folder, KERNELS) as room:
                name = run(room).run
                gc.collect()
                remover(room, steps=steps)
                left = bool(anything_of(room, name))
                remover(room)
                assert anything_of(room, name) == [] and os.listdir(room.base.trash) == []
        assert steps > 12

    def test_a_master_removes_when_it_is_closed(
        self, room: InOneProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(master, "CLOSING_S", 60.0)
        room.master._keep = RetentionSettings(0.0)
        name = run(room).run
        gc.collect()
        with room.master._guard:
            if room.master._old_runs is None:  # nobody has used it for half a second
                room.master._try_to_act()
            room.master._old_runs._survey_at = 0.0  # type: ignore[union-attr]
            room.master.close()
        assert runs(room) == [] and anything_of(room, name) == []


def test_locks_of_programs_that_are_gone_go(room: InOneProcess) -> None:
    run(room)
    with Master(room.base.root) as other:
        other._token()
        assert len(os.listdir(room.base.programs)) == 2
        remover(room)
        assert len(os.listdir(room.base.programs)) == 2
    remover(room)
    assert len(os.listdir(room.base.programs)) == 1
