"""AMD cards, read through amdsmi, which comes with ROCm.

This follows the documentation of amdsmi; it was only tested against a stand-in.
"""

from __future__ import annotations

from typing import Any

from ...errors import GpuError
from ...system import processes
from .inventory import Card, Usage


def cards() -> list[Card]:
    """List the AMD cards; an empty list where amdsmi is not installed."""
    try:
        import amdsmi
    except (ImportError, OSError, KeyError):  # the import loads its library
        return []
    failure: type[Exception] = amdsmi.AmdSmiException
    try:
        amdsmi.amdsmi_init()
    except failure as error:
        raise GpuError(f"the AMD driver cannot be used: {error}; see amd-smi") from None
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        return [_card(amdsmi, index, handle) for index, handle in enumerate(handles)]
    except failure as error:
        raise GpuError(f"the AMD driver did not answer: {error}; see amd-smi") from None
    finally:
        amdsmi.amdsmi_shut_down()


def _card(smi: Any, index: int, handle: Any) -> Card:
    def attempt(name: str, *arguments: Any) -> Any:
        try:
            return getattr(smi, name)(handle, *arguments)
        except (smi.AmdSmiException, AttributeError):
            return None

    memory = attempt("amdsmi_get_gpu_vram_usage") or {}  # MiB
    board = attempt("amdsmi_get_gpu_asic_info") or {}
    activity = attempt("amdsmi_get_gpu_activity") or {}
    power = attempt("amdsmi_get_power_info") or {}
    usage = []
    for process in attempt("amdsmi_get_gpu_process_list") or ():
        pid = int(process.get("pid", 0))
        used_mib = int(process.get("mem", 0)) // (1024 * 1024)
        usage.append(Usage(pid, processes.user_of(pid), str(process.get("name", "?")), used_mib))
    total_mib = memory.get("vram_total")
    return Card(
        index=index,
        uuid=str(attempt("amdsmi_get_gpu_device_uuid") or f"AMD-{index}"),
        name=str(board.get("market_name") or "AMD"),
        memory_mib=int(total_mib or 0),
        kind="amd",
        used_mib=_number(memory.get("vram_used")),
        utilisation=_number(activity.get("gfx_activity")),
        temperature=_number(
            attempt(
                "amdsmi_get_temp_metric",
                smi.AmdSmiTemperatureType.HOTSPOT,
                smi.AmdSmiTemperatureMetric.CURRENT,
            )
        ),
        power=_number(power.get("average_socket_power")),
        processes=tuple(usage),
        problem="" if total_mib else "lost: its memory cannot be read",
    )


def _number(value: Any) -> int | None:
    """Return a number, or None for the text 'N/A'."""
    return int(value) if isinstance(value, int | float) else None
