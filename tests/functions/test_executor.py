"""`postroom.Executor` with real agents: what a user of `concurrent.futures` expects."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import BrokenExecutor
from pathlib import Path

import numpy as np
import pytest

import postroom
from postroom import Master, PostroomError
from postroom.errors import RemoteTraceback
from postroom.futures import living_agents, program_end
from postroom.gpus.cards.gpu_list import SlotSpec
from postroom.session.sessions import Sessions
from postroom.store.snapshot import snapshot
from postroom.testing import wait_until


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[postroom.Executor]:
    """Two agents for all tests of this file."""
    folder = tmp_path_factory.mktemp("module-executor")
    with postroom.Executor(folder / "base", agents=2, gpus=0) as made:
        made.submit(int).result(60)
        yield made


STARTED = ""


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def moved(self, by: int) -> Point:
        return Point(self.x + by)


def fail(text: str) -> None:
    raise LookupError(text)


def test_calls_of_functions_that_can_be_imported_and_of_those_that_cannot(
    executor: postroom.Executor,
) -> None:
    scale = 3
    assert executor.submit(pow, 2, 8).result() == 256
    assert executor.submit(lambda x, y=1: x * scale + y, 5, y=2).result() == 17
    assert executor.submit(Point(1).moved, 2).result().x == 3
    assert executor.submit(dict, {1: (2, 3)}, a={4}).result() == {1: (2, 3), "a": {4}}


def test_the_exception_comes_back_as_itself_with_the_workers_traceback(
    executor: postroom.Executor,
) -> None:
    error = executor.submit(fail, "nothing here").exception()
    assert type(error) is LookupError
    assert error.args == ("nothing here",)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise LookupError(text)" in error.__cause__.tb
    assert "session/tasks.py" not in error.__cause__.tb


def test_large_arrays_arrive_writable_and_return_writable(executor: postroom.Executor) -> None:
    def add_one(array: np.ndarray) -> np.ndarray:
        array += 1
        return array

    sent = np.zeros(1 << 18)
    got = executor.submit(add_one, sent).result()
    got += 1
    assert (got == 2).all()
    assert not sent.any()


def test_what_waits_can_be_cancelled_and_what_runs_can_be_killed(
    executor: postroom.Executor, tmp_path: os.PathLike[str]
) -> None:
    def hold(name: str) -> None:
        import time
        from pathlib import Path

        path = Path(tmp_path, name)
        path.touch()
        while path.exists():
            time.sleep(0.01)

    list(executor.map(abs, range(200)))  # short calls: the next letters have several
    running = [executor.submit(hold, str(n)) for n in range(2)]
    waiting = [executor.submit(hold, "never") for _ in range(20)]
    assert waiting[-1].cancel()  # just handed in
    wait_until(lambda: all(future.running() for future in running))
    assert not running[0].cancel()
    # Those behind a long call in its letter are given back within a moment.
    wait_until(lambda: all(future.cancel() for future in waiting))
    assert futures.wait(waiting, timeout=60).done == set(waiting)
    running[0].kill()  # type: ignore[attr-defined]
    with pytest.raises(postroom.JobFailed, match="cancelled"):
        running[0].result(60)
    wait_until(lambda: os.path.exists(f"{tmp_path}/1"))
    os.unlink(f"{tmp_path}/1")
    assert running[1].result(60) is None
    assert not os.path.exists(f"{tmp_path}/never")


def test_calls_that_abort_their_workers_all_resolve(executor: postroom.Executor) -> None:
    doomed = [executor.submit(os.abort) for _ in range(4)]
    fine = executor.submit(pow, 2, 3)
    for future in doomed:
        assert isinstance(future.exception(timeout=100), BrokenExecutor)
    assert fine.result(60) == 8


def test_map_takes_chunks_and_endless_iterables(executor: postroom.Executor) -> None:
    assert list(executor.map(pow, [2, 3], [3, 2], chunksize=2)) == [8, 9]
    endless = executor.map(abs, iter(int, 1), buffersize=3)
    assert [next(endless) for _ in range(5)] == [0] * 5


def test_what_calls_print_is_printed_here(
    executor: postroom.Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    executor.submit(print, "hello").result()
    assert "hello" in capsys.readouterr().out
    executor.submit(lambda: print("oh", file=sys.stderr)).result()
    assert "oh" in capsys.readouterr().err


def test_a_worker_is_replaced_after_so_many_calls_and_initialized_once() -> None:
    def start(name: str) -> None:
        global STARTED  # seen by other functions of this module, though all travel by value
        STARTED = os.environ["STARTED"] = os.environ.get("STARTED", "") + name

    def look() -> tuple[int, str | None]:
        return os.getpid(), os.environ.get("STARTED") and STARTED

    with postroom.Executor(
        max_workers=1, gpus=0, initializer=start, initargs=("x",), max_tasks_per_child=2
    ) as executor:
        seen = [executor.submit(look).result() for _ in range(4)]
    assert [name for _, name in seen] == ["x"] * 4
    assert seen[0] == seen[1] != seen[2] == seen[3]


def test_calls_in_a_session_without_preload_see_its_card_and_no_other(tmp_path: Path) -> None:
    def look() -> list[str | None]:
        return [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "POSTROOM_GPU")]

    with postroom.Master(tmp_path / "base") as master:
        sessions = Sessions(master.base, say=lambda _: None, options={"preload": ""})
        sessions.start([SlotSpec("1", "1")])
        assert master.submit(look).result(60) == ["1", "FAKE-1"]
        sessions.end(now=False)


def test_a_private_base_is_removed_with_its_agents(tmp_path: os.PathLike[str]) -> None:
    with postroom.Executor(agents=1, gpus=0) as executor:
        assert executor.submit(os.getcwd).result() == os.getcwd()
        assert executor._pool is not None
        folder = executor._pool._master.base.root  # type: ignore[attr-defined]
        assert os.path.exists(folder)
    assert not os.path.exists(folder)


def test_a_program_that_is_ending_makes_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_end, "_ending", True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="after interpreter shutdown"):
        postroom.Executor().submit(abs, -1)
    assert os.listdir(tmp_path) == []


def test_the_agents_of_a_master_that_are_killed_start_again_and_its_futures_resolve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_PRELOAD", "numpy")
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "")
    with Master(tmp_path / "base", agents=1) as master:
        first = master.submit(os.getpid).result(100)
        (agent,) = snapshot(master.base, runs=False).agents
        os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{first}").exists(), what="its worker ends with it")
        futures = [*(master.submit(os.getpid) for _ in range(2)), master.submit("os:getpid")]
        assert first not in [future.result(100) for future in futures]
        with pytest.raises(PostroomError, match="5 is not a task"):
            master.submit(5)  # type: ignore[arg-type]


def test_where_no_agent_lives_futures_fail_with_the_reason_and_later_ones_may_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(living_agents, "PATIENCE_S", 0.0)
    monkeypatch.setattr(living_agents, "LOOK_S", 0.0)
    with Master(tmp_path / "base") as master:
        futures = [master.submit(abs, -1) for _ in range(3)]
        for future in futures:
            with pytest.raises(BrokenExecutor, match=r"no agent has been running on .* start some"):
                future.result(100)
        again = master.submit(abs, -1)
        assert again.exception(100) is not None
        again.cancel()
