"""Commands beside tasks: a warm session has a minder fork, and survives what happens to it."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from pathlib import Path

import psutil
import pytest

from postroom import Job, Outcome
from postroom.commands.spec import COMMAND
from postroom.store.files import LocalFiles
from postroom.store.runs import read_notes
from postroom.testing import RealSessions

from .conftest import drive, running


def shell(room: RealSessions, line: str, **options: object) -> Job:
    assert room.import_folder is not None
    name = f"job_{uuid.uuid4().hex[:6]}"
    return Job(
        COMMAND,
        name,
        command=line,
        cwd=room.import_folder,
        folder=f"{room.import_folder}/{name}",
        grace_s=0.3,
        **options,  # type: ignore[arg-type]
    )


def held(tmp_path: Path) -> tuple[Path, Path, str]:
    """A command that says that it has begun, and goes on when it may."""
    log, go = tmp_path / "log", tmp_path / "go"
    return log, go, f"echo begun >> {log}; until test -e {go}; do sleep 0.02; done"


def children(room: RealSessions) -> list[psutil.Process]:
    return psutil.Process(room.guardians["0"].pid).children()


def minder(room: RealSessions) -> psutil.Process:
    (found,) = [each for each in children(room) if "postroom.session.worker" not in each.cmdline()]
    return found


def notes(room: RealSessions, run: str) -> list[str]:
    return [note.kind for note in read_notes(LocalFiles(), room.base, run)]


def test_commands_and_tasks_share_a_session(room: RealSessions) -> None:
    room.start()
    with room.master() as master:
        jobs = [Job("kernels:double", x=4), shell(room, "exit 3"), shell(room, "true")]
        pool = master.run(jobs)
    assert pool[0].result() == 8
    assert pool[1].outcome is Outcome.FAILED
    assert pool[2].outcome is Outcome.OK


def test_a_killed_worker_costs_its_command_nothing(room: RealSessions, tmp_path: Path) -> None:
    room.start()
    log, go, line = held(tmp_path)
    with room.master() as master:
        pool = master.submit([shell(room, line), shell(room, "true")])
        drive(master, log.exists, what="the command")
        mind = minder(room)
        os.kill(room.worker(), signal.SIGKILL)
        assert mind.is_running()
        go.touch()
        pool.wait()
        assert notes(room, pool.run) == []
    assert [pool[n].outcome for n in range(2)] == [Outcome.OK] * 2
    assert log.read_text() == "begun\n"


def test_a_killed_session_and_a_killed_master_cost_it_nothing(
    room: RealSessions, tmp_path: Path
) -> None:
    room.start()
    log, go, line = held(tmp_path)
    with room.master() as master:
        pool = master.submit([shell(room, line)])
        drive(master, log.exists, what="the command")
        mind = minder(room)
    room.kill()
    room.start(wait=False)  # it finds the command, and waits for it
    with room.master() as master:
        again = master.resume(pool.run)
        drive(master, lambda: "outlived" in Path(room.words("0")).read_text())
        assert mind.is_running()
        assert again.n_done == 0
        go.touch()
        again.wait()
        assert notes(room, pool.run) == []
    assert again[0].outcome is Outcome.OK
    assert log.read_text() == "begun\n"
    room.wait_until(room.ready)


def test_a_killed_minder_is_a_lost_attempt(room: RealSessions) -> None:
    room.start()
    token = f"stray-{uuid.uuid4().hex}"
    line = f"test $POSTROOM_ATTEMPT = 2 || exec -a {token} sleep 600"
    with room.master() as master:
        pool = master.submit([shell(room, line)])
        drive(master, lambda: running(token), what="the command")
        worker = room.worker()
        minder(room).kill()
        pool.wait()
        assert notes(room, pool.run) == ["lost"]
    assert pool[0].outcome is Outcome.OK
    assert running(token) == []
    assert room.worker() == worker  # it was spared


@pytest.mark.parametrize("preload", ["numpy", ""])
def test_told_twice_to_stop_a_session_ends_the_command_and_blames_nobody(
    room: RealSessions, preload: str
) -> None:
    room.environment["POSTROOM_PRELOAD"] = preload
    room.start()
    token = f"stray-{uuid.uuid4().hex}"
    with room.master() as master:
        pool = master.submit([shell(room, f"exec -a {token} sleep 600")])
        drive(master, lambda: running(token), what="the command")
        room.guardians["0"].terminate()
        room.wait_until(lambda: "finishing" in Path(room.words("0")).read_text())
        assert running(token) != []
        room.guardians["0"].terminate()
        assert room.guardians["0"].wait(60) == 0
        assert running(token) == []
        assert notes(room, pool.run) == []
        assert pool.n_done == 0


def test_out_of_the_cards_memory_it_is_tried_again_alone(
    room: RealSessions, tmp_path: Path
) -> None:
    room.start("0", "0")
    room.start("0b", "0")
    log, go, line = held(tmp_path)
    first = "test $POSTROOM_ATTEMPT = 2 || { echo CUDA out of memory >&2; exit 1; }; "
    with room.master() as master:
        neighbour = master.submit([shell(room, line)])
        drive(master, log.exists, what="the neighbour")
        alone = master.submit([shell(room, f"{first} test -e {go}", retries=1)])
        drive(master, lambda: notes(room, alone.run) == ["failed"], what="the first attempt")
        go.touch()
        neighbour.wait()
        alone.wait()
    assert alone[0].outcome is Outcome.OK  # else it had run beside the neighbour, without `go`
    with contextlib.suppress(psutil.NoSuchProcess):
        assert children(room)
