"""Kernels for pilots."""

from __future__ import annotations

import os
import sys
import time

import numpy as np


def double(x: int) -> int:
    """Return twice a number."""
    print("doubling", x)
    return 2 * x


def weigh(shared: dict[str, np.ndarray], x: int) -> float:
    """Use shared data."""
    return float(shared["w"].sum()) + x


def large(nbytes: int) -> np.ndarray:
    """Return a large result."""
    return np.full(nbytes, 7, np.uint8)


def die(x: int) -> int:
    """End the worker."""
    os.kill(os.getpid(), 9)
    return x


def fail(x: int) -> int:
    """Raise an error."""
    raise ValueError(f"no {x}")


def noisy(x: int) -> int:
    """Print what would spoil a wire, in every way, and fork."""
    os.write(1, b"post\xff\x00\x01" * 1000)
    sys.stdout.buffer.write(bytes(range(256)))
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.write(1, b"from the child\n" * 100)
        return 666
    os.waitpid(child, 0)
    return x


def hold(folder: str, x: int) -> int:
    """Note that it has begun, then wait until it may go on."""
    open(f"{folder}/begun-{x}-{os.getpid()}", "w").close()
    give_up_at = time.monotonic() + 60
    while not os.path.exists(f"{folder}/go") and time.monotonic() < give_up_at:
        time.sleep(0.01)
    return x


def nap(seconds: float, x: int) -> int:
    """Take some time."""
    time.sleep(seconds)
    return x
