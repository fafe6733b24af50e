"""Too little RAM: the out-of-memory killer ends workers, and no card is blamed for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from postroom import Job
from postroom.commands.spec import CommandSpec
from postroom.gpus.ledger.protocol import open_ledger
from postroom.parcel.sheets import Outcome
from postroom.queue.base_check import examine
from postroom.store.files import LocalFiles
from postroom.store.runs import read_notes
from postroom.store.snapshot import snapshot
from postroom.testing import RealSessions
from tests.groups import MemoryGroup

from .conftest import drive


@pytest.fixture
def sessions(
    memory_group: MemoryGroup, sessions: RealSessions, monkeypatch: pytest.MonkeyPatch
) -> RealSessions:
    """Sessions that end before their group is removed."""
    assert memory_group.path
    monkeypatch.setenv("POSTROOM_LEDGER", sessions.environment["POSTROOM_LEDGER"])
    return sessions


def start(sessions: RealSessions, group: MemoryGroup, *options: str) -> None:
    """Start a session that has little memory."""
    group.add(sessions.start(wait=False, options=options))
    sessions.wait_until(sessions.ready)


def test_kills_for_memory_quarantine_no_card_and_end_no_session(
    sessions: RealSessions, memory_group: MemoryGroup, tmp_path: Path
) -> None:
    start(sessions, memory_group)
    kinds = ("hog", "hog_again", "hog_more")
    with sessions.master() as master:
        pools = [
            master.submit_all([Job(f"kernels:{kind}", log=str(tmp_path / kind), until=2)])
            for kind in kinds
        ]

        def told() -> bool:
            found = [one for one in examine(sessions.base.root) if "agent 0 pauses" in one.what]
            return any("ran out of memory (RAM)" in one.what for one in found)

        drive(master, told, what="a pause that the doctor sees")
        for pool in pools:
            assert pool.wait(120).results() == ["fits"]
    for pool in pools:
        (note,) = read_notes(LocalFiles(), sessions.base, pool.run)
        assert note.reason.startswith("the machine ran out of memory (RAM)")
    assert open_ledger().quarantined() == {}
    assert sessions.stop() == 0


def test_a_paused_session_can_be_stopped(
    sessions: RealSessions, memory_group: MemoryGroup, tmp_path: Path
) -> None:
    start(sessions, memory_group)
    with sessions.master() as master:
        master.submit_all([Job("kernels:hog", log=str(tmp_path / "log"), until=9)], keep=True)
        drive(
            master,
            lambda: snapshot(sessions.base).agents[0].state == "out of memory",
            what="a pause",
        )
    assert sessions.stop() == 0


@pytest.mark.parametrize("options", [(), ("--preload", "")], ids=["warm", "commands only"])
def test_a_command_that_was_killed_for_memory_says_so(
    sessions: RealSessions, memory_group: MemoryGroup, options: tuple[str, ...]
) -> None:
    start(sessions, memory_group, *options)
    hog = CommandSpec(f"{sys.executable} -c 'bytearray(400 << 20)'", cwd="/")
    with sessions.master() as master:
        (job,) = master.run([hog.to_job()])
    assert job.outcome is Outcome.FAILED
    assert "the machine ran out of memory (RAM)" in str(job.error)
