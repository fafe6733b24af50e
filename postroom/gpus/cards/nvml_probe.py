"""The child process that calls NVML: it answers each line on stdin with one line of JSON.

NVML may hang for ever (a card that fell off the bus, a driver that is being reset), so no other
process of Postroom calls it. This file is run by its path and imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import pwd
import sys
from types import ModuleType
from typing import Any

# nvidia-ml-py imports `ctypes.util` but never uses it; with all that it imports, this takes as long
# as a bare Python. This process does nothing else, so an empty module is enough.
if "ctypes.util" not in sys.modules:
    sys.modules["ctypes.util"] = ModuleType("ctypes.util")
    sys.modules["ctypes.util"].find_library = None  # type: ignore[attr-defined]
import pynvml as nv

MIB = 1024 * 1024
EXITING = 0x4  # a flag of a process in Linux: it ends, and the driver may still free its memory

# Xids that a user's program causes on a healthy card (out-of-bounds access, a killed process): the
# card is not sick.
USER_XIDS = {8, 13, 31, 32, 43, 45, 68, 69, 137}

# Newer bindings raise this for an unversioned call to an older driver; it is not an NVMLError.
MISMATCH = getattr(nv, "NVMLLibraryMismatchError", ())
FAILURES = (nv.NVMLError, MISMATCH) if MISMATCH else (nv.NVMLError,)

RECOVERY = {
    nv.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "the card needs a reset",
    nv.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "the machine needs a reboot",
    nv.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "its peer traffic has to be drained",
    nv.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "the card has to be drained and reset",
}


def attempt(call: Any, *arguments: Any, default: Any = None) -> Any:
    """Call a function that this card or driver may not support; raise if the card is lost."""
    try:
        return call(*arguments)
    except nv.NVMLError as error:
        if error.value in (nv.NVML_ERROR_GPU_IS_LOST, nv.NVML_ERROR_RESET_REQUIRED):
            raise
        return default
    except MISMATCH:
        return default


def text(value: Any) -> str:
    """Return a string; older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def memory(handle: Any) -> dict[str, int]:
    """Read the memory of a card; what the driver keeps for itself is no program's to use.

    Drivers before the 510 series count that as used.
    """
    found = attempt(nv.nvmlDeviceGetMemoryInfo, handle, nv.nvmlMemory_v2)
    if found is None:
        found = nv.nvmlDeviceGetMemoryInfo(handle)
    reserved = getattr(found, "reserved", 0)
    return {
        "memory_mib": (found.total - reserved) // MIB,
        "driver_mib": reserved // MIB,
        "used_mib": found.used // MIB,
    }


def usage(handle: Any) -> list[dict[str, Any]]:
    """List the processes on a card with their users."""
    found: dict[int, dict[str, Any]] = {}
    for kind, compute in (("Graphics", False), ("Compute", True)):
        for version in ("_v3", "_v2", ""):
            call = getattr(nv, f"nvmlDeviceGet{kind}RunningProcesses{version}", None)
            answer = None if call is None else attempt(call, handle)
            if answer is not None:
                break
        for process in answer or ():
            found[process.pid] = {
                "pid": process.pid,
                "user": owner(process.pid),
                "command": command(process.pid),
                # Not known under WSL, and 0 in some containers; no process on a card uses nothing.
                "used_mib": (process.usedGpuMemory or 0) // MIB or None,
                "compute": compute,
            }
    return list(found.values())


def owner(pid: int) -> str:
    """Return the user of a process, or `?` if it is ending, or not visible from a container."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
        if state in b"ZX" or int(fields[5]) & EXITING:
            return "?"
    except OSError:
        return "?"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command(pid: int) -> str:
    """Return the short name of a process."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "?"


def sickness(handle: Any) -> str:
    """Return what is wrong with a card according to NVML, or an empty string."""
    fields = attempt(
        nv.nvmlDeviceGetFieldValues, handle, [nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION], default=()
    )
    for field in fields:
        action = field.value.uiVal if field.nvmlReturn == nv.NVML_SUCCESS else 0
        if action:
            return RECOVERY.get(action, f"recovery action {action}")
    errors = attempt(
        nv.nvmlDeviceGetTotalEccErrors,
        handle,
        nv.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        nv.NVML_VOLATILE_ECC,
        default=0,
    )
    if errors:
        return f"{errors} uncorrectable ECC errors since the last reset"
    rows = attempt(nv.nvmlDeviceGetRemappedRows, handle, default=(0, 0, 0, 0))
    if rows[3]:
        return "a row of memory failed and could not be remapped"
    return ""


class ProbeServer:
    """NVML, initialised, and the critical errors that it has reported."""

    def __init__(self) -> None:
        nv.nvmlInit()
        self.driver = text(nv.nvmlSystemGetDriverVersion())
        self.xids: dict[int, int] = {}  # index: the last critical Xid
        self.events = attempt(nv.nvmlEventSetCreate)
        if self.events is not None:
            for index in range(nv.nvmlDeviceGetCount()):
                self.watch(index)

    def watch(self, index: int) -> None:
        """Register for the critical errors of a card."""
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            nv.nvmlDeviceRegisterEvents(handle, nv.nvmlEventTypeXidCriticalError, self.events)
        except nv.NVMLError:
            return  # it has no events, or is lost, which its state will show

    def hear(self) -> None:
        """Read the critical errors since the last call."""
        while self.events is not None:
            try:
                event = nv.nvmlEventSetWait(self.events, 0)
                if event.eventData not in USER_XIDS:
                    self.xids[nv.nvmlDeviceGetIndex(event.device)] = event.eventData
            except nv.NVMLError:
                return  # a time-out: there are no more events

    def cards(self, *, links: bool = False) -> list[dict[str, Any]]:
        """List the cards in PCI order; MIG slices are numbered after the cards."""
        self.hear()
        count = nv.nvmlDeviceGetCount()
        found: list[dict[str, Any]] = []
        slices: list[dict[str, Any]] = []
        for index in range(count):
            handle = None
            try:
                handle = nv.nvmlDeviceGetHandleByIndex(index)
                whole = self.card(index, handle)
                parts = self.slices(index, handle, whole)
            except nv.NVMLError as error:
                whole, parts = self.lost(index, handle, error), []
            slices += parts
            if not parts:
                found.append(whole)
        if links:
            for whole in found:
                whole["linked"] = [
                    other["uuid"] for other in found if self.linked(whole["index"], other["index"])
                ]
        for number, part in enumerate(slices):
            part["index"] = count + number
        return found + slices

    def linked(self, index: int, other: int) -> bool:
        """Whether two cards are joined by NVLink, directly or through a switch."""
        if index == other:
            return False
        try:
            pair = [nv.nvmlDeviceGetHandleByIndex(number) for number in (index, other)]
            status = nv.nvmlDeviceGetP2PStatus(*pair, nv.NVML_P2P_CAPS_INDEX_NVLINK)
        except FAILURES:
            return False
        return bool(status == nv.NVML_P2P_STATUS_OK)

    def card(self, index: int, handle: Any) -> dict[str, Any]:
        """Read all values of one card."""
        rates = attempt(nv.nvmlDeviceGetUtilizationRates, handle)
        power = attempt(nv.nvmlDeviceGetPowerUsage, handle)
        problem = sickness(handle)
        if index in self.xids and not problem:
            problem = f"the driver reported Xid {self.xids[index]}"
        return {
            "index": index,
            "uuid": text(nv.nvmlDeviceGetUUID(handle)),
            "name": text(nv.nvmlDeviceGetName(handle)),
            **memory(handle),
            "kind": "cuda",
            "utilisation": None if rates is None else rates.gpu,
            "temperature": attempt(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            "power": None if power is None else power / 1000,
            "processes": usage(handle),
            "problem": problem,
        }

    def slices(self, index: int, handle: Any, whole: dict[str, Any]) -> list[dict[str, Any]]:
        """List the MIG slices of a card; a card in MIG mode can only be used through them."""
        mode = attempt(nv.nvmlDeviceGetMigMode, handle, default=[0, 0])
        if mode[0] != nv.NVML_DEVICE_MIG_ENABLE:
            return []
        found = []
        for number in range(attempt(nv.nvmlDeviceGetMaxMigDeviceCount, handle, default=0)):
            part = attempt(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is None:
                continue
            found.append(
                whole
                | {
                    "uuid": text(nv.nvmlDeviceGetUUID(part)),
                    "name": f"{whole['name']} MIG {number} of card {index}",
                    **memory(part),
                    "kind": "mig",
                    "utilisation": None,
                    "processes": usage(part),
                }
            )
        return found

    def lost(self, index: int, handle: Any, error: Any) -> dict[str, Any]:
        """Describe a card that does not answer."""
        uuid = name = None
        if handle is not None:
            try:
                uuid = text(nv.nvmlDeviceGetUUID(handle))
                name = text(nv.nvmlDeviceGetName(handle))
            except nv.NVMLError:
                pass
        return {
            "index": index,
            "uuid": uuid or f"LOST-{index}",
            "name": name or "unknown",
            "memory_mib": 0,
            "kind": "cuda",
            "problem": f"lost: {error}",
        }


def main() -> None:
    """Answer each line on stdin with one on stdout; the line `links` asks for NVLinks, too."""
    try:
        probe = ProbeServer()
    except nv.NVMLError as error:
        print(json.dumps({"error": error.value, "message": str(error)}), flush=True)
        return
    for line in sys.stdin:
        try:
            cards = probe.cards(links=line.strip() == "links")
            answer = {"driver": probe.driver, "cards": cards}
        except nv.NVMLError as error:
            answer = {"error": error.value, "message": str(error), "driver": probe.driver}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
