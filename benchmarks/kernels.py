"""The functions that every system runs: the same code for all."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

LARGE_BYTES = 64 << 20
PAGE_ITEMS = 4096 // 8
NAP_S = 0.01


def double(x: np.ndarray) -> np.ndarray:
    """A job that is nothing but overhead."""
    return x * 2


def touch(x: np.ndarray) -> float:
    """Read something of every page of a large argument."""
    return float(x[::PAGE_ITEMS].sum())


def look_up(shared: np.ndarray, k: int) -> float:
    """Read a little of large shared data."""
    return float(shared[k])


def small_array(number: int) -> np.ndarray:
    """One kilobyte."""
    return np.full(128, float(number))


def large_array(number: int) -> np.ndarray:
    """64 MB, of which each page holds the same."""
    return np.full(LARGE_BYTES // 8, float(number))


_made: dict[int, Any] = {}


def nap(x: Any, nbytes: int = 0) -> Any:
    """Work of 10 ms on an array, and a result of so many bytes."""
    time.sleep(NAP_S)
    if not nbytes:
        return float(x[0])
    if nbytes not in _made:
        _made[nbytes] = np.ones(nbytes, np.uint8)
    return _made[nbytes]


def nothing() -> None:
    """An empty job."""


def hold_card(data: np.ndarray, seconds: float) -> tuple[float, float]:
    """Have the card for so long; when that began and ended."""
    began = time.time()
    assert data.nbytes
    time.sleep(seconds)
    return began, time.time()
