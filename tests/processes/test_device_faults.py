"""Real sessions on a scripted device: whose fault an error is, and what the next job finds."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom import Job, testing
from postroom.commands.spec import CommandSpec
from postroom.gpus.cards import inventory
from postroom.jobs import JobPool
from postroom.testing import RealSessions, script_device
from tests.processes.conftest import drive

KERNELS = """
import os
import numpy as np
from postroom.testing import scripted_device

def double(x):
    return scripted_device().launch(np.multiply, x, 2)

def poison(returns="number"):
    card = scripted_device()
    card.fail_later()
    return 1.0 if returns == "number" else card.launch(np.negative, np.ones(3))

def poison_and_raise():
    scripted_device().fail_later()
    raise ValueError("its own words")

def compute(seconds):
    scripted_device().compute(seconds)

def hang():
    scripted_device().hang()

def too_much():
    scripted_device().hold(30000)

def cache(mib):
    scripted_device().hold(mib)

MODEL = []

def leak(mib):
    MODEL.append(scripted_device().hold(mib))
    scripted_device().compute(0.01)

def needs_a_well_card():
    if os.environ["POSTROOM_GPU"] == "FAKE-0":
        scripted_device().fail_later("ecc")
    return os.environ["POSTROOM_GPU"]
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RealSessions]:
    (tmp_path / "kernels.py").write_text(KERNELS)
    with testing.sessions(tmp_path / "base", import_folder=tmp_path) as opened:
        opened.script_cards()
        yield opened


def ends(pool: JobPool) -> list[object]:
    """Each job's result, or its error."""
    jobs = [pool[number] for number in range(len(pool))]
    return [str(job.error) if job.error else job.result() for job in jobs]


def listed(room: RealSessions) -> list[str]:
    """The GPUs that are quarantined."""
    said = subprocess.run(
        [sys.executable, "-m", "postroom", "gpu", "list", "--json"],
        env=room.environment,
        capture_output=True,
        check=True,
    )
    return [card["uuid"] for card in json.loads(said.stdout) if "quarantine" in json.dumps(card)]


def used_mib(room: RealSessions, monkeypatch: pytest.MonkeyPatch) -> int:
    folder = room.environment["POSTROOM_FAKE_GPUS_FOLDER"]
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", folder)
    return inventory.find("0").used_mib or 0


def test_a_jobs_error_on_the_device_is_its_own_and_the_next_job_is_fine(room: RealSessions) -> None:
    room.start("0")
    guardian = room.guardians["0"].pid
    kinds = ["double", "poison", "double", "too_much", "double", "poison_and_raise", "double"]
    jobs = [Job(f"kernels:{kind}", **({"x": 3} if kind == "double" else {})) for kind in kinds]
    with room.master() as master:
        said = ends(master.run(jobs))
    assert [said[n] for n in (0, 2, 4, 6)] == [6, 6, 6, 6]
    assert "job 1 failed: AcceleratorError: CUDA error: device-side assert" in str(said[1])
    assert "CUDA_LAUNCH_BLOCKING=1" in str(said[1])
    assert "job 3 failed: OutOfMemoryError" in str(said[3])
    assert "its own words; on the GPU: AcceleratorError" in str(said[5])
    with room.master() as master:
        kinds = ["poison", "poison_and_raise", "poison", "poison_and_raise"]
        assert len(master.run([Job(f"kernels:{kind}") for kind in kinds]).failures()) == 4
    assert room.guardians["0"].pid == guardian and room.guardians["0"].poll() is None
    assert "worker exited" not in Path(room.words("0")).read_text(), "no death is counted"
    assert listed(room) == []


def test_work_that_never_ends_is_ended_by_the_jobs_own_time_limit(room: RealSessions) -> None:
    room.start("0")
    jobs = [
        Job("kernels:double", x=1),
        Job("kernels:hang").options(timeout_s=0.5),
        Job("kernels:compute", seconds=0.3),
        Job("kernels:double", x=2),
    ]
    with room.master() as master:
        pool = master.run(jobs)
    assert [pool[n].outcome.value for n in range(4)] == ["ok", "timed out", "ok", "ok"]
    assert pool[2].done.seconds >= 0.3, "the time of the work, not of launching it"


def test_a_full_or_busy_card_is_waited_for(room: RealSessions) -> None:
    folder = room.script_cards()
    script_device(folder, {"FAKE-0": {"touch": "out of memory", "times": 1}})
    room.start("0")
    said = Path(room.words("0")).read_text()
    assert "waiting for the GPU: there is too little free memory on it" in said
    assert listed(room) == []
    room.stop("0")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ({"missing": "torch is a build for the CPU"}, "torch is a build for the CPU"),
        ({"uuid": "FAKE-3"}, "the session has FAKE-0, but its process sees FAKE-3"),
    ],
)
def test_a_session_refuses_to_start_without_its_card(
    room: RealSessions, script: dict[str, str], reason: str
) -> None:
    script_device(room.script_cards(), {"FAKE-0": script})
    with pytest.raises(AssertionError, match=reason):
        room.start("0")
    assert room.guardians["0"].returncode == 2
    assert listed(room) == []


def test_a_fault_of_the_card_itself_requeues_the_job_and_quarantines_the_card(
    room: RealSessions,
) -> None:
    room.start("0")
    with room.master() as master:
        pool = master.start([Job("kernels:needs_a_well_card")])
        drive(master, lambda: room.guardians["0"].poll() is not None)
        assert listed(room) == ["FAKE-0"]
        room.start("1", "1")
        master.wait(pool)
        assert pool.results() == ["FAKE-1"]


def test_a_worker_gives_memory_back(room: RealSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a command of its session, after a failure, when the run changes, when it leaks."""
    room.start("0")
    with room.master() as master:
        master.run([Job("kernels:cache", mib=20000)]).raise_for_failed()
        assert used_mib(room, monkeypatch) == 20000
        assert len(master.run([Job("kernels:too_much")]).failures()) == 1
        assert used_mib(room, monkeypatch) == 0
        master.run([Job("kernels:cache", mib=20000)]).raise_for_failed()
        command = CommandSpec("true", cwd=str(room.import_folder)).to_job()
        master.run([command]).raise_for_failed()
        assert used_mib(room, monkeypatch) == 0
        worker = room.worker("0")
        pool = master.run([Job("kernels:leak", mib=1000) for _ in range(30)])
        assert not pool.failures(), "30 GB in all, and the card has 24"
        assert room.worker("0") != worker


PTRACE_SEIZE = 0x4206


def test_a_worker_that_cannot_be_ended_does_not_deafen_its_guardian(
    room: RealSessions, tmp_path: Path
) -> None:
    """A tracer that never looks keeps a killed process from ending, as a hanging driver does."""
    room.environment["POSTROOM_STUCK_S"] = "0.5"
    room.start("0")
    with room.master() as master:
        pool = master.start(
            [Job("kernels:hang").options(timeout_s=1.0), Job("kernels:double", x=4)]
        )
        drive(master, lambda: is_at_work(room))
        with that_cannot_end(room.worker("0")):
            drive(master, lambda: room.guardians["0"].poll() is not None)
            assert "stuck in a call of the driver" in Path(room.words("0")).read_text()
            assert listed(room) == ["FAKE-0"]
            room.start("1", "1")
            master.wait(pool)
            assert pool[0].outcome.value == "timed out"
            assert pool[1].result() == 8


def test_a_session_that_is_told_to_stop_now_leaves_a_worker_that_cannot_be_ended(
    room: RealSessions,
) -> None:
    room.environment["POSTROOM_STUCK_S"] = "0.5"
    room.start("0")
    guardian = room.guardians["0"]
    with room.master() as master:
        master.start([Job("kernels:hang")])
        drive(master, lambda: is_at_work(room))
        with that_cannot_end(room.worker("0")):
            guardian.send_signal(signal.SIGTERM)
            drive(master, lambda: "finishing the running job" in Path(room.words("0")).read_text())
            guardian.send_signal(signal.SIGTERM)
            drive(master, lambda: guardian.poll() is not None)
            assert "stuck in a call of the driver" in Path(room.words("0")).read_text()


@contextmanager
def that_cannot_end(worker: int) -> Iterator[None]:
    """Keep a process from ending when it is killed, as a driver that hangs does."""
    if ctypes.CDLL(None, use_errno=True).ptrace(PTRACE_SEIZE, worker, 0, 0):
        pytest.skip("no process can be traced here")
    try:
        yield
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0x40000000)  # __WALL: now it may end


def is_at_work(room: RealSessions) -> bool:
    path = Path(room.base.in_hand("0"))
    return path.exists() and path.read_bytes().startswith(b"running")


def test_500_jobs_of_which_25_go_wrong_on_four_cards(room: RealSessions) -> None:
    """10 poison their context, 10 run out of memory, 5 hang; the others are right."""
    wrong = {n * 50 + 3: "poison" for n in range(10)}
    wrong |= {n * 50 + 21: "too_much" for n in range(10)}
    wrong |= {n * 100 + 77: "hang" for n in range(5)}
    jobs = [
        Job(f"kernels:{wrong[n]}").options(timeout_s=0.4 if wrong[n] == "hang" else None)
        if n in wrong
        else Job("kernels:double", x=n)
        for n in range(500)
    ]
    for card in range(4):
        room.start(str(card), str(card), wait=False)
    with room.master() as master:
        pool = master.run(jobs)
    kinds = {"poison": "device-side assert", "too_much": "OutOfMemoryError", "hang": "took longer"}
    for n in range(500):
        error = pool[n].error
        if n in wrong:
            assert kinds[wrong[n]] in str(error) and f"job {n} " in str(error)
        else:
            assert error is None and pool[n].result() == 2 * n
    assert [guardian.poll() for guardian in room.guardians.values()] == [None] * 4
    assert listed(room) == []
