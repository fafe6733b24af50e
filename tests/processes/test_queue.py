"""The queue with real sessions: a job that is told to end ends, or is requeued."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from postroom import Job
from postroom.commands.code_snapshot import take_snapshot
from postroom.commands.spec import CommandSpec
from postroom.master import Master
from postroom.parcel.sheets import Failure, Outcome, OutcomeSheet
from postroom.queue.submission import submit
from postroom.store.files import LocalFiles
from postroom.store.job_ids import JobId
from postroom.store.requests import Request, RequestVerb, ask, is_settled
from postroom.store.runs import read_notes, read_parcel_bytes
from postroom.testing import RealSessions

from .conftest import drive, running

FILES = LocalFiles()


def queue(sessions: RealSessions, command: str, **fields: Any) -> JobId:
    made = CommandSpec(command, cwd=str(sessions.import_folder), **{"grace_s": 5.0, **fields})
    return submit(FILES, sessions.base, [made])[0]


def outcome(sessions: RealSessions, job: JobId) -> Failure | None:
    path = sessions.base.result(job.run, job.number)
    return OutcomeSheet(path, read_parcel_bytes(FILES, path)).done(job.number).failure


def wait_for(master: Master, sessions: RealSessions, job: JobId) -> Failure | None:
    result = sessions.base.result(job.run, job.number)
    drive(master, lambda: os.path.exists(result), what=f"the end of {job}")
    return outcome(sessions, job)


def request(
    master: Master, sessions: RealSessions, verb: RequestVerb, *jobs: JobId, **fields: Any
) -> None:
    name = ask(FILES, sessions.base, Request(verb, jobs=jobs, by="ada", **fields))
    drive(master, lambda: is_settled(FILES, sessions.base, name), what=verb.value)


@pytest.fixture(params=["warm", "commands only"])
def session(request: pytest.FixtureRequest, sessions: RealSessions) -> RealSessions:
    """A session that keeps a worker warm, or one that has nothing to keep warm."""
    sessions.start(options=() if request.param == "warm" else ("--preload", ""))
    return sessions


def test_a_running_command_is_killed_with_all_that_it_started(
    session: RealSessions, tmp_path: Path
) -> None:
    begun, name = tmp_path / "begun", f"nap{os.getpid()}"
    os.symlink("/bin/sleep", tmp_path / name)
    job = queue(session, f"({tmp_path / name} 600 &) ; touch {begun}; {tmp_path / name} 600")
    with session.master() as master:
        drive(master, begun.exists, what="the command")
        request(master, session, RequestVerb.KILL, job)
        failure = wait_for(master, session, job)
    assert failure is not None
    assert (failure.outcome, failure.message) == (Outcome.CANCELLED, "killed by ada")
    assert running(str(tmp_path / name)) == []
    assert read_notes(FILES, session.base, job.run) == []


def test_a_command_has_the_environment_and_the_umask_of_who_submitted_it(
    session: RealSessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "by the shell")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    before = os.umask(0o027)
    try:
        made = f"echo $GIVEN-$CUDA_VISIBLE_DEVICES-$POSTROOM_SESSION > {tmp_path / 'model'}"
        first = queue(session, made)
        os.umask(0o002)
        second = queue(session, f"umask > {tmp_path / 'umask'}; mkdir {tmp_path / 'open'}")
    finally:
        os.umask(before)
    with session.master() as master:
        assert wait_for(master, session, first) is None
        assert wait_for(master, session, second) is None
    assert (tmp_path / "model").read_text().startswith(f"by the shell-0-{session.base.root}:")
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == 0o640
    assert (tmp_path / "umask").read_text() == "0002\n"
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o775


def test_a_command_whose_environment_is_lost_is_not_started(session: RealSessions) -> None:
    job = queue(session, "true")
    folder = Path(session.base.run_folder(job.run))
    for path in folder.glob("*.env"):
        path.unlink()
    with session.master() as master:
        failure = wait_for(master, session, job)
    assert failure is not None
    assert failure.kind == "not started" and "environment" in failure.message


def test_every_attempt_of_a_queued_command_has_its_own_copy_of_the_snapshot(
    session: RealSessions, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "run.sh").write_text("exit 1\n")
    command = "cat run.sh; echo exit 0 > run.sh; cp run.sh $POSTROOM_CHECKPOINT; bash run.sh"
    spec = CommandSpec(f"{command}; test $POSTROOM_ATTEMPT = 2", cwd=str(code), retries=1)
    with take_snapshot(str(code), session.base) as snapshot:
        (job,) = submit(FILES, session.base, [spec], snapshot=snapshot)
    (code / "run.sh").unlink()
    with session.master() as master:
        assert wait_for(master, session, job) is None
    folder = Path(session.base.job_folder(job.run, job.number))
    assert (folder / f"{folder.name}.OUT").read_text() == "exit 1\n"
    assert (folder / "snapshot" / "run.sh").read_text() == "exit 0\n"
    assert (folder / "attempts" / "1" / "snapshot" / "run.sh").read_text() == "exit 0\n"


def test_a_command_whose_snapshot_was_changed_is_not_started(
    session: RealSessions, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.sh").write_text("original")
    spec = CommandSpec("cat run.sh", cwd=str(tmp_path / "code"), retries=1)
    with take_snapshot(str(tmp_path / "code"), session.base) as snapshot:
        (job,) = submit(FILES, session.base, [spec], snapshot=snapshot)
    path = Path(session.base.code_snapshot(job.run, snapshot.name))
    path.write_bytes(path.read_bytes().replace(b"original", b"replaced"))
    with session.master() as master:
        failure = wait_for(master, session, job)
    assert failure is not None
    assert failure.kind == "not started" and "was changed since" in failure.message
    folder = Path(session.base.job_folder(job.run, job.number))
    assert not (folder / "snapshot").exists() and not (folder / "attempts").exists()


def test_whatever_the_umask_of_an_agent_the_files_of_a_base_are_private(
    sessions: RealSessions,
) -> None:
    before = os.umask(0)
    try:
        sessions.start()
        job = queue(sessions, "echo hello")
        with sessions.master() as master:
            assert wait_for(master, sessions, job) is None
    finally:
        os.umask(before)
    base = Path(sessions.base.root)
    of_job = base / "runs"
    private = [path for path in base.rglob("*") if of_job not in path.parents]
    assert [path for path in private if path.lstat().st_mode & 0o077] == []


def test_what_is_preempted_goes_on_from_its_checkpoint(
    session: RealSessions, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    job = queue(
        session,
        f"""if test -e $POSTROOM_CHECKPOINT/saved; then echo goes on; exit 0; fi
        trap 'bash -c "sleep 0.1; touch $POSTROOM_CHECKPOINT/saved"; exit 75' TERM
        touch {begun}; while :; do sleep 0.05; done""",
    )
    with session.master() as master:
        drive(master, begun.exists, what="the command")
        request(master, session, RequestVerb.PAUSE, everything=True, preempt=True)
        drive(master, lambda: read_notes(FILES, session.base, job.run), what="the note")
        request(master, session, RequestVerb.RESUME, everything=True)
        assert wait_for(master, session, job) is None
    assert [note.kind for note in read_notes(FILES, session.base, job.run)] == ["stopped"]
    folder = Path(session.base.job_folder(job.run, job.number))
    assert (folder / f"{job.number}.OUT").read_text() == "goes on\n"
    session.wait_until((folder / "SUCCESS").exists, what="the SUCCESS file after the result")
    assert not (folder / "FAILURE").exists()
    assert "outcome:  stopped" in (folder / "attempts/1/INFO").read_text()


def test_a_command_past_its_time_may_go_on_too(session: RealSessions) -> None:
    job = queue(
        session,
        """if test -e $POSTROOM_CHECKPOINT/saved; then exit 0; fi
        trap 'touch $POSTROOM_CHECKPOINT/saved; exit 75' TERM
        while :; do sleep 0.05; done""",
        timeout_s=2.0,  # on a busy machine, too, the trap is set by then
    )
    late = queue(session, "trap 'exit 1' TERM; while :; do sleep 0.05; done", timeout_s=0.3)
    with session.master() as master:
        assert wait_for(master, session, job) is None
        failure = wait_for(master, session, late)
    assert failure is not None and failure.outcome is Outcome.TIMED_OUT


def test_one_killed_from_outside_is_said_to_be(session: RealSessions, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    job = queue(session, f"echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 600")
    with session.master() as master:
        drive(master, pid.exists, what="the command")
        os.kill(int(pid.read_text()), signal.SIGKILL)
        failure = wait_for(master, session, job)
    assert failure is not None and failure.kind == "killed from outside"


def test_a_task_is_killed_and_its_session_goes_on(sessions: RealSessions, tmp_path: Path) -> None:
    sessions.start()
    begun = tmp_path / "begun"
    with sessions.master() as master:
        pool = master.submit_all([Job("kernels:hang", log=str(begun))])
        drive(master, begun.exists, what="the task")
        request(master, sessions, RequestVerb.KILL, JobId(pool.run, 0))
        pool.wait(60)
        assert pool[0].outcome is Outcome.CANCELLED
        assert master.run([Job("kernels:double", x=2)])[0].result() == 4
    assert [note.kind for note in read_notes(FILES, sessions.base, pool.run)] == ["stopped"]


def test_orders_outlive_the_master_and_the_guardian(session: RealSessions, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    job = queue(session, f"touch {begun}; sleep 600")
    held = queue(session, "true")
    with session.master() as master:
        drive(master, begun.exists, what="the command")
        request(master, session, RequestVerb.HOLD, held)
        os.kill(session.guardians["0"].pid, signal.SIGKILL)
        request(master, session, RequestVerb.KILL, job)
    with session.master() as master:
        failure = wait_for(master, session, job)
        assert failure is not None and failure.message == "killed by ada"
        assert not os.path.exists(session.base.result(held.run, held.number))
