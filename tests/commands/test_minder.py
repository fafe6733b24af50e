"""The minder as a real process: what it runs, ends, writes and survives."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import signal
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from postroom.commands.attempt import CommandAttempt
from postroom.commands.failure import Cause
from postroom.commands.job_folder import JobFolder
from postroom.commands.minder import LONG_LINE, MinderContext, fork_minder
from postroom.commands.spec import CommandSpec
from postroom.parcel.sheets import Failure, JobEnd, Outcome, OutcomeSheet
from postroom.store.base import Base, create_base, new_run_id
from postroom.store.files import LocalFiles
from postroom.store.runs import RunInfo, create_run, read_note, read_parcel_bytes
from postroom.system.process_tree import below, mark_of, marked, sweep
from postroom.testing import wait_until

FILES = LocalFiles()


class RunningMinder:
    """A minder that a test has started, and the base that it writes to."""

    def __init__(self, base: Base, run: str, cwd: str) -> None:
        self.base = base
        self.lock = FILES.try_lock(base.agent_lock("0"))
        assert self.lock is not None
        self.lease = os.open(cwd, os.O_RDONLY)
        context = MinderContext(
            base,
            "0",
            "FAKE-0",
            "Simulated",
            {"POSTROOM_GPU": "FAKE-0"},
            (self.lease,),
            self.lock.fd,
        )
        self.process, self.line = fork_minder(context)
        self.pid = self.process.pid
        self.cwd = cwd
        spec = CommandSpec("true", cwd=cwd, folder=f"{cwd}/out/job_1", grace_s=0.3, number=7)
        self.attempt = CommandAttempt(spec, run, job=0, attempt=1, failed=0)
        self.folder = JobFolder(spec.folder)

    def send(self, command: str, **changes: Any) -> CommandAttempt:
        own = {name: changes.pop(name) for name in ("job", "attempt", "failed") if name in changes}
        spec = replace(self.attempt.spec, command=command, **changes)
        attempt = replace(self.attempt, spec=spec, **own)
        self.line.sendall(attempt.encode())
        return attempt

    def word(self) -> str:
        self.line.settimeout(60)
        return self.line.recv(4096).decode().rstrip("\n")

    def run(self, command: str, **changes: Any) -> JobEnd:
        attempt = self.send(command, **changes)
        assert self.word() == "done"
        return self.result(attempt.job)

    def result(self, job: int = 0) -> JobEnd:
        path = self.base.result(self.attempt.run, job)
        return OutcomeSheet(path, read_parcel_bytes(FILES, path)).done(job)

    def close(self) -> None:
        self.line.close()
        os.close(self.lease)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        sweep(mark_of(self.base.root, "0"))


@pytest.fixture
def minder(tmp_path: Path) -> Iterator[RunningMinder]:
    with minder_at(tmp_path) as minder:
        yield minder


@contextlib.contextmanager
def minder_at(tmp_path: Path) -> Iterator[RunningMinder]:
    base = create_base(tmp_path / "base")
    info = RunInfo(new_run_id(), "", str(tmp_path), None, True, False, 0.0, "", "")
    create_run(FILES, base, info)
    (tmp_path / "out").mkdir()
    minder = RunningMinder(base, info.run, str(tmp_path))
    try:
        yield minder
    finally:
        minder.close()


def test_a_command_leaves_its_output_its_info_and_its_result(minder: RunningMinder) -> None:
    done = minder.run("echo out; echo err >&2; echo more && pwd")
    assert done.failure is None
    assert done.value["outcome"] == "ok"
    assert done.value["exit"] == 0
    folder = minder.folder
    assert Path(folder.out).read_text() == f"out\nmore\n{minder.cwd}\n"
    assert Path(folder.err).read_text() == "err\n"
    assert sorted(os.listdir(folder.path)) == ["INFO", "SUCCESS", "job_1.ERR", "job_1.OUT"]
    info = folder.read_info()
    assert info["name"] == "job_1"
    assert info["gpu"] == "Simulated"
    assert info["attempt"] == "1"
    assert info["outcome"] == "ok"
    assert info["started"] <= info["ended"]


def test_merged_output_is_one_log_in_the_order_in_which_it_came(minder: RunningMinder) -> None:
    done = minder.run("for n in 1 2 3; do echo o$n; echo e$n >&2; done; exit 3", merged=True)
    assert Path(minder.folder.out).read_text().split() == ["o1", "e1", "o2", "e2", "o3", "e3"]
    assert not os.path.exists(minder.folder.err)
    assert done.failure is not None and done.failure.message == "exit code 3: e3"


def test_a_command_that_ended_well_is_not_run_again_when_only_its_outcome_was_lost(
    minder: RunningMinder,
) -> None:
    count = f"{minder.cwd}/count"
    first = minder.run(f"echo once >> {count}")
    os.unlink(minder.base.result(minder.attempt.run, 0))  # as if killed before it was published
    again = minder.run(f"echo once >> {count}", attempt=2)
    assert Path(count).read_text() == "once\n"
    assert again.value == first.value
    assert os.path.exists(f"{minder.folder.path}/SUCCESS")


@pytest.mark.parametrize("spoilt", ["outcome:  ok", "seconds:", "SUCCESS", "job"])
def test_a_command_whose_folder_does_not_say_that_it_ended_well_is_run_again(
    minder: RunningMinder, spoilt: str
) -> None:
    count = f"{minder.cwd}/count"
    minder.run(f"echo once >> {count}")
    os.unlink(minder.base.result(minder.attempt.run, 0))
    info = Path(minder.folder.info)
    if spoilt == "SUCCESS":
        os.unlink(f"{minder.folder.path}/SUCCESS")
    info.write_text(info.read_text().replace(spoilt, "no" + spoilt))
    minder.run(f"echo once >> {count}", job=1 if spoilt == "job" else 0)
    assert Path(count).read_text() == "once\nonce\n"


def test_a_command_knows_its_job_attempt_card_and_task_number(minder: RunningMinder) -> None:
    words = "$POSTROOM_JOB $POSTROOM_NAME $POSTROOM_ATTEMPT $POSTROOM_GPU $SGE_TASK_ID $MINE"
    minder.run(f"echo {words}", env={"MINE": "yes", "POSTROOM_GPU": "no"})
    said = Path(minder.folder.out).read_text()
    assert said == f"{minder.attempt.run}/0 job_1 1 FAKE-0 7 yes\n"


def test_one_minder_runs_one_command_after_another(minder: RunningMinder) -> None:
    for job in range(20):
        folder = f"{minder.cwd}/out/job_{job}"
        assert minder.run(f"exit {job % 2}", job=job, folder=folder).failure is None or job % 2
        assert os.path.exists(f"{folder}/{'FAILURE' if job % 2 else 'SUCCESS'}")
    assert minder.pid in below(os.getpid())


@pytest.mark.parametrize(
    ("command", "cause", "said"),
    [
        ("echo why >&2; exit 3", Cause.EXIT, "exit code 3: why"),
        ("no-such-program-at-all", Cause.MISSING, "exit code 127"),
        ("kill -9 $$", Cause.KILLED, "ended by SIGKILL"),
        ("sleep 60 & kill -15 $!; wait $!", Cause.KILLED, "ended by SIGTERM"),
        ("kill -SEGV $$", Cause.CRASHED, "ended by SIGSEGV"),
        ("echo 'CUDA out of memory. Tried' >&2; exit 1", Cause.GPU_MEMORY, "Tried"),
        ("echo MemoryError >&2; exit 1", Cause.HOST_MEMORY, "MemoryError"),
    ],
)
def test_failures_are_told_apart(
    minder: RunningMinder, command: str, cause: Cause, said: str
) -> None:
    failure = minder.run(command).failure
    assert failure is not None
    assert failure.kind == cause.value
    assert said in failure.message
    assert os.path.exists(f"{minder.folder.path}/FAILURE")
    assert not os.path.exists(f"{minder.folder.path}/SUCCESS")
    assert minder.folder.read_info()["outcome"] == cause.value


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = tmp_path / "full"
    full.touch()
    begin = JobFolder.begin

    def sometimes(folder: JobFolder) -> int:
        if full.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return begin(folder)

    monkeypatch.setattr(JobFolder, "begin", sometimes)
    monkeypatch.setattr("postroom.commands.minder.BLOCKED_S", 0.01)
    with minder_at(tmp_path) as minder:
        minder.send("true")
        wait_until(lambda: "waits for disk space" in _read(minder.base.log))
        full.unlink()
        assert minder.word() == "done"
        assert minder.result().failure is None


def test_a_working_folder_that_is_not_there_is_a_failure(minder: RunningMinder) -> None:
    failure = minder.run("true", cwd="/no/such/folder").failure
    assert failure is not None
    assert "/no/such/folder" in failure.message


def test_a_lost_card_is_a_lost_attempt_and_no_result(minder: RunningMinder) -> None:
    minder.send("echo 'no CUDA-capable device is detected'; exit 1")
    assert minder.word() == "done"
    note = read_note(FILES, minder.base, minder.attempt.run, 0, 1)
    assert note is not None
    assert note.kind == "lost"
    assert not os.path.exists(minder.base.result(minder.attempt.run, 0))


def test_a_failure_with_retries_left_is_noted_and_each_attempt_is_kept(
    minder: RunningMinder,
) -> None:
    line = "echo attempt $POSTROOM_ATTEMPT; test $POSTROOM_ATTEMPT = 3"
    for failed in range(2):
        minder.send(line, retries=2, failed=failed, attempt=failed + 1)
        assert minder.word() == "done"
        assert os.path.exists(f"{minder.folder.path}/FAILURE")
    assert minder.run(line, retries=2, failed=2, attempt=3).value["attempt"] == 3
    assert not os.path.exists(f"{minder.folder.path}/FAILURE")
    assert os.path.exists(f"{minder.folder.path}/SUCCESS")
    for number in (1, 2):
        earlier = Path(minder.folder.path, "attempts", str(number))
        assert (earlier / "job_1.OUT").read_text() == f"attempt {number}\n"
        assert (earlier / "FAILURE").exists()
    assert Path(minder.folder.out).read_text() == "attempt 3\n"


def test_a_long_output_keeps_its_beginning_and_its_end(minder: RunningMinder) -> None:
    minder.run("seq 1 200000; seq 1 200000 >&2", output_bytes=64 << 10)
    for path in (minder.folder.out, minder.folder.err):
        text = Path(path).read_text()
        assert len(text) < 66 << 10
        assert text.startswith("1\n2\n3\n")
        assert text.endswith("\n199999\n200000\n")
        assert "bytes left out by postroom" in text


TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.argv[1] + "-far", "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
print("grown", flush=True)
time.sleep(float(sys.argv[2]))
"""


def running(token: str) -> list[int]:
    """Living processes that have a token in their command line, shells aside."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if any(word.startswith(token.encode()) for word in words):
                    found.append(int(name))
    return found


def tree(token: str, seconds: float) -> str:
    words = [sys.executable, "-c", TREE, token, str(seconds)]
    return "exec " + " ".join(map(shlex.quote, words))


def test_past_its_time_a_command_and_all_its_children_end(minder: RunningMinder) -> None:
    token = f"tree-{uuid.uuid4().hex}"
    failure = minder.run(tree(token, 600), timeout_s=1.0).failure
    assert failure is not None
    assert failure.kind == Cause.TIMED_OUT.value
    assert "longer than its time limit of 1 s" in failure.message
    assert running(token) == []


def test_what_a_command_leaves_behind_ends_with_it(minder: RunningMinder) -> None:
    token = f"tree-{uuid.uuid4().hex}"
    assert minder.run(tree(token, 0)).failure is None
    assert running(token) == []


def test_the_log_names_the_processes_that_are_ended_after_their_command(
    minder: RunningMinder,
) -> None:
    started = "until grep -q sleep /proc/$!/comm; do :; done"
    assert minder.run(f"sleep 300 & {started}").failure is None
    said = Path(minder.folder.err).read_text()
    assert "left processes behind, which are ended now: sleep 300 (pid " in said
    assert "`wait`" in said
    assert minder.folder.read_info()["left"].startswith("sleep 300 (pid ")
    minder.run("sleep 0.01 & wait", job=1)
    assert Path(minder.folder.err).read_text() == ""
    assert "left" not in minder.folder.read_info()


def test_a_line_that_is_longer_than_linux_allows_runs_all_the_same(minder: RunningMinder) -> None:
    words = "x" * 200_000
    assert minder.run(f"echo {words} | wc -c; exit 3").failure == Failure(
        Outcome.FAILED, "failed", "exit code 3: 200001"
    )
    assert minder.run(f": {'x' * (LONG_LINE - 3)}", job=1).failure is None
    assert minder.run(f": {'x' * (LONG_LINE - 2)}", job=2).failure is None


def test_what_no_process_can_be_given_is_a_failure_and_the_minder_lives(
    minder: RunningMinder,
) -> None:
    failure = minder.run("echo \0").failure
    assert failure is not None and "null byte" in failure.message
    failure = minder.run("true", env={"A": "\0"}, job=1).failure
    assert failure is not None and "null byte" in failure.message
    assert minder.run("true", job=2).failure is None


def test_told_to_stop_it_ends_the_tree_and_blames_nobody(minder: RunningMinder) -> None:
    token = f"tree-{uuid.uuid4().hex}"
    minder.send(tree(token, 600), retries=1)
    wait_until(lambda: "grown" in _read(minder.folder.out))
    os.kill(minder.pid, signal.SIGTERM)
    assert minder.word() == "stopped"
    assert running(token) == []
    assert minder.folder.read_info()["outcome"] == "stopped"
    assert not minder.folder.finished
    assert os.listdir(minder.base.result_folder(minder.attempt.run)) == []
    assert os.listdir(minder.base.attempts(minder.attempt.run)) == []


def test_a_signal_that_comes_at_its_birth_is_not_lost(tmp_path: Path) -> None:
    for place in range(20):
        home = tmp_path / str(place)
        home.mkdir()
        with minder_at(home) as minder:
            os.kill(minder.pid, signal.SIGTERM)
            with contextlib.suppress(BrokenPipeError):  # it has gone already
                minder.send("sleep 600")
            # Stopped before it took the attempt, or while it ran it: it ends in either case.
            assert os.waitpid(minder.pid, 0)[0] == minder.pid


def test_it_outlives_its_guardian_and_holds_the_lock_until_the_end(minder: RunningMinder) -> None:
    go = Path(minder.cwd, "go")
    minder.send(f"echo on; until test -e {go}; do sleep 0.01; done; echo off")
    wait_until(lambda: "on" in _read(minder.folder.out))
    minder.line.close()  # all that a minder sees of its guardian's death
    assert minder.lock is not None
    os.close(minder.lock.fd)
    minder.lock.fd = -1
    assert FILES.try_lock(minder.base.agent_lock("0")) is None
    go.touch()
    lock = wait_until(lambda: FILES.try_lock(minder.base.agent_lock("0")))
    lock.release()
    assert minder.result().failure is None
    assert _read(minder.folder.out) == "on\noff\n"
    os.waitpid(minder.pid, 0)


def test_what_a_killed_minder_leaves_is_found_by_its_mark(minder: RunningMinder) -> None:
    minder.send("echo on; sleep 600; true")
    wait_until(lambda: "on" in _read(minder.folder.out))
    os.kill(minder.pid, signal.SIGKILL)
    os.waitpid(minder.pid, 0)
    mark = mark_of(minder.base.root, "0")
    assert len(marked(mark)) == 2
    assert sweep(mark) >= 1
    assert marked(mark) == []


def test_before_and_after_surround_the_command(minder: RunningMinder) -> None:
    minder.run("echo during", before="echo before", after="echo after $POSTROOM_EXIT")
    assert Path(minder.folder.out).read_text() == "before\nduring\nafter 0\n"


def test_a_failing_before_spares_the_command_and_after_learns_of_it(minder: RunningMinder) -> None:
    done = minder.run("echo during", before="exit 4", after="echo after $POSTROOM_EXIT")
    assert done.failure is not None
    assert Path(minder.folder.out).read_text() == "after 4\n"


def test_a_command_inherits_the_cards_lease_and_nothing_else(minder: RunningMinder) -> None:
    minder.run("ls /proc/$$/fd; true")
    open_ = sorted(map(int, Path(minder.folder.out).read_text().split()))
    assert open_ == [0, 1, 2, minder.lease]


def _read(path: str) -> str:
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        return file.read()
    return ""
