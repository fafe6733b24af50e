"""What must not grow: the disk under a stream of large jobs, and a Master that has had many."""

from __future__ import annotations

import gc
import os
import statistics
import threading
from collections.abc import Iterator

import numpy as np
import psutil

from postroom.jobs import Job
from postroom.master import Master

from . import kernels
from .lines import US, Figures, Sizes
from .ours import post_room
from .runs import disk

MIB = 1 << 20
LARGE_BYTES = 16 * MIB
MOST_DISK_MIB = 1024.0
LOOK_S = 0.05
# Of so many small jobs, looked at in steps; from the end of the first step on nothing may grow, but
# for what the measurement cannot tell from nothing.
FLOW_JOBS = 200_000
STEP_JOBS = 10_000
MOST_BYTES = 64.0  # of memory for each job
# A MiB more or less is the allocator's: memory is the median of so many looks.
LOOKS = 5
MOST_FILES = 16.0
MOST_DESCRIPTORS = 16.0


def bounds(sizes: Sizes) -> Figures:
    """The most disk that a generator of large jobs takes, and what many small ones leave."""
    with post_room() as master:
        peak = _peak_of_stream(master, 5 * sizes.stream)
    with post_room() as master:
        memory, descriptors, files = _grown(master)
    return {
        "stream disk": {US: peak / MIB, "limit 1 GiB": MOST_DISK_MIB},
        "flow memory": {US: max(memory, 1.0), "limit 64 B": MOST_BYTES},
        "flow descriptors": {US: max(descriptors, 1.0), "limit 16": MOST_DESCRIPTORS},
        "flow files": {US: max(files, 1.0), "limit 16": MOST_FILES},
    }


def _peak_of_stream(master: Master, count: int) -> int:
    """Run large jobs from a generator; the most bytes that the base took meanwhile."""
    x = kernels.large_array(1).view("u1")[:LARGE_BYTES]
    seen: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            seen.append(disk(master.base)[1])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        pool = master.start(Job(kernels.nap, x=x, nbytes=4 * MIB) for _ in range(count))
        assert sum(len(done.result()) == 4 * MIB for done in pool.as_completed()) == count
    finally:
        over.set()
        watcher.join()
    return max(seen)


def _grown(master: Master) -> tuple[float, float, float]:
    """Run small jobs from a generator: bytes for each behind the first ones, and what is new."""

    def jobs() -> Iterator[Job]:
        for number in range(FLOW_JOBS):
            yield Job(kernels.double, x=np.full(16, float(number)))

    looks = []
    for number, done in enumerate(master.start(jobs()).as_completed(), 1):
        assert done.result() is not None
        if number % STEP_JOBS == 0:
            looks.append(_taken(master))
    memory = [resident for resident, _, _ in looks]
    grown = statistics.median(memory[-LOOKS:]) - statistics.median(memory[:LOOKS])
    _, descriptors, files = (now - then for now, then in zip(looks[-1], looks[0], strict=True))
    return grown / (STEP_JOBS * (len(looks) - LOOKS)), descriptors, files


def _taken(master: Master) -> tuple[int, int, int]:
    gc.collect()
    resident = psutil.Process().memory_info().rss
    return resident, len(os.listdir("/proc/self/fd")), disk(master.base)[0]
