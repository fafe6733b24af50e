"""From nothing to a finished job and a page with one command; and back after `kill -9` of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroom.cli.up import page_of
from postroom.store.agents import read_page_info
from postroom.store.base import Base, own_queue
from postroom.store.files import LocalFiles
from postroom.store.snapshot import acting_master, living_agent, snapshot
from postroom.store.wanted_agents import read_wanted
from postroom.testing import wait_until

FILES = LocalFiles()


def postroom(*words: str, code: int = 0) -> str:
    """Call the command as a user does; return what it printed."""
    command = [sys.executable, "-m", "postroom", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def states(base: Base) -> dict[str, str]:
    return {agent.agent: agent.state for agent in snapshot(base, runs=False).agents}


def pids(base: Base) -> list[int]:
    """The processes of the queue: its agents, the scheduler, the page."""
    page, master = page_of(base), acting_master(FILES, base)
    found = [agent.pid for agent in snapshot(base, runs=False).agents if agent.pid]
    return [*found, *(one.pid for one in (master, page) if one is not None)]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Base]:
    """The user's own queue, which is not there yet; in the end all of it is down."""
    monkeypatch.delenv("POSTROOM_BASE", raising=False)
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_REST", "1s")
    base = Base(own_queue())
    yield base
    postroom("down", "--now")
    wait_until(lambda: not pids(base))


def test_one_command_starts_all_that_a_queue_needs_and_starts_it_again(
    queue: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    link = postroom("up", "--gpus", "0,1", "--port", "0").strip()
    assert states(queue) == {"0": "resting", "1": "resting"}
    address, token = link.split("/?token=")
    asked = urllib.request.Request(
        f"{address}/api/overview", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(asked) as answer:
        assert [agent["state"] for agent in json.load(answer)["agents"]] == ["resting"] * 2
    monkeypatch.chdir(tmp_path)  # the queue is the user's, wherever it is called
    job = postroom("submit", "--", "true").strip()
    assert postroom("wait", job) == f"{job} ok\n"

    # A session that is killed is back; so is all of it, after `kill -9` of everything.
    session = living_agent(FILES, queue, "0")
    assert session is not None
    os.kill(session.pid, signal.SIGKILL)
    wait_until(
        lambda: (
            (now := living_agent(FILES, queue, "0")) is not None and now.process != session.process
        ),
        folder=queue.root,
    )
    paused = postroom("submit", "--hold", "--", "true").strip()
    victims = pids(queue)
    assert len(victims) == 4
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: acting_master(FILES, queue) is None and page_of(queue) is None)
    again = postroom("up").strip()
    assert again.endswith(token)  # the token stays
    assert set(states(queue)) == {"0", "1"} and set(pids(queue)).isdisjoint(victims)
    postroom("release", paused)
    assert postroom("wait", paused) == f"{paused} ok\n"

    # Idle agents hold no GPU: others get it.
    wait_until(lambda: set(states(queue).values()) == {"resting"}, folder=queue.root)
    assert postroom("gpu", "run", "-n", "2", "--timeout", "20", "--", "echo", "mine") == "mine\n"

    # Other agents than before; then none, and what was wanted is remembered.
    postroom("up", "--gpus", "1", "--no-page")
    wait_until(lambda: set(states(queue)) == {"1"}, folder=queue.root)
    postroom("down")
    assert pids(queue) == [] and states(queue) == {}
    wanted = read_wanted(FILES, queue)
    assert wanted is not None and (wanted.agents, wanted.up) == ({"1": "1"}, False)
    assert read_page_info(FILES, queue) is not None


def test_a_service_that_is_told_to_stop_queues_its_jobs_again(queue: Base, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "postroom", "up", "--wait", "--no-page", "--gpus", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as service:
        wait_until(lambda: os.path.exists(queue.format) and states(queue) == {"0": "resting"})
        job = postroom("submit", "--", f"echo x >> {tmp_path}/began; sleep 60").strip()
        wait_until(lambda: (tmp_path / "began").exists(), folder=queue.root)
        master = acting_master(FILES, queue)
        assert master is not None
        os.kill(master.pid, signal.SIGKILL)  # the service starts it again
        wait_until(
            lambda: (
                (now := acting_master(FILES, queue)) is not None and now.process != master.process
            )
        )
        service.terminate()
        service.communicate(timeout=60)
        assert service.returncode == 0
    assert pids(queue) == []
    assert "queued" in postroom("show", job)
    assert (tmp_path / "began").read_text() == "x\n"


MEETING = """
import os, pathlib, sys, time
from postroom.gpus.cards.simulated import Claim
here, me, used_mib = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Claim(os.environ["POSTROOM_GPU"], used_mib):
    (here / f"{me}.on.{os.environ['POSTROOM_GPU']}").touch()
    while len(list(here.glob("*.on.*"))) < 3 or used_mib > 8000:
        time.sleep(0.05)
"""


def test_jobs_with_memory_share_a_gpu_and_one_that_uses_more_is_ended_if_it_asks_for_that(
    queue: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards, here = tmp_path / "cards", tmp_path / "here"
    cards.mkdir(mode=0o700)
    here.mkdir()
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(cards))
    monkeypatch.setenv("POSTROOM_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    (tmp_path / "meet.py").write_text(MEETING)
    meet = (sys.executable, str(tmp_path / "meet.py"), str(here))
    postroom("up", "--gpus", "0", "--no-page")
    # Each waits for the other two: one after another, or on a GPU each, none would ever end.
    jobs = [postroom("submit", "-m", "6G", *meet, f"{n}", "6000").strip() for n in range(3)]
    assert postroom("wait", "--timeout", "60", *jobs).count(" ok") == 3
    assert {path.name.partition(".on.")[2] for path in here.iterdir()} == {"FAKE-0"}
    large = postroom("submit", "-m", "4G", "--over", "kill", *meet, "9", "9000").strip()
    postroom("wait", "--timeout", "60", large, code=1)
    said = postroom("show", large)
    assert "over its GPU memory" in said and "uses 9000 MiB of GPU 0, but only 4608 MiB" in said
    # A job for the whole GPU has its turn, too.
    whole = postroom("submit", "true").strip()
    assert postroom("wait", "--timeout", "60", whole) == f"{whole} ok\n"


YIELDING = """
import os, pathlib, signal, sys, time
saved = pathlib.Path(os.environ["POSTROOM_CHECKPOINT"], "state")
if saved.exists():
    sys.exit(0)
def save(*_):
    saved.write_text("half")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
time.sleep(600)
"""


def test_an_agent_that_yields_saves_its_job_for_a_neighbour_and_finishes_it_later(
    queue: Base, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(YIELDING)
    postroom("up", "--gpus", "0", "--no-page")
    postroom("up", "--yield", "--no-page")  # those that live do, too
    job = postroom("submit", sys.executable, str(tmp_path / "train.py")).strip()
    wait_until(lambda: "begun" in postroom("logs", job), folder=queue.root)
    # The neighbour waits for this GPU: it is not their turn for the first ten seconds.
    words = ["gpu", "run", "--gpus", "0", "--timeout", "60", "--", "echo", "mine"]
    assert postroom(*words) == "mine\n"
    assert postroom("wait", "--timeout", "60", job) == f"{job} ok\n"
