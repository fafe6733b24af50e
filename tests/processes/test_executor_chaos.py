"""An Executor while its agents, and its program, are killed: every future resolves, none hangs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import postroom
from postroom.store.base import open_base
from postroom.store.snapshot import snapshot
from postroom.testing import wait_until

REPOSITORY = Path(__file__).parent.parent.parent


def kill_an_agent(base: str, turn: int) -> None:
    agents = [agent for agent in snapshot(open_base(base), runs=False).agents if agent.pid]
    if agents:
        with contextlib.suppress(ProcessLookupError):  # its session was killed a moment ago
            os.kill(agents[turn % len(agents)].pid, signal.SIGKILL)


@pytest.mark.parametrize("calls", [100, pytest.param(800, marks=pytest.mark.slow)])
def test_calls_of_four_threads_all_resolve_while_agents_are_killed_and_the_program_forks(
    calls: int, tmp_path: Path
) -> None:
    base = str(tmp_path / "base")
    found: list[tuple[int, Future[Any]]] = []

    def work(first: int) -> None:
        for number in range(first, calls, 4):
            found.append((number, executor.submit(pow, number, 2)))
            if number % 40 < 4:
                found[-1][1].result(100)

    with postroom.Executor(base, agents=2, gpus=0) as executor:
        threads = [threading.Thread(target=work, args=[first]) for first in range(4)]
        executor.submit(time.sleep, 0.01).result(100)
        for thread in threads:
            thread.start()
        for turn in range(2):
            kill_an_agent(base, turn)
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        for thread in threads:
            thread.join()
        for number, future in found:
            assert future.result(100) == number**2
    assert len(found) == calls


PROGRAM = """
import os, sys, time, postroom
from pathlib import Path

def hold(path):
    Path(path).touch()
    time.sleep(600)

executor = postroom.Executor(agents=1, gpus=0)
future = executor.submit(hold, sys.argv[1])
future.result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_program_that_is_ended_leaves_no_agents_and_no_base(tmp_path: Path, number: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "began")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "began").exists, what="the call runs")
    (base,) = (tmp_path / "tmp").glob("postroom-*")
    agents = [agent.pid for agent in snapshot(open_base(base), runs=False).agents]
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    wait_until(lambda: not base.exists(), what="the private base is removed")
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in agents), what="no agents")
    if number == signal.SIGINT:
        assert "cancelled 0 jobs that waited, ended 1 that ran" in said
