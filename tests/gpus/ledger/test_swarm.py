"""Never two tenants on a card, whatever is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from postroom.gpus.ledger.protocol import LeaseRequest, Ledger, open_ledger
from tests.gpus.ledgerkit import HERE, RedisServer, wait_until

Start = Callable[..., subprocess.Popen[str]]


def swarm(start: Start, folder: Path, processes: int, goal: int) -> subprocess.Popen[str]:
    folder.mkdir()
    script = str(HERE / "swarm.py")
    return start(sys.executable, script, str(folder), str(processes), str(goal), "7")


def verdict(process: subprocess.Popen[str], folder: Path, ledger: Ledger) -> int:
    """Check what a swarm left behind; returns how many were killed."""
    output, _ = process.communicate(timeout=500)
    violations = folder / "violations"
    assert not violations.exists(), violations.read_text()
    assert ledger.queue() == []
    assert ledger.holders() == []
    with ledger.try_acquire(LeaseRequest(count=4)) as lease:
        assert len(lease.cards) == 4
    return int(output)


def served(folder: Path) -> int:
    done = folder / "done"
    return done.stat().st_size // 2 if done.exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_64_processes_and_random_kills_never_share_a_card(
    folder: Path, tmp_path: Path, start: Start
) -> None:
    witnesses = tmp_path / "witnesses"
    process = swarm(start, witnesses, 64, 400)
    killed = verdict(process, witnesses, open_ledger())
    assert served(witnesses) >= 400
    assert killed > 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_redis_may_be_flushed_and_restarted_in_the_middle(
    folder: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis")
    server.start()
    try:
        monkeypatch.setenv("POSTROOM_LEDGER", server.url(folder, "swarm"))
        witnesses = tmp_path / "witnesses"
        process = swarm(start, witnesses, 8, 60)
        for goal in (10, 20):
            wait_until(lambda goal=goal: served(witnesses) >= goal, show=lambda: served(witnesses))
            server.client().flushall()
        wait_until(lambda: served(witnesses) >= 30, show=lambda: served(witnesses))
        server.kill()
        server.start()
        verdict(process, witnesses, open_ledger())
        assert served(witnesses) >= 60
    finally:
        server.kill()
