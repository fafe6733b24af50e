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


class Desk:
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
def inbox(sessions: RealSessions) -> Iterator[Desk]:
    """A Master in a process of its own, and one session."""
    sessions.start(options=("--preload", ""))
    words = [sys.executable, "-m", "postroom", "master", sessions.base.root]
    master = subprocess.Popen(words, env=sessions.environment, stderr=subprocess.DEVNULL)
    try:
        sessions.wait_until(lambda: snapshot(sessions.base, runs=False).master_pid == master.pid)
        yield Desk(sessions)
    finally:
        master.send_signal(signal.SIGTERM)
        master.wait(60)


def test_a_job_is_submitted_watched_killed_and_rerun(inbox: Desk, tmp_path: Path) -> None:
    go = tmp_path / "go"
    line = f"echo begun; test -e {go} || sleep 600; echo over; exit 3"
    job = inbox.call("submit", "-n", "train", line)
    running = inbox.wait_for(job, "running")
    command = Path(f"/proc/{running['pid']}/cmdline").read_bytes()
    assert b"echo begun" in command
    assert inbox.call("logs", job) == "begun"
    later = inbox.call("submit", "--after", job, "echo never")
    assert inbox.show(later)["job"]["reason"] == f"it waits for {job} (running)"
    inbox.call("kill", job)
    assert inbox.call("wait", job, later, code=1).split() == [job, "cancelled", later, "cancelled"]
    go.touch()
    again = inbox.call("rerun", job)
    assert inbox.call("logs", "-f", again) == "begun\nover"
    failed = inbox.show(again)
    assert (failed["job"]["state"], failed["job"]["exit"]) == ("failed", 3)
    assert failed["job"]["rerun_of"] == inbox.show(job)["job"]["id"]


def test_a_pause_saves_a_checkpoint_from_which_the_job_goes_on(inbox: Desk) -> None:
    job = inbox.call("submit", SAVING)
    inbox.wait_for(job, "running")
    inbox.sessions.wait_until(lambda: inbox.call("logs", job) == "from 0")
    inbox.call("pause", "--preempt")
    paused = inbox.wait_for(job, "paused")
    assert paused["job"]["reason"].endswith("postroom resume")
    inbox.call("resume")
    assert inbox.call("wait", job) == f"{job} ok"
    assert inbox.call("logs", job) == "from 5"
    assert inbox.call("logs", job, "-a", "1") == "from 0"
    assert [one["outcome"] for one in inbox.show(job)["attempts"]] == ["stopped", "ok"]


def test_a_job_killed_from_outside_is_said_to_be(inbox: Desk) -> None:
    job = inbox.call("submit", "exec sleep 600")
    inbox.wait_for(job, "running")
    pid = wait_until(lambda: inbox.show(job)["pid"], what="its process")
    os.kill(pid, signal.SIGKILL)
    assert inbox.call("wait", job, code=1) == f"{job} failed"
    assert "killed from outside" in inbox.show(job)["job"]["error"]


def test_jobs_wait_their_turn_by_priority_and_held_ones_wait_for_release(
    inbox: Desk, tmp_path: Path
) -> None:
    order = tmp_path / "order"
    go = tmp_path / "go"
    first = inbox.call("submit", f"until test -e {go}; do sleep 0.05; done")
    inbox.wait_for(first, "running")
    low = inbox.call("submit", "-p", "-1", f"echo low >> {order}")
    high = inbox.call("submit", f"echo high >> {order}")
    held = inbox.call("submit", "--hold", f"echo held >> {order}")
    last = inbox.call("submit", f"echo last >> {order}")
    inbox.call("priority", high, "3")
    inbox.call("move", last, "first")
    states = {
        row["short"]: row["state"] for row in json.loads(inbox.call("jobs", "--json"))["jobs"]
    }
    assert states == {
        first: "running", high: "queued", last: "queued", low: "queued", held: "held",
    }  # fmt: skip
    assert list(states)[1:4] == [high, last, low]
    go.touch()
    inbox.call("wait", low)
    inbox.call("release", held)
    inbox.call("wait", held)
    assert order.read_text().split() == ["high", "last", "low", "held"]
