"""What an error says about a card: one answer for a session's own use, tasks and commands.

Only `CARD` counts against a card by itself. A device-side assert and an illegal address are faults
of a program: they are `OTHER`.
"""

from __future__ import annotations

import enum
import re

from .out_of_memory import is_out_of_memory, says_out_of_memory


class Fault(enum.Enum):
    """What the error of a first use, or of a use after a failed job, says."""

    MEMORY = "there is too little free memory on it"
    BUSY = "another process has it for itself"
    CARD = "the card itself reports a fault"
    MISSING = "the driver shows no card"
    OTHER = "it cannot be used"


_WORDS = (
    (
        Fault.CARD,
        re.compile(
            r"uncorrectable (ECC|NVLink) error|CUDA_ERROR_ECC_UNCORRECTABLE|GPU is lost"
            r"|fallen off the bus"
        ),
    ),
    (
        Fault.MISSING,
        re.compile(
            r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|CUDA_ERROR_SYSTEM_NOT_READY"
            r"|Unable to determine the device handle"
        ),
    ),
    (
        Fault.BUSY,
        re.compile(
            r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE"
        ),
    ),
)


def fault_in(text: str) -> Fault:
    """What a text says, such as the end of a program's output."""
    if says_out_of_memory(text):
        return Fault.MEMORY
    return next((fault for fault, words in _WORDS if words.search(text)), Fault.OTHER)


def fault_of(error: BaseException) -> Fault:
    """What an error of `Device.touch` says."""
    return Fault.MEMORY if is_out_of_memory(error) else fault_in(str(error))
