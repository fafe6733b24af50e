"""Shell lines: many times `true`, two at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

from .lines import US, Figures, Sizes
from .scratch import scratch

LINE = "true"
# Both run the lines by this shell; the default of `postroom run` is bash, which starts in twice the
# time, here as there.
SHELL = "sh"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Absent(Exception):
    """A peer that is not installed."""


def shell(sizes: Sizes) -> Figures:
    """Our own `postroom run`, with a folder, a log and a record for each line."""

    def run(folder: str) -> None:
        with open(f"{folder}/jobs.txt", "x", encoding="ascii") as file:
            file.write(f"{LINE}\n" * sizes.shell)
        command = [*installed(), "-m", "postroom", "run", "jobs.txt", "--gpus", "2xcpu"]
        subprocess.run(
            [*command, "--shell", SHELL],
            cwd=folder,
            env=environment,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    environment = environment_of_a_package()
    subprocess.run(
        [*installed(), "-m", "postroom", "run", "-h"],
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return _timed(US, sizes.shell, run)


def installed() -> list[str]:
    """A Python that starts as one does for a package that was installed.

    The finder of an editable install, which is imported at every start, takes as long as Python.
    """
    return [sys.executable, "-S"]


def environment_of_a_package() -> dict[str, str]:
    """Packages on the path, and compiled once, as pip would have done."""
    path = os.pathsep.join([ROOT, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def xargs(sizes: Sizes) -> Figures:
    """Hardly a queue at all: two processes from a pipe."""
    return _through_pipe("xargs -P", ["xargs", "-P2", "-I{}", "sh", "-c", "{}"], sizes.shell)


def gnu_parallel(sizes: Sizes) -> Figures:
    """GNU parallel, with two slots."""
    return _through_pipe("GNU parallel", ["parallel", "--will-cite", "-j2"], sizes.shell)


def task_spooler(sizes: Sizes) -> Figures:
    """task-spooler: a queue with a server in the background, one call for each line."""
    tsp = find("tsp")

    def run(folder: str) -> None:
        environment = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder}
        environment["TS_MAXFINISHED"] = str(2 * sizes.shell)

        def call(*arguments: str) -> None:
            subprocess.run(
                [tsp, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL
            )

        try:
            call("-S", "2")
            for _ in range(sizes.shell):
                call("-n", SHELL, "-c", LINE)
            _wait_until_idle(tsp, environment)
        finally:
            call("-K")

    return _timed("task-spooler", sizes.shell, run)


def hyperqueue(sizes: Sizes) -> Figures:
    """HyperQueue, its server and one worker of two cores on this machine."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    quiet: dict[str, Any] = {"stdout": None, "stderr": None}
    with LocalCluster() as cluster, scratch() as folder:
        cluster.start_worker(WorkerConfig(cores=2))
        client = cluster.client()
        job = Job(max_fails=0)
        tasks = [job.program(["sh", "-c", LINE], **quiet) for _ in range(sizes.shell)]
        # Its client asks once a second whether all is done: the jobs themselves know better.
        end = f"{folder}/end"
        job.program(["sh", "-c", f"date +%s.%N > {end}"], deps=tasks, **quiet)
        started_at = time.time()
        client.wait_for_jobs([client.submit(job)])
        with open(end, encoding="ascii") as file:
            seconds = float(file.read()) - started_at
    return {"shell": {"HyperQueue": sizes.shell / seconds}}


def _through_pipe(name: str, command: list[str], lines: int) -> Figures:
    command[0] = find(command[0])

    def run(folder: str) -> None:
        subprocess.run(command, input=f"{LINE}\n".encode() * lines, check=True, cwd=folder)

    return _timed(name, lines, run)


def _timed(name: str, lines: int, run: Callable[[str], None]) -> Figures:
    with scratch() as folder:
        started = time.perf_counter()
        run(folder)
        return {"shell": {name: lines / (time.perf_counter() - started)}}


def find(command: str) -> str:
    """The path of a program that a measurement needs."""
    path = shutil.which(command)
    if path is None:
        raise Absent(f"the command {command} is not installed")
    return path


def _wait_until_idle(tsp: str, environment: dict[str, str]) -> None:
    while True:
        listed = subprocess.run(
            [tsp], env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        if not any(state in listed for state in ("running", "queued", "allocating")):
            return
        time.sleep(0.01)
