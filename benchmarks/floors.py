"""What the machine itself allows: no system that keeps its jobs in files can be faster."""

from __future__ import annotations

import ctypes
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from . import kernels
from .lines import FLOOR, Figures, Sizes
from .ours import PROJECT
from .scratch import scratch

# Two small arrays in a parcel are about this long.
SMALL_FILE = os.urandom(2048)
IN_CREATE, IN_MOVED_TO = 0x100, 0x80


def floors(sizes: Sizes) -> Figures:
    """Every floor."""
    return {
        "round trip": {
            f"{FLOOR}file ping-pong, poll": _ping_pong(sizes.calls, "poll") * 1e3,
            f"{FLOOR}file ping-pong, inotify": _ping_pong(sizes.calls, "inotify") * 1e3,
        },
        "large": {f"{FLOOR}memory copy": _copy(sizes.large) * 1e3},
        "durable": {"write+fsync loop": (rate := _synced(sizes.synced))},
        "durable 1": {"write+fsync loop": rate},
    }


def _ping_pong(calls: int, how: str) -> float:
    """Seconds for two processes to hand each other a small file by renaming it."""
    with scratch() as folder:
        command = [sys.executable, "-m", "benchmarks.floors", folder, str(calls + 20), how]
        with subprocess.Popen(command, cwd=PROJECT) as other:
            _wait_for = _waiter(folder, how)
            _wait_for(f"{folder}/ready")
            taken = []
            for number in range(calls + 20):
                started = time.perf_counter()
                _post(folder, f"ping-{number}")
                _wait_for(f"{folder}/pong-{number}")
                taken.append(time.perf_counter() - started)
        assert other.returncode == 0
    return statistics.median(taken[20:])


def _answer(folder: str, calls: int, how: str) -> None:
    """The other process."""
    wait_for = _waiter(folder, how)
    _post(folder, "ready")
    for number in range(calls):
        wait_for(f"{folder}/ping-{number}")
        _post(folder, f"pong-{number}")


def _post(folder: str, name: str) -> None:
    temporary = f"{folder}/tmp-{name}"
    with open(temporary, "wb", buffering=0) as file:
        file.write(SMALL_FILE)
    os.rename(temporary, f"{folder}/{name}")


def _waiter(folder: str, how: str) -> Callable[[str], None]:
    """Waits until a file is there, then reads it."""
    if how == "poll":

        def ready() -> None:
            time.sleep(0.00002)

    else:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK)
        libc.inotify_add_watch(fd, folder.encode(), IN_CREATE | IN_MOVED_TO)

        def ready() -> None:
            select.select([fd], [], [], 1.0)
            try:
                os.read(fd, 1 << 16)
            except BlockingIOError:
                return

    def wait_for(path: str) -> None:
        while True:
            try:
                with open(path, "rb", buffering=0) as file:
                    file.read()
                return
            except FileNotFoundError:
                ready()

    return wait_for


def _copy(calls: int) -> float:
    """Seconds to copy 64 MB, into memory that was never touched."""
    source = kernels.large_array(1)
    taken = []
    for _ in range(calls + 1):
        started = time.perf_counter()
        np.empty_like(source)[:] = source
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def _synced(calls: int) -> float:
    """Small files per second, each of them written and synced."""
    with scratch() as folder:
        started = time.perf_counter()
        for number in range(calls):
            fd = os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, SMALL_FILE)
            os.fsync(fd)
            os.close(fd)
        return calls / (time.perf_counter() - started)


if __name__ == "__main__":
    _answer(sys.argv[1], int(sys.argv[2]), sys.argv[3])
