"""After a death, work goes on: another agent, a waiting Master, a new Master on a full base."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom import Job
from postroom.parcel.sheets import JobEnd, JobOptions, RanBy, pack_jobs, pack_outcomes
from postroom.store.append_log import AppendLogWriter
from postroom.store.files import LocalFiles
from postroom.store.runs import first_missing
from postroom.store.snapshot import snapshot
from postroom.testing import RealSessions

from .conftest import drive

ROOT = Path(__file__).parent.parent.parent


def agent_at_work(sessions: RealSessions) -> str | None:
    busy = [one.agent for one in snapshot(sessions.base).agents if one.state == "running"]
    return busy[0] if busy else None


@pytest.mark.parametrize("victim", ["worker", "guardian"])
def test_the_job_of_a_killed_process_is_given_to_another_agent(
    sessions: RealSessions, tmp_path: Path, victim: str
) -> None:
    for agent_id in ("0", "1"):
        sessions.start(agent_id, gpu=agent_id)
    end = tmp_path / "end"
    with sessions.master() as master:
        pool = master.submit_all([Job("kernels:wait_for", path=str(end))])
        drive(master, lambda: agent_at_work(sessions), what="the job in an agent's hand")
        first = agent_at_work(sessions)
        assert first is not None
        guardian = sessions.guardians[first].pid
        os.kill(sessions.worker(first) if victim == "worker" else guardian, signal.SIGKILL)
        drive(master, lambda: agent_at_work(sessions) not in (None, first), what="another's hand")
        end.touch()
        pool.wait(60)
        assert pool.results() == [str(end)]
        assert pool[0].agent != first


def test_a_waiting_master_takes_over_from_a_killed_one(sessions: RealSessions) -> None:
    sessions.start()
    command = [sys.executable, "-m", "postroom", "master", sessions.base.root]
    schedulers = [
        subprocess.Popen(command, cwd=ROOT, env=sessions.environment, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    try:
        sessions.wait_until(
            lambda: snapshot(sessions.base).master_pid in [one.pid for one in schedulers]
        )
        acting = snapshot(sessions.base).master_pid
        for one in schedulers:
            if one.pid == acting:
                one.kill()
                one.wait()
        with sessions.master() as client:
            run = client.submit_all([Job("kernels:double", x=n) for n in range(10)], keep=True).run
        sessions.wait_until(
            lambda: first_missing(LocalFiles(), sessions.base, run, 0, 10) == 10, what="the results"
        )
        assert snapshot(sessions.base).master_pid in {one.pid for one in schedulers} - {acting}
    finally:
        for one in schedulers:
            one.kill()
            one.wait()


def test_a_client_that_waits_takes_over_from_a_killed_master(sessions: RealSessions) -> None:
    sessions.start()
    command = [sys.executable, "-m", "postroom", "master", sessions.base.root]
    schedulers = subprocess.Popen(
        command, cwd=ROOT, env=sessions.environment, stderr=subprocess.DEVNULL
    )
    try:
        sessions.wait_until(lambda: snapshot(sessions.base).master_pid == schedulers.pid)
        with sessions.master() as client:
            pool = client.submit_all([Job("kernels:double", x=n) for n in range(10)])
            client.step(0.0)
            assert not client.acting
            schedulers.kill()
            schedulers.wait()
            assert pool.wait(60).results() == [2 * n for n in range(10)]
            assert client.acting
    finally:
        schedulers.kill()
        schedulers.wait()


def test_a_new_master_goes_on_among_thousands_of_one_job_parcels(sessions: RealSessions) -> None:
    many = 2000
    with sessions.master() as master:
        pool = master.submit_all([])
        files, ran_by = LocalFiles(), RanBy("0", "", 0, 0.0)
        log = AppendLogWriter(files, sessions.base, pool.run, durable=False)
        for number in range(many):
            chunks = pack_jobs(0, "kernels:double", JobOptions(), None, [{"x": number}])
            log.append(1, chunks)
            if number % 20:
                chunks = pack_outcomes(number, [JobEnd(2 * number)], ran_by)
                files.write_new(sessions.base.result(pool.run, number), chunks)
    sessions.start()
    with sessions.master() as master:
        assert master.resume(pool.run).wait(100).results() == [2 * n for n in range(many)]
