"""What every system is asked to do, by the same code."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import psutil

from . import kernels
from .lines import Figures, Sizes

Kernel = Callable[..., Any]
WORKERS = 2

# Less than this cannot be told from nothing.
LEAST_CPU_S = 1e-4


class System(Protocol):
    """A way to run functions in two other processes, driven through its normal interface."""

    def call(self, kernel: Kernel, **arguments: Any) -> Any:
        """Run one job and wait for its result."""

    def each(self, kernel: Kernel, jobs: Iterable[dict[str, Any]]) -> list[Any]:
        """Submit jobs one by one, then collect every result."""

    def batch(self, kernel: Kernel, jobs: Sequence[dict[str, Any]]) -> list[Any] | None:
        """Submit a list at once; None where there is no such thing."""

    def stream(self, kernel: Kernel, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        """Run many jobs with large arguments, in the way that suits the system best."""

    def share(self, kernel: Kernel, data: Any, jobs: Sequence[dict[str, Any]]) -> list[Any] | None:
        """Run jobs that all read `data`; None where there is no such thing."""


def measure(name: str, system: System, sizes: Sizes) -> Figures:
    """Every figure of one system that is up."""
    figures: Figures = {
        "round trip": {name: round_trip(system.call, sizes.calls) * 1e3},
        "run one": {name: round_trip(getattr(system, "run", system.call), sizes.calls) * 1e3},
        "one by one": {name: one_by_one(system, sizes.jobs)},
        "large": {name: large(system, sizes.large) * 1e3},
        "large result": {name: large_result(system, sizes.large) * 1e3},
    }
    for line, nbytes, result, jobs in (
        ("stream 16", 16 << 20, 0, sizes.stream),
        ("stream 4", 16 << 20, 4 << 20, sizes.stream),
        ("stream 1", 1 << 20, 0, 5 * sizes.stream),
    ):
        figures[line] = {name: 100 * stream(system, nbytes, result, jobs)}
    in_one = one_list(system, sizes.jobs)
    if in_one is not None:
        figures["one list"] = {name: in_one}
    each = shared(system, sizes.sharers)
    if each is not None:
        figures["shared"] = {name: each * 1e3}
    return figures


def round_trip(call: Callable[..., Any], calls: int) -> float:
    """The median seconds of one small job, there and back."""
    taken = []
    for number in range(calls + 20):
        x = kernels.small_array(number)
        started = time.perf_counter()
        result = call(kernels.double, x=x)
        taken.append(time.perf_counter() - started)
        assert result[0] == 2 * number
    return statistics.median(taken[20:])


def one_by_one(system: System, jobs: int) -> float:
    """Small jobs per second, each submitted by a call of its own."""
    arguments = [{"x": kernels.small_array(number)} for number in range(jobs)]
    started = time.perf_counter()
    results = system.each(kernels.double, arguments)
    taken = time.perf_counter() - started
    assert [r[0] for r in results] == [2 * number for number in range(jobs)]
    return jobs / taken


def one_list(system: System, jobs: int) -> float | None:
    """Small jobs per second, submitted at once."""
    arguments = [{"x": kernels.small_array(number)} for number in range(jobs)]
    started = time.perf_counter()
    results = system.batch(kernels.double, arguments)
    taken = time.perf_counter() - started
    if results is None:
        return None
    assert [r[0] for r in results] == [2 * number for number in range(jobs)]
    return jobs / taken


def large(system: System, calls: int) -> float:
    """The median seconds of one job with an argument of 64 MB."""
    taken = []
    for number in range(calls + 1):
        x = kernels.large_array(number)
        started = time.perf_counter()
        result = system.call(kernels.touch, x=x)
        taken.append(time.perf_counter() - started)
        assert result == number * (len(x) // kernels.PAGE_ITEMS)
    return statistics.median(taken[1:])


def large_result(system: System, calls: int) -> float:
    """The median seconds of one job that returns 64 MB, and whose result is dropped then."""
    call = getattr(system, "run", system.call)  # a pool that is open keeps every result
    taken = []
    for number in range(calls + 1):
        started = time.perf_counter()
        result = call(kernels.large_array, number=number)
        assert kernels.touch(result) == number * (len(result) // kernels.PAGE_ITEMS)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])


def stream(system: System, nbytes: int, result: int, jobs: int) -> float:
    """The share of the time that two workers are busy with jobs of 10 ms and large arguments."""
    x = kernels.large_array(1).view("u1")[:nbytes]
    arguments = [{"x": x, "nbytes": result} for _ in range(jobs)]
    started = time.perf_counter()
    results = system.stream(kernels.nap, arguments)
    taken = time.perf_counter() - started
    assert len(results) == jobs
    return jobs * kernels.NAP_S / WORKERS / taken


def shared(system: System, jobs: int) -> float | None:
    """Seconds per job when many share 64 MB, its distribution included."""
    data = kernels.large_array(7)
    arguments = [{"k": number} for number in range(jobs)]
    started = time.perf_counter()
    results = system.share(kernels.look_up, data, arguments)
    taken = time.perf_counter() - started
    if results is None:
        return None
    assert results == [7.0] * jobs
    return taken / jobs


def cpu_share(seconds: float, wait: Callable[[float], None] = time.sleep) -> float:
    """The share of one core that this process and all below it use in a while, or at most use."""
    before = _cpu_seconds()
    started = time.perf_counter()
    wait(seconds)
    used = max(_cpu_seconds() - before, LEAST_CPU_S)
    return used / (time.perf_counter() - started)


def _cpu_seconds() -> float:
    """What this process and all below it have used, to the nanosecond.

    The times of a process are counted in steps of 10 ms, of which a quiet one uses one in seconds.
    """
    me = psutil.Process(os.getpid())
    total_ns = 0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(OSError):  # it has ended, or a thread of it
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                with open(f"/proc/{process.pid}/task/{thread}/schedstat") as file:
                    total_ns += int(file.read().split()[0])
    return total_ns / 1e9
