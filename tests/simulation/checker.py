"""What must hold: an independent history of what was promised, executed and reported.

It never asks the package what it thinks. It knows what each submitter was told, which execution
made which value, and what each Master handed out, and compares these with each other and, at the
end, with the files themselves.
"""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postroom.errors import BadFileError
from postroom.parcel.sheets import JobEnd, OutcomeSheet
from postroom.store.base import CLOSED, Base, number_of
from postroom.store.runs import Note

from .disk import Disk, Folder, Node
from .processes import Process

if TYPE_CHECKING:
    from .commands import Command

MOST_LOST = 3  # the promise, not the package's constant
MARK = b'{"later": true, '  # how a later version begins its JSON records; see `versions`


def unmarked(data: bytes) -> bytes:
    """A record as the version of today would have written it."""
    return b"{" + data[len(MARK) :] if data.startswith(MARK) else data


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Plan:
    """What one job does when it is run."""

    token: int  # unique in the story: tells whose arguments were read
    kind: str  # "ok", "fails", "flaky", "poison"
    retries: int = 0
    fails: int = 0  # how many attempts fail before one succeeds
    seconds: float = 0.0
    command: bool = False  # a shell line, with a minder
    forks: bool = False  # and the child comes back from the kernel, too


@dataclass
class Submission:
    """One run that a client wants done."""

    plans: list[Plan]  # submitted together
    more: list[Plan]  # appended later, one by one
    keep: bool
    parcels: int  # how many jobs share a parcel
    logged: bool = False  # it is opened empty, and its jobs go into an append log
    streamed: bool = False  # results that were handed out are removed
    queued: bool = False  # it is a project's, and each of its jobs has scheduling options
    run: str | None = None  # once it was told that it is accepted
    jobs: dict[int, Plan] = field(default_factory=dict)  # every number that was given out
    killed: set[int] = field(default_factory=set)  # whose end somebody asked for
    shaken: bool = False  # it was not durable, and the power failed since
    reports: dict[int, tuple[str, Any]] = field(default_factory=dict)
    taken: dict[int, tuple[str, Any]] = field(default_factory=dict)  # handed out and not kept
    closed: set[int] | None = None  # the jobs that had results when it was closed for removal


class Checker:
    """Remembers everything, and complains."""

    def __init__(self, base: Base, disk: Disk | None = None) -> None:
        self._base = base
        self.disk = disk or Disk(random.Random(0))
        self.submissions: list[Submission] = []
        self.executions: dict[int, tuple[str, int, Plan, int]] = {}
        self._by_token: dict[int, Plan] = {}
        self.running: list[Command] = []  # as far as they were not over
        self.reading: set[tuple[str, Process]] = set()  # runs, and who has a pool of them
        self.lies = False  # a lock was lost: then two may run what only one should
        self.far_results = 0  # values that were made on nodes
        self.may_cost_attempts = 0  # deaths on nodes that were not the engine's doing
        self._notes_lost = False  # notes are not synced: a power loss may cost an attempt more

    def plan(self, submission: Submission) -> None:
        """Somebody is going to ask for these jobs."""
        self.submissions.append(submission)
        self._by_token.update({p.token: p for p in [*submission.plans, *submission.more]})

    def plan_of(self, arguments: dict[str, Any]) -> Plan | None:
        """What the job with these arguments is to do."""
        return self._by_token.get(arguments.get("token", -1))

    def execute(self, run: str, job: int, attempt: int, arguments: dict[str, Any]) -> Plan:
        """A worker begins a job: its arguments must be somebody's, whole and of that job."""
        plan = self.plan_of(arguments)
        if plan is None or arguments != {"token": plan.token, "check": -plan.token}:
            raise Violation(f"job {job} of run {run} was passed {arguments}, which nobody wrote")
        for submission in self.submissions:
            if submission.run == run and submission.jobs.get(job, plan) is not plan:
                raise Violation(f"job {job} of run {run} was passed another job's arguments")
        return plan

    def record(self, run: str, job: int, plan: Plan, attempt: int) -> int:
        """A worker finished a job: from now on this value may appear."""
        serial = len(self.executions)
        self.executions[serial] = (run, job, plan, attempt)
        return serial

    def begins(self, command: Command, now: float) -> None:
        """A command begins: it must have its card to itself, and be the only one of its job."""
        self.running = [other for other in self.running if not other.over(now)]
        for other in self.running:
            if other.agent == command.agent and not self.lies:
                raise Violation(f"{command} shares its card with {other}")
            if (other.run, other.job) == (command.run, command.job) and not self.lies:
                raise Violation(f"{command} runs already: {other}")
        self.running.append(command)

    def sweep(self, agent: str | None = None) -> int:
        """End the commands of an agent, or all; return how many there were."""
        found = [c for c in self.running if agent in (None, c.agent) and not c.swept]
        for command in found:
            command.swept = True
        return len(found)

    def accepted(self, submission: Submission, run: str) -> None:
        """The submitter was told that its run is in."""
        submission.run = run
        submission.jobs = dict(enumerate(submission.plans))

    def named(self, folder: Folder, name: str) -> None:
        """A run is closed at this very moment: all that was accepted must have results."""
        if name != CLOSED:
            return
        disk, pool = self.disk, self.disk.folder(self._base.job_pool).entries
        for submission in self.submissions:
            run = submission.run
            if run is not None and pool.get(run) is folder:
                for read, process in self.reading:
                    if read == run and process.alive:
                        raise Violation(f"{run} is removed, and {process.name} reads it")
                names = sorted(disk.folder(self._base.result_folder(run)).entries)
                submission.closed = {*self._covered(disk, run, names), *self._taken(disk, run)}
                lost = set(submission.jobs) - submission.closed
                if lost and not submission.shaken:
                    raise Violation(f"jobs {sorted(lost)} of {run} are removed with no result")

    def left(self, submission: Submission) -> None:
        """A client finds its run removed: what is not in yet goes into a new one."""
        if submission.more:
            submission.plans, submission.run, submission.jobs = [], None, {}
            submission.closed, submission.shaken = None, False
            submission.reports.clear()
            submission.taken.clear()
            submission.killed.clear()

    def appended(self, submission: Submission, number: int, plan: Plan) -> None:
        """The submitter was told that one more job is in."""
        if submission.closed is not None and number not in submission.closed:
            raise Violation(f"job {number} was accepted into {submission.run}, which is closed")
        if submission.jobs.setdefault(number, plan) is not plan:
            raise Violation(f"two jobs of {submission.run} were both given number {number}")
        if plan in submission.more:  # another client may have appended it, too
            submission.more.remove(plan)

    def resumed(self, submission: Submission, known: dict[int, Plan], tokens: list[int]) -> None:
        """A client took its run up again: whatever it knew to be accepted must be in it."""
        for number, plan in known.items():
            if not self.holds(tokens, {number: plan}):
                raise Violation(f"job {number} of {submission.run} was accepted, and is gone")

    def holds(self, tokens: list[int], jobs: dict[int, Plan]) -> bool:
        """Whether each of these jobs has its number in a run that holds such tokens."""
        return all(tokens[n : n + 1] == [plan.token] for n, plan in jobs.items())

    def recycled(self, submission: Submission, number: int, *, done: bool) -> None:
        """The arguments of a job are gone: it must have a result, which a power loss may take."""
        if not done and not submission.shaken:
            raise Violation(f"the arguments of job {number} of {submission.run} are gone too early")

    def abandoned(self, submission: Submission) -> None:
        """The power failed, and what was not durable is gone: it will be submitted anew."""
        if submission.closed is not None:
            self.left(submission)
            return
        if not submission.shaken:
            raise Violation(f"run {submission.run} was accepted, and is gone")
        submission.more += list(submission.jobs.values())[len(submission.plans) :]
        submission.run, submission.shaken, submission.jobs = None, False, {}
        submission.taken.clear()
        submission.killed.clear()

    def power_lost(self) -> None:
        """What was not durable may be gone, with all that was said about it."""
        self._notes_lost = True
        self.sweep()
        pool = self.disk.folder(self._base.job_pool).entries
        for submission in self.submissions:
            folder = pool.get(submission.run or "")
            if isinstance(folder, Folder) and CLOSED not in folder.entries:
                submission.closed = None
        for submission in self.submissions:
            if submission.run is not None and not submission.keep:
                submission.shaken = True
                submission.reports.clear()

    def killed(self, submission: Submission, job: int) -> None:
        """Somebody asked for a job's end: from now on it may be cancelled."""
        submission.killed.add(job)

    def report(self, submission: Submission, job: int, done: JobEnd) -> None:
        """A Master handed out a result: it must be true, and stay."""
        said = self._describe(done)
        if job not in submission.jobs:
            return  # its submitter was not told that it is in: it need not care
        before = submission.reports.setdefault(job, said)
        if before != said:
            raise Violation(f"job {job} of {submission.run}: reported {before}, then {said}")
        self._judge(submission, job, done)

    def takes(self, submission: Submission, job: int, done: JobEnd) -> None:
        """A client was handed a result, and does not keep it: the job may never run again."""
        submission.taken[job] = self._describe(done)

    def was_taken(self, submission: Submission, job: int) -> None:
        """A client finds that a result was taken: somebody must have had it."""
        if job in submission.jobs:
            if job not in submission.taken:
                raise Violation(f"job {job} of {submission.run} was taken, and nobody had it")
            submission.reports.setdefault(job, submission.taken[job])

    def _taken(self, disk: Disk, run: str) -> set[int]:
        try:
            said = json.loads(unmarked(disk.file(f"{self._base.run_folder(run)}/taken.json").data))
        except (FileNotFoundError, ValueError):
            return set()
        return {job for first, stop in said["ranges"] for job in range(first, stop)}

    def _describe(self, done: JobEnd) -> tuple[str, Any]:
        if done.failure is not None:
            return done.failure.outcome.value, done.failure.message
        return "ok", done.value

    def _judge(self, submission: Submission, job: int, done: JobEnd) -> None:
        plan = submission.jobs[job]
        where = f"job {job} of {submission.run} ({plan})"
        outcome, value = self._describe(done)
        if outcome == "ok":
            if not isinstance(value, dict) or value.get("serial") not in self.executions:
                raise Violation(f"{where}: {value} appeared from nowhere")
            run, number, executed, _ = self.executions[value["serial"]]
            if (run, number, executed) != (submission.run, job, plan):
                raise Violation(f"{where}: has the value of job {number} of {run}")
            if plan.kind in ("fails", "poison"):
                raise Violation(f"{where}: cannot have ended well")
        elif outcome == "failed":
            unreadable = submission.shaken and "parcel" in value
            if plan.kind not in ("fails", "flaky") and not unreadable:
                raise Violation(f"{where}: failed: {value}")
        elif outcome == "cancelled":
            if job not in submission.killed:
                raise Violation(f"{where}: cancelled, and nobody asked for that")
        elif outcome != "lost":
            raise Violation(f"{where}: {outcome}: {value}")

    def missing(self) -> list[tuple[Submission, int]]:
        """Which accepted jobs nobody has reported yet."""
        return [
            (submission, job)
            for submission in self.submissions
            if submission.run is not None and submission.closed is None
            for job in submission.jobs
            if job not in submission.reports
        ]

    def check_disk(self, disk: Disk) -> None:
        """Compare the files with the history."""
        self._check_blame(disk)
        for submission in self.submissions:
            assert submission.run is not None
            if submission.closed is not None:
                continue
            names = sorted(disk.folder(self._base.result_folder(submission.run)).entries)
            covered = self._covered(disk, submission.run, names)
            known = {job: done for job, done in covered.items() if job in submission.jobs}
            self._compare(disk, submission, known)

    def _check_blame(self, disk: Disk) -> None:
        """What the engine, the network or this host did to a pilot has cost no attempt."""
        blamed = []
        for folder in disk.folder(f"{self._base.root}/attempts").entries.values():
            assert isinstance(folder, Folder)
            for name, node in folder.entries.items():
                assert isinstance(node, Node)
                with contextlib.suppress(BadFileError):  # a power loss tore it
                    note = Note.decode(name, unmarked(node.data))
                    if note.kind == "lost" and note.agent.startswith("p"):
                        blamed.append(note)
        if len(blamed) > self.may_cost_attempts:
            raise Violation(f"{self.may_cost_attempts} deaths on nodes have cost {blamed}")

    def _covered(self, disk: Disk, run: str, names: list[str]) -> dict[int, JobEnd]:
        covered: dict[int, JobEnd] = {}
        for name in names:
            first = number_of(name)
            assert first is not None, name
            path = self._base.result(run, first)
            sheet = OutcomeSheet(path, disk.file(path).data)
            if sheet.first != first:
                raise Violation(f"{path} holds results from {sheet.first} on")
            for job in range(first, first + sheet.count):
                if job in covered:
                    raise Violation(f"job {job} of {run} is covered twice: {names}")
                covered[job] = sheet.done(job)
        return covered

    def _compare(self, disk: Disk, submission: Submission, covered: dict[int, JobEnd]) -> None:
        taken = self._taken(disk, submission.run or "")
        # What came after a result was taken counts for nothing.
        covered = {job: done for job, done in covered.items() if job not in taken}
        for job, done in covered.items():
            self._judge(submission, job, done)
            if not self._notes_lost:
                self._check_notes(disk, submission, job, done)
        for job in taken & set(submission.jobs):
            if submission.taken.get(job, ("never",))[0] != "ok" and not submission.shaken:
                raise Violation(f"job {job} of {submission.run} was removed, and not taken")
        for job, said in submission.reports.items():
            if job not in covered and job in taken:
                continue
            if job not in covered:
                raise Violation(f"job {job} of {submission.run}: {said} was reported, and is gone")
            if self._describe(covered[job]) != said:
                raise Violation(f"job {job} of {submission.run}: {said} changed on disk")

    def _check_notes(self, disk: Disk, submission: Submission, job: int, done: JobEnd) -> None:
        assert submission.run is not None
        kinds = []
        for name in disk.folder(self._base.attempts(submission.run)).entries:
            if name.startswith(f"{job:09d}."):
                path = f"{self._base.attempts(submission.run)}/{name}"
                kinds.append(Note.decode(path, unmarked(disk.file(path).data)).kind)
        failed, lost = kinds.count("failed"), kinds.count("lost")
        retries = submission.jobs[job].retries
        outcome = self._describe(done)[0]
        where = f"job {job} of {submission.run}: {outcome} after {kinds}"
        if failed > retries or lost > MOST_LOST:
            raise Violation(f"{where}: more attempts than it asked for")
        if outcome == "failed" and failed != retries:
            raise Violation(f"{where}: fewer attempts than it asked for")
        if outcome == "lost" and lost != MOST_LOST:
            raise Violation(f"{where}: given up too early")
