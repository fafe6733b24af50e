"""What errors say about a card, raised in a session or printed by a command."""

from __future__ import annotations

import pytest

from postroom.gpus.devices.faults import Fault, fault_in, fault_of


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("CUDA error: out of memory", Fault.MEMORY),
        ("CUDA out of memory. Tried to allocate 20.00 GiB.", Fault.MEMORY),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", Fault.BUSY),
        ("CUDA error: uncorrectable ECC error encountered", Fault.CARD),
        ("Unable to determine the device handle: GPU is lost", Fault.CARD),
        ("CUDA error: no CUDA-capable device is detected", Fault.MISSING),
        ("CUDA error: device-side assert triggered", Fault.OTHER),
        ("CUDA error: an illegal memory access was encountered", Fault.OTHER),
        ("CUDA error: unspecified launch failure", Fault.OTHER),
    ],
)
def test_what_an_error_of_the_device_says(text: str, fault: Fault) -> None:
    assert fault_of(RuntimeError(f"{text}\nCUDA kernel errors might be reported late")) is fault
    assert fault_in(f"Traceback\nRuntimeError: {text}\n") is fault
