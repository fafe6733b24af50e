"""The curves of the GPUs: recorded while nobody looks."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.gpus.cards.inventory import Card
from postroom.gpus.cards.simulated import cards
from postroom.gpus.ledger.protocol import open_ledger
from postroom.queue import card_curves
from postroom.queue.card_curves import CurveRecorder, read_curves
from postroom.queue.use_recorder import IDLE_S, UseRecorder
from postroom.store.base import create_base
from postroom.store.files import LocalFiles


def test_what_was_recorded_is_read_back_and_bad_lines_are_left_out(tmp_path: Path) -> None:
    base = create_base(tmp_path / "base")
    two = cards("2x24G")
    seen = [two[0]._replace(used_mib=6144, utilisation=50), two[1]._replace(used_mib=None)]
    recorder = CurveRecorder(LocalFiles(), base)
    recorder.add(100.0, seen)
    with open(base.curves, "ab") as file:
        file.write(b'{"at": 105, "cards": {"x": [1]}}\n[]\nhalf a li')
        file.write(b"\n")
    recorder.add(110.0, seen)
    first, second = (card.uuid for card in seen)
    shown = {first: [25.0, 50.0], second: [None, seen[1].utilisation]}
    assert read_curves(base, 0.0) == [(100.0, shown), (110.0, shown)]
    assert read_curves(base, 105.0) == [(110.0, shown)]


def test_the_file_stays_small_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = create_base(tmp_path / "base")
    monkeypatch.setattr(card_curves, "MOST_BYTES", 2000)
    recorder = CurveRecorder(LocalFiles(), base)
    for second in range(200):
        recorder.add(float(second), cards("1x24G"))
        assert Path(base.curves).stat().st_size <= 2000
    found = [at for at, _ in read_curves(base, 0.0)]
    assert found == [float(second) for second in range(int(found[0]), 200)]
    assert len(found) > 5
    assert list(Path(base.tmp).iterdir()) == []


def test_the_scheduler_records_while_nobody_looks_seldom_where_nobody_has_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_LEDGER", str(tmp_path / "ledger"))
    base, ledger = create_base(tmp_path / "base"), open_ledger()
    here = cards("2x24G")
    asked: list[float] = []

    def look() -> list[Card]:
        asked.append(now)
        return here

    recorder = UseRecorder(base, ledger, cards=look)
    for now in (1000.0, 1010.0, 1020.0):
        recorder.step(now)
    assert [at for at, _ in read_curves(base, 0.0)] == [1000.0]
    now = 1000.0 + IDLE_S
    recorder.step(now)
    assert len(read_curves(base, 0.0)) == 2
    here = []
    now += IDLE_S
    recorder.step(now)
    asked.clear()
    now += IDLE_S
    recorder.step(now)  # a machine without a GPU is hardly ever asked
    assert asked == [] and len(read_curves(base, 0.0)) == 2
    recorder.close()
