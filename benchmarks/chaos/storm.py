"""A storm: short jobs while a random process of the system is killed, or stopped and continued.

    python -m benchmarks.chaos storm --jobs 20000 --seed 1

Sessions (each a guardian and a worker), a scheduler and a client are real processes. What
dies is started again by the harness, as a person or a service manager would do it; everything else
is left to Postroom. Afterwards the folder is read by `audit`, which shares no code with Postroom.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .audit import audit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROLES = ("worker", "guardian", "master", "client")
# Of the faults, this part are kills; the others are stops, continued after at most so long.
KILLS = 0.7
LONGEST_STOP_S = 1.0
LOOK_S = 0.01


@dataclass
class Member:
    """One process that the harness starts, and starts again when it is dead."""

    role: str
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    struck: bool = False  # by us: its death is no news


@dataclass
class Kill:
    """A kill, and the victim's letter: the range of jobs that must be done by others."""

    at: float
    role: str
    run: str = ""
    first: int = 0
    stop: int = 0


@dataclass
class Storm:
    """The system under test, and what was done to it."""

    jobs: int
    sessions: int
    every_s: float
    seed: int
    longest_s: float  # how long a job takes at most
    embedded: bool  # the run is served only while its client lives
    one_by_one: bool  # its jobs are submitted one by one, while it runs
    folder: str
    faults: Counter[str] = field(default_factory=Counter)
    kills: list[Kill] = field(default_factory=list)
    ended_themselves: list[str] = field(default_factory=list)
    _stopped: list[tuple[float, int]] = field(default_factory=list)  # when to continue, pidfd

    def __post_init__(self) -> None:
        self.base = f"{self.folder}/base"
        self.state = f"{self.folder}/run"
        ledger = f"{self.folder}/ledger"
        os.mkdir(ledger, 0o700)
        self.environment = {
            **os.environ,
            "POSTROOM_FAKE_GPUS": f"{self.sessions}x24G",
            "POSTROOM_PRELOAD": "numpy",
            "POSTROOM_LEDGER": ledger,
        }
        self.random = random.Random(self.seed)
        python = [sys.executable, "-m"]
        self.guardians = [
            Member("guardian", f"guardian-{n}", [*python, "postroom.session", str(n), self.base])
            for n in range(self.sessions)
        ]
        self.master = Member("master", "master", [*python, "postroom", "master", self.base])
        keep = "embedded" if self.embedded else "keep"
        arguments = [self.base, self.state, str(self.jobs), str(self.seed)]
        arguments += [str(self.longest_s), keep, "one by one" if self.one_by_one else "in a list"]
        self.client = Member("client", "client", [*python, "benchmarks.chaos.client", *arguments])
        self.members = [*self.guardians, self.master, self.client]

    def run(self, limit_s: float) -> float:
        """Let the storm blow until every job is done; return how long it took."""
        started = time.monotonic()
        strike_at = started + 1.0
        try:
            while True:
                self._start_the_dead()
                if self._client_is_done():
                    return time.monotonic() - started
                now = time.monotonic()
                if now - started > limit_s:
                    raise SystemExit(f"not done within {limit_s:g} s: see {self.folder}")
                self._continue_the_stopped(now)
                if now >= strike_at:
                    strike_at += self.every_s
                    self._strike(now)
                time.sleep(LOOK_S)
        finally:
            self._end_all()

    def _start_the_dead(self) -> None:
        for member in self.members:
            process = member.process
            if process is not None:
                if process.poll() is None or (member is self.client and process.returncode == 0):
                    continue
                if not member.struck:
                    self.ended_themselves.append(f"{member.name}: exit code {process.returncode}")
            member.struck = False
            with open(f"{self.folder}/{member.name}.txt", "ab") as words:
                member.process = subprocess.Popen(
                    member.command,
                    cwd=ROOT,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    start_new_session=True,
                )

    def _client_is_done(self) -> bool:
        process = self.client.process
        if process is None or process.poll() is None:
            return False
        if process.returncode > 0:
            raise SystemExit(f"the client failed: see {self.folder}/client.txt")
        return process.returncode == 0

    def _strike(self, now: float) -> None:
        role = self.random.choice(ROLES)
        kill = self.random.random() < KILLS
        stop_s = self.random.uniform(0.05, LONGEST_STOP_S)
        guardian = self.random.choice(self.guardians)
        member = {"master": self.master, "client": self.client}.get(role, guardian)
        if member.process is None or member.process.poll() is not None:
            return
        pid = _child_of(member.process.pid) if role == "worker" else member.process.pid
        try:
            pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            return
        if kill:
            self.kills.append(self._note_kill(role, guardian))
            member.struck = role != "worker"
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            self._stopped.append((now + stop_s, pidfd))
        self.faults[f"{role} {'killed' if kill else 'stopped'}"] += 1

    def _note_kill(self, role: str, guardian: Member) -> Kill:
        kill = Kill(time.time(), role)
        if role in ("worker", "guardian"):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                number = self.guardians.index(guardian)
                with open(f"{self.base}/agent_pool/{number}.POOL", encoding="ascii") as file:
                    letter = json.loads(file.read().split(maxsplit=3)[3])
                kill.run, kill.first, kill.stop = letter["run"], letter["first"], letter["stop"]
        return kill

    def _continue_the_stopped(self, now: float) -> None:
        due = [entry for entry in self._stopped if entry[0] <= now]
        for entry in due:
            self._stopped.remove(entry)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(entry[1], signal.SIGCONT)
            os.close(entry[1])

    def _end_all(self) -> None:
        """End exactly what was started, by pid; guardians take their workers with them."""
        self._continue_the_stopped(float("inf"))
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.process.terminate()
        for member in self.members:
            if member.process is not None:
                try:
                    member.process.wait(20)
                except subprocess.TimeoutExpired:
                    self.ended_themselves.append(f"{member.name}: did not end when told to")
                    member.process.kill()
                    member.process.wait()

    # Afterwards

    def report(self, seconds: float) -> dict[str, Any]:
        """Count everything, from the folder."""
        with open(self.state, encoding="ascii") as file:
            run = file.read()
        found = audit(self.base, run)
        with open(f"{self.state}.executed", encoding="ascii") as file:
            begun = Counter(int(line) for line in file)
        wrong = [job for job, value in found.values.items() if value != job * job + 1]
        wrong += [job for job in found.failures if job not in found.poisoned]
        gaps = sorted(set(found.written_at.values()))
        return {
            "jobs": self.jobs,
            "submitted": "one by one" if self.one_by_one else "in a list",
            "served": "while the client lives" if self.embedded else "always",
            "lost": len(found.lost) + abs(self.jobs - found.asked),
            "doubled": len(found.doubled),
            # By chance three kills may hit the same job: that is an outcome, and said so.
            "given up as poison": len(found.poisoned),
            "wrong": len(wrong) + len(found.strangers),
            "repeated": sum(1 for times in begun.values() if times > 1),
            "never begun": self.jobs - len(begun),
            "attempts noted": found.notes,
            "result parcels": found.result_parcels,
            **{f"{role} killed": self.faults[f"{role} killed"] for role in ROLES},
            **{f"{role} stopped": self.faults[f"{role} stopped"] for role in ROLES},
            "ended by themselves": len(self.ended_themselves),
            "tracebacks": self._tracebacks(),
            "processes left": len(_processes_of(self.base)),
            "slowest recovery of an agent's jobs, s": self._slowest(run, found.written_at),
            "slowest new Master, s": self._slowest_master(),
            "longest standstill, s": round(max((b - a for a, b in pairwise(gaps)), default=0.0), 3),
            "seconds": round(seconds, 1),
            "seed": self.seed,
        }

    def _slowest(self, run: str, written_at: dict[int, float]) -> float:
        """From a kill until the last job of the victim's letter was published."""
        waits = [
            written_at[job] - kill.at
            for kill in self.kills
            if kill.run == run
            for job in range(kill.first, kill.stop)
            if job in written_at
        ]
        return round(max(waits, default=0.0), 3)

    def _slowest_master(self) -> float:
        """From the kill of the acting Master until another acts, as the journal says."""
        acts = [event["at"] for event in self._events() if event["event"] == "acts"]
        waits = []
        for kill in self.kills:
            if kill.role in ("master", "client"):
                later = [at for at in acts if at >= kill.at]
                next_kill = min(
                    (k.at for k in self.kills if k.at > kill.at and k.role == kill.role),
                    default=float("inf"),
                )
                # Only the death of the one that acted is followed by a new one that acts.
                if later and later[0] < min(next_kill, kill.at + 5):
                    waits.append(later[0] - kill.at)
        return round(max(waits, default=0.0), 3)

    def _events(self) -> list[dict[str, Any]]:
        with open(f"{self.base}/log/events.jsonl", encoding="ascii") as file:
            return [json.loads(line) for line in file]

    def _tracebacks(self) -> int:
        count = 0
        for member in self.members:
            words = f"{self.folder}/{member.name}.txt"
            with contextlib.suppress(FileNotFoundError), open(words, encoding="utf-8") as file:
                count += file.read().count("Traceback")
        return count


def _child_of(pid: int) -> int:
    children = f"/proc/{pid}/task/{pid}/children"
    with contextlib.suppress(OSError, IndexError), open(children, encoding="ascii") as file:
        return int(file.read().split()[0])
    return 0


def _processes_of(base: str) -> list[int]:
    """Every living process that names the base in its command line or its mark."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read()
                with open(f"/proc/{name}/environ", "rb") as file:
                    words += file.read()
                if base.encode() in words:
                    found.append(int(name))
    return found


def run_storm(*, limit_s: float, **options: Any) -> dict[str, Any]:
    """Blow once; return the table. The folder is kept when something is wrong."""
    folder = tempfile.mkdtemp(prefix="postroom-storm-")
    storm = Storm(folder=folder, **options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("the storm was told to stop"))
    seconds = storm.run(limit_s)
    table = storm.report(seconds)
    table["good"] = not any(
        table[row] for row in ("lost", "doubled", "wrong", "tracebacks", "processes left")
    )
    for words in storm.ended_themselves:
        print(f"ended by itself: {words}", file=sys.stderr)
    if table["good"]:
        shutil.rmtree(folder)
    else:
        print(f"kept for a look: {folder}", file=sys.stderr)
    return table
