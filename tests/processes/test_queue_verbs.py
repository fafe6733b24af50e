"""The queue as a person uses it: every verb a process of its own, with a Master and sessions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from postroom.store.snapshot import snapshot
from postroom.testing import RealSessions, wait_until

# Says that it is there, and goes on until it is told to stop; then from where it was.
SAVING = """
n=$(cat $POSTROOM_CHECKPOINT/n 2>/dev/null || echo 0)
trap 'mkdir -p $POSTROOM_CHECKPOINT; echo 5 > $POSTROOM_CHECKPOINT/n; exit 75' TERM
echo from $n
[ $n = 5 ] && exit 0
while true; do sleep 600 & wait; done
"""


class CommandLine:
    """Calls verbs on a base."""

    def __init__(self, sessions: RealSessions) -> None:
        self.sessions = sessions
        self.environment = {**sessions.environment, "POSTROOM_BASE": sessions.base.root}

    def call(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "postroom", *words],
            cwd=self.sessions.import_folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def show(self, job: str) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.call("show", job, "--json"))
        return shown

    def wait_for(self, job: str, state: str) -> dict[str, Any]:
        self.sessions.wait_until(
            lambda: self.show(job)["job"]["state"] == state, what=f"{job} {state}"
        )
        return self.show(job)


@pytest.fixture
def shell(sessions: RealSessions) -> Iterator[CommandLine]:
    """A Master in a process of its own, and one session."""
    sessions.start(options=("--preload", ""))
    words = [sys.executable, "-m", "postroom", "master", sessions.base.root]
    master = subprocess.Popen(words, env=sessions.environment, stderr=subprocess.DEVNULL)
    try:
        sessions.wait_until(lambda: snapshot(sessions.base, runs=False).master_pid == master.pid)
        yield CommandLine(sessions)
    finally:
        master.send_signal(signal.SIGTERM)
        master.wait(60)


def test_a_job_is_submitted_watched_killed_and_rerun(shell: CommandLine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    line = f"echo begun; test -e {go} || sleep 600; echo over; exit 3"
    job = shell.call("submit", "-n", "train", line)
    running = shell.wait_for(job, "running")
    command = Path(f"/proc/{running['pid']}/cmdline").read_bytes()
    assert b"echo begun" in command
    assert shell.call("logs", job) == "begun"
    later = shell.call("submit", "--after", job, "echo never")
    assert shell.show(later)["job"]["reason"] == f"it waits for {job} (running)"
    shell.call("kill", job)
    assert shell.call("wait", job, later, code=1).split() == [job, "cancelled", later, "cancelled"]
    go.touch()
    again = shell.call("rerun", job)
    assert shell.call("logs", "-f", again) == "begun\nover"
    failed = shell.show(again)
    assert (failed["job"]["state"], failed["job"]["exit"]) == ("failed", 3)
    assert failed["job"]["rerun_of"] == shell.show(job)["job"]["id"]


def test_a_pause_saves_a_checkpoint_from_which_the_job_goes_on(shell: CommandLine) -> None:
    job = shell.call("submit", SAVING)
    shell.wait_for(job, "running")
    shell.sessions.wait_until(lambda: shell.call("logs", job) == "from 0")
    shell.call("pause", "--preempt")
    paused = shell.wait_for(job, "paused")
    assert paused["job"]["reason"].endswith("postroom resume")
    shell.call("resume")
    assert shell.call("wait", job) == f"{job} ok"
    assert shell.call("logs", job) == "from 5"
    assert shell.call("logs", job, "-a", "1") == "from 0"
    assert [one["outcome"] for one in shell.show(job)["attempts"]] == ["stopped", "ok"]


def test_a_job_killed_from_outside_is_said_to_be(shell: CommandLine) -> None:
    job = shell.call("submit", "exec sleep 600")
    shell.wait_for(job, "running")
    pid = wait_until(lambda: shell.show(job)["pid"], what="its process")
    os.kill(pid, signal.SIGKILL)
    assert shell.call("wait", job, code=1) == f"{job} failed"
    assert "killed from outside" in shell.show(job)["job"]["error"]


def test_jobs_wait_their_turn_by_priority_and_held_ones_wait_for_release(
    shell: CommandLine, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    go = tmp_path / "go"
    first = shell.call("submit", f"until test -e {go}; do sleep 0.05; done")
    shell.wait_for(first, "running")
    low = shell.call("submit", "-p", "-1", f"echo low >> {order}")
    high = shell.call("submit", f"echo high >> {order}")
    held = shell.call("submit", "--hold", f"echo held >> {order}")
    last = shell.call("submit", f"echo last >> {order}")
    shell.call("priority", high, "3")
    shell.call("move", last, "first")
    states = {
        row["short"]: row["state"] for row in json.loads(shell.call("jobs", "--json"))["jobs"]
    }
    assert states == {
        first: "running", high: "queued", last: "queued", low: "queued", held: "held",
    }  # fmt: skip
    assert list(states)[1:4] == [high, last, low]
    go.touch()
    shell.call("wait", low)
    shell.call("release", held)
    shell.call("wait", held)
    assert order.read_text().split() == ["high", "last", "low", "held"]
