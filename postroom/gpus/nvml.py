"""NVIDIA cards, asked through NVML in a child process: a driver that hangs never hangs us."""

from __future__ import annotations

import glob
import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from ..errors import GpuError
from .inventory import Card, Usage

PROBE = os.path.join(os.path.dirname(__file__), "probe.py")
PATIENCE_S = 30.0  # a driver without persistence mode takes seconds to wake each card

DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
VERSION_MISMATCH = 18


def patience_s() -> float:
    """Return how long NVML may take to answer."""
    return float(os.environ.get("POSTROOM_NVML_TIMEOUT_S") or PATIENCE_S)


class Probe:
    """A child that asks NVML again and again: for whoever needs the cards every second.

    It also remembers the critical errors (Xids) that the driver reported since it was started.
    """

    def __init__(self) -> None:
        # Without `site` it starts in a third of the time; the path is handed down instead.
        # -P: this folder must not be on the child's path, where our `redis` would hide the other.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-P", PROBE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )

    def cards(self) -> list[Card]:
        """List the NVIDIA cards; an empty list where there is no driver."""
        answer = self._ask()
        if "error" in answer:
            return _explain(answer)
        return [decode(card) for card in answer["cards"]]

    def _ask(self) -> dict[str, Any]:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()
        line = self._read_line(patience_s())
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            self._child.kill()
            said = self._child.communicate()[1].decode(errors="replace").strip().splitlines()
            raise GpuError(
                f"NVML broke off: {said[-1] if said else 'its process died'}; see nvidia-smi"
            ) from None
        return answer

    def _read_line(self, limit_s: float) -> bytes:
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        deadline = time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                self.close()
                raise GpuError(
                    f"NVML has not answered for {limit_s:g} s: the driver hangs "
                    "(see nvidia-smi and dmesg; a reboot is often the only cure)"
                )
            part = os.read(fd, 65536)
            if not part:
                break
            line += part
        return line

    def close(self) -> None:
        """End the child. One that is stuck in the kernel is left behind, not waited for."""
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def cards() -> list[Card]:
    """List the NVIDIA cards once."""
    with Probe() as probe:
        return probe.cards()


def decode(value: dict[str, Any]) -> Card:
    """Turn an answer of the probe into a card."""
    usage = tuple(Usage(**process) for process in value.pop("processes", ()))
    return Card(**value, processes=usage)


def _explain(answer: dict[str, Any]) -> list[Card]:
    """Turn an error of NVML into no cards, where that is the truth, or into a sentence."""
    code, message = answer["error"], answer["message"]
    if code == LIBRARY_NOT_FOUND or (code == DRIVER_NOT_LOADED and not _hardware()):
        return []
    if code == DRIVER_NOT_LOADED:
        raise GpuError("there is an NVIDIA card, but its driver is not loaded; see nvidia-smi")
    if code == VERSION_MISMATCH:
        raise GpuError(
            "the NVIDIA driver was updated while it ran: reboot the machine or reload the driver"
        )
    if code == FUNCTION_NOT_FOUND:
        driver = answer.get("driver", "of this machine")
        raise GpuError(f"the NVIDIA driver {driver} is too old for Postroom: {message}")
    raise GpuError(f"NVML cannot be asked: {message}; see nvidia-smi")


def _hardware() -> bool:
    """Say whether the machine has an NVIDIA display controller at all."""
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with suppress(OSError), open(path) as file:
            if file.read().strip() != "0x10de":
                continue
            with open(os.path.join(os.path.dirname(path), "class")) as kind:
                if kind.read().startswith("0x03"):
                    return True
    return False
