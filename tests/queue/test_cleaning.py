"""Finished runs are removed as a whole, and no job that was accepted is ever lost by that."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from postroom.errors import OtherVersionError, RunRemovedError
from postroom.jobs import Job
from postroom.queue.actions import clean
from postroom.queue.cleaning import runs_in_use
from postroom.queue.notices import Notice, save_notice
from postroom.queue.queue_view import QueueView
from postroom.queue.run_reader import RunReader, SheetCache
from postroom.store import removal, runs
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.removal import remove_run, sweep
from postroom.store.runs import create_run, list_runs
from tests.in_one_process import in_one_process
from tests.queue.kit import FILES, end, make_old, queue

OPERATIONS = [
    "write_new", "publish", "names", "read", "view", "tail", "exists", "make_folder", "move",
    "remove", "remove_tree", "touch", "sync_file", "sync_folder", "try_lock", "make_append_file",
    "open_append_file",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, and the power stays: nothing need be synced."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)


class Killed(BaseException):
    """What a process does next after kill -9: nothing."""


class Watched(LocalFiles):
    """Does something before one operation, and is killed before another."""

    def __init__(
        self, *, meet_at: int = -1, meet: Callable[[], object] = list, die_at: int = -1
    ) -> None:
        super().__init__()
        self.n = 0
        self._meet_at, self._meet, self._die_at = meet_at, meet, die_at

    def before(self, operation: str, path: str) -> None:
        self.n += 1
        if self.n == self._meet_at:
            self._meet()
        if self._die_at >= 0 and self.n >= self._die_at:
            if operation == "remove_tree" and self.n == self._die_at:
                for file in list(Path(path).rglob("*"))[:1]:  # half of it is gone
                    with contextlib.suppress(OSError):
                        file.unlink()
            raise Killed


def _watched(operation: str) -> Callable[..., Any]:
    original = getattr(LocalFiles, operation)

    def call(self: Watched, path: str, *arguments: Any, **options: Any) -> Any:
        self.before(operation, path)
        answer = original(self, path, *arguments, **options)
        return sorted(answer) if operation == "names" else answer  # "closed" before "jobs.log"

    return call


for _operation in OPERATIONS:
    setattr(Watched, _operation, _watched(_operation))


def clean_all(base: Base, files: LocalFiles = FILES) -> list[str]:
    with QueueView(base, files=files) as view:
        return clean(view, older_than_s=60).runs


def finished_run(base: Base, project: str = "p") -> JobId:
    """A run that is over for long, and has left something in every folder."""
    (job,) = queue(base, "old", project=project)
    end(base, job)
    Path(base.job_folder(job.run, 0)).mkdir(parents=True)
    Path(base.job_folder(job.run, 0), ".OUT").write_text("hello")
    Path(base.attempt(job.run, 0, 1)).write_text("{}")
    Path(base.code_snapshot(job.run, "0" * 32)).write_bytes(b"code")
    assert any(name.endswith(".env") for name in os.listdir(base.run_folder(job.run)))
    Path(base.result_cache(job.run)).write_text("{}")
    make_old(base, job.run)
    return job


def left_of(base: Base, run: str) -> list[str]:
    """Every path of the base that names a run."""
    return sorted(str(path) for path in Path(base.root).rglob(f"*{run}*"))


def states(base: Base) -> dict[str, str]:
    with QueueView(base) as view:
        return {row.name: row.state for row in view.jobs().jobs}


def each_operation(tmp_path: Path, act: Callable[[Base, int], int]) -> int:
    """Do something before the first operation of a cleaning, the second, and so on to its last."""
    at = 1
    while at <= act(create_base(tmp_path / f"base{at}"), at):
        at += 1
    assert at > 20, "a cleaning has more operations than that"
    return at


def test_whenever_it_is_killed_the_next_one_finishes_and_no_job_is_lost(tmp_path: Path) -> None:
    def act(base: Base, at: int) -> int:
        old = finished_run(base)
        files = Watched(die_at=at)
        with contextlib.suppress(Killed):
            clean_all(base, files)
        (late,) = queue(base, "late")
        make_old(base, late.run)
        clean_all(base)
        assert states(base)["late"] == "queued", at
        if late.run != old.run:
            assert left_of(base, old.run) == [], at
        else:  # it had not been closed: now it is kept by its new job
            end(base, late)
            make_old(base, late.run)
            assert clean_all(base) == [old.run] and left_of(base, old.run) == [], at
        assert os.listdir(base.trash) == [], at
        return files.n

    each_operation(tmp_path, act)


@pytest.mark.parametrize("more", [None, 0, 1, 3])
def test_a_job_that_is_submitted_meanwhile_is_never_lost(tmp_path: Path, more: int | None) -> None:
    """`more`: after so many further operations the cleaner is killed."""

    def act(base: Base, at: int) -> int:
        old = finished_run(base)
        files = Watched(
            meet_at=at,
            meet=lambda: queue(base, "late"),
            die_at=-1 if more is None else at + more,
        )
        with contextlib.suppress(Killed):
            clean_all(base, files)
        if files.n < at:
            return files.n
        assert states(base)["late"] == "queued", at
        for _ in range(2):
            clean_all(base)
            assert states(base)["late"] == "queued", at
        assert os.listdir(base.trash) == [], at
        assert ("old" in states(base)) == bool(left_of(base, old.run)), at
        with QueueView(base) as view:
            (late,) = (row for row in view.jobs().jobs if row.name == "late")
            assert view.environment(JobId(late.run, late.number)), at
        return files.n

    each_operation(tmp_path, act)


@pytest.mark.parametrize("die", [False, True])
def test_two_cleanings_at_once_lose_nothing(tmp_path: Path, die: bool) -> None:
    def act(base: Base, at: int) -> int:
        old = finished_run(base, project="q")
        finished_run(base)

        def meet() -> None:
            queue(base, "late")
            clean_all(base)

        files = Watched(meet_at=at, meet=meet, die_at=at + 1 if die else -1)
        with contextlib.suppress(Killed):
            clean_all(base, files)
        if files.n < at:
            return files.n
        clean_all(base)
        assert states(base)["late"] == "queued", at
        assert left_of(base, old.run) == [] and os.listdir(base.trash) == [], at
        return files.n

    each_operation(tmp_path, act)


def test_a_run_is_not_removed_while_a_job_is_submitted_that_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "PATIENCE_S", 0.0)

    def act(base: Base, at: int) -> int:
        old = finished_run(base)
        told: list[JobId] = []

        def meet() -> None:
            with contextlib.suppress(RunRemovedError):
                told.extend(queue(base, "next", project="q", after=(old,)))

        files = Watched(meet_at=at, meet=meet)
        clean_all(base, files)
        there = old.run in list_runs(FILES, base)
        assert there == bool(told) or files.n < at, at
        return files.n

    each_operation(tmp_path, act)


def test_who_submits_does_not_wait_for_a_cleaner_that_is_stopped(base: Base) -> None:
    old = finished_run(base)
    lock = FILES.try_lock(base.wanted(old.run))
    assert lock is not None
    (job,) = queue(base, "late")
    assert job.run != old.run
    lock.release()


def test_a_run_that_somebody_appends_to_stays(base: Base) -> None:
    old = finished_run(base)
    lock = FILES.try_lock(base.wanted(old.run), shared=True)
    assert lock is not None
    assert clean_all(base) == []
    lock.release()
    assert clean_all(base) == [old.run]


def test_a_job_that_is_appended_at_the_last_moment_stays(base: Base, view: QueueView) -> None:
    (job,) = queue(base, "a")
    end(base, job)
    (late,) = queue(base, "late")
    assert late.run == job.run
    assert not remove_run(FILES, base, job.run, jobs=1)
    assert not remove_run(FILES, base, job.run, jobs=2)
    assert [(row.name, row.state) for row in view.jobs().jobs] == [("late", "queued"), ("a", "ok")]


def test_a_run_that_other_jobs_wait_for_stays(base: Base, view: QueueView) -> None:
    job = finished_run(base)
    queue(base, "b", project="q", after_any=(job,))
    assert runs_in_use(view.read_state(), FILES, base) == {job.run}
    assert clean_all(base) == []


@pytest.mark.parametrize("what", ["run", "notice"])
def test_nothing_is_removed_while_a_later_version_may_need_it(base: Base, what: str) -> None:
    """A job that this version cannot read may wait for any other."""
    (job,) = queue(base, "a")
    end(base, job)
    (later,) = queue(base, "b", project="later")
    path = base.run_info(later.run)
    if what == "notice":
        token = save_notice(FILES, base, Notice("true", job.run))
        path = f"{base.control}/notice.{token}.json"
    Path(path).write_text(Path(path).read_text().replace('"version": 1', '"version": 2'))
    make_old(base, job.run)
    with QueueView(base) as view, pytest.raises(OtherVersionError):
        clean(view, older_than_s=60)
    assert job.run in list_runs(FILES, base)


def test_a_run_with_a_message_that_is_not_sent_stays(base: Base) -> None:
    job = finished_run(base)
    token = save_notice(FILES, base, Notice("true", job.run))
    assert clean_all(base) == []
    Path(base.control, f"notice.{token}.done").touch()
    assert clean_all(base) == [job.run]


def test_a_run_with_a_result_that_cannot_be_read_stays(base: Base) -> None:
    job = finished_run(base)
    path = Path(base.result(job.run, 0))
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-7])
    make_old(base, job.run)
    assert not remove_run(FILES, base, job.run, jobs=1)


def test_a_cleaning_that_was_interrupted_goes_before_the_age_of_runs(base: Base) -> None:
    old = finished_run(base)
    Path(base.closed(old.run)).touch()
    with QueueView(base) as view:
        assert clean(view, older_than_s=1e9).runs == []
    assert left_of(base, old.run) == [] and os.listdir(base.trash) == []


def test_what_cannot_be_deleted_is_said_and_tried_again(
    base: Base, view: QueueView, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = finished_run(base)

    def refuse(self: LocalFiles, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "remove_tree", refuse)
        for _ in range(2):
            assert "Permission denied" in clean(view, older_than_s=60).text
    clean_all(base)
    assert left_of(base, old.run) == []


def test_a_run_that_is_being_made_is_not_removed(base: Base) -> None:
    for folder in (base.result_folder("new"), base.attempts("new")):
        os.mkdir(folder)
    sweep(FILES, base, now=time.time())
    assert os.path.isdir(base.result_folder("new"))
    sweep(FILES, base, now=time.time() + 2 * removal.LEFT_S)
    assert not os.path.isdir(base.result_folder("new"))


@pytest.mark.parametrize("how", ["one by one", "in a list"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_run_that_was_appended_to_meanwhile_stays(tmp_path: Path, how: str, keep: bool) -> None:
    with in_one_process(tmp_path, "def double(x):\n    return x * 2\n") as running:
        jobs = [Job("kernels:double", x=1)]
        master = running.master
        pool = master.open(keep=keep) if how == "one by one" else master.submit_all(jobs, keep=keep)
        pool.submit(jobs[0])
        running.finish(pool)
        reader = RunReader(FILES, running.base, pool.run, SheetCache(), SheetCache())
        reader.refresh()
        pool.submit(Job("kernels:double", x=2))
        running.finish(pool)
        if not keep:
            master.close()
        assert not remove_run(running.files, running.base, pool.run, jobs=reader.asked)
        assert running.files.exists(running.base.run_folder(pool.run))
        reader.refresh()
        assert remove_run(running.files, running.base, pool.run, jobs=reader.asked)
        assert not running.files.exists(running.base.run_folder(pool.run))
        if keep:
            with pytest.raises(RunRemovedError, match="was removed, by `postroom clean`"):
                pool.submit(Job("kernels:double", x=3))
        assert not running.files.exists(running.base.run_folder(pool.run))


class TestSharedData:
    @staticmethod
    def put(running: Any, shared: object) -> tuple[str, Path]:
        pool = running.master.submit_all([Job("kernels:add", x=1)], shared=shared)
        running.finish(pool)
        path = Path(running.base.data(pool.info.shared))
        assert path.exists()
        return pool.run, path

    def test_data_goes_when_no_run_refers_to_it_any_more(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, "def add(x, shared):\n    return x + shared\n") as running:
            base, later = running.base, time.time() + 2 * removal.LEFT_S
            (run, path), (_, other) = self.put(running, 1), self.put(running, 2)
            assert removal.remove_unused_data(FILES, base, now=later) == 0
            running.master.close()
            assert remove_run(FILES, base, run, jobs=1)
            assert removal.remove_unused_data(FILES, base, now=time.time()) == 0, "it is new"
            lock = FILES.try_lock(base.data_lock, shared=True)
            assert lock is not None
            assert removal.remove_unused_data(FILES, base, now=later) == 0, "a run is begun"
            lock.release()
            assert removal.remove_unused_data(FILES, base, now=later) == 1
            assert not path.exists() and other.exists()

    def test_data_stays_while_a_run_is_begun_that_refers_to_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with in_one_process(tmp_path, "def add(x, shared):\n    return x + shared\n") as running:
            later = time.time() + 2 * removal.LEFT_S
            create = create_run

            def clean_first(*arguments: Any) -> None:
                removal.remove_unused_data(FILES, running.base, now=later)
                create(*arguments)

            monkeypatch.setattr("postroom.master.create_run", clean_first)
            self.put(running, 1)

    def test_nothing_goes_while_a_run_cannot_be_read(self, tmp_path: Path) -> None:
        with in_one_process(tmp_path, "def add(x, shared):\n    return x + shared\n") as running:
            run, path = self.put(running, 1)
            running.master.close()
            Path(running.base.run_info(run)).write_text("{")
            later = time.time() + 2 * removal.LEFT_S
            assert removal.remove_unused_data(FILES, running.base, now=later) == 0
            assert path.exists()


def test_old_files_that_were_never_finished_are_removed_and_new_ones_and_folders_stay(
    base: Base,
) -> None:
    Path(base.temporary()).write_bytes(b"a snapshot whose submitter was killed")
    os.mkdir(outbox := base.new_outbox("0"))
    sweep(FILES, base, now=time.time() + 80_000)
    assert len(os.listdir(base.tmp)) == 2
    sweep(FILES, base, now=time.time() + 90_000)
    assert os.listdir(base.tmp) == [os.path.basename(outbox)]
