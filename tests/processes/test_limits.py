"""Retries, time limits, poison, and the end of every process that a job has started."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from postroom import Job
from postroom.parcel.sheets import Outcome
from postroom.testing import RealSessions

from .conftest import drive, running

NEAR_AND_FAR = ["-far", "-near"]
ALL_KINDS = ["-bare", "-bare-far", "-far", "-near"]


def attempts(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()]


def test_a_job_is_tried_again_as_often_as_it_asks(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:fail_until", attempt=3, log=str(log)).options(retries=2)])
    assert pool.results() == [3]
    assert attempts(log) == [1, 2, 3]


def test_a_job_that_fails_more_often_than_it_may_is_failed(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:fail_until", attempt=9, log=str(log)).options(retries=1)])
    assert pool[0].outcome is Outcome.FAILED
    assert "not yet" in str(pool.failures()[0])
    assert attempts(log) == [1, 2]


def test_a_job_without_retries_is_tried_once(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:fail_until", attempt=9, log=str(log))])
    assert pool[0].outcome is Outcome.FAILED
    assert attempts(log) == [1]


def test_a_job_past_its_time_is_timed_out_and_its_neighbours_are_done(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start()
    log = tmp_path / "log"
    jobs = [Job("kernels:double", x=n).options(timeout_s=60) for n in range(20)]
    jobs.insert(10, Job("kernels:hang", log=str(log)).options(timeout_s=0.2))
    with sessions.master() as master:
        pool = master.run(jobs)
    assert pool[10].outcome is Outcome.TIMED_OUT
    assert "longer than its time limit of 0.2 s" in str(pool.failures()[0])
    fine = [r for r in pool.results(return_exceptions=True) if isinstance(r, int)]
    assert fine == [n * 2 for n in range(20)]
    assert attempts(log) == [1]


def test_a_time_out_is_a_failure_that_retries_cover(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:hang", log=str(log)).options(timeout_s=0.2, retries=1)])
    assert pool[0].outcome is Outcome.TIMED_OUT
    assert attempts(log) == [1, 2]


def test_the_death_of_a_worker_is_a_free_retry(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:die", log=str(log), until=3)])
    assert pool.results() == ["survived"]
    assert attempts(log) == [1, 2, 3]


def test_a_job_that_three_workers_died_with_is_lost(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log = tmp_path / "log"
    jobs = [Job("kernels:double", x=n) for n in range(10)]
    jobs.insert(5, Job("kernels:die", log=str(log)))
    with sessions.master() as master:
        pool = master.run(jobs)
    assert pool[5].outcome is Outcome.LOST
    assert "lost: 3 attempts were lost, the last because" in str(pool.failures()[0])
    assert "SIGKILL" in str(pool.failures()[0])
    assert attempts(log) == [1, 2, 3]
    fine = [r for r in pool.results(return_exceptions=True) if isinstance(r, int)]
    assert fine == [n * 2 for n in range(10)]


def test_an_agent_whose_workers_die_with_three_jobs_in_a_row_stops_itself(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.submit_all([Job("kernels:die", log=str(log)) for _ in range(5)])
        drive(master, lambda: sessions.guardians["0"].poll() is not None, what="the agent stopping")
        assert sessions.guardians["0"].returncode == 2
        assert "3 different jobs in a row" in Path(sessions.words("0")).read_text()
        assert "Traceback" not in Path(sessions.words("0")).read_text()
        assert master.agents() == []
        assert pool.n_done == 2  # those that had three attempts; the others wait for a better agent


def test_an_agent_that_finishes_jobs_in_between_goes_on(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start()
    log = tmp_path / "log"
    with sessions.master() as master:
        pool = master.run([Job("kernels:die", log=str(log), until=2) for _ in range(4)])
    assert pool.results() == ["survived"] * 4
    assert sessions.guardians["0"].poll() is None


@pytest.mark.parametrize("end", ["time-out", "worker killed", "stopped at once", "stopped twice"])
def test_the_end_of_a_job_is_the_end_of_every_process_it_started(
    sessions: RealSessions, end: str
) -> None:
    sessions.start()
    token = f"tree-{uuid.uuid4().hex}"
    timeout_s = 1.0 if end == "time-out" else None
    job = Job("kernels:grow_tree", token=token, unmarked=True).options(timeout_s=timeout_s)
    with sessions.master() as master:
        master.submit_all([job])
        drive(master, lambda: running(token) == [token + kind for kind in ALL_KINDS])
        if end == "worker killed":
            os.kill(sessions.worker(), signal.SIGKILL)
        elif end.startswith("stopped"):
            sessions.guardians["0"].terminate()
            if end == "stopped twice":
                sessions.wait_until(lambda: "finishing" in Path(sessions.words("0")).read_text())
            else:
                os.kill(sessions.worker(), signal.SIGKILL)
            sessions.guardians["0"].terminate()
        sessions.wait_until(lambda: running(token) == [], what="the end of the tree")


@pytest.mark.parametrize("who", ["the Master", "a new session"])
def test_what_a_killed_session_leaves_running_is_ended_by(sessions: RealSessions, who: str) -> None:
    sessions.start()
    token = f"tree-{uuid.uuid4().hex}"
    with sessions.master() as master:
        master.submit_all([Job("kernels:grow_tree", token=token, unmarked=False)])
        drive(master, lambda: running(token) == [token + kind for kind in NEAR_AND_FAR])
        if who == "a new session":
            master.close()
        sessions.kill()
        assert running(token) != []  # nobody has cleared up yet, so the next line can fail
        if who == "a new session":
            sessions.start(wait=False)
            sessions.wait_until(lambda: running(token) == [], what="the end of the tree")
        else:
            drive(master, lambda: running(token) == [], what="the end of the tree")


def test_a_session_that_ends_leaves_nothing_behind(sessions: RealSessions) -> None:
    sessions.start()
    token = f"tree-{uuid.uuid4().hex}"
    with sessions.master() as master:
        master.submit_all([Job("kernels:grow_tree", token=token, unmarked=True)])
        drive(master, lambda: len(running(token)) == 4)
    sessions.guardians["0"].terminate()
    sessions.wait_until(lambda: "finishing" in Path(sessions.words("0")).read_text())
    sessions.guardians["0"].terminate()
    assert sessions.guardians["0"].wait(60) == 0
    assert running(token) == []
    assert sessions.processes("0") == []
    assert not sessions.ready()
