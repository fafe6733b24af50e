from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from postroom.dispatch import job_writer
from postroom.dispatch.dispatcher import FEW_JOBS
from postroom.dispatch.job_writer import put_data
from postroom.dispatch.registry import RESTING
from postroom.dispatch.run_queue import LEAST_S
from postroom.errors import JobFailed, KernelError, PostroomError
from postroom.jobs import Job, JobPool, SubmittedJob
from postroom.master import Master
from postroom.parcel.sheets import unpack_data
from postroom.session.inbox import Step
from postroom.store.append_log import logged_until
from postroom.store.base import create_base
from postroom.store.files import LocalFiles, Lock
from postroom.store.runs import list_firsts
from postroom.testing import wait_until
from tests.in_one_process import InOneProcess, in_one_process

KERNELS = """
def double(x):
    return x * 2

def broken(x):
    return 1 / x
"""


def work(room: InOneProcess) -> None:
    for inbox in room.inboxes:
        while inbox.step() is Step.WORKED:
            pass


def test_jobs_submitted_one_by_one_come_back_by_their_receipts(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=2) as room:
        pool = room.master.open(project="sweep")
        receipts = [pool.submit(Job("kernels:double", x=n)) for n in range(50)]
        assert [receipt.number for receipt in receipts] == list(range(50))
        room.finish(pool)
        assert [receipt.result() for receipt in receipts] == [2 * n for n in range(50)]
        assert all(receipt.done() for receipt in receipts)


def test_a_job_is_on_disk_when_submit_returns(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
        pool = room.master.open()
        for number in range(3):
            pool.submit(Job("kernels:double", x=number))
            assert logged_until(room.files, room.base.append_log(pool.run)) == number + 1


def test_a_run_that_was_submitted_as_a_list_can_be_appended_to(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.run([Job("kernels:double", x=n) for n in range(3)])
        receipt = pool.submit(Job("kernels:double", x=3))
        assert not pool.done and not receipt.done()
        room.finish(pool)
        assert receipt.result() == 6
        assert pool.results() == [0, 2, 4, 6]


def test_an_idle_agent_gets_a_job_while_others_are_still_submitted(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.open()
        room.master.step(1.0)
        first = pool.submit(Job("kernels:double", x=1))
        work(room)
        pool.submit(Job("kernels:double", x=2))
        assert first.done()


def test_a_receipt_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=0) as room:
        receipt = room.master.open().submit(Job("kernels:double", x=1))
        with pytest.raises(TimeoutError, match=r"job 0 of run .* is not done"):
            receipt.result(timeout_s=0.01)


def test_a_failed_job_raises_at_its_receipt_and_at_no_other(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.open()
        good, bad = (pool.submit(Job("kernels:broken", x=x)) for x in (2, 0))
        room.finish(pool)
        assert good.result() == 0.5
        with pytest.raises(JobFailed, match="ZeroDivisionError"):
            bad.result()


def test_what_cannot_run_is_refused_at_submit(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.open()
        with pytest.raises(KernelError, match="does not define 'absent'"):
            pool.submit(Job("kernels:absent"))
        with pytest.raises(PostroomError, match="is not a Job"):
            pool.submit("kernels:double")  # type: ignore[arg-type]
        assert len(pool) == 0


def test_jobs_that_others_append_to_the_same_run_join_the_pool(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        pool = room.master.open()
        pool.submit(Job("kernels:double", x=0))
        with Master(room.base.root, import_folder=str(room.import_folder)) as rival:
            theirs = rival.resume(pool.run)
            assert theirs.submit(Job("kernels:double", x=10)).number == 1
            ours = pool.submit(Job("kernels:double", x=20))
            assert ours.number == 2
            room.finish(pool)
            assert pool.results() == [0, 20, 40]
            theirs.refresh()
            assert SubmittedJob(theirs, 1).result() == 20


def test_an_open_run_survives_the_death_of_its_submitter(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        run = room.master.open().submit(Job("kernels:double", x=4)).pool.run
        pool = room.master.resume(run)
        assert room.finish(pool).results() == [8]


def test_a_letter_reaches_over_parcels_and_their_options_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine jobs that do nothing seem to take long.
    monkeypatch.setattr("postroom.dispatch.run_queue.LETTER_S", 1e6)
    with in_one_process(tmp_path, KERNELS) as room:
        room.run([Job("kernels:double", x=0)])
        pool = room.master.open()
        room.finish(pool.submit(Job("kernels:double", x=0)).pool)
        room.inboxes[0].step()
        plain = [Job("kernels:double", x=n) for n in range(1, 6)]
        odd = [
            Job("kernels:double", x={1, 2}).options(pickle=True),
            Job("kernels:broken", x=0).options(retries=1),
        ]
        for job in [*plain, *odd, *plain]:
            pool.submit(job)
        room.finish(pool)
        results = pool.results(return_exceptions=True)
        assert results[1:6] == results[8:] == [2, 4, 6, 8, 10]
        assert [failure.args[0].split(":")[0] for failure in pool.failures()] == [
            "job 6 failed",
            "job 7 failed",
        ]
        sent = len(list_firsts(room.files, room.base.result_folder(pool.run)))
        assert sent < len(pool), "jobs submitted one by one share letters and results"


def test_old_runs_are_not_looked_at_for_each_new_one(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        looked: list[str] = []
        try_lock = room.master._files.try_lock

        def count(path: str, *, shared: bool = False) -> Lock | None:
            if path.endswith("/wanted.lock") and not shared:
                looked.append(path)
            return try_lock(path, shared=shared)

        room.master._files.try_lock = count  # type: ignore[method-assign]
        for number in range(3 * RESTING):
            room.run([Job("kernels:double", x=number)])
        looked.clear()
        room.run([Job("kernels:double", x=1)])
        assert len(looked) <= 2 * (RESTING + 1)


def test_an_old_run_that_is_taken_up_again_is_served(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS) as room:
        old = [room.run([Job("kernels:double", x=n)]) for n in range(2 * RESTING)]
        with Master(room.base.root, import_folder=str(room.import_folder)) as other:
            theirs = other.resume(old[3].run)
            receipt = theirs.submit(Job("kernels:double", x=21))
            wait_until(lambda: serve(room, theirs))
            assert receipt.result() == 42


def serve(room: InOneProcess, pool: JobPool) -> bool:
    """One round of the acting Master, its inboxes, and the Master that waits."""
    for _ in room.master.rounds(pool, timeout_s=0.01, until=lambda: False):
        work(room)
    pool.refresh()
    return pool.done


def test_shared_data_is_written_once_and_named_by_its_content(tmp_path: Path) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    table = np.arange(100_000.0)
    name = put_data(files, base, {"table": table}, durable=False)
    assert name is not None
    assert put_data(files, base, {"table": table.copy()}, durable=False) == name
    other = put_data(files, base, {"table": table + 1}, durable=False)
    assert other is not None and other != name
    assert sorted(os.listdir(tmp_path / "base/data")) == sorted([f"{name}.npz", f"{other}.npz"])
    assert put_data(files, base, None, durable=False) is None


def test_different_data_never_shares_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_writer, "DIGEST_DIGITS", 0)  # as if all checksums were alike
    base, files = create_base(tmp_path / "base"), LocalFiles()
    values = [{"k": 1}, {"k": 2}, np.zeros(100_000), np.ones(100_000), np.zeros(100_001)]
    names = [put_data(files, base, value, durable=False) for value in values]
    assert len(set(names)) == len(values)
    assert [put_data(files, base, value, durable=False) for value in values] == names
    for name, value in zip(names, values, strict=True):
        assert name is not None
        path = base.data(name)
        np.testing.assert_equal(unpack_data(path, files.view(path, 1 << 30)), value)


def test_data_that_a_power_loss_has_torn_is_written_anew(tmp_path: Path) -> None:
    base, files = create_base(tmp_path / "base"), LocalFiles()
    table = np.arange(100_000.0)
    torn = put_data(files, base, table, durable=False)
    assert torn is not None
    for size in (500_000, 0):
        os.truncate(base.data(torn), size)
        name = put_data(files, base, table, durable=False)
        assert name is not None and name != torn
        np.testing.assert_array_equal(
            unpack_data(name, files.view(base.data(name), 1 << 30)), table
        )


def test_the_data_of_a_durable_run_is_synced_no_matter_who_wrote_it(tmp_path: Path) -> None:
    synced: list[str] = []

    class Watching(LocalFiles):
        def sync_file(self, path: str) -> None:
            synced.append(path)
            super().sync_file(path)

    base, files = create_base(tmp_path / "base"), Watching()
    name = put_data(files, base, [1, 2, 3], durable=False)
    assert name is not None and not synced
    assert put_data(files, base, [1, 2, 3], durable=True) == name
    assert synced == [base.data(name)]


def test_the_same_data_put_at_the_same_time_gets_the_same_name(tmp_path: Path) -> None:
    class Blind(LocalFiles):
        def exists(self, path: str) -> bool:
            return False

    base = create_base(tmp_path / "base")
    name = put_data(LocalFiles(), base, [1, 2, 3], durable=False)
    assert put_data(Blind(), base, [1, 2, 3], durable=False) == name
    assert os.listdir(tmp_path / "base/tmp") == []


def test_the_shortest_jobs_wait_for_company_while_another_agent_is_at_work(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNELS, inboxes=2) as room:
        pool = room.master.open()
        room.finish(pool.submit(Job("kernels:double", x=1)).pool)
        dispatcher = room.master._dispatcher
        assert dispatcher is not None
        queue = dispatcher.runs[pool.run].queue

        def letters() -> int:
            return sum(agent.letter is not None for agent in dispatcher.agents.values())

        queue.mean_s = 1e-6
        pool.submit(Job("kernels:double", x=2))
        assert letters() == 1, "nobody is at work: it is sent at once"
        for _ in range(FEW_JOBS - 1):
            pool.submit(Job("kernels:double", x=3))
            assert letters() == 1
        pool.submit(Job("kernels:double", x=4))
        assert letters() == 2, "they are many"
        room.finish(pool)
        queue.mean_s = LEAST_S
        for _ in range(2):
            pool.submit(Job("kernels:double", x=5))
        assert letters() == 2, "they are long"
        assert len(room.finish(pool)) == 1 + 1 + FEW_JOBS + 2
