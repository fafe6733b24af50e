"""The standing queue: what one `submit` costs in a shell loop, and how fast a queue drains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .lines import US, Figures, Sizes
from .scratch import scratch
from .shell import LINE, environment_of_a_package, find, installed

BARE = "python -c pass"
# Each job that waits in task-spooler is a connected process, of which it takes at most 1,000.
SPOOLER_JOBS = 900


def submit(sizes: Sizes) -> Figures:
    """`postroom submit true`, one call after another, and in turn a bare Python."""
    with scratch() as folder:
        environment = {**os.environ, "POSTROOM_BASE": f"{folder}/base"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        ours = [sys.executable, "-m", "postroom", "submit", LINE]
        bare = [sys.executable, "-c", "pass"]
        _call(ours, environment, folder)  # makes the base, and what Python compiles
        times: dict[str, list[float]] = {US: [], BARE: []}
        for _ in range(_rounds(sizes)):
            for name, command in ((US, ours), (BARE, bare)):
                times[name].append(_call(command, environment, folder))
        return {"submit": {name: min(taken) * 1e3 for name, taken in times.items()}}


def submit_spooler(sizes: Sizes) -> Figures:
    """The same with task-spooler."""
    with scratch() as folder, _spooler(folder, sizes.shell) as (tsp, environment):
        taken = [_call([tsp, "-n", LINE], environment, folder) for _ in range(_rounds(sizes))]
        return {"submit": {"task-spooler": min(taken) * 1e3}}


def submit_gflow(sizes: Sizes) -> Figures:
    """The same with gflow, whose package is called runqd; it needs tmux."""
    gbatch, gflowd, _ = _find_gflow("gbatch"), _find_gflow("gflowd"), find("tmux")
    with scratch() as folder:
        names = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "TMUX_TMPDIR")
        environment = {**os.environ, **dict.fromkeys(names, folder)}
        with open(f"{folder}/log.txt", "wb") as log:
            process = subprocess.Popen(
                [gflowd], env=environment, cwd=folder, stdout=log, stderr=log
            )
        try:
            _wait_for_gflow(gbatch, environment, folder)
            taken = [_call([gbatch, LINE], environment, folder) for _ in range(_rounds(sizes))]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            subprocess.run([find("tmux"), "kill-server"], env=environment, check=False)
        return {"submit": {"gflow": min(taken) * 1e3}}


def drain(sizes: Sizes) -> Figures:
    """Commands that are queued already, on two agents of `postroom up`."""
    with scratch() as folder:
        base = f"{folder}/base"
        environment = {**environment_of_a_package(), "POSTROOM_BASE": base}
        environment |= {"POSTROOM_LEDGER": f"{folder}/ledger", "POSTROOM_REST": "never"}

        def call(*words: str, lines: str = "") -> None:
            subprocess.run(
                [*installed(), "-m", "postroom", *words],
                env=environment,
                cwd=folder,
                input=lines.encode(),
                check=True,
                capture_output=True,
            )

        call("up", "--gpus", "cpu,cpu", "--no-page")
        try:
            call("submit", "--wait", LINE)
            call("pause")
            call("submit", "-f", "-", "--shell", "sh", lines=f"{LINE}\n" * sizes.drained)
            call("resume")
            call("wait", "--project", "default", "--timeout", "10m")
        finally:
            call("down", "--now")
        return {"drain": {US: sizes.drained / _drained_s(f"{base}/log/events.jsonl")}}


def _drained_s(journal: str) -> float:
    """From the moment when the queue was resumed until the last result was collected."""
    began = ended = 0.0
    with open(journal, encoding="utf-8") as file:
        for event in map(json.loads, file):
            if event["event"] == "asked" and event["verb"] == "resume":
                began = event["at"]
            elif event["event"] == "done":
                ended = event["at"]
    return ended - began


def drain_spooler(sizes: Sizes) -> Figures:
    """The same with task-spooler, whose two slots are blocked until all is queued."""
    queued = min(sizes.drained, SPOOLER_JOBS)
    with scratch() as folder, _spooler(folder, queued) as (tsp, environment):
        gate, end = f"{folder}/gate", f"{folder}/end"
        os.mkfifo(gate)
        for _ in range(2):
            _call([tsp, "-n", "sh", "-c", f"cat {gate}"], environment, folder)
        for _ in range(queued):
            _call([tsp, "-n", "sh", "-c", LINE], environment, folder)
        _call([tsp, "-n", "sh", "-c", f"date +%s.%N > {end}.new; mv {end}.new {end}"],
              environment, folder)  # fmt: skip
        with open(gate, "wb"):  # opening it lets both go
            began = time.time()
        while not os.path.exists(end):
            time.sleep(0.01)
        with open(end, encoding="ascii") as file:
            seconds = float(file.read()) - began
        return {"drain": {"task-spooler": queued / seconds}}


@contextmanager
def _spooler(folder: str, lines: int) -> Iterator[tuple[str, dict[str, str]]]:
    """A server of task-spooler with two slots."""
    tsp = find("tsp")
    environment = {**os.environ, "TS_SOCKET": f"{folder}/socket", "TMPDIR": folder}
    environment["TS_MAXFINISHED"] = str(2 * lines)
    _call([tsp, "-S", "2"], environment, folder)
    try:
        yield tsp, environment
    finally:
        _call([tsp, "-K"], environment, folder)


def _find_gflow(name: str) -> str:
    beside = f"{sysconfig.get_path('scripts')}/{name}"
    return beside if os.access(beside, os.X_OK) else find(name)


def _wait_for_gflow(gbatch: str, environment: dict[str, str], folder: str) -> None:
    give_up_at = time.monotonic() + 20.0
    while True:
        done = subprocess.run([gbatch, LINE], env=environment, cwd=folder, capture_output=True)
        if done.returncode == 0:
            return
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"gflowd does not answer: {done.stderr.decode()[-300:]}")
        time.sleep(0.2)


def _rounds(sizes: Sizes) -> int:
    return max(5, sizes.calls // 25)


def _call(command: list[str], environment: dict[str, str], folder: str) -> float:
    """Run a command, and return how long it took."""
    began = time.perf_counter()
    subprocess.run(
        command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return time.perf_counter() - began


if __name__ == "__main__":
    from .lines import QUICK

    for measure in (submit, submit_spooler, submit_gflow, drain, drain_spooler):
        if measure.__name__ in (sys.argv[1:] or [measure.__name__]):
            print(measure.__name__, measure(QUICK))
