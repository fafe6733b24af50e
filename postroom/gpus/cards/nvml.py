"""NVIDIA cards, read through NVML in a child process, so that a hanging driver never hangs us.

The child is usually a new Python; `forked_probe` has a faster one for our own short commands.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from typing import Any

from ...errors import GpuError
from .forked_probe import END_S, ForkedProbe
from .inventory import Card, Usage

PROBE = os.path.join(os.path.dirname(__file__), "nvml_probe.py")
PATIENCE_S = 30.0  # without persistence mode the driver takes seconds to start each card

DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
VERSION_MISMATCH = 18


def patience_s() -> float:
    """Return how long NVML may take to answer."""
    return float(os.environ.get("POSTROOM_NVML_TIMEOUT_S") or PATIENCE_S)


class SpawnedProbe:
    """A new Python process that calls NVML."""

    def __init__(self) -> None:
        import subprocess

        # -S: without `site` it starts in a third of the time; PYTHONPATH replaces it.
        # -P: this folder must not be on the child's path, where our modules could hide others.
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._child = subprocess.Popen(
            [sys.executable, "-S", "-P", PROBE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path},
        )
        pipes = (self._child.stdin, self._child.stdout, self._child.stderr)
        self.ask, self.answer, self.error = (pipe.fileno() for pipe in pipes if pipe is not None)
        self._pipes = pipes

    def end(self) -> None:
        """Kill it; do not wait for one that hangs in the driver."""
        import subprocess

        for pipe in self._pipes:
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._child.kill()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(END_S)


class NvmlProbe:
    """A child process that reads the cards through NVML as often as it is asked.

    It also remembers the critical errors (Xids) that the driver has reported since the start.
    """

    def __init__(self, child: ForkedProbe | None = None) -> None:
        self._child = child or SpawnedProbe()
        self._closed = False

    def cards(self, *, links: bool = False) -> list[Card]:
        """List the NVIDIA cards; an empty list if there is no driver."""
        answer = self._ask(b"links\n" if links else b"\n")
        if "error" in answer:
            return _explain(answer)
        return [decode(card) for card in answer["cards"]]

    def _ask(self, line: bytes) -> dict[str, Any]:
        with suppress(BrokenPipeError):
            os.write(self._child.ask, line)
        line = self._read_line(patience_s())
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            # It is dead or dying: report the end of its stderr.
            os.set_blocking(self._child.error, False)
            said = b""
            with suppress(BlockingIOError):
                said = os.read(self._child.error, 65536)
            self.close()
            last = said.decode(errors="replace").strip().splitlines()[-1:]
            raise GpuError(
                f"NVML failed: {last[0] if last else 'its process died'}; see nvidia-smi"
            ) from None
        return answer

    def _read_line(self, limit_s: float) -> bytes:
        fd = self._child.answer
        deadline = time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
                self.close()
                raise GpuError(
                    f"NVML has not answered for {limit_s:g} s: the driver hangs "
                    "(see nvidia-smi and dmesg; often only a reboot helps)"
                )
            part = os.read(fd, 65536)
            if not part:
                break
            line += part
        return line

    def close(self) -> None:
        """End the child, once."""
        if not self._closed:
            self._closed = True
            self._child.end()

    def __enter__(self) -> NvmlProbe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def decode(value: dict[str, Any]) -> Card:
    """Make a card of an answer of the child."""
    usage = tuple(Usage(**process) for process in value.pop("processes", ()))
    linked = tuple(value.pop("linked", ()))
    return Card(**value, processes=usage, linked=linked)


def _explain(answer: dict[str, Any]) -> list[Card]:
    """Return no cards for an error that means so; raise GpuError for every other error."""
    code, message = answer["error"], answer["message"]
    if code == LIBRARY_NOT_FOUND or (code == DRIVER_NOT_LOADED and not _hardware()):
        return []
    if code == DRIVER_NOT_LOADED:
        raise GpuError("there is an NVIDIA card, but its driver is not loaded; see nvidia-smi")
    if code == VERSION_MISMATCH:
        raise GpuError(
            "the NVIDIA driver was updated while it was loaded: reboot, or reload the driver"
        )
    if code == FUNCTION_NOT_FOUND:
        driver = answer.get("driver", "of this machine")
        raise GpuError(f"the NVIDIA driver {driver} is too old for Postroom: {message}")
    raise GpuError(f"NVML cannot be used: {message}; see nvidia-smi")


def _hardware() -> bool:
    """Whether the machine has an NVIDIA display controller."""
    import glob

    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with suppress(OSError), open(path) as file:
            if file.read().strip() != "0x10de":
                continue
            with open(os.path.join(os.path.dirname(path), "class")) as kind:
                if kind.read().startswith("0x03"):
                    return True
    return False
