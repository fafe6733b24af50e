"""Leases that have ended: their lines, and who may write them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from postroom.gpus.ledger.ended_leases import EndedLease, read_ended
from postroom.gpus.ledger.ledger_notes import LOG_LIMIT, LedgerNotes
from postroom.system.shared_folder import SharedFolder

from .line import START, Line

LEASE = EndedLease("a", 1001, "x", ("card-0",), 1.0, START, START + 5, START + 9)


def test_a_line_says_what_the_lease_was() -> None:
    line = Line()
    line.ask(1001, 60.0, count=2)
    line.grant_all()
    entry = next(iter(line.held.values()))
    one = EndedLease.of(entry, START + 60)
    assert EndedLease.decode(one.encode()) == one
    assert (one.uid, len(one.cards), one.weight, one.ended_at) == (1001, 2, 2.0, START + 60)
    assert EndedLease.of(entry, START - 60).ended_at == one.granted_at  # the clock was set back


@pytest.mark.parametrize(
    "change",
    [
        {"cards": ()},
        {"weight": 2.0},
        {"weight": float("nan")},
        {"ended_at": START},
        {"ended_at": float("inf")},
        {"uid": "root"},
        {"asked_at": START + 6},
    ],
)
def test_a_line_that_makes_no_sense_is_left_out(change: dict[str, object]) -> None:
    assert EndedLease.decode(LEASE.encode()) == LEASE
    assert EndedLease.decode(LEASE._replace(**change).encode()) is None  # type: ignore[arg-type]
    assert EndedLease.decode(LEASE.encode()[:-5]) is None
    assert EndedLease.decode(json.dumps([2, *LEASE]).encode()) is None


def test_nobody_writes_down_what_another_has_held() -> None:
    text = LEASE.encode() + LEASE._replace(uid=1002).encode() + b"[2]\nnothing\n"
    assert [one.uid for one in read_ended(text, 1001)] == [1001]
    assert [one.uid for one in read_ended(text, 1003)] == []
    assert [one.uid for one in read_ended(text, 0)] == [1001, 1002]  # root clears away for others


def test_the_file_is_bounded(tmp_path: Path) -> None:
    notes = LedgerNotes(SharedFolder(str(tmp_path)))
    line = Line()
    line.ask(os.geteuid(), 60.0)
    line.grant_all()
    entry = next(iter(line.held.values()))
    folder = Path(notes.folder.mine())
    for _ in range(3):
        (folder / "ended").write_bytes(b"-" * LOG_LIMIT)
        notes.add_ended(entry)
    assert sum(path.stat().st_size for path in folder.glob("ended*")) < 2.1 * LOG_LIMIT
    assert len(notes.ended()) == 0  # no line: the dashes and ours are one
    notes.add_ended(entry)
    assert len(notes.ended()) == 1
