"""Long queues: what a job costs when many wait, and what the queue itself costs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil

from postroom.base import open_base
from postroom.files import LocalFiles
from postroom.jobs import Job
from postroom.master import Master
from postroom.runs import list_firsts, list_runs, reach

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
        submitted = ran = started = listed = 0.0
        for _ in range(repeats):
            jobs = _jobs(queued)
            gc.collect()
            at = time.perf_counter()
            pool = master.submit(jobs)
            submitted += time.perf_counter() - at
            listed += _list(master.base.root)
            started += float(_standing_master(master.base.root, "start"))
            at = time.perf_counter()
            pool.wait()
            ran += time.perf_counter() - at
            assert pool.n_done == queued and not pool.n_failed
    per_job = 1e6 / (repeats * queued)
    with post_room(sessions=0) as master:
        master.submit(_jobs(queued), keep=True)
        master.close()
        resident = float(_standing_master(master.base.root, "memory"))
    return {
        "growth": ran * per_job,
        "growth submit": submitted * per_job,
        "growth start": started * per_job,
        "growth list": listed * per_job,
        "resident": resident,
    }


def _jobs(count: int) -> list[Job]:
    return [Job("benchmarks.kernels:double", x=np.full(16, float(n))) for n in range(count)]


def _list(root: str) -> float:
    """Seconds to see every job of every run, as a listing does: names, and the ends of files."""
    base, files = open_base(root), LocalFiles()
    started = time.perf_counter()
    for run in list_runs(files, base):
        for first in list_firsts(files, base.asked(run)):
            reach(files, base.parcel(run, first), "jobs")
        for first in list_firsts(files, base.answered(run)):
            reach(files, base.result(run, first), "results")
    return time.perf_counter() - started


def _standing_master(root: str, what: str) -> str:
    command = [sys.executable, "-m", "benchmarks.growth", root, what]
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _stand(root: str, what: str) -> Any:
    """In a process of its own: how long a Master takes to act, or how large it then is."""
    with Master(root, project=PROJECT) as master:
        started = time.perf_counter()
        master.step(time.monotonic())
        taken = time.perf_counter() - started
        gc.collect()
        return taken if what == "start" else psutil.Process(os.getpid()).memory_info().rss


if __name__ == "__main__":
    print(_stand(sys.argv[1], sys.argv[2]))
