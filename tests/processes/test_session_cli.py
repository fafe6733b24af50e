"""One session as a user has it in a terminal: signals, cards, what it says and what it costs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.gpus.cards import simulated
from postroom.jobs import Job
from postroom.testing import PATIENCE_S, RealSessions, wait_until

from .conftest import drive

STUB = Path(__file__).parent.parent / "gpus" / "stub_nvml.c"
CARD = "driver 570.124\ncard 0 GPU-aaaa1111 24576 300 0 35 21500 NVIDIA Test Card\n"

# Runs until a file appears: a job that runs for as long as the test needs it.
UNTIL = """
import os, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)
    return os.getpid()
"""


@pytest.fixture
def gate(sessions: RealSessions, tmp_path: Path) -> Path:
    """The file that lets the job of `wait_for` end."""
    assert sessions.import_folder is not None
    Path(sessions.import_folder, "until.py").write_text(UNTIL)
    return tmp_path / "gate"


def attempts(sessions: RealSessions) -> list[Path]:
    return list(Path(sessions.base.root, "attempts").glob("*/*.json"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_job_in_hand_finish(
    sessions: RealSessions, gate: Path, number: signal.Signals
) -> None:
    sessions.start()
    with sessions.master() as master:
        pool = master.submit_all([Job("until:wait_for", path=str(gate)) for _ in range(2)])
        drive(master, lambda: master.agents() and is_at_work(sessions))
        sessions.guardians["0"].send_signal(number)
        wait_until(lambda: "finishing the running job" in Path(sessions.words("0")).read_text())
        gate.touch()
        assert sessions.guardians["0"].wait(PATIENCE_S) == 0
        drive(master, lambda: pool.n_done == 1)
        assert attempts(sessions) == []
        sessions.start("1", "1")
        master.wait(pool)
        assert pool.n_failed == 0


def test_a_second_signal_stops_now_and_the_job_is_requeued_without_blame(
    sessions: RealSessions, gate: Path
) -> None:
    sessions.start()
    with sessions.master() as master:
        pool = master.submit_all([Job("until:wait_for", path=str(gate))])
        drive(master, lambda: is_at_work(sessions))
        sessions.guardians["0"].send_signal(signal.SIGINT)
        wait_until(lambda: "again to stop now" in Path(sessions.words("0")).read_text())
        sessions.guardians["0"].send_signal(signal.SIGINT)
        assert sessions.guardians["0"].wait(PATIENCE_S) == 0
        assert pool.n_done == 0 and attempts(sessions) == []
        gate.touch()
        sessions.start("1", "1")
        master.wait(pool)
        assert pool.agents.keys() == {"1"}


def test_stop_now_ends_an_agent_that_is_at_work(sessions: RealSessions, gate: Path) -> None:
    sessions.start()
    with sessions.master() as master:
        master.submit_all([Job("until:wait_for", path=str(gate))])
        drive(master, lambda: is_at_work(sessions))
        command = [sys.executable, "-m", "postroom", "agents", "stop", sessions.base.root, "--now"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "agent 0 stopped" in done.stdout
        assert sessions.guardians["0"].wait(PATIENCE_S) == 0


def test_stopping_never_touches_a_process_that_took_over_the_pid(sessions: RealSessions) -> None:
    """A card of a dead session names a pid that somebody else has now."""
    sessions.start()
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        card = json.loads(Path(sessions.base.agent_info("0")).read_text())
        sessions.kill()
        card["pid"] = innocent.pid
        Path(sessions.base.agent_info("0")).write_text(json.dumps(card))
        command = [sys.executable, "-m", "postroom", "agents", "stop", sessions.base.root, "0"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "is not running" in done.stdout
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_worker_is_pinned_before_anything_is_imported(sessions: RealSessions) -> None:
    assert sessions.import_folder is not None
    Path(sessions.import_folder, "pinned.py").write_text(
        "import os\n"
        "def pins():\n"
        "    return [os.environ.get(k) for k in ('CUDA_DEVICE_ORDER', 'CUDA_VISIBLE_DEVICES')]\n"
    )
    sessions.start("0", "2")
    with sessions.master() as master:
        assert master.run([Job("pinned:pins")]).results() == [["PCI_BUS_ID", "2"]]


def test_two_sessions_of_one_base_share_a_card_that_is_named_twice(sessions: RealSessions) -> None:
    start = [
        sys.executable,
        "-m",
        "postroom",
        "agents",
        "start",
        sessions.base.root,
        "--gpus",
        "0,0,1",
    ]
    done = subprocess.run(
        start, env=sessions.environment, capture_output=True, text=True, check=True
    )
    try:
        assert [f"agent {name} started" in done.stdout for name in ("0", "0b", "1")] == [True] * 3
    finally:
        stop = [sys.executable, "-m", "postroom", "agents", "stop", sessions.base.root]
        subprocess.run(stop, check=True, capture_output=True)


@pytest.fixture
def driver(sessions: RealSessions, tmp_path: Path) -> Path:
    """Real nvidia-ml-py on a stub of the driver with one card; returns the scenario's file."""
    compiler = shutil.which("gcc")
    if compiler is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("gcc is not installed")
    library = tmp_path / "lib" / "libnvidia-ml.so.1"
    library.parent.mkdir()
    subprocess.run([str(compiler), "-shared", "-fPIC", "-o", library, STUB], check=True)
    scenario = tmp_path / "scenario"
    scenario.write_text(CARD)
    del sessions.environment["POSTROOM_FAKE_GPUS"]
    sessions.environment |= {"LD_LIBRARY_PATH": str(library.parent), "NVML_STUB": str(scenario)}
    return scenario


def test_exclusive_mode_is_set_and_put_back(sessions: RealSessions, driver: Path) -> None:
    modes = Path(f"{driver}.mode")
    modes.write_text("0 2\n")  # somebody had set it to PROHIBITED
    sessions.start("0", "0", options=["--exclusive"])
    assert modes.read_text().split("\n")[1] == "0 3"
    assert sessions.stop() == 0
    assert modes.read_text().splitlines() == ["0 2", "0 3", "0 2"]


def test_a_mode_that_a_killed_session_left_set_is_put_back_at_the_next_start(
    sessions: RealSessions, driver: Path
) -> None:
    modes = Path(f"{driver}.mode")
    sessions.start("0", "0", options=["--exclusive"])
    assert "commands of this session cannot use it" in Path(sessions.words("0")).read_text()
    sessions.kill()
    assert modes.read_text().splitlines() == ["0 3"]
    sessions.start("0", "0")
    words = Path(sessions.words("0"))
    sessions.wait_until(lambda: "was left set by a session that was killed" in words.read_text())
    assert modes.read_text().splitlines() == ["0 3", "0 0"]
    with sessions.master() as master:  # until its guardian hears signals
        assert master.run([Job("kernels:double", x=4)]).results() == [8]
    assert sessions.stop() == 0


def test_a_refused_exclusive_mode_is_said_and_the_session_works(
    sessions: RealSessions, driver: Path
) -> None:
    driver.write_text(CARD + "mode_refused 0\n")
    sessions.start("0", "0", options=["--exclusive"])
    assert "could not be set" in Path(sessions.words("0")).read_text()
    with sessions.master() as master:
        assert master.run([Job("kernels:double", x=4)]).results() == [8]


def test_foreign_processes_on_the_card_are_told_of(sessions: RealSessions, driver: Path) -> None:
    driver.write_text(CARD + f"process 0 {os.getpid()} 5000 compute\n")
    with pytest.raises(AssertionError, match=f"without a lease by .*pid {os.getpid()}"):
        sessions.start("0", "0")
    sessions.environment["POSTROOM_BESIDE_STRANGERS"] = "1"
    sessions.start("0", "0")
    words = Path(sessions.words("0")).read_text()
    assert f"pid {os.getpid()}" in words and "4.9G" in words


def test_a_sick_card_is_refused_with_its_reason(sessions: RealSessions, driver: Path) -> None:
    driver.write_text(CARD + "lost 0\n")
    with pytest.raises(AssertionError, match="lost"):
        sessions.start("0", "0")


def is_at_work(sessions: RealSessions) -> bool:
    path = Path(sessions.base.in_hand("0"))
    return path.exists() and path.read_bytes().startswith(b"running")


def test_a_card_that_gets_sick_under_a_session_is_quarantined_and_its_job_given_on(
    sessions: RealSessions, tmp_path: Path
) -> None:
    """Scripted while it runs: the worker dies, and then the driver calls the card lost."""
    cards = tmp_path / "cards"
    cards.mkdir(mode=0o700)
    sessions.environment["POSTROOM_FAKE_GPUS_FOLDER"] = str(cards)
    sessions.start("0", "0")
    with sessions.master() as master:
        log = str(tmp_path / "attempts")
        pool = master.submit_all([Job("kernels:die", log=log, until=2)])
        simulated.script(str(cards), {"FAKE-0": {"problem": "lost: fell off the bus"}})
        drive(master, lambda: sessions.guardians["0"].poll() is not None)
        assert "fell off the bus" in Path(sessions.words("0")).read_text()
        sessions.start("1", "1")
        master.wait(pool)
        assert pool.results() == ["survived"]
    listed = subprocess.run(
        [sys.executable, "-m", "postroom", "gpu", "list", "--json"],
        env=sessions.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (sick,) = [card for card in json.loads(listed.stdout) if card["uuid"] == "FAKE-0"]
    assert "fell off the bus" in json.dumps(sick)


def test_a_session_that_may_wait_gets_its_card_when_the_holder_ends(
    sessions: RealSessions, tmp_path: Path
) -> None:
    sessions.start("0", "0")
    command = [sys.executable, "-m", "postroom.session", "0", str(tmp_path / "other"), "--wait"]
    waiting = subprocess.Popen(
        command, env=sessions.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert waiting.stderr is not None
        assert "waiting for GPU 0: card 0 is held by 'session 0 of" in waiting.stderr.readline()
        sessions.stop()
        assert "ready on GPU 0" in waiting.stderr.readline()
    finally:
        waiting.terminate()
        waiting.communicate(timeout=PATIENCE_S)
    assert waiting.returncode == 0
