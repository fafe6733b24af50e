"""Nobody waits in silence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from postroom.dispatch.stall import SAY_AFTER_S, Stall, find_obstacle
from postroom.errors import StalledError
from postroom.jobs import Job
from postroom.master import Master
from postroom.store.agents import AgentInfo
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.system.processes import myself
from tests.in_one_process import in_one_process

FILES = LocalFiles()
KERNEL = "def kernel():\n    return 1\n"


def test_what_is_missing_is_said_once_and_when_it_goes_on() -> None:
    said: list[str] = []
    stall = Stall(said.append)
    for second in range(10):
        stall.look(float(second), "no agent is running")
    assert said == ["waiting: no agent is running"]
    stall.look(10.0, "the disk is full")
    assert said[1:] == ["waiting: the disk is full"]
    assert stall.said == "the disk is full"
    stall.look(11.0, "")
    stall.look(12.0, "")
    assert said[2:] == ["it goes on"]
    assert stall.said == ""


def test_what_is_over_at_once_is_not_said() -> None:
    said: list[str] = []
    stall = Stall(said.append)
    for second in (0.0, SAY_AFTER_S - 0.1):
        stall.look(second, "no agent is running")
    stall.look(SAY_AFTER_S, "")
    assert said == []


def test_a_wait_can_be_told_to_raise(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNEL)
    with (
        Master(tmp_path / "base", import_folder=str(tmp_path), raise_after_s=0.0) as master,
        pytest.raises(StalledError, match="postroom agents start"),
    ):
        master.run([Job("kernels:kernel")])


def test_a_base_with_an_agent_has_no_obstacle(tmp_path: Path) -> None:
    with in_one_process(tmp_path, KERNEL) as room:
        us = myself()
        info = AgentInfo(
            "0", "cpu", "CPU", "here", us.boot_id, us.pid, us.started_ticks, 0.0, us.pid_namespace
        )
        Path(room.base.agent_info("0")).write_bytes(info.encode())
        assert find_obstacle(room.files, room.base, acting=True) == ""


def test_a_stopped_master_is_named(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    code = "import sys, time; from postroom import Master; m = Master(sys.argv[1]); m.step(0.0);"
    code += "print(m.acting, flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code, base.root], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"True\n"
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        reason = find_obstacle(FILES, base, acting=False)
        assert f"kill -CONT {child.pid}" in reason
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
