"""Commands beside tasks: a warm session has a minder fork, and survives what happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from postroom import Job
from postroom.commands.spec import COMMAND
from postroom.parcel.sheets import Outcome
from postroom.store.files import LocalFiles
from postroom.store.runs import read_notes
from postroom.testing import RealSessions, script_device

from .conftest import drive, running


def shell(sessions: RealSessions, line: str, **options: Any) -> Job:
    assert sessions.import_folder is not None
    name = f"job_{uuid.uuid4().hex[:6]}"
    return Job(
        COMMAND,
        command=line,
        cwd=sessions.import_folder,
        folder=f"{sessions.import_folder}/{name}",
        grace_s=0.3,
    ).options(name=name, **options)


def held(tmp_path: Path) -> tuple[Path, Path, str]:
    """A command that says that it has begun, and goes on when it may."""
    log, go = tmp_path / "log", tmp_path / "go"
    return log, go, f"echo begun >> {log}; until test -e {go}; do sleep 0.02; done"


def children(sessions: RealSessions) -> list[psutil.Process]:
    return psutil.Process(sessions.guardians["0"].pid).children()


def minder(sessions: RealSessions) -> psutil.Process:
    (found,) = [
        each for each in children(sessions) if "postroom.session.worker" not in each.cmdline()
    ]
    return found


def notes(sessions: RealSessions, run: str) -> list[str]:
    return [note.kind for note in read_notes(LocalFiles(), sessions.base, run)]


def test_commands_and_tasks_share_a_session(sessions: RealSessions) -> None:
    sessions.start()
    with sessions.master() as master:
        jobs = [Job("kernels:double", x=4), shell(sessions, "exit 3"), shell(sessions, "true")]
        pool = master.run(jobs)
    assert pool[0].result() == 8
    assert pool[1].outcome is Outcome.FAILED
    assert pool[2].outcome is Outcome.OK


def test_a_killed_worker_costs_its_command_nothing(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    log, go, line = held(tmp_path)
    with sessions.master() as master:
        pool = master.submit_all([shell(sessions, line), shell(sessions, "true")])
        drive(master, log.exists, what="the command")
        mind = minder(sessions)
        worker, guardian = sessions.worker(), psutil.Process(sessions.guardians["0"].pid)
        os.kill(worker, signal.SIGKILL)
        sessions.wait_until(lambda: not psutil.pid_exists(worker), what="its guardian seeing that")
        rounds = guardian.num_ctx_switches().voluntary  # it sleeps once in each
        sessions.wait_until(lambda: guardian.num_ctx_switches().voluntary >= rounds + 5)
        assert mind.is_running()
        go.touch()
        pool.wait()
        assert notes(sessions, pool.run) == []
    assert [pool[n].outcome for n in range(2)] == [Outcome.OK] * 2
    assert log.read_text() == "begun\n"


def test_a_killed_session_and_a_killed_master_cost_it_nothing(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start()
    log, go, line = held(tmp_path)
    with sessions.master() as master:
        pool = master.submit_all([shell(sessions, line)])
        drive(master, log.exists, what="the command")
        mind = minder(sessions)
    sessions.kill()
    sessions.start(wait=False)  # it finds the command, and waits for it
    with sessions.master() as master:
        again = master.resume(pool.run)
        drive(master, lambda: "outlived" in Path(sessions.words("0")).read_text())
        assert mind.is_running()
        assert again.n_done == 0
        go.touch()
        again.wait()
        assert notes(sessions, pool.run) == []
    assert again[0].outcome is Outcome.OK
    assert log.read_text() == "begun\n"
    sessions.wait_until(sessions.ready)


def test_a_killed_minder_is_a_lost_attempt(sessions: RealSessions) -> None:
    sessions.start()
    token = f"stray-{uuid.uuid4().hex}"
    line = f"test $POSTROOM_ATTEMPT = 2 || exec -a {token} sleep 600"
    with sessions.master() as master:
        pool = master.submit_all([shell(sessions, line)])
        drive(master, lambda: running(token), what="the command")
        worker = sessions.worker()
        minder(sessions).kill()
        pool.wait()
        assert notes(sessions, pool.run) == ["lost"]
    assert pool[0].outcome is Outcome.OK
    assert running(token) == []
    assert sessions.worker() == worker  # it was spared


@pytest.mark.parametrize("preload", ["numpy", ""])
def test_told_twice_to_stop_a_session_ends_the_command_and_blames_nobody(
    sessions: RealSessions, preload: str
) -> None:
    sessions.environment["POSTROOM_PRELOAD"] = preload
    sessions.start()
    token = f"stray-{uuid.uuid4().hex}"
    with sessions.master() as master:
        pool = master.submit_all([shell(sessions, f"exec -a {token} sleep 600")])
        drive(master, lambda: running(token), what="the command")
        sessions.guardians["0"].terminate()
        sessions.wait_until(lambda: "finishing" in Path(sessions.words("0")).read_text())
        assert running(token) != []
        sessions.guardians["0"].terminate()
        assert sessions.guardians["0"].wait(60) == 0
        assert running(token) == []
        assert notes(sessions, pool.run) == []
        assert pool.n_done == 0


def test_out_of_the_cards_memory_it_is_tried_again_alone(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start("0", "0")
    sessions.start("0b", "0")
    log, go, line = held(tmp_path)
    first = "test $POSTROOM_ATTEMPT = 2 || { echo CUDA out of memory >&2; exit 1; }; "
    with sessions.master() as master:
        neighbour = master.submit_all([shell(sessions, line)])
        drive(master, log.exists, what="the neighbour")
        alone = master.submit_all([shell(sessions, f"{first} test -e {go}", retries=1)])
        drive(master, lambda: notes(sessions, alone.run) == ["failed"], what="the first attempt")
        go.touch()
        neighbour.wait()
        alone.wait()
    assert alone[0].outcome is Outcome.OK  # else it had run beside the neighbour, without `go`
    with contextlib.suppress(psutil.NoSuchProcess):
        assert children(sessions)


def loaded(pid: int) -> bool:
    """Whether a process has numpy."""
    return "numpy" in Path(f"/proc/{pid}/maps").read_text()


def test_a_session_for_the_queue_loads_what_python_jobs_need_with_the_first_of_them(
    sessions: RealSessions,
) -> None:
    sessions.start(options=["--lazy"])
    with sessions.master() as master:
        assert master.run([shell(sessions, "true")])[0].outcome is Outcome.OK
        worker = sessions.worker()
        assert not loaded(worker)
        pool = master.run([Job("kernels:double", x=2).options(timeout_s=60)])
        assert pool.results() == [4]
        assert notes(sessions, pool.run) == [], "the job is not blamed for the other worker"
        loads = sessions.worker()
        assert loaded(loads)
        assert master.run([shell(sessions, "true")])[0].outcome is Outcome.OK
        assert sessions.worker() == loads


def test_a_gpu_that_fails_with_the_first_python_job_is_to_blame_and_not_the_job(
    sessions: RealSessions,
) -> None:
    failure = "CUDA error: unspecified launch failure"
    script_device(sessions.script_cards(), {"FAKE-0": {"touch": failure}})
    sessions.start(options=["--lazy"])
    with sessions.master() as master:
        assert master.run([shell(sessions, "true")])[0].outcome is Outcome.OK
        pool = master.submit_all([Job("kernels:double", x=2)])
        guardian = sessions.guardians["0"]
        drive(master, lambda: guardian.poll() is not None, what="the end of the session")
        said = Path(sessions.words("0")).read_text()
        assert "quarantined: 3 new processes in a row could not use it" in said
        assert notes(sessions, pool.run) == []
