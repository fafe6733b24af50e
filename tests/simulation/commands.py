"""Commands in the simulated world: they run by themselves, and their minder waits.

A command is no process that takes turns: it begins, and is over when its time has come or when it
is swept away. So it goes on when its minder is killed, and the card is not free before it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.commands.attempt import LINGER_S, AttemptEnd, CommandAttempt
from postroom.commands.outcome_record import record
from postroom.commands.spec import CommandSpec
from postroom.parcel.sheets import Failure, JobEnd, JobSheet, Outcome, RanBy
from postroom.store.runs import RunInfo

from .checker import Plan
from .processes import Process, Scheduler

if TYPE_CHECKING:
    from .roles import Machine

LOOK_S = 0.01


@dataclass
class Command:
    """A shell line that runs, on the card of an agent."""

    agent: str
    run: str
    job: int
    ends_at: float
    scheduler: Scheduler
    swept: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has the descriptors open that it inherited."""
        return not self.over(self.scheduler.now)

    def over(self, now: float) -> bool:
        return self.swept or now >= self.ends_at


def perform(
    machine: Machine,
    process: Process,
    agent: str,
    attempt: CommandAttempt,
    plan: Plan,
    lingers: Callable[[], None] = lambda: None,
) -> AttemptEnd:
    """Run a command as its minder, and see how it ends."""
    now = machine.scheduler.now
    # A command that is to kill its minder does so while it runs.
    ends_at = now + (plan.seconds or 0.001)
    command = Command(agent, attempt.run, attempt.job, ends_at, machine.scheduler)
    machine.checker.begins(command, now)
    machine.trees[agent].hand_down(command)
    called = False
    while not command.over(machine.scheduler.now):
        process.sleep(LOOK_S)
        if machine.scheduler.now >= now + LINGER_S and not called:
            called = True
            lingers()
    if plan.kind == "poison":
        process.die()
    if plan.kind == "fails" or attempt.attempt <= plan.fails:
        message = f"attempt {attempt.attempt} of {plan.token}"
        done = JobEnd(failure=Failure(Outcome.FAILED, "failed", message), seconds=plan.seconds)
        return AttemptEnd(done, "failed" if attempt.failed < (attempt.spec.retries or 0) else None)
    serial = machine.checker.record(attempt.run, attempt.job, plan, attempt.attempt)
    return AttemptEnd(JobEnd({"serial": serial}, seconds=plan.seconds or 0.001))


def attempt_of(
    info: RunInfo, sheet: JobSheet, job: int, *, attempt: int, failed: int
) -> CommandAttempt:
    """What a worker sends to a minder."""
    folder = f"/out/job_{job}"
    spec = CommandSpec("true", cwd="/", folder=folder, retries=sheet.options.retries)
    return CommandAttempt(spec, info.run, job, attempt, failed)


@dataclass
class Relayed:
    """One attempt on its way from the worker over the guardian to a minder, and the word back."""

    agent: str
    info: RunInfo
    attempt: CommandAttempt
    plan: Plan
    minder: Process | None = None
    word: str = ""

    def mind(self, machine: Machine, process: Process) -> None:
        """A minder's life: one command, and what came of it is written, however long that takes."""
        files = machine.files(process)
        attempt, started_at = self.attempt, machine.clock.wall()
        ended = perform(machine, process, self.agent, attempt, self.plan)
        ran_by = RanBy(self.agent, "", 0, started_at, attempt.attempt)
        while True:
            try:
                at = machine.clock.wall()
                if record(files, machine.base, self.info, attempt, ended, ran_by, at=at):
                    self.word = "done"
                    return
            except FileNotFoundError:
                self.word = "dropped"
                return
            except OSError:
                pass
            process.sleep(0.1)
