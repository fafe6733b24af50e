"""A plain kernel in a session that shares its card: booked, measured, and known the next time."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from postroom.gpus.cards import inventory
from postroom.gpus.cards.inventory import CardWatch
from postroom.gpus.cards.simulated import Claim
from postroom.gpus.devices import scripted_device
from postroom.gpus.devices.device import Device
from postroom.gpus.devices.scripted_device import ScriptedDevice
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
from postroom.gpus.memory.profiles import Kind, Profiles
from postroom.jobs import Job
from postroom.session import booked_task
from postroom.session.booked_task import call_booked
from tests.in_one_process import in_one_process


@pytest.fixture(autouse=True)
def _cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "1x24G")
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))


def reserved() -> list[int | None]:
    """What is held of the card, while a kernel that takes 3 GB of it runs."""
    with Claim("FAKE-0", 3000):
        return [entry.memory_mib for entry in open_ledger().holders()]


def test_a_kernel_that_knows_nothing_of_cards_is_booked_for() -> None:
    assert call_booked("kernels:fit", reserved, device=Device()) == [
        None
    ]  # alone: nobody knows what it needs
    Profiles().forget("kernels:fit")
    assert open_ledger().holders() == []


def test_its_error_is_its_own_and_holds_nothing() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        call_booked("kernels:fit", fail, device=Device())
    assert open_ledger().holders() == []
    assert Profiles().learned(Kind("kernels:fit")).at_least_mib == 24 * 1024


def test_what_earlier_jobs_left_is_not_learned_and_the_booked_card_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS", "2x24G")
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "1")
    device = ScriptedDevice(["FAKE-0", "FAKE-1"])
    monkeypatch.setattr(scripted_device, "opened", device)
    device.touch()
    device.hold(20000)  # and drops it: it stays in the cache

    def fit() -> list[int]:
        device.hold(3000)
        return [inventory.find(card).used_mib or 0 for card in ("0", "1")]

    with open_ledger().try_acquire(LeaseRequest(cards=("FAKE-0",))):
        assert call_booked("kernels:fit", fit, device=device) == [0, 3000]
    learned = Profiles().learned(Kind("kernels:fit")).peak_mib
    assert learned is not None and 3000 <= learned < 4000
    device.close()


def test_one_watcher_asks_the_driver_for_all_that_shared_jobs_want_to_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each watcher is a Python process of its own, where there is a driver."""
    made: list[CardWatch] = []
    begin = CardWatch.__init__

    def count(self: CardWatch, child: None = None) -> None:
        made.append(self)
        begin(self, child)

    monkeypatch.setattr(booked_task, "_watch", None)
    monkeypatch.setattr(CardWatch, "__init__", count)
    for _ in range(3):
        call_booked("kernels:fit", lambda: time.sleep(0.05), device=Device())
    assert len(made) == 1


def test_nothing_of_a_job_reaches_a_card_before_its_memory_is_booked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "1")
    device = ScriptedDevice(["FAKE-0"])
    monkeypatch.setattr(scripted_device, "opened", device)
    held: list[int] = []
    put = device.put

    def see(tensor: Any) -> Any:
        held.append(len(open_ledger().holders()))
        return put(tensor)

    monkeypatch.setattr(device, "put", see)
    source = """
    def fit(x: "torch.Tensor", shared: "torch.Tensor"):
        return float(x.sum() + shared.sum())
    """
    before = os.getcwd()
    (tmp_path / "room").mkdir()
    with in_one_process(tmp_path / "room", source, gpu="FAKE-0") as room:
        room.tasks[0]._shares = True
        pool = room.run([Job("kernels:fit", x=np.ones(4))] * 2, np.ones(2)).raise_for_failed()
        assert pool.results() == [6.0, 6.0]
    os.chdir(before)
    sys.modules.pop("kernels", None)
    assert held == [1, 1, 1], "two arguments, and the shared data once"
