from __future__ import annotations

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards import inventory, simulated


def test_visible_devices_hide_cards_as_cuda_does() -> None:
    found = simulated.cards("4x24G")

    def ids(visible: str) -> list[int]:
        return [card.index for card in inventory.visible(found, {"CUDA_VISIBLE_DEVICES": visible})]

    assert ids("2,0") == [0, 2]
    assert ids("FAKE-3") == [3]
    assert ids("1,9,2") == [1]
    assert ids("") == []
    assert ids("-1") == []
    assert ids("0,0,1") == []
    assert [card.index for card in inventory.visible(found, {})] == [0, 1, 2, 3]


def test_a_card_is_found_by_number_uuid_or_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inventory.find("2").uuid == "FAKE-2"
    assert inventory.find("FAKE-2").index == 2
    with pytest.raises(GpuError, match="more than one card"):
        inventory.find("FAKE")
    with pytest.raises(GpuError, match=r"no card is called '7'; visible: 0 \(FAKE-0\)"):
        inventory.find("7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(GpuError):
        inventory.find("2")


def test_a_pinned_process_sees_integers_in_pci_order() -> None:
    assert inventory.pin(inventory.find("1"), inventory.find("3")) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "1,3",
        "POSTROOM_GPU": "FAKE-1,FAKE-3",
    }


def test_a_list_names_each_card_once() -> None:
    found = simulated.cards("4x24G")
    assert [card.index for card in inventory.pick(found, "2, FAKE-0")] == [2, 0]
    with pytest.raises(GpuError, match="named twice"):
        inventory.pick(found, "1,FAKE-1")
