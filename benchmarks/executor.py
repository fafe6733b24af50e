"""`python -m benchmarks.executor`: our Executor beside ProcessPoolExecutor, two workers each.

Both are up at the same time and are measured by turns, so that a busy machine is busy for both. It
takes some seconds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor

import numpy as np

import postroom
from postroom.functions.futures import close_all

from . import kernels

ROUNDS = 5
CALLS = 100  # there and back
JOBS = 2000  # submitted one by one
LARGE = 12  # arguments of 16 MB
# Figure: unit, and how many times as fast as the reference it is to be.
FIGURES = {
    "one call, there and back": ("ms", 1 / 1.5),
    "2,000 calls, one by one": ("s", 1.0),
    "16 MB argument, each": ("ms", 3.0),
}


def round_trip(executor: Executor) -> float:
    """The median time of one call, in milliseconds."""
    times = []
    for number in range(CALLS):
        began = time.perf_counter()
        executor.submit(abs, number).result()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def one_by_one(executor: Executor) -> float:
    """The time of many calls, in seconds."""
    began = time.perf_counter()
    for future in [executor.submit(abs, number) for number in range(JOBS)]:
        future.result()
    return time.perf_counter() - began


def large(executor: Executor) -> float:
    """The time of one call with a large argument, in milliseconds."""
    arrays = [np.full(2 << 20, float(n)) for n in range(LARGE)]
    began = time.perf_counter()
    for future in [executor.submit(np.max, array) for array in arrays]:
        future.result()
    return (time.perf_counter() - began) / LARGE * 1e3


def decorated() -> float:
    """The median time of `.submit().result()` of a decorated function, in milliseconds.

    On GPUs the first calls are measured; then their kind is known.
    """
    function = postroom.job(kernels.small_array)
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        function.submit(1).result()
        times.append(time.perf_counter() - began)
    return statistics.median(times[10:]) * 1e3


def main() -> None:
    """Measure, and print a table."""
    measures: list[Callable[[Executor], float]] = [round_trip, one_by_one, large]
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in FIGURES}
    with postroom.Executor(agents=2, gpus=0) as ours, ProcessPoolExecutor(2) as theirs:
        for executor in (ours, theirs):
            list(executor.map(time.sleep, [0.2, 0.2]))
        for _ in range(ROUNDS):
            for name, measure in zip(FIGURES, measures, strict=True):
                found[name][0].append(measure(ours))
                found[name][1].append(measure(theirs))
    print(f"{'':28}{'Executor':>12}{'ProcessPool':>12}{'times':>8}{'wanted':>8}")
    for name, (unit, wanted) in FIGURES.items():
        mine, other = map(statistics.median, found[name])
        print(f"{name:28}{mine:9.3f} {unit:2}{other:9.3f} {unit:2}{other / mine:8.2f}{wanted:8.2f}")
    os.environ |= {"POSTROOM_PRELOAD": "numpy", "POSTROOM_QUIET": "1"}
    for place, cards in (
        ("on the CPU", {}),
        ("on shared GPUs", {"POSTROOM_FAKE_GPUS": "2x24G"}),
    ):
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {
                "POSTROOM_BASE": f"{folder}/base",
                "POSTROOM_LEDGER": f"{folder}/ledger",
                "POSTROOM_PROFILES": f"{folder}/profiles",
                **cards,
            }
            print(f"{f'.submit(), {place}':28}{decorated():9.3f} ms{'':17}3 ms")
            close_all()


if __name__ == "__main__":
    main()
