"""Far against near: what a pilot costs, and what others cost on the same engine.

    python -m benchmarks.far

One agent each: a session of this host, a pilot of this host (the same, with the wire between), one
whose wire has 50 ms of latency each way; then a pilot of a real Slurm on this machine, beside
`srun` for each job, submitit and dask-jobqueue; then plain Ray. What is not installed is named, and
left out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from postroom.jobs import Job
from postroom.master import Master
from postroom.pilots.local_engine import LocalEngine
from postroom.pilots.stand_in import StandIn
from postroom.session.sessions import Sessions
from postroom.store.base import create_base, open_base
from postroom.store.files import LocalFiles
from postroom.store.pilot_records import (
    PilotGroup,
    PilotRecord,
    PilotState,
    change_groups,
    read_pilots,
)

from .ours import PROJECT, post_room
from .scratch import place, scratch

LATENCY_S = 0.05
CALLS = 50  # there and back
JOBS = 2_000  # empty ones, at once
LARGE, LARGE_BYTES = 50, 16 << 20
CARD_S = (0.05, 0.15)  # how long a job with a large argument has its card
ALONE = 10  # jobs that get an `srun`, or a Slurm job, each
KERNELS = "benchmarks.kernels"


class DelayedEngine(LocalEngine):
    """Pilots of this host, with latency on their wires."""

    def command(self, group: PilotGroup, job_name: str) -> list[str]:
        """Put a pipe that takes its time between."""
        words = super().command(group, job_name)
        names = len(self.named(job_name))
        pipe = [sys.executable, "-P", f"{PROJECT}/benchmarks/delaying_pipe.py", str(LATENCY_S)]
        return [*words[:names], *pipe, *words[names:]]


@contextlib.contextmanager
def far_room(*, delayed: bool) -> Iterator[Master]:
    """A Master with one pilot, which serves."""
    with scratch() as folder:
        base = create_base(f"{folder}/base")
        words = [sys.executable, "-m", "benchmarks.far", base.root, "delayed" if delayed else ""]
        stand_in = subprocess.Popen(words, cwd=PROJECT)
        try:
            with Master(base.root, import_folder=PROJECT) as master:
                master.run([Job(f"{KERNELS}:nothing")])
                yield master
        finally:
            for _ in range(2):
                stand_in.terminate()
                time.sleep(0.1)
            stand_in.wait()


@contextlib.contextmanager
def slurm_room(folder: str) -> Iterator[Master]:
    """A Master with one pilot of a Slurm."""
    base = create_base(f"{folder}/base")
    files = LocalFiles()
    group = PilotGroup("slurm", gpus=0, preload="numpy", time_s=600.0)
    change_groups(files, base, lambda groups: groups.groups.update(slurm=group))
    Sessions(base).keep_pilots()
    try:
        with Master(base.root, import_folder=PROJECT) as master:
            master.run([Job(f"{KERNELS}:nothing")])
            yield master
    finally:
        change_groups(files, base, lambda groups: groups.groups.clear())
        while any(one.state is not PilotState.ENDED for one in read_pilots(files, base).values()):
            time.sleep(0.1)


def round_trip(master: Master) -> float:
    """The median time of one small job, in milliseconds."""
    return _median_ms(CALLS, lambda n: master.run([Job(f"{KERNELS}:nothing")]))


def many(master: Master) -> float:
    """Empty jobs per second."""
    began = time.perf_counter()
    master.run([Job(f"{KERNELS}:nothing") for _ in range(JOBS)])
    return JOBS / (time.perf_counter() - began)


def busy(master: Master, card_s: float) -> float:
    """How many percent of the time a card is busy, from the first job's begin to the last's end."""
    data = np.zeros(LARGE_BYTES, np.uint8)

    def jobs() -> Iterator[Job]:
        for number in range(LARGE):
            data[0] = number
            yield Job(f"{KERNELS}:hold_card", data=data.copy(), seconds=card_s)

    pool = master.run(jobs())
    spans = pool.results()
    wall = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return 100 * sum(end - begin for begin, end in spans) / wall


def srun_each(_: int) -> None:
    """One job, as an `srun`."""
    subprocess.run(["srun", "-n1", "--mpi=none", "true"], check=True, capture_output=True)


def _median_ms(count: int, call: Callable[[int], object]) -> float:
    times = []
    for number in range(count):
        began = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def measure_ours(name: str, master: Master) -> None:
    """Print the line of one kind of agent."""
    cells = [f"{round_trip(master):.2f} ms", f"{many(master):,.0f}"]
    cells += [f"{busy(master, card_s):.0f} %" for card_s in CARD_S]
    _line(name, *cells)


def measure_slurm() -> None:
    """A pilot of Slurm, `srun` for each job, and submitit."""
    from tests.pilots.slurm_cluster import missing, slurm_cluster

    if why := missing():
        _line(f"Slurm: {why}")
        return
    with scratch() as folder:
        os.mkdir(f"{folder}/slurm")
        with slurm_cluster(Path(f"{folder}/slurm")) as cluster:
            os.environ.update(cluster.environment)
            with slurm_room(folder) as master:
                measure_ours("a pilot of Slurm", master)
            each = _median_ms(ALONE, srun_each)
            _line("`srun` for each job", f"{each:.0f} ms", f"{1000 / each:,.0f}")
            measure_submitit(folder)
            measure_dask(folder)


def measure_submitit(folder: str) -> None:
    """A Slurm job for each call, as submitit makes them; then an array of them."""
    try:
        import submitit
    except ImportError:
        _line("submitit: not installed")
        return
    # It says at each look that there is no `sacct`, and waits for the file instead.
    logging.getLogger("submitit").setLevel(logging.ERROR)
    executor = submitit.SlurmExecutor(folder=f"{folder}/submitit")
    executor.update_parameters(time=5, use_srun=False)
    each = _median_ms(3, lambda n: executor.submit(abs, n).result())
    began = time.perf_counter()
    for job in executor.map_array(abs, list(range(ALONE))):
        job.result()
    rate = ALONE / (time.perf_counter() - began)
    _line("submitit, a Slurm job for each call", f"{each:.0f} ms", f"{rate:,.1f}")


def measure_dask(folder: str) -> None:
    """A worker of dask-jobqueue, which connects to a port of this host."""
    try:
        from dask_jobqueue import SLURMCluster
        from distributed import Client
    except ImportError:
        _line("dask-jobqueue: not installed")
        return
    cluster = SLURMCluster(
        cores=1,
        processes=1,
        memory="1GB",
        walltime="00:05:00",
        interface="lo",
        log_directory=f"{folder}/dask",
        scheduler_options={"dashboard_address": None},
    )
    try:
        cluster.scale(1)
        with Client(cluster) as client:
            client.wait_for_workers(1, timeout=60)
            each = _median_ms(CALLS, lambda n: client.submit(_nothing, pure=False).result())
            began = time.perf_counter()
            client.gather([client.submit(_nothing, pure=False) for _ in range(JOBS)])
            rate = JOBS / (time.perf_counter() - began)
        _line("dask-jobqueue", f"{each:.2f} ms", f"{rate:,.0f}")
    finally:
        cluster.close()


def measure_ray() -> None:
    """Plain Ray with one worker."""
    try:
        import ray
    except ImportError:
        _line("Ray: not installed")
        return
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        call = ray.remote(_nothing)
        ray.get(call.remote())
        each = _median_ms(CALLS, lambda n: ray.get(call.remote()))
        began = time.perf_counter()
        ray.get([call.remote() for _ in range(JOBS)])
        _line("plain Ray", f"{each:.2f} ms", f"{JOBS / (time.perf_counter() - began):,.0f}")
    finally:
        ray.shutdown()


def _nothing() -> None:
    return None


def _line(*cells: str) -> None:
    widths = (38, 14, 14, 16, 16)
    padded = (cell.ljust(width) for cell, width in zip((*cells, *[""] * 5), widths, strict=False))
    print("".join(padded).rstrip(), flush=True)


def serve(folder: str, kind: str) -> int:
    """Be the stand-in of one pilot."""
    # Called by another engine's name: what is "local" gets letters as short as near sessions do.
    record = PilotRecord("far-1", "far", "slurm", PilotState.SUBMITTED, f"bench-{os.getpid()}", 0.0)
    group = PilotGroup("slurm", gpus=0, preload="numpy")
    engine = DelayedEngine() if kind == "delayed" else LocalEngine()
    stand_in = StandIn(open_base(folder), record, group, engine, idle_s=None)
    try:
        return stand_in.run()
    finally:
        stand_in.close()


def main() -> int:
    """Measure, and print a table."""
    if len(sys.argv) > 1:
        return serve(*sys.argv[1:])
    with place():
        titles = (f"16 MB, {card_s * 1000:.0f} ms" for card_s in CARD_S)
        _line("one agent", "round trip", "empty jobs/s", *titles)
        with post_room(sessions=1) as master:
            measure_ours("a session of this host", master)
        for delayed in (False, True):
            with far_room(delayed=delayed) as master:
                words = f", {LATENCY_S * 1000:.0f} ms each way" if delayed else ""
                measure_ours(f"a pilot of this host{words}", master)
        measure_slurm()
        measure_ray()
    return 0


if __name__ == "__main__":
    sys.exit(main())
