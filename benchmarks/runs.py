"""What a run costs a Master that has had many: descriptors, memory, disk and time must not grow.

    python -m benchmarks.runs [RUNS]

One Master makes all runs, each of one small job, and prints a Markdown table of the first and the
last hundred. Then another hundred, while a standing Master (`postroom master`) schedules them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import psutil

from postroom.jobs import Job
from postroom.master import Master
from postroom.store.base import Base
from postroom.store.files import LocalFiles
from postroom.store.snapshot import acting_master

from .ours import PROJECT, post_room
from .scratch import place

RUNS = 10_000
PART = 100


@dataclass
class Part:
    """A hundred runs in a row, and what there is after them."""

    run_ms: float
    descriptors: int
    resident_mib: float
    files_per_run: float
    disk_kib_per_run: float


def runs(master: Master, count: int) -> float:
    """Make runs of one small job each; return the median of their milliseconds."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        pool = master.run([Job("benchmarks.kernels:double", x=np.full(16, float(number)))])
        taken.append(time.perf_counter() - began)
        assert pool.n_done == 1 and not pool.n_failed
    return statistics.median(taken) * 1000


def measure(master: Master) -> Part:
    """Make the next hundred runs."""
    before = disk(master.base)
    run_ms = runs(master, PART)
    grown = [(now - then) / PART for now, then in zip(disk(master.base), before, strict=True)]
    gc.collect()
    resident = psutil.Process().memory_info().rss / 2**20
    return Part(run_ms, len(os.listdir("/proc/self/fd")), resident, grown[0], grown[1] / 1024)


def disk(base: Base) -> tuple[int, int]:
    """How many files and folders a base has, and how many bytes they take on the disk."""
    count = size = 0
    for folder, folders, files in os.walk(base.root):
        for name in [*folders, *files]:
            count += 1
            with contextlib.suppress(FileNotFoundError):  # it got another name just now
                size += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return count, size


def main(arguments: list[str]) -> None:
    """Measure, and print the tables."""
    total = int(arguments[0]) if arguments else RUNS
    with place(), post_room() as master:
        runs(master, PART)
        first = measure(master)
        runs(master, total - 3 * PART)
        last = measure(master)
        print(f"| {total:,} runs by one Master | first {PART} | last {PART} |")
        print("| --- | --- | --- |")
        for name, text in (
            ("time per run, median", "{0.run_ms:.2f} ms"),
            ("open descriptors", "{0.descriptors}"),
            ("resident memory", "{0.resident_mib:.1f} MiB"),
            ("files and folders on disk, per run", "{0.files_per_run:.1f}"),
            ("disk, per run", "{0.disk_kib_per_run:.1f} KiB"),
        ):
            print(f"| {name} | {text.format(first)} | {text.format(last)} |")
        master.let_go()
        command = [sys.executable, "-m", "postroom", "master", master.base.root]
        standing = subprocess.Popen(command, cwd=PROJECT)
        try:
            while acting_master(LocalFiles(), master.base) != standing.pid:
                time.sleep(0.1)
            beside_ms = runs(master, PART)
            assert not master.acting
        finally:
            standing.terminate()
            standing.wait()
        print(f"\nThe time per run beside a standing Master: {beside_ms:.2f} ms.")


if __name__ == "__main__":
    main(sys.argv[1:])
