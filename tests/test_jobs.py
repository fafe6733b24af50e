"""Jobs and the pool of their results."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.calls.by_value import BY_VALUE, FUNCTION
from postroom.errors import BaseFolderError, JobFailed, PostroomError, RemoteTraceback
from postroom.jobs import Job, JobPool, Status
from postroom.parcel.sheets import Outcome
from postroom.queue.rows import ENDED, STATES
from postroom.store.job_ids import JobId
from postroom.store.requests import Request, RequestVerb, ask
from tests.in_one_process import in_one_process
from tests.test_master import DOUBLE


def test_a_failed_job_carries_the_workers_traceback_and_says_where_to_see_it(
    tmp_path: Path,
) -> None:
    with in_one_process(tmp_path, "def broken(x):\n    return 1 / x\n") as room:
        pool = room.run(
            [Job("kernels:broken", x=0).options(name="mine"), Job("kernels:broken", x=2)]
        )
        error, fine = pool.results(return_exceptions=True)
        assert isinstance(error, JobFailed)
        assert fine == 0.5
        with pytest.raises(JobFailed, match="mine"):
            pool.results()
        (failure,) = pool.failures()
        assert "job 0 (mine) failed: ZeroDivisionError" in str(failure)
        job = JobId(pool.run, 0).short
        assert str(failure).endswith(f"[see: postroom show {job} -b {room.base.root}]")
        assert isinstance(failure.__cause__, RemoteTraceback)
        assert "return 1 / x" in str(failure.__cause__)
        with pytest.raises(JobFailed):
            pool.raise_for_failed()
        assert pool[0].outcome is Outcome.FAILED
        assert pool[1].outcome is Outcome.OK
        with pytest.raises(JobFailed):
            pool[0].result()


def test_a_failure_cannot_steer_the_terminal_that_python_prints_it_on(tmp_path: Path) -> None:
    kernel = 'def broken(x):\n\traise ValueError("\\x1b[2J\\x07")\n'
    with in_one_process(tmp_path, kernel) as room:
        (failure,) = room.run([Job("kernels:broken", x=0).options(name="\x1b]0;x\x07")]).failures()
        text = f"{failure}{failure.__cause__}"
        assert "ValueError" in text
        assert all(c.isprintable() or c == "\n" for c in text)


def test_a_name_that_is_no_text_is_refused_and_the_error_says_how_arguments_are_passed(
    tmp_path: Path,
) -> None:
    with pytest.raises(PostroomError, match=r"not 5: pass what the kernel gets by name.*x=5"):
        Job("kernels:double", x=1).options(name=5)  # type: ignore[arg-type]
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room:
        job = Job("kernels:double", x=1)
        job.name = 5  # type: ignore[assignment]
        with pytest.raises(PostroomError, match="name of a job is a text"):
            room.master.submit_all([job])
        for project in (5, None, "two\nlines", "x" * 81):
            with pytest.raises(PostroomError, match="a project's name is one line"):
                room.master.submit_all([Job("kernels:double", x=1)], project=project)  # type: ignore[arg-type]
        assert not list(Path(room.base.job_pool).iterdir())


@pytest.mark.parametrize(
    "options",
    [{"retries": "3"}, {"retries": -1}, {"timeout_s": "2h"}, {"timeout_s": 0}, {"pickle": "no"}],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(PostroomError, match=f"{name}=.*: give"):
        Job("kernels:double").options(**options)


def values(pool: JobPool) -> list[Any]:
    """The results, with None where a job failed."""
    results = pool.results(return_exceptions=True)
    return [None if isinstance(value, JobFailed) else value for value in results]


PICKY = "def picky(x):\n    return 10 // (x % 3)\n"
MENDED = "def picky(x):\n    return -x\n"


def test_failed_jobs_are_run_again_once_the_kernel_is_mended(tmp_path: Path) -> None:
    with in_one_process(tmp_path, PICKY) as room:
        pool = room.run([Job("kernels:picky", x=n).options(name=f"p{n}") for n in range(6)])
        assert values(pool) == [None, 10, 5, None, 10, 5]
        room.finish(pool.retry())
        assert values(pool) == [None, 10, 5, None, 10, 5], "the kernel is as it was"
        assert (pool.n_failed, pool.n_done, len(pool)) == (2, 6, 6)
        room.write_kernels(MENDED)
        room.finish(pool.retry())
        assert pool.results() == [0, 10, 5, -3, 10, 5]
        assert (pool.failures(), pool.n_failed) == ([], 0)
        assert pool[3].result() == pool.result(3) == pool.wait_for(3).result() == -3
        assert (pool[-1].number, pool[-6].result()) == (5, 0)
        assert pool[3].job.name == "p3"
        assert len(room.finish(pool.retry()).jobs) == 10, "nothing is left to run again"
        # Whoever reads the run later sees the same.
        later = room.master.look(pool.run)
        assert later.results() == pool.results() and later.failures() == []
        pool.save(tmp_path / "all.npz")
        with np.load(tmp_path / "all.npz") as saved:
            assert saved["job"].tolist() == [0, 1, 2, 3, 4, 5]
            assert saved["name"].tolist() == [f"p{n}" for n in range(6)]


def test_a_retry_checks_that_the_mended_kernel_can_be_imported(tmp_path: Path) -> None:
    with in_one_process(tmp_path, PICKY) as room:
        pool = room.run([Job("kernels:picky", x=0)])
        room.write_kernels("def picky(x:\n")
        with pytest.raises(PostroomError, match=r"kernels.py, line 1"):
            pool.retry()
        assert len(pool) == 1


class Twice(Job):
    """A job whose argument is changed on its way."""

    def deploy(self) -> dict[str, Any]:
        return {"x": self.arguments["x"] + 3}


def test_a_run_is_resumed_with_its_failed_jobs(tmp_path: Path) -> None:
    with in_one_process(tmp_path, PICKY) as room:
        first = room.run([Twice("kernels:picky", x=n) for n in range(2)])
        room.run([Job("kernels:picky", x=1)])
        with pytest.raises(PostroomError, match=r"no run .* is unfinished"):
            room.master.resume()
        room.write_kernels(MENDED)
        pool = room.master.resume(job=Twice, failed=True)
        assert pool.run == first.run
        assert room.finish(pool).results() == [-3, 10], "it is not deployed a second time"
        with pytest.raises(PostroomError, match="is unfinished or has failed jobs"):
            room.master.resume(failed=True)


def test_as_completed_hands_out_every_job_once(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.master.submit_all([Job("kernels:double", x=n) for n in range(20)])
        room.finish(pool)
        seen = {finished.number: finished.result() for finished in pool.as_completed()}
        assert seen == {n: 2 * n for n in range(20)}


def test_as_completed_says_when_the_time_is_up(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:double", x=1)])
        with pytest.raises(TimeoutError, match="1 jobs"):
            list(pool.as_completed(timeout_s=0.01))


def test_a_job_that_is_not_done_has_no_result_yet(tmp_path: Path) -> None:
    with in_one_process(tmp_path, DOUBLE, inboxes=0) as room:
        pool = room.master.submit_all([Job("kernels:double", x=1)])
        with pytest.raises(PostroomError, match="not done"):
            pool[0]
        with pytest.raises(IndexError):
            pool[1]


def test_a_pool_can_be_shown_and_saved(tmp_path: Path) -> None:
    with in_one_process(tmp_path, "def kernel(x):\n    return {'y': x + 1}\n") as room:
        pool = room.run(
            [Job("kernels:kernel", x=np.arange(3.0) + n).options(name=f"<{n}>") for n in range(4)]
        )
        assert "4 jobs, 4 ok, 0 failed" in repr(pool)
        assert pool.run in pool._repr_html_()
        pool.save(tmp_path / "all.npz")
        with np.load(tmp_path / "all.npz") as saved:
            assert sorted(saved.files) == ["job", "name", "y"]
            np.testing.assert_array_equal(saved["y"], [np.arange(3.0) + n + 1 for n in range(4)])
            assert saved["name"].tolist() == ["<0>", "<1>", "<2>", "<3>"]
        with pytest.raises(PostroomError, match="exists: choose another name"):
            pool.save(tmp_path / "all.npz")


TABLE = """
def kernel(x, config, seconds):
    if x == 1:
        raise ValueError("no")
    return {"x": x + 0.5, "seconds": 9, "rows": [x] * 2}
"""


def test_a_pool_is_a_table_with_a_row_for_each_job(tmp_path: Path) -> None:
    if "CI" not in os.environ:
        pytest.importorskip("pandas", reason="pip install 'postroom[frames]'")
    with in_one_process(tmp_path, TABLE) as room:
        config = {"lr": 0.1, "layers": [1, 2]}
        pool = room.run(
            [
                Job("kernels:kernel", x=x, config=config, seconds=5).options(name=f"n{x}")
                for x in range(3)
            ]
        )
        table = pool.to_pandas()
        assert [*table.columns] == [
            *("job", "name", "status", "seconds", "agent", "error"),
            *("x", "config.lr", "argument.seconds", "result.x", "result.seconds"),
        ]
        assert table["status"].tolist() == ["ok", "failed", "ok"]
        assert table["result.x"].tolist()[::2] == [0.5, 2.5]
        assert table["result.x"].isna().tolist() == [False, True, False]
        assert "ValueError: no" in table["error"][1]
        assert (table["seconds"] < 5).all()
        pool.save(tmp_path / "all.npz")
        with np.load(tmp_path / "all.npz") as saved:
            assert saved["job"].tolist() == [0, 2]
            assert saved["rows"].tolist() == [[0, 0], [2, 2]]
        again = room.run([Job("kernels:kernel", x, y) for x, y in [(0, 5), (1, 6)]])
        again.retry()
        room.finish(again)
        table = again.to_pandas()
        assert table["job"].tolist() == [0, 1]  # not the number of the copy
        assert table["argument.0"].tolist() == [0, 1]


def test_a_table_needs_pandas_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.run([Job("kernels:double", x=1)])
        with pytest.raises(PostroomError, match=r"needs pandas .*pip install 'postroom\[frames\]'"):
            pool.to_pandas()


def test_a_project_says_how_its_data_travels(tmp_path: Path) -> None:
    class Halved(Job):
        def deploy(self) -> dict[str, object]:
            return {"x": self.arguments["x"] / 2}

        def collect(self, output: object) -> object:
            return ("collected", output)

    with in_one_process(tmp_path, DOUBLE) as room:
        pool = room.run([Halved("kernels:double", x=10)])
        assert pool.results() == [("collected", 10.0)]


def test_a_function_travels_by_its_name_or_by_value_if_nobody_can_import_it() -> None:
    assert Job(json.dumps).task == "json:dumps"
    by_value = Job(lambda: None)
    assert by_value.task == BY_VALUE
    assert FUNCTION in by_value.deploy()


def test_a_status_is_a_word_of_the_listings(tmp_path: Path) -> None:
    assert {status.value for status in Status} == set(STATES)
    assert {status.value for status in Status if status.done} == set(ENDED)
    with in_one_process(tmp_path, "def kernel():\n    return 1\n") as room:
        pool = room.master.submit_all([Job("kernels:kernel") for _ in range(2)])
        assert pool.status(0) is Status.QUEUED
        ask(room.files, room.base, Request(RequestVerb.PAUSE, runs=(pool.run,), by="test"))
        room.master.carry_out_requests()
        assert pool.status(0) is Status.PAUSED and not pool.status(0).done
        ask(room.files, room.base, Request(RequestVerb.RESUME, runs=(pool.run,), by="test"))
        room.master.carry_out_requests()
        room.master.step(0.0)
        assert pool.status(0) is Status.RUNNING
        room.finish(pool)
        assert pool.status(0) is Status.OK and pool.status(0).done


def test_a_pool_that_gets_no_descriptor_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_one_process(tmp_path, "def kernel():\n    return bytes(1 << 20)\n") as room:
        done = room.run([Job("kernels:kernel")])
        waiting = room.master.submit_all([Job("kernels:kernel")])

        def refuse(path: str, *_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(BaseFolderError, match="ulimit -n"):
            waiting.status(0)
        with pytest.raises(BaseFolderError, match="ulimit -n"):
            done.result(0)
        monkeypatch.undo()
        assert len(done.result(0)) == 1 << 20
