"""How a keeper looks after a owned of processes."""

from __future__ import annotations

import subprocess
import time
from types import SimpleNamespace

import pytest

from postroom.gpus.ledger import lease_keeper
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
