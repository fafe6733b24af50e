"""The door to the device: which one is opened, what its errors say; the torch of these tests is a
build for the CPU."""

from __future__ import annotations

import sys

import pytest

from postroom.gpus.devices.device import (
    Device,
    DeviceMissing,
    device_in_use,
    open_device,
    same_card,
)

UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445555"


def test_simulated_cards_compute_on_the_cpu_and_so_does_a_session_without_a_card() -> None:
    for gpu in ("cpu", "FAKE-0", "FAKE-0,FAKE-1"):
        assert type(open_device(gpu)) is Device


def test_a_session_with_a_card_never_computes_on_the_cpu_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    monkeypatch.delenv("POSTROOM_FAKE_GPUS")
    with pytest.raises(DeviceMissing, match="is a build for the CPU: install one for this GPU"):
        open_device(UUID)


def test_without_torch_the_device_is_chosen_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROOM_FAKE_GPUS")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert open_device(UUID) is None
    assert device_in_use().count == 0


def test_torch_and_nvml_name_one_card_differently() -> None:
    assert same_card(UUID.removeprefix("GPU-").upper(), UUID)
    assert same_card("MIG-0A1B", "mig-0a1b".upper())
    assert not same_card(UUID[:-1] + "6", UUID)
