"""Containers that share a base, each with its own pids: what cannot be seen is not dead."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.queue.submission import submit
from postroom.store.files import LocalFiles
from postroom.store.snapshot import snapshot
from postroom.system.process_tree import below, holders
from postroom.testing import RealSessions

ROOT = Path(__file__).parent.parent.parent
# Processes, their /proc and the control groups are not those of the machine.
CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c"]
INSIDE = 'mount -t tmpfs none /sys/fs/cgroup; "$@"; exit $?'
STAYS = 'mount -t tmpfs none /sys/fs/cgroup; "$@"; sleep 3600'  # also without what it was for

Container = subprocess.Popen[bytes]


def can_unshare() -> bool:
    if os.geteuid() or shutil.which("unshare") is None:
        return False
    return not subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode


pytestmark = pytest.mark.skipif(not can_unshare(), reason="only root can make a container")


class Containers:
    """Two containers and what runs in them; the test sees all of it, they do not see each other."""

    def __init__(self, sessions: RealSessions) -> None:
        self.sessions = sessions
        self.base = sessions.base
        self._started: list[Container] = []

    def start(self, *words: str) -> Container:
        command = [*CONTAINER, STAYS, "inside", sys.executable, "-m", *words]
        log = os.open(
            f"{self.base.root}/log/containers.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )
        try:
            started = subprocess.Popen(
                command, cwd=ROOT, env=self.sessions.environment, stdout=log, stderr=log
            )
        finally:
            os.close(log)
        self._started.append(started)
        return started

    def session(self, agent_id: str) -> Container:
        options = ("--agent", agent_id, "--preload", "")
        started = self.start("postroom.session", agent_id, self.base.root, *options)
        self.sessions.wait_until(lambda: self.sessions.ready(agent_id))
        return started

    def said(self, *words: str) -> str:
        """What `postroom` prints when it is called in a container of its own."""
        done = subprocess.run(
            [*CONTAINER, INSIDE, "inside", sys.executable, "-m", "postroom", *words],
            cwd=ROOT,
            env=self.sessions.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    def end(self) -> None:
        for one in self._started:
            one.kill()  # and with it all in its container
            one.wait()


@pytest.fixture
def containers(sessions: RealSessions) -> Iterator[Containers]:
    made = Containers(sessions)
    yield made
    made.end()


def queue_command(containers: Containers, folder: Path) -> None:
    """Queue a command that says when it begins, and goes on until it is told to end."""
    line = f"echo began >> {folder}/log; while ! test -e {folder}/end; do sleep 0.05; done"
    submit(LocalFiles(), containers.base, [CommandSpec(line, cwd=str(folder))])


def began(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "log").read_text().count("began")
    return 0


def state(containers: Containers, agent_id: str) -> str:
    return {a.agent: a.state for a in snapshot(containers.base, runs=False).agents}[agent_id]


def kill_ours(containers: Containers, container: Container) -> None:
    """Kill the guardian and what waits for the command, but not the command."""
    lock = containers.base.agent_lock("0")
    ours = set(holders(lock)) & set(below(container.pid))
    assert ours
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    containers.sessions.wait_until(lambda: not holders(lock))


def container_at_work(containers: Containers, folder: Path) -> Container:
    """A container whose session runs a command that a Master elsewhere has sent."""
    container = containers.session("0")
    queue_command(containers, folder)
    containers.start("postroom", "master", containers.base.root)
    containers.sessions.wait_until(lambda: began(folder) == 1)
    return container


def test_a_command_that_its_master_cannot_see_is_not_begun_again_before_it_has_ended(
    containers: Containers, tmp_path: Path
) -> None:
    container = container_at_work(containers, tmp_path)
    containers.session("1")  # beside the Master: it would take the job
    kill_ours(containers, container)
    log = Path(containers.base.log)
    containers.sessions.wait_until(
        lambda: log.exists() and "processes of its job go on" in log.read_text()
    )
    # While the Master holds the agent's lock to look again, nobody else can tell.
    containers.sessions.wait_until(lambda: state(containers, "0") == "orphaned")
    words = "agent 0 is dead, but processes of its job go on"
    containers.sessions.wait_until(lambda: words in containers.said("doctor", containers.base.root))
    assert began(tmp_path) == 1
    (tmp_path / "end").touch()
    containers.sessions.wait_until(lambda: began(tmp_path) == 2)
    containers.sessions.wait_until(lambda: snapshot(containers.base).runs[0].done == 1)


def test_a_container_that_ends_with_all_in_it_gives_its_job_back(
    containers: Containers, tmp_path: Path
) -> None:
    container = container_at_work(containers, tmp_path)
    container.kill()
    containers.session("1")
    containers.sessions.wait_until(lambda: began(tmp_path) == 2)
    (tmp_path / "end").touch()
    containers.sessions.wait_until(lambda: snapshot(containers.base).runs[0].done == 1)


def test_a_new_session_waits_for_a_command_that_it_cannot_see(
    containers: Containers, tmp_path: Path
) -> None:
    container = container_at_work(containers, tmp_path)
    kill_ours(containers, container)
    containers.start("postroom.session", "0", containers.base.root, "--agent", "0", "--preload", "")
    said = Path(f"{containers.base.root}/log/containers.txt")
    containers.sessions.wait_until(lambda: "waiting for a command" in said.read_text())
    assert began(tmp_path) == 1
    (tmp_path / "end").touch()
    containers.sessions.wait_until(lambda: snapshot(containers.base).runs[0].done == 1)
    assert began(tmp_path) == 2


def test_a_session_in_another_container_is_listed_found_and_not_started_again(
    containers: Containers,
) -> None:
    containers.session("0")
    root = containers.base.root
    assert state(containers, "0") == "idle"
    assert " idle " in containers.said("agents", "list", root)
    assert "agent 0 is idle (GPU 0 " in containers.said("agents", "add", root, "0")
    said = containers.said("agents", "stop", root)
    assert "no signal from here reaches agent 0 (pid " in said
    assert "in its own container" in said
    assert "agent 0 is idle (pid " in containers.said("doctor", root)
