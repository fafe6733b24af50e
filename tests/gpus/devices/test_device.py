"""The door to the device: which one is opened, what its errors say; the torch of these tests is a
build for the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

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


class TwoCards:
    """What `TorchDevice` asks torch of two cards, noted down: there is no GPU here."""

    version = SimpleNamespace(cuda="12.8", hip=None)
    uint8 = "uint8"

    def __init__(self, *uuids: str) -> None:
        self.asked: list[str] = []
        self.accelerator = SimpleNamespace(
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            synchronize=lambda number: self.asked.append(f"synchronize {number}"),
        )
        self.module = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: len(uuids),
            get_device_properties=lambda number: SimpleNamespace(uuid=uuids[number]),
            max_memory_reserved=lambda number: (number + 1) << 30,
        )

    def get_device_module(self, kind: str) -> SimpleNamespace:
        return self.module

    def device(self, kind: str, number: int) -> str:
        return f"{kind}:{number}"

    def ones(self, size: int, *, device: str) -> Any:
        self.asked.append(f"use {device}")
        tensor = SimpleNamespace(cpu=lambda: None)
        tensor.add_ = lambda _: tensor
        return tensor

    def empty(self, size: int, *, dtype: str, pin_memory: bool) -> SimpleNamespace:
        return SimpleNamespace(numpy=lambda: (size, dtype, pin_memory))


OTHER = UUID[:-1] + "6"


def open_two(monkeypatch: pytest.MonkeyPatch, *seen: str) -> tuple[TwoCards, Device]:
    torch = TwoCards(*seen)
    monkeypatch.delenv("POSTROOM_FAKE_GPUS")
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type]
    device = open_device(f"{UUID},{OTHER}")
    assert device is not None
    return torch, device


def test_every_card_of_a_session_is_used_first_and_synchronised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch, device = open_two(monkeypatch, UUID.removeprefix("GPU-"), OTHER.removeprefix("GPU-"))
    device.touch()
    assert torch.asked == ["use cuda:0", "use cuda:1", "synchronize 0", "synchronize 1"]
    assert device.peak_mib() == 2048 and device.all_for_kernels() == ["cuda:0", "cuda:1"]
    assert device.pin(64) == (64, "uint8", True)


@pytest.mark.parametrize("seen", [(OTHER, UUID), (UUID,), (UUID, UUID)])
def test_a_session_refuses_cards_that_are_not_those_of_its_lease(
    monkeypatch: pytest.MonkeyPatch, seen: tuple[str, ...]
) -> None:
    with pytest.raises(DeviceMissing, match="but its process sees"):
        open_two(monkeypatch, *seen)
