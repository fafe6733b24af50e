"""A storm: short jobs while a random process of the system is killed, or stopped and continued.

    python -m benchmarks.chaos storm --jobs 20000 --seed 1
    python -m benchmarks.chaos storm --kills 10000 --every-s 0.16

Sessions (each a guardian and a worker), a scheduler, a client, a user of the standing queue and two
cleaners are real processes. Some jobs fork. What dies is started again by the harness, as a person
or a service manager would do it; everything else is left to Postroom. Runs are removed soon after
their end, so the harness keeps a link to every file of theirs. Afterwards `audit`, which shares no
code with Postroom, reads those.
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
from zipfile import BadZipFile

from .audit import Findings, audit
from .mirror import Mirror

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Who is struck, and how often each process of that role compared with one of another.
ROLES = {"worker": 1, "guardian": 0.5, "master": 2, "client": 2, "submitter": 1, "cleaner": 1}
# For so long after its last death a process is struck only seldom: it is still starting. A session
# is, until it has a mailbox.
UP_S, SELDOM = 1.5, 0.05
# Of the faults, this part are kills; the others are stops, continued after at most so long.
KILLS = 0.6
LONGEST_STOP_S = 1.0
LOOK_S = 0.01
MIRROR_S = 0.25
CLEANERS = 2


@dataclass
class Member:
    """One process that the harness starts, and starts again when it is dead."""

    role: str
    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    struck: bool = False  # by us: its death is no news
    since: float = 0.0  # when it, or its worker, was last killed


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
    run_jobs: int  # how many of them are in one run
    kills: int  # and stops: with more runs it goes on until there were so many; 0: no matter
    sessions: int
    every_s: float
    seed: int
    longest_s: float  # how long a job takes at most
    embedded: bool  # the run is served only while its client lives
    one_by_one: bool  # its jobs are submitted one by one, while it runs
    folder: str
    faults: Counter[str] = field(default_factory=Counter)
    killed: list[Kill] = field(default_factory=list)
    ended_themselves: list[str] = field(default_factory=list)
    in_time: bool = True
    unreadable: dict[str, str] = field(default_factory=dict)  # runs, and why
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
        numbers = map(str, (self.jobs, self.run_jobs, self.seed, self.longest_s))
        how = "one by one" if self.one_by_one else "in a list"
        arguments = [self.base, self.state, *numbers, keep, how]
        self.client = Member("client", "client", [*python, "benchmarks.chaos.client", *arguments])
        arguments = ["benchmarks.chaos.submitter", self.base, self.state]
        self.submitter = Member("submitter", "submitter", [*python, *arguments])
        self.mirror = Mirror(self.base, f"{self.folder}/mirror")
        arguments = ["benchmarks.chaos.cleaner", self.base, self.mirror.stamp]
        self.cleaners = [
            Member("cleaner", f"cleaner-{n}", [*python, *arguments]) for n in range(CLEANERS)
        ]
        self.members = [
            *self.guardians, self.master, self.client, self.submitter, *self.cleaners,
        ]  # fmt: skip

    def run(self, limit_s: float) -> float:
        """Let the storm blow until every job is done; return how long it took."""
        started = time.monotonic()
        strike_at, mirror_at, over = started + 1.0, started, False
        try:
            while True:
                now = time.monotonic()
                if now - started > limit_s:
                    self.in_time = False
                    return now - started
                if now >= mirror_at:
                    mirror_at = now + MIRROR_S
                    self.mirror.update(time.time())
                    if over and self._queue_is_done():
                        return time.monotonic() - started
                if not over and self._client_is_done():
                    over = True
                    self.members.remove(self.submitter)  # it is not started again
                    self._kill(self.submitter)
                self._start_the_dead()
                self._continue_the_stopped(now)
                enough = self.faults.total() >= self.kills
                if enough and not os.path.exists(f"{self.state}.enough"):
                    os.close(os.open(f"{self.state}.enough", os.O_WRONLY | os.O_CREAT, 0o600))
                if now >= strike_at and not over and not (enough and self.kills):
                    strike_at = max(strike_at + self.every_s, now)
                    self._strike(now)
                time.sleep(LOOK_S)
        finally:
            self._end_all()

    def _queue_is_done(self) -> bool:
        """Whether every job that the submitter was told of has a result."""
        by_run: dict[str, list[int]] = {}
        for run, number, _ in _lines(f"{self.state}.queued"):
            by_run.setdefault(run, []).append(int(number))
        return all(set(self._audit(run).covers) >= set(jobs) for run, jobs in by_run.items())

    def _audit(self, run: str) -> Findings:
        try:
            return audit(self.mirror.folder, run)
        except (AssertionError, OSError, ValueError, KeyError, BadZipFile) as error:
            self.unreadable[run] = str(error)
            return Findings()

    def _kill(self, member: Member) -> None:
        if member.process is not None:
            member.process.kill()
            member.process.wait()

    def _start_the_dead(self) -> None:
        for member in self.members:
            process = member.process
            if process is not None:
                if process.poll() is None or (member is self.client and process.returncode == 0):
                    continue
                if not member.struck:
                    self.ended_themselves.append(f"{member.name}: {self._last_words(member)}")
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

    def _last_words(self, member: Member) -> str:
        with open(f"{self.folder}/{member.name}.txt", encoding="utf-8") as file:
            return file.readlines()[-1].strip()

    def _client_is_done(self) -> bool:
        process = self.client.process
        if process is None or process.poll() is None:
            return False
        if process.returncode > 0:
            raise SystemExit(f"the client failed: see {self.folder}/client.txt")
        return process.returncode == 0

    def _strike(self, now: float) -> None:
        kill = self.random.random() < KILLS
        stop_s = self.random.uniform(0.05, LONGEST_STOP_S)
        roles = [(each.role, each) for each in self.members]
        roles += [("worker", each) for each in self.guardians]
        # Most have begun to work: only those who do can lose something.
        weights = [
            ROLES[role] * (1.0 if self._is_up(each, now) else SELDOM) for role, each in roles
        ]
        role, member = self.random.choices(roles, weights)[0]
        if member.process is None or member.process.poll() is not None:
            return
        pid = child_of(member.process.pid) if role == "worker" else member.process.pid
        try:
            pidfd = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            return
        if kill:
            self.killed.append(self._note_kill(role, member))
            member.struck = role != "worker"
            member.since = now
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        else:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            self._stopped.append((now + stop_s, pidfd))
        self.faults[f"{role} {'killed' if kill else 'stopped'}"] += 1

    def _is_up(self, member: Member, now: float) -> bool:
        if member.role == "guardian":
            return os.path.exists(self._mailbox(member))
        return now - member.since > UP_S

    def _mailbox(self, guardian: Member) -> str:
        return f"{self.base}/agent_pool/{self.guardians.index(guardian)}.POOL"

    def _note_kill(self, role: str, member: Member) -> Kill:
        kill = Kill(time.time(), role)
        if role in ("worker", "guardian"):
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
                with open(self._mailbox(member), encoding="ascii") as file:
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
        """Count everything, from the mirror."""
        self.mirror.update(time.time())
        salts = {run: int(salt) for run, salt in _lines(self.state)}
        accepted = dict.fromkeys(salts, 0)  # how many, by run
        for run, _, stop in _lines(f"{self.state}.accepted"):
            accepted[run] = max(accepted[run], int(stop))
        queued = [(run, int(number)) for run, number, _ in _lines(f"{self.state}.queued")]
        found = {run: self._audit(run) for run in os.listdir(f"{self.mirror.folder}/job_pool")}
        # A run that nobody was told of may be unfinished: it was not accepted.
        told = {run: found.get(run, Findings()) for run in {*accepted, *(q[0] for q in queued)}}
        lost = [
            (run, job)
            for run, job in [*queued, *((run, n) for run in salts for n in range(accepted[run]))]
            if job not in told[run].covers or job >= told[run].asked
        ]
        wrong = [(run, 0) for run in self.unreadable]
        for run, findings in found.items():
            salt = salts.get(run)
            values = findings.values.items() if salt is not None else ()
            wrong += [(run, job) for job, value in values if value != job * job + (salt or 0)]
            wrong += [(run, job) for job in findings.failures if job not in findings.poisoned]
            wrong += [(run, job) for job in findings.strangers]
        begun = Counter(map(tuple, _lines(f"{self.state}.executed")))
        ran = {token for (token,) in _lines(f"{self.state}.ran")}
        never = [token for _, _, token in _lines(f"{self.state}.queued") if token not in ran]
        never += [
            f"{run}/{job}"
            for run, salt in salts.items()
            for job in range(accepted[run])
            if (str(salt), str(job)) not in begun and job not in told[run].poisoned
        ]
        written = {run: findings.written_at for run, findings in told.items()}
        gaps = sorted({at for times in written.values() for at in times.values()})
        return {
            "jobs": sum(accepted.values()),
            "jobs of the queue": len(queued),
            "runs": len(told),
            "runs removed": len(set(told) - set(os.listdir(f"{self.base}/job_pool"))),
            "submitted": "one by one" if self.one_by_one else "in a list",
            "served": "while the client lives" if self.embedded else "always",
            "in time": self.in_time,
            "lost": len(lost),
            "doubled": sum(len(findings.doubled) for findings in found.values()),
            "spoilt": len(wrong),
            # By chance three kills may hit the same job: that is an outcome, and said so.
            "given up as poison": sum(len(findings.poisoned) for findings in found.values()),
            "repeated": sum(1 for times in begun.values() if times > 1),
            "never begun": len(never),
            "attempts noted": sum(findings.notes for findings in found.values()),
            "result parcels": sum(findings.result_parcels for findings in found.values()),
            "kills and stops": self.faults.total(),
            **{f"{role} killed": self.faults[f"{role} killed"] for role in ROLES},
            **{f"{role} stopped": self.faults[f"{role} stopped"] for role in ROLES},
            "ended by themselves": len(self.ended_themselves),
            "tracebacks": self._tracebacks(),
            "processes left": len(_processes_of(self.base)),
            "slowest recovery of an agent's jobs, s": self._slowest(written),
            "slowest new Master, s": self._slowest_master(),
            "longest standstill, s": round(max((b - a for a, b in pairwise(gaps)), default=0.0), 3),
            "seconds": round(seconds, 1),
            "seed": self.seed,
        }

    def _slowest(self, written: dict[str, dict[int, float]]) -> float:
        """From a kill until the last job of the victim's letter was published."""
        waits = [
            written[kill.run][job] - kill.at
            for kill in self.killed
            for job in range(kill.first, kill.stop)
            if job in written.get(kill.run, ())
        ]
        return round(max(waits, default=0.0), 3)

    def _slowest_master(self) -> float:
        """From the kill of the acting Master until another acts, as the journal says."""
        acts = [event["at"] for event in self._events() if event["event"] == "acts"]
        waits = []
        for kill in self.killed:
            if kill.role in ("master", "client"):
                later = [at for at in acts if at >= kill.at]
                next_kill = min(
                    (k.at for k in self.killed if k.at > kill.at and k.role == kill.role),
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


def _lines(path: str) -> list[list[str]]:
    """The words of each line of a file that a client writes."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
        return [line.split() for line in file]
    return []


def child_of(pid: int) -> int:
    """The first child of a process; 0: it has none."""
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
    table["good"] = storm.in_time and not any(
        table[row]
        for row in ("lost", "doubled", "spoilt", "never begun", "tracebacks", "processes left")
    )
    for words in storm.ended_themselves:
        print(f"ended by itself: {words}", file=sys.stderr)
    if table["good"]:
        shutil.rmtree(folder)
    else:
        print(f"kept for a look: {folder}", file=sys.stderr)
    return table
