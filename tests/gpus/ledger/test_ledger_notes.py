"""One user's notes; `test_users` has those of several users."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.gpus.ledger import ledger_notes
from postroom.gpus.ledger.ledger_notes import LedgerNotes
from postroom.system.shared_folder import SharedFolder


@pytest.fixture
def notes(tmp_path: Path) -> LedgerNotes:
    return LedgerNotes(SharedFolder(str(tmp_path / "ledger")))


def test_a_quarantine_lasts_until_it_is_ended(notes: LedgerNotes) -> None:
    notes.set_quarantine("GPU-1", "too\x1b hot")
    assert notes.quarantined()["GPU-1"].reason == "too? hot"
    notes.set_quarantine("GPU-1", "")
    assert notes.quarantined() == {}


def test_managed_cards_are_all_of_them_at_first(notes: LedgerNotes) -> None:
    assert notes.managed() is None
    notes.manage(["a"])
    assert notes.managed() == ("a",)
    notes.manage(None)
    assert notes.managed() is None


def test_a_uuid_cannot_leave_the_folder(notes: LedgerNotes) -> None:
    notes.touch(["../../x"])
    assert list(notes.last_used()) == [".._.._x"]


def test_a_long_log_begins_anew_and_one_old_log_is_kept(
    notes: LedgerNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_notes, "LOG_LIMIT", 200)
    for number in range(30):
        notes.record("test", number=number)
    numbers = [line["number"] for line in notes.log()]
    assert numbers[-1] == 29
    assert len(numbers) < 30
    assert numbers == sorted(numbers)
