from __future__ import annotations

import errno
import gc
import json
import os
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom import master
from postroom.dispatch import dispatcher
from postroom.dispatch.job_writer import PARCEL_JOBS
from postroom.dispatch.old_runs import OldRuns
from postroom.errors import (
    BaseFolderError,
    JobFailed,
    KernelError,
    PayloadError,
    PostroomError,
    RunRemovedError,
)
from postroom.jobs import Job
from postroom.master import Master
from postroom.parcel.sheets import Outcome
from postroom.store.files import LocalAppendFile, LocalFiles, SystemClock
from postroom.store.runs import list_firsts, list_runs, publish_results
from postroom.testing import wait_until
from tests.by_hand import results
from tests.in_one_process import in_one_process

DOUBLE = """
def double(x):
    return x * 2
"""


def events(base_root: str, event: str) -> list[dict[str, object]]:
    lines = Path(base_root, "log", "events.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_results_come_back_in_the_order_given(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=3) as room:
        pool = room.run([Job("kernels:double", x=n) for n in range(100)])
        assert pool.results() == [2 * n for n in range(100)]


def test_any_number_of_jobs_runs(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=2) as room:
        assert room.run([]).results() == []
        many = room.run([Job("kernels:double", x=n) for n in range(3 * PARCEL_JOBS + 1)])
        assert many.results() == [2 * n for n in range(3 * PARCEL_JOBS + 1)]
        assert len(list(Path(room.base.run_folder(many.run)).glob("*.npz"))) > 3


def test_duplicate_and_dangerous_names_are_only_labels(tmp_path: Path) -> None:
    names = ["same", "same", "../../escape", "a/b", "", "\x1b[31m\nred", "x" * 10_000]
    with in_one_process(tmp_path, DOUBLE) as room:
        before = sorted(os.listdir(tmp_path))
        pool = room.run(
            [Job("kernels:double", x=n).options(name=name) for n, name in enumerate(names)]
        )
        assert pool.results() == [2 * n for n in range(len(names))]
        assert sorted(os.listdir(tmp_path)) == before


def test_leftovers_of_an_earlier_run_are_never_taken_for_results(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        first = room.run([Job("kernels:double", x=1)])
        second = room.run([Job("kernels:double", x=10)])
        assert (first.results(), second.results()) == ([2], [20])


def test_a_run_is_resumed_and_computes_only_what_is_missing(tmp_path: Path) -> None:
    source = """
    def record(x, path):
        with open(path, "a") as file:
            file.write(f"{x}\\n")
        return x
    """
    seen = tmp_path / "seen"
    with in_one_process(tmp_path, source) as room:
        jobs = [Job("kernels:record", x=n, path=str(seen)).options(name=f"n{n}") for n in range(30)]
        pool = room.master.submit_all(jobs)
        for _ in room.master.rounds(pool):
            room.inboxes[0].step()
            if pool.n_done >= 5:
                break
        room.master.close()
        while room.inboxes[0].at_work:
            room.inboxes[0].step()

        room.master = Master(room.base.root, import_folder=str(room.import_folder))
        again = room.finish(room.master.resume(pool.run))
        assert again.results() == list(range(30))
        assert sorted(map(int, seen.read_text().split())) == list(range(30))
        assert again.jobs[3].name == "n3"
        with pytest.raises(PostroomError, match="nothing to resume"):
            room.master.resume()


def test_the_newest_unfinished_run_is_resumed_when_none_is_named(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        unfinished = room.master.submit_all([Job("kernels:double", x=4)])
        room.master.close()
        room.master = Master(room.base.root, import_folder=str(room.import_folder))
        pool = room.finish(room.master.resume())
        assert (pool.run, pool.results()) == (unfinished.run, [8])


def test_an_unknown_run_is_a_clear_error(tmp_path: Path) -> None:
    with (
        in_one_process(tmp_path, DOUBLE) as room,
        pytest.raises(PostroomError, match=r"no run '\.\./\.\./etc'"),
    ):
        room.master.resume("../../etc")


def test_an_embedded_run_is_served_only_while_somebody_waits_for_it(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        abandoned = room.master.submit_all([Job("kernels:double", x=1)])
        room.master.close()
        room.master = Master(room.base.root, import_folder=str(room.import_folder))
        room.run([Job("kernels:double", x=2)])
        assert list_firsts(room.files, room.base.result_folder(abandoned.run)) == []


def test_a_kept_run_is_served_by_any_acting_master(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        kept = room.master.submit_all([Job("kernels:double", x=1)], keep=True)
        room.master.close()
        room.master = Master(room.base.root, import_folder=str(room.import_folder))
        room.run([Job("kernels:double", x=2) for _ in range(3)])
        assert list_firsts(room.files, room.base.result_folder(kept.run)) == [0]


def test_a_second_master_hands_in_and_takes_over_when_the_first_goes(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        first = room.master
        room.run([Job("kernels:double", x=1)])
        room.master = Master(room.base.root, import_folder=str(room.import_folder))
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(10)])
        room.master.step(0.0)
        assert first.acting and not room.master.acting
        first.close()
        room.finish(pool)
        assert room.master.acting
        assert pool.results() == [2 * n for n in range(10)]


def test_two_masters_share_the_agents_of_one_base(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        acting = room.master
        acting.step(time.monotonic())
        with Master(room.base.root, import_folder=str(room.import_folder)) as other:
            pool = other.submit_all([Job("kernels:double", x=n) for n in range(10)])
            for _ in other.rounds(pool, timeout_s=60):
                acting.step(time.monotonic())
                room.inboxes[0].step()
            assert pool.results() == [2 * n for n in range(10)]
            assert not other.acting


def test_shared_data_is_loaded_once_per_session(tmp_path: Path) -> None:
    source = """
    def pick(n, shared):
        return shared["table"][n]
    """
    with in_one_process(tmp_path, source, inboxes=2) as room:
        shared = {"table": np.arange(200.0)}
        for _ in range(2):
            pool = room.run([Job("kernels:pick", n=n) for n in range(200)], shared)
            assert pool.results() == [float(n) for n in range(200)]
        loads = events(room.base.root, "shared loaded")
        assert len(loads) == len({load["role"] for load in loads}) == 2
        assert len(os.listdir(f"{room.base.root}/data")) == 1


def test_shared_data_is_optional(tmp_path: Path) -> None:
    with in_one_process(
        tmp_path, "def ask(shared, device=0):\n    return [shared, str(device)]\n"
    ) as room:
        assert room.run([Job("kernels:ask")]).results()[0][0] is None


def test_an_edited_kernel_runs_in_its_new_version_without_a_restart(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        assert room.run([Job("kernels:kernel")]).results() == [1]
        room.write_kernels("def kernel():\n    return 2\n")  # same size, same second
        assert room.run([Job("kernels:kernel")]).results() == [2]
        versions = [event["version"] for event in events(room.base.root, "kernel")]
        assert len(set(versions)) == 2


def test_an_edited_module_that_a_kernel_imports_is_reloaded_too(tmp_path: Path) -> None:
    with in_one_process(
        tmp_path, "import helper\ndef kernel():\n    return helper.VALUE\n"
    ) as room:
        (room.import_folder / "helper.py").write_text("VALUE = 1\n")
        assert room.run([Job("kernels:kernel")]).results() == [1]
        (room.import_folder / "helper.py").write_text("VALUE = 2\n")
        assert room.run([Job("kernels:kernel")]).results() == [2]


def test_a_kernel_edited_after_it_was_submitted_is_said_to_be(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        pool = room.master.submit_all([Job("kernels:kernel")])
        room.write_kernels("def kernel():\n    return 2\n")
        room.finish(pool)
        assert "changed after run" in Path(room.base.log).read_text()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("nowhere:kernel", "cannot find 'nowhere'"),
        ("kernels:nothing", "does not define 'nothing'"),
        ("not a task", "module:function"),
        (None, "pass a function"),
    ],
)
def test_a_wrong_task_is_refused_before_anything_is_submitted(
    tmp_path: Path, task: str, message: str
) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        with pytest.raises((KernelError, PostroomError), match=message):
            room.master.submit_all([Job(task, x=1)])
        assert list_runs(room.files, room.base) == []


def test_what_needs_pickle_is_refused_with_its_name_and_nothing_is_left(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        good = [Job("kernels:double", x=n) for n in range(PARCEL_JOBS)]
        with pytest.raises(PayloadError, match=r"^job mine: model is of type object: "):
            room.master.submit_all(
                [*good, Job("kernels:double", model=object()).options(name="mine")]
            )
        endless: list[Any] = []
        endless.append((endless, endless))
        for value, what in [
            (np.float32, "x is the class float32: send its name as text"),
            ({"a": [1, np.dtype("f4")]}, r"x\['a'\]\[1\] is of type Float32DType: send its name"),
            (endless, "x.* does it contain itself"),
        ]:
            with pytest.raises(TypeError, match=f"^job 0: {what}"):
                room.master.submit_all([Job("kernels:double", x=value)])
        assert list_runs(room.files, room.base) == []


def test_pickle_is_used_when_the_job_asks_for_it(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kind(x):\n    return type(x).__name__\n") as room:
        pool = room.run([Job("kernels:kind", x=deque([1])).options(pickle=True)])
        assert pool.results() == ["deque"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def kernel():\n    return object()\n", "result is of type object"),
        ("import sys\ndef kernel():\n    sys.exit(3)\n", "called sys.exit"),
        ("def kernel():\n    raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("def kernel():\n    return kernel()\n", "RecursionError"),
        ("import missing_package\ndef kernel():\n    pass\n", "No module named 'missing_package'"),
    ],
)
def test_a_bad_kernel_fails_its_job_and_nothing_else(
    tmp_path: Path, source: str, message: str
) -> None:
    with in_one_process(tmp_path, source + "def good():\n    return 1\n") as room:
        pool = room.run([Job("kernels:kernel"), Job("kernels:kernel")])
        assert [pool[n].outcome for n in range(2)] == [Outcome.FAILED] * 2
        with pytest.raises(JobFailed, match=message):
            pool.raise_for_failed()
        room.write_kernels("def good():\n    return 1\n")
        assert room.run([Job("kernels:good")]).results() == [1]


def test_a_result_that_cannot_be_saved_spares_its_neighbours(tmp_path: Path) -> None:
    source = "def kernel(n):\n    return {'x': object() if n == 3 else n}\n"
    with in_one_process(tmp_path, source) as room:
        pool = room.run([Job("kernels:kernel", n=n) for n in range(6)])
        results = pool.results(return_exceptions=True)
        assert isinstance(results.pop(3), JobFailed)
        assert results == [{"x": n} for n in range(6) if n != 3]


def test_a_kernel_that_reuses_its_buffer_does_not_spoil_earlier_results(tmp_path: Path) -> None:
    source = """
    import numpy as np
    BUFFER = np.zeros(4)
    def kernel(n):
        BUFFER[:] = n
        return BUFFER
    """
    with in_one_process(tmp_path, source) as room:
        pool = room.run([Job("kernels:kernel", n=n) for n in range(50)])
        assert [int(result[0]) for result in pool.results()] == list(range(50))


def test_large_arguments_reach_the_kernel_as_read_only_maps(tmp_path: Path) -> None:
    source = """
    def kernel(x):
        return [bool(x.flags.writeable), bool(x.flags.owndata), float(x.sum())]
    """
    with in_one_process(tmp_path, source) as room:
        pool = room.run([Job("kernels:kernel", x=np.ones(1 << 20))])
        assert pool.results() == [[False, False, float(1 << 20)]]


def test_large_results_are_read_again_from_disk(tmp_path: Path) -> None:
    source = "import numpy as np\ndef kernel(n):\n    return np.full(1 << 17, n)\n"
    with in_one_process(tmp_path, source) as room:
        pool = room.run([Job("kernels:kernel", n=n) for n in range(5)])
        assert [int(result[-1]) for result in pool.results()] == list(range(5))


def test_garbage_in_the_pools_is_put_aside_and_the_work_goes_on(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=2) as room:
        Path(room.base.mailbox("0")).write_bytes(b"garbage")
        Path(room.base.job_pool, "garbage").write_bytes(b"garbage")
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(10)])
        Path(room.base.run_folder(pool.run), "garbage.npz").write_bytes(b"garbage")
        Path(room.base.result(pool.run, 0)).write_bytes(b"garbage")
        room.finish(pool)
        assert pool.results() == [2 * n for n in range(10)]
        assert any(name.endswith(".reason") for name in os.listdir(room.base.rejected))


def test_a_garbled_parcel_fails_its_own_jobs_only(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(PARCEL_JOBS + 1)])
        path = min(Path(room.base.run_folder(pool.run)).glob("*.npz"))
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        room.finish(pool)
        assert pool.n_failed == PARCEL_JOBS
        assert pool[PARCEL_JOBS].result() == 2 * PARCEL_JOBS


def test_new_agents_get_work_at_once(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(10)])
        room.master.step(0.0)
        room.inboxes.append(room.add_inbox("7"))
        room.finish(pool)
        assert set(pool.agents) == {"7"}


def test_only_jobs_can_be_submitted(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room, pytest.raises(PostroomError, match="not a Job"):
        room.master.submit_all(["echo hello"])  # type: ignore[list-item]


def test_an_idle_master_lets_another_one_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.master.IDLE_S", 3.0)  # on a busy machine, too, it acts at first
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        room.run([Job("kernels:kernel")])
        assert room.master.acting
        wait_until(lambda: not room.master.acting, what="letting go")
        with Master(room.base.root, import_folder=str(room.import_folder)) as other:
            other.step(0.0)
            assert other.acting
        # ... and takes the base again when there is something to do.
        assert room.run([Job("kernels:kernel")]).results() == [1]


def test_a_master_that_is_waited_in_does_not_let_go(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n", inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:kernel")])
        for _ in room.master.rounds(pool, timeout_s=0.01):
            assert not room.master.let_go()
        assert room.master.let_go()
        assert not room.master.acting


def test_a_master_may_be_used_from_any_thread(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def double(x):\n    return 2 * x\n", inboxes=2) as room:
        stop = threading.Event()
        results: dict[int, list[int]] = {}

        def work() -> None:
            while not stop.is_set():
                for inbox in room.inboxes:
                    inbox.step()

        def use(number: int) -> None:
            for round_ in range(10):
                jobs = [Job("kernels:double", x=100 * number + n) for n in range(5)]
                results[10 * number + round_] = room.master.run(jobs).results()

        worker = threading.Thread(target=work)
        users = [threading.Thread(target=use, args=[number]) for number in range(4)]
        for thread in (worker, *users):
            thread.start()
        for thread in users:
            thread.join()
        stop.set()
        worker.join()
        assert results == {
            10 * number + round_: [2 * (100 * number + n) for n in range(5)]
            for number in range(4)
            for round_ in range(10)
        }


def test_a_closed_master_says_so_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        master = Master(room.base.root, import_folder=str(room.import_folder))
        pool = master.open()
        master.close()
        for call in (
            lambda: master.run([Job("kernels:kernel")]),
            lambda: master.open(),
            lambda: pool.submit(Job("kernels:kernel")),
            lambda: master.resume(pool.run),
            lambda: master.step(0.0),
        ):
            with pytest.raises(PostroomError, match="closed"):
                call()
        assert list_runs(room.files, room.base) == [pool.run]


def test_runs_that_are_done_keep_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.master.IDLE_S", 60.0)  # it keeps its lock and its mailboxes
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        for _ in range(5):  # each inbox keeps one log open, of the run that it served last
            room.run([Job("kernels:kernel") for _ in range(20)])
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        kept = weakref.ref(room.run([Job("kernels:kernel")]))
        for _ in range(50):
            room.run([Job("kernels:kernel")])
        assert len(os.listdir("/proc/self/fd")) == before
        gc.collect()
        assert kept() is None
        pool = room.run([Job("kernels:kernel")])
        pool.submit(Job("kernels:kernel"))  # a run that was done is taken up again
        assert room.finish(pool).results() == [1, 1]


def test_a_run_costs_the_same_however_many_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "LIST_S", 1e9)
    # Which runs are too old is looked up once a minute, by a thread that a busy machine delays.
    monkeypatch.setattr(OldRuns, "step", lambda *_: False)
    looked: list[str] = []

    def record(name: str) -> None:
        real = getattr(LocalFiles, name)

        def looking(files: LocalFiles, path: str, *rest: Any, **options: Any) -> Any:
            looked.append(path)
            return real(files, path, *rest, **options)

        monkeypatch.setattr(LocalFiles, name, looking)

    for name in ("names", "read", "view", "tail", "exists", "try_lock"):
        record(name)
    with in_one_process(tmp_path, DOUBLE) as room:
        made = [room.run([Job("kernels:double", x=n)]).run for n in range(20)]
        acting = room.master._dispatcher
        assert acting is not None and len(acting.runs) <= 1
        for lets_go in (False, True):
            for _ in range(3):  # take the events of all runs so far
                room.master._pause(0.0, 0.0)
                room.master.step(0.0)
            if lets_go:
                assert room.master.let_go()
            looked.clear()
            made.append(room.run([Job("kernels:double", x=0)]).run)
            seen = [run for run in made[:-2] if any(run in path for path in looked)]
            assert not seen, "what is over is not looked at again"
            assert looked.count(room.base.job_pool) == lets_go


@pytest.mark.parametrize("refresh_s", [0.0, 1.0])
def test_who_waits_beside_an_acting_master_hears_of_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh_s: float
) -> None:
    monkeypatch.setattr(master, "REFRESH_S", refresh_s)
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room, Master(room.base.root) as other:
        room.master.step(time.monotonic())
        other.import_folder = room.master.import_folder
        pool = other.submit_all([Job("kernels:double", x=4)])
        with pytest.raises(TimeoutError, match="jobs of run"):
            other.wait(pool, timeout_s=0.01)
        assert not other.acting
        # From now on nothing but the event of the result tells.
        monkeypatch.setattr(master, "STAND_BY_S", 1e5)
        waiting = threading.Thread(target=other.wait, args=(pool,), daemon=True)
        waiting.start()
        wait_until(lambda: other._waiter._followed)
        publish_results(room.files, room.base, pool.info, 0, 1, lambda first: results(first, [8]))
        wait_until(lambda: not waiting.is_alive(), timeout_s=20)
        assert pool.results() == [8]


class MovedClock(SystemClock):
    """A clock that can be moved on, as if the process had been stopped for so long."""

    moved_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.moved_s


def test_who_was_stopped_for_hours_while_it_listed_results_hears_of_them_soon(
    tmp_path: Path,
) -> None:
    clock = MovedClock()
    with (
        in_one_process(tmp_path, DOUBLE, inboxes=0) as room,
        Master(room.base.root, import_folder=room.master.import_folder, clock=clock) as other,
    ):
        room.master.step(time.monotonic())
        pool = other.submit_all([Job("kernels:double", x=4)])
        refresh = pool.refresh

        def stopped() -> bool:
            clock.moved_s += 3600.0
            return refresh()

        pool.refresh = stopped  # type: ignore[method-assign]
        other.step(clock.monotonic())
        assert clock.moved_s and not other.acting
        pool.refresh = refresh  # type: ignore[method-assign]
        publish_results(room.files, room.base, pool.info, 0, 1, lambda first: results(first, [8]))
        clock.moved_s += master.REFRESH_AT_LEAST_S
        other.step(clock.monotonic())
        assert pool.done and pool.results() == [8]


def test_a_wait_for_a_run_that_was_removed_ends_with_an_error(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:double", x=1)], keep=True)
        os.rename(room.base.run_folder(pool.run), room.base.trashed(pool.run))
        with pytest.raises(RunRemovedError, match="1 of its results"):
            pool.wait(30)


def test_of_jobs_that_a_full_disk_took_in_part_the_pool_has_that_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.master.open()
        jobs = [
            Job("kernels:double", x=n).options(retries=n) for n in range(3)
        ]  # a record for each
        real, space = LocalAppendFile.append, iter([True, False])

        def append(file: LocalAppendFile, chunks: Any) -> int:
            if not next(space, True):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, chunks)

        monkeypatch.setattr(LocalAppendFile, "append", append)
        with pytest.raises(BaseFolderError, match="is full: free some space"):
            room.master.extend(pool, jobs)
        assert pool.jobs == jobs[:1]
        assert room.master.extend(pool, jobs[1:]) == [1, 2]
        assert room.finish(pool).results() == [0, 2, 4]
