from __future__ import annotations

import os

import pytest

from postroom.gpus.cards import simulated
from postroom.gpus.cards.inventory import Card, Usage
from postroom.gpus.memory import meter
from postroom.gpus.memory.meter import Meter, is_out_of_memory, used_by


def card(*used: tuple[int, int]) -> Card:
    processes = tuple(Usage(pid, "me", "x", mib) for pid, mib in used)
    return simulated.cards("24G")[0]._replace(processes=processes, utilisation=50)


def test_a_process_is_measured_with_its_descendants() -> None:
    parent = os.getppid()
    assert used_by(card((os.getpid(), 5), (parent, 7)), os.getpid()) == 5
    assert used_by(card((os.getpid(), 5), (parent, 7)), parent) == 12


def test_the_peak_of_all_samples_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "KEPT", 3)
    measured = Meter(["FAKE-0"])
    for mib in (5, 90, 7, 6, 5):
        measured.look([card((os.getpid(), mib))])
    assert measured.peak_mib == 90
    assert len(measured.samples) <= 3
    head, *rows = measured.timeline().splitlines()
    assert head == "seconds,memory_mib,utilisation"
    assert rows[0].endswith(",5,50")


def test_errors_that_mean_out_of_memory() -> None:
    assert is_out_of_memory(simulated.OutOfMemory("x"))
    assert is_out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not is_out_of_memory(RuntimeError("out of patience"))
    assert not is_out_of_memory(MemoryError("out of memory"))
