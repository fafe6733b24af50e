"""AMD cards, against a stand-in of amdsmi: the real one comes with ROCm only."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from postroom.errors import GpuError
from postroom.gpus.cards import amd, inventory


class SmiError(Exception):
    pass


def unsupported(*_: object) -> None:
    raise SmiError("not supported")


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(
        AmdSmiException=SmiError,
        AmdSmiTemperatureType=SimpleNamespace(HOTSPOT=1),
        AmdSmiTemperatureMetric=SimpleNamespace(CURRENT=0),
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["first"],
        amdsmi_get_gpu_vram_usage=lambda handle: {"vram_total": 65520, "vram_used": 300},
        amdsmi_get_gpu_asic_info=lambda handle: {"market_name": "Instinct MI250X"},
        amdsmi_get_gpu_activity=lambda handle: {"gfx_activity": 12},
        amdsmi_get_power_info=lambda handle: {"average_socket_power": "N/A"},
        amdsmi_get_gpu_process_list=lambda handle: [{"pid": 1, "name": "init", "mem": 2**30}],
        amdsmi_get_gpu_device_uuid=lambda handle: "aaff-74a1",
        amdsmi_get_temp_metric=unsupported,
    )
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    return module


def test_amd_cards_are_listed_and_what_is_unknown_is_none(smi: SimpleNamespace) -> None:
    (card,) = amd.cards()
    assert (card.kind, card.uuid, card.name) == ("amd", "aaff-74a1", "Instinct MI250X")
    assert (card.memory_mib, card.used_mib, card.utilisation) == (65520, 300, 12)
    assert (card.temperature, card.power) == (None, None)
    assert [(process.pid, process.used_mib) for process in card.processes] == [(1, 1024)]


def test_amd_cards_are_pinned_by_hips_own_variable(smi: SimpleNamespace) -> None:
    assert inventory.pin(*amd.cards()) == {
        "HIP_VISIBLE_DEVICES": "0",
        "POSTROOM_GPU": "aaff-74a1",
    }


def test_a_lost_amd_card_is_a_state(smi: SimpleNamespace) -> None:
    smi.amdsmi_get_gpu_vram_usage = unsupported
    assert amd.cards()[0].problem.startswith("lost")


def test_an_amd_driver_that_fails_is_a_sentence(smi: SimpleNamespace) -> None:
    smi.amdsmi_init = unsupported
    with pytest.raises(GpuError, match="AMD driver cannot be used"):
        amd.cards()
