"""NVIDIA cards, read through NVML in a child process, so that a hanging driver never hangs us.

The child is usually a new Python. A process with one thread and no code of a user (as `postroom gpu
get`) forks it instead, which takes a third of the time. Elsewhere a fork is not safe: in a process
with threads it may inherit locks that nobody will release, and a user's program may have
initialised the driver already.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from ...errors import GpuError
from .inventory import Card, Usage

PROBE = os.path.join(os.path.dirname(__file__), "nvml_probe.py")
END_S = 0.5
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


class ForkedProbe:
    """A fork of this process that calls NVML."""

    def __init__(self) -> None:
        asked, self.ask = os.pipe()
        self.answer, answers = os.pipe()
        self.error, errors = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _become_probe(asked, answers, errors)
        for fd in (asked, answers, errors):
            os.close(fd)

    def end(self) -> None:
        """Kill it; do not wait for one that hangs in the driver."""
        os.kill(self._pid, 9)
        deadline = time.monotonic() + END_S
        # Its pipes close when it dies, and stay open while it hangs.
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self.error], [], [], left_s)[0] and not os.read(self.error, 65536):
                os.waitpid(self._pid, 0)
                break
        for fd in (self.ask, self.answer, self.error):
            os.close(fd)


def _become_probe(*pipes: int) -> NoReturn:
    try:
        # First to numbers above 2, since 0, 1 and 2 may be among the pipes.
        for place, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 3) for fd in pipes]):
            os.dup2(fd, place)
        # Close all else: a child that hangs must not keep the lock of a lease.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - until the end
        from . import nvml_probe

        nvml_probe.main()
    except BaseException as error:  # the parent reports it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


class NvmlProbe:
    """A child process that reads the cards through NVML as often as it is asked.

    It also remembers the critical errors (Xids) that the driver has reported since the start.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._child = ForkedProbe() if alone else SpawnedProbe()
        self._closed = False

    def cards(self) -> list[Card]:
        """List the NVIDIA cards; an empty list if there is no driver."""
        answer = self._ask()
        if "error" in answer:
            return _explain(answer)
        return [decode(card) for card in answer["cards"]]

    def _ask(self) -> dict[str, Any]:
        with suppress(BrokenPipeError):
            os.write(self._child.ask, b"\n")
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
    return Card(**value, processes=usage)


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
