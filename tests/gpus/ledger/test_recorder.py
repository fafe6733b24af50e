"""Root's recorder: it counts what is held while it looks, whatever users write down."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from postroom.gpus.ledger.fair_share import Account
from postroom.gpus.ledger.ledger_notes import LedgerNotes
from postroom.gpus.ledger.recorder import WRITE_S, Recorder
from postroom.system.shared_folder import SharedFolder

from .line import START, Line

DAY = 86_400.0


def test_what_is_held_from_one_look_to_the_next_is_counted() -> None:
    line = Line()
    line.ask(1001, 3600.0, jobs=2)
    line.grant_all()
    liar = [entry._replace(granted_at=START + 9e9, weight=0.0) for entry in line.held.values()]
    recorder = Recorder({}, 3 * DAY)
    assert recorder.step(START, liar)
    assert not recorder.step(START + WRITE_S / 2, liar)
    assert recorder.step(START + WRITE_S, liar)
    assert recorder.accounts[1001].seconds == pytest.approx(2 * WRITE_S, rel=1e-3)


def test_only_roots_record_counts_and_nobody_writes_down_what_another_has_used(
    tmp_path: Path,
) -> None:
    notes = LedgerNotes(SharedFolder(str(tmp_path)))
    me, other, now = os.geteuid(), 4321, 1000.0
    notes.write_accounts("usage", {me: Account(5.0, now), other: Account(7.0, now)})
    found, _ = notes.used_and_reserved(now)
    assert found[me] == [Account(5.0, now)]
    assert (other in found) == (me == 0)  # root clears away the leases of others
    notes.write_accounts("recorded", {other: Account(9.0, now)})
    changed = next(tmp_path.glob("*/recorded")).stat().st_ctime
    found, _ = notes.used_and_reserved(changed + 1)
    assert found == ({other: [Account(9.0, now)]} if me == 0 else {me: [Account(5.0, now)]})
    found, _ = notes.used_and_reserved(changed + 3600)  # nobody records any more
    assert me in found
