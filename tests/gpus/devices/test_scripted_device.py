"""The scripted device fails as GPUs fail: late, for ever, and through the cards' memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from postroom.gpus.cards import inventory
from postroom.gpus.devices import scripted_device as scripted
from postroom.gpus.devices.device import DeviceMissing, open_device
from postroom.gpus.devices.faults import Fault, fault_of
from postroom.gpus.devices.scripted_device import (
    AcceleratorError,
    OutOfMemoryError,
    ScriptedDevice,
    open_scripted,
    script_device,
)
from postroom.testing import wait_until


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("POSTROOM_FAKE_GPUS_FOLDER", str(tmp_path))
    monkeypatch.setenv("POSTROOM_FAKE_DEVICE", "context_mib=300")
    yield tmp_path
    if scripted.opened is not None:
        scripted.opened.close()
        scripted.opened = None


def used_mib() -> int:
    return inventory.find("0").used_mib or 0


def test_work_is_done_and_its_errors_surface_only_when_somebody_synchronises(cards: Path) -> None:
    device = open_scripted(["FAKE-0"])
    seen: list[int] = []
    array = device.launch(lambda x: seen.append(1) or x * 2, np.arange(3))
    assert seen == []
    assert array.cpu().tolist() == [0, 2, 4]
    device.fail_later()
    with pytest.raises(AcceleratorError, match="device-side assert"):
        device.synchronise()


def test_a_poisoned_context_stays_poisoned(cards: Path) -> None:
    device = open_scripted(["FAKE-0"])
    array = device.launch(np.negative, np.ones(1))
    device.fail_later("CUDA error: an illegal memory access was encountered")
    for use in (device.synchronise, array.cpu, device.touch, device.fail_later, device.empty_cache):
        with pytest.raises(AcceleratorError, match="illegal memory"):
            use()


def test_memory_is_held_on_the_card_cached_and_given_back(cards: Path) -> None:
    device = open_scripted(["FAKE-0"])
    device.touch()
    assert used_mib() == 300
    block = device.hold(1000)
    assert (used_mib(), device.memory()) == (1300, (1000, 1000))
    del block
    assert (used_mib(), device.memory()) == (1300, (0, 1000))
    device.empty_cache()
    assert used_mib() == 300
    with pytest.raises(OutOfMemoryError, match="Tried to allocate 30000 MiB"):
        device.hold(30000)
    device.touch()  # out of memory poisons nothing


def test_a_card_shows_memory_for_a_while_after_its_process_died(cards: Path) -> None:
    code = "from postroom.testing import scripted_device as s; s().touch(); kept = s().hold(500)"
    environment = {**os.environ, "POSTROOM_FAKE_DEVICE": "late_free_s=0.3"}
    subprocess.run([sys.executable, "-c", code + "; import os; os._exit(0)"], env=environment)
    assert used_mib() == 500
    wait_until(lambda: used_mib() == 0)


def test_first_uses_fail_as_scripted_and_as_often(cards: Path) -> None:
    script_device(cards, {"FAKE-0": {"touch": "busy", "times": 2}})
    for _ in range(2):
        with pytest.raises(AcceleratorError) as error:
            ScriptedDevice(["FAKE-0"]).touch()
        assert fault_of(error.value) is Fault.BUSY
    device = ScriptedDevice(["FAKE-0"])
    device.touch()
    device.close()


def test_a_wrong_uuid_and_a_missing_device_are_refused(cards: Path) -> None:
    script_device(cards, {"FAKE-1": {"uuid": "FAKE-3"}, "FAKE-2": {"missing": "a CPU build"}})
    with pytest.raises(DeviceMissing, match="has FAKE-1, but its process sees FAKE-3"):
        open_device("FAKE-1")
    with pytest.raises(DeviceMissing, match="a CPU build"):
        open_device("FAKE-2")
    assert open_device("FAKE-0") is not None
