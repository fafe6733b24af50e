"""Measure the GPU ledger on simulated cards: python -m benchmarks.ledger [--json]

* how long `postroom gpu get` takes, beside a bare `python -c pass` (at most five times as long);
* how long a card stays unseen as free after its holder was killed with -9, as the next in line sees
  it, for a process that has the lock itself and for a shell whose lock a keeper has;
* how many leases a second one process takes and gives back, alone and with others waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack

from postroom.gpus.ledger import Ledger, Request, open_ledger

HOLD = """
import time
from postroom.gpus.ledger import Request, open_ledger
lease = open_ledger().acquire(Request(cards=("FAKE-0",)))
print("held", flush=True)
time.sleep(600)
"""
SHELL = 'ID=$("$0" -m postroom gpu get --gpus 0); echo held; read'


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def start_ratio(rounds: int) -> dict[str, float]:
    """Time a bare Python and `get` in turns, so that a busy machine slows both."""

    def bare() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    def get() -> None:
        command = [sys.executable, "-m", "postroom", "gpu", "get"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        taken.append(done.stdout.strip())

    taken: list[str] = []
    times: dict[str, list[float]] = {"bare": [], "get": []}
    for _ in range(rounds):
        times["bare"].append(timed(bare))
        times["get"].append(timed(get))
        release = [sys.executable, "-m", "postroom", "gpu", "release", taken.pop()]
        subprocess.run(release, check=True)
    bare_s, get_s = (statistics.median(times[name]) for name in ("bare", "get"))
    return {"bare_s": bare_s, "get_s": get_s, "ratio": get_s / bare_s}


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
            # Asked between two looks: whoever waits is in the line when the kill comes.
            if not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(time.perf_counter())
            return True

        lease = ledger.acquire(Request(cards=("FAKE-0",)), wanted=waited)
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
            ledger.try_acquire(Request(memory_mib=1024)).release()

    return count / timed(cycle)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="postroom-ledger-"))
        os.environ |= {"POSTROOM_FAKE_GPUS": "4x24G", "POSTROOM_LEDGER": folder}
        ledger = open_ledger()
        figures = {
            "start": start_ratio(options.rounds),
            "release_after_death": release_after_death(
                ledger, [sys.executable, "-c", HOLD], options.rounds
            ),
            "release_after_shells_death": release_after_death(
                ledger, ["bash", "-c", SHELL, sys.executable], options.rounds
            ),
            "leases_per_s": throughput(ledger, 300),
        }
    if options.json:
        print(json.dumps(figures))
        return
    start = figures["start"]
    assert isinstance(start, dict)
    print(
        f"get {start['get_s'] * 1000:.0f} ms, python -c pass {start['bare_s'] * 1000:.0f} ms: "
        f"ratio {start['ratio']:.1f} (at most 5)"
    )
    for name in ("release_after_death", "release_after_shells_death"):
        delay = figures[name]
        assert isinstance(delay, dict)
        print(
            f"{name.replace('_', ' ')}: median {delay['median_s'] * 1000:.0f} ms, "
            f"worst {delay['worst_s'] * 1000:.0f} ms (at most 100)"
        )
    print(f"leases taken and given back: {figures['leases_per_s']:.0f} a second")


if __name__ == "__main__":
    main()
