"""A whole post room in one process: a Master and inboxes on a real folder, no sessions to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from postroom.commands.attempt import AttemptEnd, CommandAttempt
from postroom.gpus.devices import scripted_device
from postroom.jobs import Job, JobPool
from postroom.master import Master
from postroom.parcel.sheets import JobEnd
from postroom.session.inbox import Inbox, Step
from postroom.session.job_runner import JobRunner
from postroom.session.tasks import Tasks
from postroom.store.files import LocalFiles, SystemClock
from postroom.store.journal import Journal


class Guardian:
    """A guardian whose driver says that the card is well."""

    def say(self, **fields: Any) -> None: ...

    def card_problem(self) -> str:
        return ""


def end_well(attempt: CommandAttempt, lingers: Callable[[], None]) -> AttemptEnd:
    """A minder whose commands do nothing."""
    return AttemptEnd(JobEnd({"exit": 0}))


class InOneProcess:
    """A base, a project with kernels, a Master, and inboxes that are stepped between its rounds."""

    def __init__(self, folder: Path, kernels: str, *, inboxes: int = 1, gpu: str = "cpu") -> None:
        """`gpu`: a simulated card; then jobs run on the scripted device."""
        self.gpu = gpu
        self.runners: list[JobRunner] = []
        self.tasks: list[Tasks] = []
        self.import_folder = folder / "project"
        self.import_folder.mkdir(exist_ok=True)
        self.write_kernels(kernels)
        self.master = Master(folder / "base", import_folder=str(self.import_folder))
        self.base = self.master.base
        self.files = LocalFiles()
        self.inboxes = [self.add_inbox(str(n)) for n in range(inboxes)]

    def write_kernels(self, source: str) -> None:
        (self.import_folder / "kernels.py").write_text(dedent(source))

    def add_inbox(self, agent_id: str) -> Inbox:
        lock = self.files.try_lock(self.base.agent_lock(agent_id))
        assert lock is not None
        journal = Journal(self.base, f"worker {agent_id}")
        kernels = Tasks(self.files, self.base.data, journal, gpu=self.gpu)
        self.tasks.append(kernels)
        settings = {"gpu": self.gpu}
        runner = JobRunner(self.files, self.base, settings, Guardian(), journal, end_well)
        runner._tasks = kernels
        self.runners.append(runner)
        inbox = Inbox(
            self.files,
            self.base,
            agent_id,
            runner.run_job,
            clock=SystemClock(),
            journal=journal,
            gpu=self.gpu,
            pid=1000 + int(agent_id),
            run_alike=runner.run_alike,
        )
        runner.turn = inbox
        inbox.lock = lock  # type: ignore[attr-defined]
        return inbox

    def run(self, jobs: Sequence[Job], shared: object = None) -> JobPool:
        return self.finish(self.master.start(jobs, shared))

    def finish(self, pool: JobPool) -> JobPool:
        for _ in self.master.rounds(pool, timeout_s=60):
            for inbox in self.inboxes:
                while inbox.step() is Step.WORKED:
                    pass
        assert pool.done
        return pool


@contextmanager
def in_one_process(
    folder: Path, kernels: str, *, inboxes: int = 1, gpu: str = "cpu"
) -> Iterator[InOneProcess]:
    opened = InOneProcess(folder, kernels, inboxes=inboxes, gpu=gpu)
    try:
        yield opened
    finally:
        for inbox in opened.inboxes:
            inbox.lock.release()  # type: ignore[attr-defined]
        opened.master.close()
        for runner in opened.runners:
            runner.sharing = runner.turn = None  # they refer to the runner, too
        if scripted_device.opened is not None:
            scripted_device.opened.close()
            scripted_device.opened = None


def with_worker(room: InOneProcess) -> None:
    """Have the inboxes stepped in every round of the Master."""
    step = room.master.step

    def both(now: float) -> bool:
        for inbox in room.inboxes:
            inbox.step()
        return step(now)

    room.master.step = both  # type: ignore[method-assign]
