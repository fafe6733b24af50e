"""How long until somebody goes on: after the death of an agent, of a Master, and on a full base.

    python -m benchmarks.chaos takeover

Each figure is the median and the worst of several rounds with real processes. A restarted Master is
measured on a base of 100,000 parcels of one job each, half of them done.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from postroom import Job, Master
from postroom.parcel.sheets import JobEnd, JobOptions, RanBy, pack_jobs, pack_outcomes
from postroom.store.append_log import AppendLogWriter
from postroom.store.files import LocalFiles
from postroom.store.runs import list_runs
from postroom.testing import RealSessions, sessions, wait_until

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "project")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def agent_takeover(room: RealSessions, kill: str) -> float:
    """From the death of an agent that has the only job until another runs it."""
    with tempfile.TemporaryDirectory() as folder, room.master() as master:
        ledger = f"{folder}/executed"
        pool = master.submit_all([Job("storm_kernels:linger", ledger=ledger)])
        _work(master, lambda: _lines(ledger) == 1)
        (busy,) = (agent for agent in room.guardians if os.path.getsize(room.base.mailbox(agent)))
        began = time.monotonic()
        os.kill(room.worker(busy) if kill == "worker" else room.guardians[busy].pid, signal.SIGKILL)
        _work(master, lambda: _lines(ledger) == 2)
        took = time.monotonic() - began
        open(f"{ledger}.end", "w").close()
        pool.wait(60)
        # A session that loses a job each time would stop itself, so each round has a new one.
        room.stop(busy)
        room.start(busy, gpu=busy)
    return took


def master_takeover(room: RealSessions) -> float:
    """From the death of the acting Master until a waiting one has sent a job to an idle agent."""
    command = [sys.executable, "-m", "postroom", "master", room.base.root]
    schedulers = [_start(room, command) for _ in range(2)]
    try:
        wait_until(lambda: _acting(room) in [one.pid for one in schedulers])
        acting = next(one for one in schedulers if one.pid == _acting(room))
        with tempfile.TemporaryDirectory() as folder:
            ledger = f"{folder}/executed"
            acting.send_signal(signal.SIGSTOP)  # so that it cannot send the job itself
            with room.master() as master:
                master.submit_all(
                    [Job("storm_kernels:square", number=1, seconds=0, ledger=ledger)], keep=True
                )
            began = time.monotonic()
            acting.kill()
            wait_until(lambda: _lines(ledger) == 1, folder=room.base.root)
            return time.monotonic() - began
    finally:
        for one in schedulers:
            one.kill()
            one.wait()


def restart_with(parcels: int) -> dict[str, float]:
    """A new Master on a base of so many one-job parcels, every second of them done."""
    # In memory, where there is room: making the files is not what is measured.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="postroom-large-", dir=memory) as folder:
        with Master(f"{folder}/base", import_folder=PROJECT) as master:
            run = master.submit_all([], keep=True).run
            base = master.base
        files, ran_by = LocalFiles(), RanBy("0", "", 0, 0.0)
        log = AppendLogWriter(files, base, run, durable=False)
        for number in range(parcels):
            arguments = [{"number": number, "seconds": 0.0, "ledger": f"{folder}/executed"}]
            chunks = pack_jobs(0, "storm_kernels:square", JobOptions(), None, arguments)
            log.append(1, chunks)
            if number % 2:
                chunks = pack_outcomes(number, [JobEnd(number * number + 1)], ran_by)
                files.write_new(base.result(run, number), chunks)
        assert list_runs(files, base) == [run]
        with sessions(base.root, import_folder=PROJECT) as room:
            room.start()
            began, worked = time.monotonic(), time.process_time()
            with room.master() as master:
                _work(master, lambda: master.acting)
                acting = time.monotonic() - began
                busy = time.process_time() - worked
                _work(master, lambda: _lines(f"{folder}/executed") > 0)
                first = time.monotonic() - began
            return {
                f"a new Master with {parcels} parcels acts after, s": round(acting, 3),
                f"a new Master with {parcels} parcels: processor time, s": round(busy, 3),
                f"a new Master with {parcels} parcels: first job, s": round(first, 3),
            }


def run_takeover(*, seed: int, rounds: int, parcels: int) -> dict[str, Any]:
    """Measure all of it."""
    table: dict[str, Any] = {}
    folder = tempfile.TemporaryDirectory(prefix="postroom-takeover-")
    with folder, sessions(f"{folder.name}/base", import_folder=PROJECT) as room:
        for agent in ("0", "1"):
            room.start(agent, gpu=agent)
        measures: dict[str, Callable[[], float]] = {
            "worker killed: its job in another's hand": lambda: agent_takeover(room, "worker"),
            "guardian killed: its job in another's hand": lambda: agent_takeover(room, "guardian"),
            "Master killed: a waiting one has sent a job": lambda: master_takeover(room),
        }
        for what, measure in measures.items():
            times = [measure() for _ in range(rounds)]
            table[f"{what}, median s"] = round(statistics.median(times), 3)
            table[f"{what}, worst s"] = round(max(times), 3)
    table |= restart_with(parcels)
    return {**table, "rounds": rounds, "good": True}


def _work(master: Master, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < give_up_at, "nobody went on"
        if not master.step(time.monotonic()):
            time.sleep(0.001)


def _lines(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:
        return 0


def _start(room: RealSessions, command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=ROOT, env=room.environment, stderr=subprocess.DEVNULL, start_new_session=True
    )


def _acting(room: RealSessions) -> int | None:
    from postroom.store.snapshot import snapshot

    return snapshot(room.base, runs=False).master_pid
