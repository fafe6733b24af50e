"""Long queues: what a job costs when many wait, and what the queue itself costs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time

import numpy as np
import psutil

from postroom.jobs import Job
from postroom.master import Master
from postroom.store.snapshot import snapshot

from .lines import US, Figures, Sizes
from .ours import PROJECT, post_room

SHORT = 1000
SHORT_QUEUE = "1,000 queued"
MEMORY_LIMIT = 2048.0


def growth(sizes: Sizes) -> Figures:
    """A long queue against one of a thousand, which is measured before and after it."""
    measured: dict[str, dict[str, list[float]]] = {}
    for queued in (SHORT, sizes.queued, SHORT):
        for line, value in _measure(queued).items():
            who = SHORT_QUEUE if queued == SHORT else US
            measured.setdefault(line, {}).setdefault(who, []).append(value)
    figures = {
        line: {who: sum(values) / len(values) for who, values in by_who.items()}
        for line, by_who in measured.items()
    }
    resident = figures.pop("resident")
    each = (resident[US] - resident[SHORT_QUEUE]) / (sizes.queued - SHORT)
    figures["growth memory"] = {US: max(each, 1.0), "limit 2 KB": MEMORY_LIMIT}
    return figures


def _measure(queued: int) -> dict[str, float]:
    """Microseconds per job of each phase, and the bytes of a Master that has them all."""
    # The short queue is over in a moment: several in a row, so that the clock sees something.
    repeats = max(1, 10_000 // queued)
    with post_room() as master:
        master.run(_jobs(200))
        submitted = ran = 0.0
        for _ in range(repeats):
            jobs = _jobs(queued)
            gc.collect()
            at = time.perf_counter()
            pool = master.submit_all(jobs)
            submitted += time.perf_counter() - at
            at = time.perf_counter()
            pool.wait()
            ran += time.perf_counter() - at
            assert pool.n_done == queued and not pool.n_failed
    with post_room(sessions=0) as master:
        master.submit_all(_jobs(queued), keep=True)
        master.close()
        started, listed, resident = _standing_master(master.base.root)
    per_job = 1e6 / queued
    return {
        "growth": ran * per_job / repeats,
        "growth submit": submitted * per_job / repeats,
        "growth start": started * per_job,
        "growth list": listed * per_job,
        "resident": resident,
    }


def _jobs(count: int) -> list[Job]:
    return [Job("benchmarks.kernels:double", x=np.full(16, float(n))) for n in range(count)]


def _standing_master(root: str) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.growth", root]
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    return [float(figure) for figure in done.stdout.split()]


def _start(root: str) -> tuple[float, float, int]:
    """In its own process: seconds until the scheduler runs, seconds of a listing, and its size."""
    with Master(root, import_folder=PROJECT) as master:
        began = time.perf_counter()
        master.step(time.monotonic())
        acted = time.perf_counter()
        gc.collect()
        resident = psutil.Process(os.getpid()).memory_info().rss
        assert master.acting
        began_list = time.perf_counter()
        assert snapshot(master.base).runs
        return acted - began, time.perf_counter() - began_list, resident


if __name__ == "__main__":
    print(*_start(sys.argv[1]))
