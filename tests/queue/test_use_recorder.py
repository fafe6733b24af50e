"""What a standing queue records of its GPUs and projects, step by step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.commands.spec import CommandSpec
from postroom.gpus.cards.inventory import Card
from postroom.gpus.ledger.folder_ledger import FolderLedger
from postroom.gpus.ledger.protocol import LeaseRequest
from postroom.queue.submission import submit
from postroom.queue.use_recorder import WRITE_S, UseRecorder
from postroom.store.base import create_base
from postroom.store.files import LocalFiles
from postroom.store.journal import Journal

CARD = Card(0, "FAKE-0", "Simulated", 24_000, "fake", used_mib=0, utilisation=80)


def test_held_gpus_and_projects_are_recorded_once(tmp_path: Path) -> None:
    base = create_base(str(tmp_path / "base"))
    ledger = FolderLedger(str(tmp_path / "ledger"), cards=lambda: [CARD])
    journal = Journal(base, "master")
    run = submit(LocalFiles(), base, [CommandSpec("true", cwd=str(tmp_path))], project="vision")[
        0
    ].run
    journal.event("done", run=run, first=0, count=9, failed=9, agent="0", seconds=9.0)
    recorder = UseRecorder(base, ledger, cards=lambda: [CARD])
    with ledger.try_acquire(LeaseRequest()) as lease:
        start = (lease.entry.granted_at or 0.0) + 1.0
        for n in range(8):
            recorder.step(start + 10 * n)
            if n == 3:
                journal.event("done", run=run, first=9, count=2, failed=1, agent="0", seconds=5.0)
                journal.event("done", run=run, first=11, count=4, failed=4, agent="", seconds=0.0)
    rows = ledger.notes.activity()[os.geteuid()][0].rows
    assert sum(row[2] for row in rows.values()) == pytest.approx(WRITE_S, abs=1.0)
    recorder.close()
    again = UseRecorder(base, ledger, cards=lambda: [CARD])
    assert sum(n for n, _ in again.meter.seen.jobs.values()) == 2
    assert sum(row[0] for row in again.projects.values()) == 2
    assert {project for _, project in again.projects} == {"vision"}
    whole = UseRecorder(base, ledger, journal_from=0, cards=lambda: [CARD])
    whole.step(start + 90)
    assert sum(row[0] for row in whole.projects.values()) == 2 + 9 + 2
    again.step(start + 100)
    assert sum(row[2] for row in again.projects.values()) == 5.0
