"""Large jobs while a random process is killed: their files are written over again and again.

    python -m benchmarks.chaos large --jobs 2000 --seed 1

Two sessions and a client are real processes; what dies is started again. Every job passes an array
of one number and gets back another one, and both sides check every byte: a file that was written
over too early would show. The client streams from a generator and from a list in turns, takes
results as they come, and after its death resumes its run.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import numpy as np

from postroom import Job, Master, PostroomError
from postroom.jobs import JobPool

from .client import PROJECT
from .storm import ROOT, child_of

SESSIONS = 2
ARGUMENT_ITEMS = (8 << 20) // 8
RESULT_ITEMS = (4 << 20) // 8
RUN_JOBS = 60
UP_S = 5.0  # how long a client lives at least


def run_large(*, jobs: int, every_s: float, limit_s: float, seed: int) -> dict[str, Any]:
    """Blow once; return the table. The folder is kept when something is wrong."""
    folder = tempfile.mkdtemp(prefix="postroom-large-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    chance = random.Random(seed)
    base, state = f"{folder}/base", f"{folder}/state"
    os.mkdir(f"{folder}/ledger", 0o700)
    environment = {
        **os.environ,
        "POSTROOM_FAKE_GPUS": f"{SESSIONS}x24G",
        "POSTROOM_PRELOAD": "numpy",
        "POSTROOM_LEDGER": f"{folder}/ledger",
    }
    python = [sys.executable, "-m"]
    commands = {
        f"session {n}": [*python, "postroom.session", str(n), base] for n in range(SESSIONS)
    }
    commands["client"] = [*python, "benchmarks.chaos.large", base, state, str(jobs)]
    living: dict[str, tuple[float, subprocess.Popen[bytes]]] = {}
    faults: Counter[str] = Counter()
    began, peak, done = time.monotonic(), 0, False
    strike_at = began + 3.0
    words = open(f"{folder}/words.txt", "ab")  # noqa: SIM115 - until the end
    try:
        while not done and time.monotonic() < began + limit_s:
            now = time.monotonic()
            for name, command in commands.items():
                if name not in living or living[name][1].poll() not in (None, 0):
                    started = subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=words, stderr=words
                    )
                    living[name] = now, started
            done = living["client"][1].poll() == 0
            peak = max(peak, _size(base))
            if now >= strike_at:
                strike_at = now + every_s * chance.uniform(0.5, 1.5)
                faults[_strike(base, living, chance, now)] += 1
            time.sleep(0.05)
    finally:
        for _, process in living.values():
            if process.poll() is None:
                process.terminate()
        for _, process in living.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
        words.close()
    said = Counter(line.split()[0] for line in _read(state))
    table: dict[str, Any] = {
        "jobs": jobs,
        "in time": done,
        "taken": said["taken"],
        "lost": jobs - len(_taken(state)) + said["lost"],
        "doubled": said["doubled"],
        "spoilt": said["spoilt"],
        "given up as poison": said["poison"],
        **{f"{role} killed": faults[role] for role in ("worker", "guardian", "client")},
        "most disk, MiB": peak >> 20,
        "seconds": round(time.monotonic() - began, 1),
        "seed": seed,
    }
    table["good"] = done and not (table["lost"] or table["doubled"] or table["spoilt"])
    if table["good"]:
        shutil.rmtree(folder)
    else:
        print(f"kept for a look: {folder}", file=sys.stderr)
    return table


def _strike(
    base: str,
    living: dict[str, tuple[float, subprocess.Popen[bytes]]],
    chance: random.Random,
    now: float,
) -> str:
    """Kill something that has begun to work; its role."""
    role = chance.choice(("worker", "worker", "guardian", "client"))
    number = chance.randrange(SESSIONS)
    since, process = living["client" if role == "client" else f"session {number}"]
    # A session serves when it has a mailbox; a client, soon after it was started.
    mailbox = f"{base}/agent_pool/{number}.POOL"
    up = now >= since + UP_S if role == "client" else os.path.exists(mailbox)
    pid = child_of(process.pid) if role == "worker" else process.pid
    if not up or not pid or process.poll() is not None:
        return "nobody"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
    return role


def _size(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def _read(path: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        return file.read().splitlines()
    return []


# The client. Its file has a line for each thing that it saw: `run ID TOKEN...`, `taken TOKEN`.


def main() -> int:
    """Run what was not taken yet, a run at a time; first finish the last run."""
    base, state, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    log = os.open(state, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(text: str) -> None:
        os.write(log, f"{text}\n".encode())

    with Master(base, import_folder=PROJECT, say=lambda _: None) as master:
        runs = [line.split()[1:] for line in _read(state) if line.startswith("run ")]
        if runs:
            run, *tokens = runs[-1]
            pool = None
            with contextlib.suppress(PostroomError):  # its jobs were not written, or are over
                pool = master.resume(run)
            if pool is not None:
                _take(pool, list(map(int, tokens)), say)
                for token in set(map(int, tokens[: len(pool.jobs)])) - _taken(state):
                    say(f"lost {token} of {run}")
        while True:
            taken = _taken(state)
            tokens_left = [token for token in range(jobs) if token not in taken][:RUN_JOBS]
            if not tokens_left:
                return 0
            made = (
                Job("storm_kernels:large", x=np.full(ARGUMENT_ITEMS, token), items=RESULT_ITEMS)
                for token in tokens_left
            )
            pool = master.start(list(made) if len(runs) % 2 else made)
            runs.append([pool.run])
            say(" ".join(["run", pool.run, *map(str, tokens_left)]))
            _take(pool, tokens_left, say)


def _take(pool: JobPool, tokens: list[int], say: Any) -> None:
    """Take all results of a pool, and check every byte."""
    seen: set[int] = set()
    for done in pool.as_completed(keep=False):
        token = tokens[done.number]
        if done.number in seen:
            say(f"doubled {token}")
        seen.add(done.number)
        if done.error is not None:
            say(f"{'poison' if 'poison' in str(done.error) else 'spoilt'} {token} {done.error}")
            continue
        value = done.result()
        right = value.shape == (RESULT_ITEMS,) and bool((value == token * token).all())
        say(f"{'taken' if right else 'spoilt'} {token}")


def _taken(state: str) -> set[int]:
    return {int(line.split()[1]) for line in _read(state) if line.startswith(("taken ", "poison "))}


if __name__ == "__main__":
    sys.exit(main())
