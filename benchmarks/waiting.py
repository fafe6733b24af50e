"""What it costs to be ready: idle sessions, and what they save when work comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from postroom.jobs import Job

from . import kernels, network
from .lines import COLD, US, Figures, Sizes
from .ours import PROJECT, Postroom, post_room
from .systems import cpu_share, one_by_one, one_list

IDLE_LIMIT = 0.5
WARM_JOBS = 100
SETTLE_S = 3.0


def idle(sizes: Sizes) -> Figures:
    """Four sessions and a Master that has nothing to do."""
    with post_room(sessions=4) as master:
        master.run([Job(kernels.double, x=kernels.small_array(n)) for n in range(100)])

        def serve(seconds: float) -> None:
            until = time.monotonic() + seconds
            master.serve(lambda: time.monotonic() >= until)

        serve(SETTLE_S)
        share = cpu_share(sizes.idle_s, serve)
    return {"idle": {US: 100 * share, "limit 0.5 %": IDLE_LIMIT}}


def warm(sizes: Sizes) -> Figures:
    """The same torch kernel: a hundred jobs in warm sessions, and a process for each."""
    import torch

    assert torch.__version__
    command = [sys.executable, "-m", "benchmarks.network"]
    options = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "cwd": PROJECT}
    started = time.perf_counter()
    for first in range(0, sizes.cold, 2):
        both = [
            subprocess.Popen([*command, str(seed)], stdout=subprocess.DEVNULL, **options)
            for seed in (first, first + 1)
        ]
        assert [process.wait() for process in both] == [0, 0]
    cold = (time.perf_counter() - started) / sizes.cold
    with post_room(preload="torch") as master:
        master.run([Job(network.infer, seed=n) for n in range(4)]).raise_for_failed()
        started = time.perf_counter()
        pool = master.run([Job(network.infer, seed=n) for n in range(WARM_JOBS)])
        each = (time.perf_counter() - started) / WARM_JOBS
        pool.raise_for_failed()
    return {"warm": {US: each * 1e3, COLD: cold * 1e3}}


def durable(sizes: Sizes) -> Figures:
    """Jobs that survive a power loss."""
    with post_room(durable=True) as master:
        system = Postroom(master)
        one_list(system, 100)
        return {
            "durable": {US: one_list(system, sizes.jobs) or 0.0},
            "durable 1": {US: one_by_one(system, sizes.synced)},
        }


def gpu_get(sizes: Sizes) -> Figures:
    """The start of `postroom gpu get`, measured by the ledger's own benchmark."""
    rounds = max(5, sizes.calls // 25)
    command = [sys.executable, "-m", "benchmarks.ledger", "--json", "--rounds", str(rounds)]
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    start = json.loads(done.stdout)["start"]
    bare = start["bare"]["wall_s"] * 1e3
    return {"gpu get": {US: start["get"]["wall_s"] * 1e3, "python -c pass": bare}}
