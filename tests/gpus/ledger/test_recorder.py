"""Root's recorder: it counts what is held while it looks, whatever users write down."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from postroom.gpus.ledger.fair_share import NO_RECORD, Account, UseRecord, used_lately
from postroom.gpus.ledger.lease_records import unreadable
from postroom.gpus.ledger.ledger_notes import LedgerNotes
from postroom.gpus.ledger.recorder import WRITE_S, Recorder
from postroom.system.shared_folder import SharedFolder

from .line import START, Line

DAY = 86_400.0
SIZES = {f"card-{n}": 24_000 for n in range(4)}


def test_what_is_held_from_one_look_to_the_next_is_counted() -> None:
    line = Line()
    line.ask(1001, 3600.0, jobs=2)
    line.grant_all()
    liar = [entry._replace(granted_at=START + 9e9, weight=0.0) for entry in line.held.values()]
    recorder = Recorder({}, 3 * DAY)
    assert recorder.step(START, 0.0, liar, SIZES)
    assert not recorder.step(START + WRITE_S / 2, WRITE_S / 2, liar, SIZES)
    assert recorder.step(START + WRITE_S, WRITE_S, liar, SIZES)
    assert recorder.accounts[1001].seconds == pytest.approx(2 * WRITE_S, rel=1e-3)


def test_a_part_of_a_card_counts_for_its_part_whatever_its_user_says() -> None:
    line = Line()
    line.ask(1001, 3600.0, memory_mib=6_000)
    line.grant_all()
    liar = [entry._replace(weight=1e-9) for entry in line.held.values()]
    recorder = Recorder({}, 3 * DAY)
    for clock_s in (0.0, 100.0):
        recorder.step(START + clock_s, clock_s, liar, SIZES)
    assert recorder.accounts[1001].seconds == pytest.approx(25.0, rel=1e-3)
    # One that cannot be read keeps all cards from others.
    for clock_s in (100.0, 200.0):
        recorder.step(START + clock_s, clock_s, [unreadable("lease-x", 1002)], SIZES)
    assert recorder.accounts[1002].seconds == pytest.approx(400.0, rel=1e-3)


def test_a_clock_that_is_set_and_a_recorder_that_was_stopped_charge_nobody_for_what_was_not() -> (
    None
):
    line = Line()
    line.ask(1001, 3600.0)
    line.grant_all()
    held = list(line.held.values())
    recorder = Recorder({}, 30_000 * DAY)
    recorder.step(START, 0.0, held, SIZES)
    recorder.step(START + DAY, 10.0, held, SIZES)  # the clock is set forward
    recorder.step(START - DAY, 20.0, held, SIZES)  # and back
    assert recorder.accounts[1001].seconds == pytest.approx(20.0, rel=1e-3)
    assert recorder.step(START - DAY, WRITE_S, held, SIZES)  # it is written in time all the same
    # Stopped for an hour; another user's lease has begun in its last minute.
    late = held[0]._replace(lease_id="late", uid=1002, granted_at=START + 3540)
    recorder.step(START + 3600, WRITE_S + 3600.0, [*held, late], SIZES)
    assert recorder.accounts[1001].seconds == pytest.approx(WRITE_S + 3600, rel=1e-3)
    assert recorder.accounts[1002].seconds == pytest.approx(60.0, rel=1e-3)


def test_with_a_record_what_is_held_counts_once_and_later_nobody_can_say_less() -> None:
    line = Line()
    line.ask(1001, 9e9)
    line.grant_all()
    held = list(line.held.values())
    now = START + 7200.0

    def used(record_at: float, seconds: float, said: float = 0.0, **more: float) -> float:
        found = used_lately(
            {1001: [Account(said, now)]},
            held,
            now=now,
            half_life_s=30_000 * DAY,
            record=UseRecord({1001: Account(seconds, record_at)}, record_at),
            **more,
        )
        return found[1001]

    # It has been held for two hours, of which the record knows all but a minute.
    assert used(now - 60.0, 7140.0, said=1e9) == pytest.approx(7200.0, rel=1e-3)
    # Nobody records any more: what was recorded is the least, and what users say counts again.
    assert used(now - 3600.0, 5000.0) == pytest.approx(8600.0, rel=1e-3)
    assert used(now - 3600.0, 5000.0, said=9000.0) == pytest.approx(16_200.0, rel=1e-3)


def test_only_roots_record_counts_and_nobody_writes_down_what_another_has_used(
    tmp_path: Path,
) -> None:
    notes = LedgerNotes(SharedFolder(str(tmp_path)))
    me, other, now = os.geteuid(), 4321, 1000.0
    notes.write_accounts("usage", {me: Account(5.0, now), other: Account(7.0, now)})
    found, _, record = notes.used_and_reserved(now)
    assert not record.accounts
    assert found[me] == [Account(5.0, now)]
    assert (other in found) == (me == 0)  # root clears away the leases of others
    notes.write_accounts("recorded", {other: Account(9.0, now)})
    if me == 0:  # the same by somebody else counts nothing
        shutil.copytree(tmp_path / "postroom-0", tmp_path / f"postroom-{other}")
        for path in (tmp_path / f"postroom-{other}", tmp_path / f"postroom-{other}/recorded"):
            os.chown(path, other, other)
        notes.write_accounts("recorded", {me: Account(9.0, now)})
    changed = (tmp_path / f"postroom-{me}/recorded").stat().st_ctime
    _, _, record = notes.used_and_reserved(changed + 1)
    assert record.accounts == ({me: Account(9.0, now)} if me == 0 else {})
    assert record.at == (pytest.approx(changed) if me == 0 else NO_RECORD.at)
