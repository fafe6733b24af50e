"""Whom a keeper holds a lease for, and until when."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from postroom.errors import GpuError
from postroom.gpus.ledger import lease_keeper
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.system import processes
from postroom.testing import wait_until


def test_a_busy_script_is_looked_after_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    replaced = SimpleNamespace(**{**vars(time), "sleep": pauses.append})
    monkeypatch.setattr(lease_keeper, "time", replaced)
    script = "for n in 1 2 3 4 5 6; do sleep 0.02; done; read"
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE) as head:
        found = processes.identify(head.pid)
        assert found is not None
        owned = lease_keeper.OwnerProcesses(found)
        wait_until(lambda: owned.step(0.01) and pauses, what="a pause behind a death")
        assert head.stdin is not None
        head.stdin.close()
        wait_until(lambda: not owned.step(0.01), what="the end of the owned")
    assert set(pauses) == {0.01}


GET = shlex.join([sys.executable, "-m", "postroom", "gpu", "get", "--timeout", "5"])
Start = Callable[..., subprocess.Popen[str]]


def answer(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.usefixtures("folder")
def test_a_script_that_is_killed_before_its_get_is_seen_holds_nothing(
    start: Start, tmp_path: Path
) -> None:
    for number in range(4):
        said = tmp_path / f"said-{number}"
        script = start("bash", "-c", f"{GET} > {said} 2>&1; true")
        wait_until(said.exists, what="the start of gpu get")
        os.kill(script.pid, 9)
        wait_until(lambda said=said: answer(said), what="its answer")
        assert "nobody to hold a GPU for" in answer(said)
    wait_until(lambda: open_ledger().holders() == [], what="no lease")


@pytest.mark.usefixtures("folder")
def test_an_orphan_is_told_that_there_is_nobody_to_hold_a_card_for(tmp_path: Path) -> None:
    said = tmp_path / "said"
    left_alone = f"{GET} > {said} 2>&1; echo exit $? >> {said}"
    subprocess.run(["setsid", "-f", "bash", "-c", f"exec setsid bash -c {shlex.quote(left_alone)}"])
    wait_until(lambda: "exit" in answer(said), what="its end")
    shell = ["setsid", "-f", *shlex.split(GET)]
    done = subprocess.run(["bash", "-c", f"{shlex.join(shell)} 2>&1 | cat"], capture_output=True)
    assert b"nobody to hold a GPU for" in done.stdout
    wait_until(lambda: open_ledger().holders() == [], what="no lease")


@pytest.mark.usefixtures("folder")
def test_a_keeper_that_dies_at_its_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "_become_keeper", lambda *_: os._exit(9))
    lease = open_ledger().acquire(LeaseRequest())
    with pytest.raises(GpuError, match="no GPU is held"):
        lease_keeper.keep(lease, processes.myself())
    assert open_ledger().holders() == []


def no_descriptors(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("unable", ["_all_processes", "_children"])
def test_a_keeper_that_cannot_look_takes_nobody_for_gone(
    monkeypatch: pytest.MonkeyPatch, unable: str
) -> None:
    with subprocess.Popen(["sleep", "60"]) as head:
        owner = processes.identify(head.pid)
        assert owner is not None
        owned = lease_keeper.OwnerProcesses(owner)
        assert owned.step(0.0)
        head.kill()
    with monkeypatch.context() as short:
        short.setattr(lease_keeper, unable, no_descriptors)
        assert owned.step(0.0) and owned.step(0.0)
    assert not owned.step(1.0)


def test_a_keeper_that_cannot_be_reached_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", no_descriptors)
    with pytest.raises(OSError, match="Too many"):
        lease_keeper.dismiss(processes.myself())
    with pytest.raises(OSError, match="Too many"):
        lease_keeper.OwnerProcesses(processes.myself())._adopt(os.getppid())
