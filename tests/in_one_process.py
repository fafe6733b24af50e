"""A whole post room in one process: a Master and inboxes on a real folder, no sessions to start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from postroom.jobs import Job, JobPool
from postroom.master import Master
from postroom.session.inbox import Inbox, Step
from postroom.session.tasks import Tasks
from postroom.store.files import LocalFiles, SystemClock
from postroom.store.journal import Journal


class InOneProcess:
    """A base, a project with kernels, a Master, and inboxes that are stepped between its rounds."""

    def __init__(self, folder: Path, kernels: str, *, inboxes: int = 1) -> None:
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
        kernels = Tasks(self.files, self.base.data, journal)
        inbox = Inbox(
            self.files,
            self.base,
            agent_id,
            kernels.run_job,
            clock=SystemClock(),
            journal=journal,
            gpu="cpu",
            pid=1000 + int(agent_id),
        )
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
def in_one_process(folder: Path, kernels: str, *, inboxes: int = 1) -> Iterator[InOneProcess]:
    opened = InOneProcess(folder, kernels, inboxes=inboxes)
    try:
        yield opened
    finally:
        for inbox in opened.inboxes:
            inbox.lock.release()  # type: ignore[attr-defined]
        opened.master.close()


def with_worker(room: InOneProcess) -> None:
    """Have the inboxes stepped in every round of the Master."""
    step = room.master.step

    def both(now: float) -> bool:
        for inbox in room.inboxes:
            inbox.step()
        return step(now)

    room.master.step = both  # type: ignore[method-assign]
