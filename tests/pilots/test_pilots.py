"""Whole pilots as processes of this machine: keeper, stand-ins, far ends and their sessions."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import postroom
from postroom.commands.spec import CommandSpec
from postroom.jobs import Job
from postroom.master import Master
from postroom.pilots.keeper import ALONE_S, PilotKeeper
from postroom.pilots.local_engine import LocalEngine
from postroom.store.base import create_base, open_base
from postroom.store.files import LocalFiles
from postroom.store.kernel_output import read_output
from postroom.store.pilot_records import (
    PilotGroup,
    PilotRecord,
    PilotState,
    change_groups,
    read_groups,
)
from postroom.store.runs import read_notes
from postroom.system.own_python import own_python
from postroom.system.process_tree import holders

from .conftest import Pilots

LOCAL = PilotGroup("local", gpus=0, preload="numpy", idle_s=60.0)


def begun(folder: Path) -> list[Path]:
    return list(folder.glob("begun-*"))


def test_jobs_of_every_kind_run_on_local_pilots(pilots: Pilots) -> None:
    """Results, shared data, output, failures, crashes, commands and their files."""
    pilots.add(LOCAL)
    with pilots.master() as master:
        pool = master.run([Job("kernels:double", x=n) for n in range(200)])
        assert list(pool.results()) == [2 * n for n in range(200)]
        assert read_output(pilots.base, pool.run, 150) == "doubling 150\n"
        weights = {"w": np.ones(1000)}
        pool = master.run([Job("kernels:weigh", x=n) for n in range(20)], weights)
        assert list(pool.results()) == [1000.0 + n for n in range(20)]
        pool = master.run([Job("kernels:large", nbytes=200 << 20)])
        assert pool.results()[0].nbytes == 200 << 20
        assert pool.results()[0][-1] == 7
        jobs = [Job("kernels:noisy", x=5), Job("kernels:fail", x=6), Job("kernels:die", x=7)]
        pool = master.run(jobs)
        first, second, third = pool.results(return_exceptions=True)
        assert first == 5
        assert "no 6" in str(second)
        assert "SIGKILL" in str(third)
        (pilot,) = pilots.records()  # a worker that dies is no pilot that dies
        late = Job("kernels:nap", seconds=60, x=1).options(timeout_s=0.2)
        assert "0.2 s" in str(master.run([late]).results(return_exceptions=True)[0])
        line = "echo out; echo err >&2; echo $POSTROOM_PILOT; mkdir -p checkpoint; exit 3"
        command = CommandSpec(line, cwd="/").to_job()
        pool = master.run([command])
        folder = Path(pilots.base.job_folder(pool.run, 0))
        assert "exit code 3" in str(pool.results(return_exceptions=True)[0])
        assert (folder / "0.OUT").read_text() == f"out\n{pilot.pilot}\n"
        assert (folder / "0.ERR").read_text() == "err\n"
        assert (folder / "FAILURE").exists()
    assert [one.pilot for one in pilots.records()] == [pilot.pilot]


def test_the_project_need_not_be_on_the_node(pilots: Pilots) -> None:
    with contextlib.closing(pilots.master()) as master:
        pool = master.submit_all([Job("kernels:double", x=n) for n in range(3)])
        # As on a node that has an older copy: its version is not the one that was submitted.
        source = (pilots.project / "kernels.py").read_text()
        (pilots.project / "kernels.py").write_text(source.replace("2 * x", "3 * x"))
        pilots.add(LOCAL)
        master.wait(pool)
        assert list(pool.results()) == [0, 3, 6]


def wait_for_work(pilots: Pilots, master: Master, folder: Path) -> tuple[PilotRecord, int]:
    """Wait until a job that holds has begun; its pilot, and the process that runs it."""

    def works() -> bool:
        master.step(time.monotonic())
        return bool(begun(folder))

    pilots.wait_until(works)
    (record,) = pilots.records(PilotState.SERVING)
    return record, int(begun(folder)[0].name.rpartition("-")[2])


def test_a_stand_in_that_is_killed_takes_its_far_end_with_it_and_nothing_is_done_twice(
    pilots: Pilots, tmp_path: Path
) -> None:
    pilots.add(LOCAL)
    with pilots.master() as master:
        done = master.run([Job("kernels:double", x=1)])
        held = master.submit_all([Job("kernels:hold", folder=str(tmp_path), x=2)])
        record, worker = wait_for_work(pilots, master, tmp_path)
        (stand_in,) = pilots.stand_ins()
        for pid in (*pilots.keeper(), stand_in):
            os.kill(pid, signal.SIGKILL)
        pilots.wait_until(lambda: not os.path.exists(f"/proc/{worker}"))
        pilots.wait_until(lambda: not LocalEngine().look({record.job_name}))
        (tmp_path / "go").touch()
        pilots.sessions._keeper = None
        pilots.sessions.keep_pilots()
        master.wait(held)
        assert list(held.results()) == [2]
        assert list(done.results()) == [2]
    assert len(begun(tmp_path)) == 2  # the one that was running, once more; the other never
    assert read_notes(pilots.files, pilots.base, held.run) == []


def test_a_far_end_that_is_killed_is_replaced_and_its_processes_are_gone(
    pilots: Pilots, tmp_path: Path
) -> None:
    pilots.add(LOCAL)
    with pilots.master() as master:
        held = master.submit_all([Job("kernels:hold", folder=str(tmp_path), x=2)])
        record, worker = wait_for_work(pilots, master, tmp_path)
        os.kill(int(LocalEngine().look({record.job_name})[record.job_name].engine_id), 9)
        pilots.wait_until(lambda: not os.path.exists(f"/proc/{worker}"))
        (tmp_path / "go").touch()
        master.wait(held)
        assert list(held.results()) == [2]
    assert [one.pilot for one in pilots.records(PilotState.ENDED)] == [record.pilot]


def test_pilots_that_die_before_they_are_ready_pause_their_group(pilots: Pilots) -> None:
    pilots.add(PilotGroup("local", most=3, gpus=0, setup="echo no such module >&2; exit 4"))
    with contextlib.closing(pilots.master()) as master:
        master.submit_all([Job("kernels:double", x=n) for n in range(3)])

        def paused() -> str:
            master.step(time.monotonic())
            return read_groups(pilots.files, pilots.base).groups["p"].paused

        pilots.wait_until(paused)
        assert "no such module" in paused()


DECORATED = """
import os, postroom

@postroom.job
def where():
    return os.environ["POSTROOM_PILOT"]

print(where.submit().result())
"""


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def twice(x: int) -> int:
    """A call for an Executor, which takes it along by value or by name."""
    return 2 * x


def test_calls_and_batches_use_the_pilots_of_a_base(
    pilots: Pilots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Executor`, `@postroom.job` and `postroom run --pilots`: none starts sessions of its own."""
    pilots.add(LOCAL)
    with postroom.Executor(pilots.base.root, gpus=0) as executor:
        assert executor.n_agents == LOCAL.most
        assert list(executor.map(twice, range(20))) == [2 * n for n in range(20)]
        assert executor.submit(os.getenv, "POSTROOM_PILOT").result() == "p-1"
    (tmp_path / "program.py").write_text(DECORATED)
    monkeypatch.setenv("POSTROOM_BASE", pilots.base.root)
    said = run(sys.executable, str(tmp_path / "program.py"), cwd=tmp_path)
    assert said.stdout == "p-1\n"
    # A batch has pilots of its own, like those of the queue.
    output = tmp_path / "out"
    words = ["run", "-c", "echo $POSTROOM_PILOT", "-c", "echo b", "--pilots", "p"]
    run(*own_python("postroom", *words, "--output-dir", str(output)), cwd=tmp_path)
    assert (output / "job_1" / "0.OUT").read_text() == "p-1\n"
    # Nothing of it stays: the group goes when its pilots have ended, and its keeper with it.
    own = open_base(output / ".base")
    pilots.wait_until(lambda: not read_groups(pilots.files, own).groups)
    pilots.wait_until(lambda: not holders(own.pilot_keeper_lock))


def test_a_group_of_a_program_that_was_killed_drains_and_is_forgotten(tmp_path: Path) -> None:
    files, base = LocalFiles(), create_base(tmp_path / "base")
    mine = replace(LOCAL, temporary=True)
    change_groups(files, base, lambda groups: groups.groups.update(mine=mine, lasting=LOCAL))
    keeper = PilotKeeper(base)
    with contextlib.closing(Master(base.root)) as master:
        master.step(time.monotonic())
        keeper.step(0.0)
        keeper.step(ALONE_S + 1)  # its Master acts
        assert not read_groups(files, base).groups["mine"].drained
    for now in (100.0, 101.0 + ALONE_S, 102.0 + ALONE_S):
        keeper.step(now)
    assert list(read_groups(files, base).groups) == ["lasting"]
