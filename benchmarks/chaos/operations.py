"""The operations that are killed at every system call, each on a base prepared for it.

`prepare` and `judge` run in the harness, `ready` and `act` in the process that is struck; only the
calls of `act` are counted. `judge` recovers as anybody would, with a new Master and a new inbox,
and then has the folder audited: whatever was accepted ends with exactly one right result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from postroom import Job, Master
from postroom.gpus.cards.inventory import cards
from postroom.gpus.ledger.protocol import Lease, LeaseRequest, Ledger, open_ledger
from postroom.parcel.sheets import JobEnd, JobSheet
from postroom.session.inbox import Inbox, Step
from postroom.store.base import Base, create_base
from postroom.store.files import LocalFiles, LocalLock
from postroom.store.journal import NullJournal
from postroom.store.runs import RunInfo, list_runs, take_back_letter

from .audit import audit

PROJECT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "project")
JOBS = 7


class Ticks:
    """A clock that is moved by hand: nothing here waits for real time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """The time that the rounds are given."""
        return self.now

    def wall(self) -> float:
        """The time that goes into records."""
        return self.now

    def tick(self, seconds: float = 0.3) -> float:
        """Move on."""
        self.now += seconds
        return self.now


class Operation:
    """One thing that Postroom does, and what must be true whatever becomes of it."""

    # Whether an OSError may come out: the command line says it in one sentence.
    may_raise = False

    def prepare(self, folder: str) -> None:
        """Bring a base into the state from which the operation starts."""
        self.folder = folder
        self.clock = Ticks()
        self.files = LocalFiles()
        self.base = create_base(f"{folder}/base")
        self.lock: LocalLock | None = None

    def ready(self) -> None:
        """Get as far as the operation, in the process that will be struck."""

    def act(self) -> None:
        """Do it; if a fault was reported, go on until it is done."""
        raise NotImplementedError

    def after(self) -> None:
        """See, in the same process and without faults, that it was done."""

    def judge(self, ended: str) -> list[str]:
        """Recover and audit; return what is wrong. `ended`: "killed", "done" or "refused"."""
        self.finish()
        runs = list_runs(self.files, self.base)
        problems = [problem for run in runs for problem in check(self.base, run, JOBS)]
        return problems if runs else ["the run is gone"]

    # Parts that several operations are made of

    def master(self) -> Master:
        """A Master that writes no log: what is counted is the protocol's own work."""
        return Master(self.base.root, import_folder=PROJECT, clock=self.clock)

    def inbox(self) -> Inbox:
        """A worker's inbox, whose jobs take no time."""
        return Inbox(self.files, self.base, "0", double, clock=self.clock, journal=NullJournal())

    def hand_in(self, master: Master, *, keep: bool = True) -> str:
        """Three parcels, and shared data."""
        jobs = [Job("storm_kernels:double", x=n).options(retries=n // 3) for n in range(JOBS)]
        return master.submit_all(jobs, shared={"weights": np.arange(4)}, keep=keep).run

    def be_agent(self) -> None:
        """Hold agent 0's lock, so that it counts as alive while this process holds it."""
        lock = self.files.try_lock(self.base.agent_lock("0"))
        assert lock is not None, "the lock of a dead agent is not free"
        self.lock = lock

    def rounds(self, master: Master, inbox: Inbox | None, *, most: int = 40) -> None:
        """Let a Master and an inbox work until neither moves for a while."""
        still = 0
        while most and still < 8:
            most -= 1
            moved = master.step(self.clock.tick())
            for _ in range(3 * JOBS if inbox is not None else 0):
                assert inbox is not None
                step = inbox.step()
                if step is not Step.WORKED:
                    break
                moved = True
            still = 0 if moved else still + 1

    def finish(self) -> None:
        """Do what happens after a death: a session comes back, a Master comes back, all is done."""
        if self.lock is None:
            self.be_agent()
        take_back_letter(self.files, self.base, "0", reason="its agent died", at=self.clock.wall())
        with self.master() as master:
            self.rounds(master, self.inbox(), most=400)
        assert self.lock is not None
        self.lock.release()


def double(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
    """The kernel, in the inbox's own process."""
    return JobEnd(2 * sheet.arguments(job)["x"])


def check(base: Base, run: str, expected: int) -> list[str]:
    """Hold one run to the promise."""
    try:
        found = audit(base.root, run)
    except (AssertionError, OSError, ValueError, KeyError) as error:
        return [f"run {run} cannot be read: {error}"]
    wrong = [job for job, value in found.values.items() if value != 2 * job]
    counts = {
        "asked, other than expected": found.asked != expected,
        "lost": found.lost,
        "doubled": found.doubled,
        "wrong": wrong,
        "from nowhere": found.strangers,
        "failed": list(found.failures.values()),
    }
    return [f"{what}: {which} ({found.asked} asked)" for what, which in counts.items() if which]


class Submit(Operation):
    """Submit a run that outlives its submitter."""

    keep = True

    def ready(self) -> None:
        """Open the base."""
        self.by = self.master()

    def act(self) -> None:
        """Submit."""
        self.hand_in(self.by, keep=self.keep)

    def judge(self, ended: str) -> list[str]:
        """All of it, or nothing; and nothing, if the submitter was told that it failed."""
        runs = list_runs(self.files, self.base)
        if len(runs) > 1 or (ended == "done" and not runs) or (ended == "refused" and runs):
            return [f"{len(runs)} runs after it was {ended}"]
        return super().judge(ended) if runs else []


class Send(Operation):
    """The Master writes a letter to an idle agent."""

    def prepare(self, folder: str) -> None:
        """An agent with an empty mailbox, held alive here."""
        super().prepare(folder)
        self.be_agent()
        self.waiting = self.inbox()

    def ready(self) -> None:
        """Act as Master, with a run that waits."""
        self.by = self.master()
        self.by.step(self.clock.tick())
        self.hand_in(self.by)

    def act(self) -> None:
        """Send it, and see it through."""
        self.rounds(self.by, None, most=12)

    def finish(self) -> None:
        """The agent has not died: it goes on with what lies in its mailbox."""
        with self.master() as master:
            self.rounds(master, self.waiting, most=400)
        assert self.lock is not None
        self.lock.release()


class Take(Operation):
    """A worker reads a letter."""

    def prepare(self, folder: str) -> None:
        """A letter in a mailbox."""
        super().prepare(folder)
        self.be_agent()
        self.inbox()
        with self.master() as master:
            self.hand_in(master)
            self.rounds(master, None, most=2)
        with open(self.base.mailbox("0"), "rb") as file:
            self.letter = file.read()
        assert self.letter, "no letter was sent"
        assert self.lock is not None
        self.lock.release()
        self.lock = None

    def ready(self) -> None:
        """Open an inbox with that letter."""
        self.files.remove(self.base.mailbox("0"))
        self.sitting = self.inbox()
        self.sitting.box.write(self.letter)

    def act(self) -> None:
        """Take it."""
        for _ in range(3):
            if self.step() is Step.WORKED:
                return

    def step(self) -> Step:
        """One step, as the worker's loop takes it: what the disk refuses is tried again."""
        try:
            return self.sitting.step()
        except OSError:
            return Step.BLOCKED


class Commit(Take):
    """A worker publishes its results and gives the letter back."""

    def ready(self) -> None:
        """Take the letter first."""
        super().ready()
        self.sitting.step()

    def act(self) -> None:
        """Run the letter's jobs, publish, empty the mailbox."""
        for _ in range(4 * JOBS):
            if self.step() is Step.IDLE:
                return


class Collect(Send):
    """The Master collects the results."""

    def ready(self) -> None:
        """Have all results in the folder, and the Master not know it."""
        super().ready()
        self.by.step(self.clock.tick())
        while self.waiting.step() is not Step.IDLE:
            pass


class Recover(Operation):
    """A new Master takes over in the middle: results, a note, and a letter that is out."""

    def prepare(self, folder: str) -> None:
        """Stop an earlier Master in the middle."""
        super().prepare(folder)
        self.be_agent()
        self.waiting = self.inbox()
        with self.master() as master:
            self.hand_in(master)
            for _ in range(3):
                self.rounds(master, None, most=2)
                while self.waiting.step() is not Step.IDLE:
                    pass
            self.rounds(master, None, most=1)

    def act(self) -> None:
        """Open the base and act."""
        self.rounds(self.master(), None, most=12)

    def finish(self) -> None:
        """The agent goes on."""
        Send.finish(self)  # type: ignore[arg-type]


class TakeBack(Take):
    """The process that holds a dead agent's lock clears up behind it."""

    def prepare(self, folder: str) -> None:
        """A worker that died with a job in its hand."""
        super().prepare(folder)
        Take.ready(self)
        self.sitting.step()
        self.sitting._say("running", self.sitting._letter, self.sitting._done_from)

    def ready(self) -> None:
        """Hold the lock."""
        self.be_agent()

    def act(self) -> None:
        """Take the letter back; after a fault try again, as a guardian does."""
        for _ in range(3):
            try:
                take_back_letter(self.files, self.base, "0", reason="its agent died", at=0.0)
                return
            except OSError:
                continue


class LeaseCard(Operation):
    """Take a card from the ledger."""

    may_raise = True

    def prepare(self, folder: str) -> None:
        """A private ledger."""
        self.folder = f"{folder}/ledger"
        os.mkdir(self.folder, 0o700)
        self.request = LeaseRequest(cards=(cards()[0].uuid,), name="a test")

    def ready(self) -> None:
        """Open it."""
        self.ledger: Ledger = open_ledger(self.folder)

    def act(self) -> None:
        """Take it."""
        self.lease: Lease = self.ledger.try_acquire(self.request)

    def judge(self, ended: str) -> list[str]:
        """The process is gone, so the card must be free, and can be had again at once."""
        ledger = open_ledger(self.folder)
        problems = [f"still held: {entry.describe()}" for entry in ledger.holders()]
        problems += [f"still waits: {entry.describe()}" for entry in ledger.queue()]
        with ledger.try_acquire(self.request):
            if len(ledger.holders()) != 1:
                problems.append(f"{len(ledger.holders())} hold the info after one took it")
        return problems


class ReleaseCard(LeaseCard):
    """Give a card back."""

    def ready(self) -> None:
        """Take it first."""
        super().ready()
        super().act()

    def act(self) -> None:
        """Give it back."""
        self.lease.release()

    def after(self) -> None:
        """It must be free while this process still lives."""
        held = [entry.name for entry in open_ledger(self.folder).holders()]
        assert not held, "a released card is still held"


class SubmitEmbedded(Submit):
    """Submit a run that is served while its submitter waits."""

    keep = False

    def judge(self, ended: str) -> list[str]:
        """Nobody waits for it any more, so nothing of it runs; resumed, all of it does."""
        runs = list_runs(self.files, self.base)
        self.be_agent()
        if ended == "done":
            with self.master() as master:
                master.resume(runs[0])
                take_back_letter(self.files, self.base, "0", reason="its agent died", at=0.0)
                self.rounds(master, self.inbox(), most=400)
            return check(self.base, runs[0], JOBS)
        self.finish()
        begun = [run for run in runs if os.listdir(self.base.result_folder(run))]
        return [f"run {run} was served, and nobody was told of it" for run in begun]


class Append(Operation):
    """Submit one more job, to an open run that outlives its submitter."""

    def prepare(self, folder: str) -> None:
        """All jobs but the last are in."""
        super().prepare(folder)
        with self.master() as master:
            pool = master.open(keep=True)
            for number in range(JOBS - 1):
                pool.submit(Job("storm_kernels:double", x=number))
            self.run = pool.run

    def ready(self) -> None:
        """Take the run up."""
        self.pool = self.master().resume(self.run)

    def act(self) -> None:
        """Append."""
        self.pool.submit(Job("storm_kernels:double", x=JOBS - 1))

    def judge(self, ended: str) -> list[str]:
        """It is in, if its submitter was told so; all others are, whatever happened."""
        self.finish()
        problems = check(self.base, self.run, JOBS)
        if ended != "done" and problems:
            problems = check(self.base, self.run, JOBS - 1)
        return problems


class AppendFirst(Append):
    """Submit the first job of an open run, whose append log is empty."""

    def prepare(self, folder: str) -> None:
        """The run is there."""
        Operation.prepare(self, folder)
        with self.master() as master:
            self.run = master.open(keep=True).run

    def act(self) -> None:
        """Append."""
        self.pool.submit(Job("storm_kernels:double", x=0))

    def judge(self, ended: str) -> list[str]:
        """It is in, if its submitter was told so."""
        self.finish()
        problems = check(self.base, self.run, 1)
        return check(self.base, self.run, 0) if ended != "done" and problems else problems


OPERATIONS: dict[str, Callable[[], Any]] = {
    "append": Append,
    "append the first": AppendFirst,
    "submit": Submit,
    "submit, embedded": SubmitEmbedded,
    "send": Send,
    "take": Take,
    "commit": Commit,
    "collect": Collect,
    "recover": Recover,
    "take back": TakeBack,
    "lease": LeaseCard,
    "release": ReleaseCard,
}
