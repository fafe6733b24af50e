"""Measure the GPU ledger on simulated cards: python -m benchmarks.ledger [--json] [--start]

* how long `postroom gpu get`, `idle` and `release` take, compared with a bare `python -c pass` of
  the same interpreter (at most five times as long). It runs the command that is installed beside
  that interpreter, on simulated cards, and with a compiler also on the cards of a stub of NVML;
* how long it takes until the first waiting request gets a card whose holder was killed with -9: a
  process that has the lock itself, and a shell for which a keeper has the lock;
* how many leases a second one process takes and gives back, alone and with others waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from postroom.gpus.ledger.protocol import LeaseRequest, Ledger, open_ledger

STUB = os.path.join(os.path.dirname(os.path.dirname(__file__)), "tests", "gpus", "stub_nvml.c")
TWO_CARDS = """\
driver 570.124
card 0 GPU-aaaa1111 24576 300 0 35 21500 NVIDIA GeForce RTX 4090
card 1 GPU-bbbb2222 81920 300 0 35 21500 NVIDIA A100 80GB
"""

HOLD = """
import time
from postroom.gpus.ledger.protocol import LeaseRequest, open_ledger
lease = open_ledger().acquire(LeaseRequest(cards=("FAKE-0",)))
print("held", flush=True)
time.sleep(600)
"""
SHELL = 'ID=$("$0" -m postroom gpu get --gpus 0); echo held; read'


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def spent(command: list[str]) -> tuple[float, float, str]:
    """Run a command; return its wall clock, its CPU time and what it said."""
    told, tell = os.pipe()
    began = time.perf_counter()
    output = [(os.POSIX_SPAWN_DUP2, tell, 1)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=output)
    os.close(tell)
    with open(told) as file:
        said = file.read()
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - began
    if status:
        raise SystemExit(f"{' '.join(command)} has failed")
    return wall_s, used.ru_utime + used.ru_stime, said.strip()


def start_ratios(rounds: int) -> dict[str, dict[str, float]]:
    """Time a bare Python and the verbs of scripts in turns, so that a busy machine slows all."""
    installed = os.path.join(os.path.dirname(sys.executable), "postroom")
    postroom = [installed] if os.path.exists(installed) else [sys.executable, "-m", "postroom"]
    samples: dict[str, list[tuple[float, float]]] = {}

    def sample(name: str, *command: str) -> str:
        wall_s, cpu_s, said = spent(list(command))
        samples.setdefault(name, []).append((wall_s, cpu_s))
        return said

    for _ in range(rounds):
        sample("bare", sys.executable, "-c", "pass")
        card = sample("get", *postroom, "gpu", "get")
        sample("idle", *postroom, "gpu", "idle")
        sample("release", *postroom, "gpu", "release", card)
    medians = {
        name: [statistics.median(column) for column in zip(*found, strict=True)]
        for name, found in samples.items()
    }
    bare_s, bare_cpu_s = medians["bare"]
    return {
        name: {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "ratio": wall_s / bare_s,
            "cpu_ratio": cpu_s / bare_cpu_s,
        }
        for name, (wall_s, cpu_s) in medians.items()
    }


def nvml_ratios(rounds: int, folder: str) -> dict[str, dict[str, float]] | None:
    """Do the same with two cards of the tests' stub of NVML; None without a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None or not os.path.exists(STUB):
        return None
    library = os.path.join(folder, "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, STUB], check=True)
    scenario = os.path.join(folder, "scenario")
    with open(scenario, "w") as file:
        file.write(TWO_CARDS)
    before = dict(os.environ)
    del os.environ["POSTROOM_FAKE_GPUS"]
    os.environ |= {"NVML_STUB": scenario, "LD_LIBRARY_PATH": folder}
    try:
        return start_ratios(rounds)
    finally:
        os.environ.clear()
        os.environ |= before


def release_after_death(ledger: Ledger, command: list[str], rounds: int) -> dict[str, float]:
    """Kill a holder while the next one waits, and time until that one has the card."""
    delays = []
    for _ in range(rounds):
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        killed: list[float] = []

        def waited(victim: int = holder.pid, killed: list[float] = killed) -> bool:
            # Called between two looks, so the request is on the waiting list when the kill comes.
            if not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(time.perf_counter())
            return True

        lease = ledger.acquire(LeaseRequest(cards=("FAKE-0",)), wanted=waited)
        delays.append(time.perf_counter() - killed[0])
        lease.release()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    return {"median_s": statistics.median(delays), "worst_s": max(delays)}


def throughput(ledger: Ledger, count: int) -> float:
    """Return the leases a second that one process takes and gives back."""

    def cycle() -> None:
        for _ in range(count):
            ledger.try_acquire(LeaseRequest(memory_mib=1024)).release()

    return count / timed(cycle)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--start", action="store_true", help="only how fast the verbs start")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder, stub = (
            stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-ledger-"))
            for _ in range(2)
        )
        os.environ |= {"POSTROOM_FAKE_GPUS": "4x24G", "POSTROOM_LEDGER": folder}
        figures: dict[str, Any] = {
            "start": start_ratios(options.rounds),
            "start_with_nvml": nvml_ratios(options.rounds, stub),
        }
        if not options.start:
            ledger = open_ledger()
            holder = [sys.executable, "-c", HOLD]
            shell = ["bash", "-c", SHELL, sys.executable]
            figures |= {
                "release_after_death": release_after_death(ledger, holder, options.rounds),
                "release_after_shells_death": release_after_death(ledger, shell, options.rounds),
                "leases_per_s": throughput(ledger, 300),
            }
    print(json.dumps(figures) if options.json else "\n".join(told(figures)))


def told(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as lines."""
    for kind, cards in (("start", "simulated cards"), ("start_with_nvml", "NVML's stub")):
        for name, start in (figures[kind] or {}).items():
            yield (
                f"{name} ({cards}): {start['wall_s'] * 1000:.0f} ms, ratio {start['ratio']:.1f} "
                f"(at most 5); CPU {start['cpu_s'] * 1000:.0f} ms, ratio {start['cpu_ratio']:.1f}"
            )
    for name in ("release_after_death", "release_after_shells_death"):
        if name in figures:
            yield (
                f"{name.replace('_', ' ')}: median {figures[name]['median_s'] * 1000:.0f} ms, "
                f"worst {figures[name]['worst_s'] * 1000:.0f} ms (at most 100)"
            )
    if "leases_per_s" in figures:
        yield f"leases taken and given back: {figures['leases_per_s']:.0f} a second"


if __name__ == "__main__":
    main()
