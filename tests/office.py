"""A whole post room in one process: a Master and desks on a real folder, no sessions to start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

from postroom.files import LocalFiles, SystemClock
from postroom.jobs import Job, JobPool
from postroom.journal import Journal
from postroom.master import Master
from postroom.session.desk import Desk, Step
from postroom.session.kernel import Kernels


class Office:
    """A base, a project with kernels, a Master, and desks that are stepped between its rounds."""

    def __init__(self, folder: Path, kernels: str, *, desks: int = 1) -> None:
        self.project = folder / "project"
        self.project.mkdir(exist_ok=True)
        self.write_kernels(kernels)
        self.master = Master(folder / "base", project=str(self.project))
        self.base = self.master.base
        self.files = LocalFiles()
        self.desks = [self.add_desk(str(n)) for n in range(desks)]

    def write_kernels(self, source: str) -> None:
        (self.project / "kernels.py").write_text(dedent(source))

    def add_desk(self, agent_id: str) -> Desk:
        lock = self.files.try_lock(self.base.agent_lock(agent_id))
        assert lock is not None
        journal = Journal(self.base, f"worker {agent_id}")
        kernels = Kernels(self.files, self.base.data, journal)
        desk = Desk(
            self.files,
            self.base,
            agent_id,
            kernels.run_job,
            clock=SystemClock(),
            journal=journal,
            gpu="cpu",
            pid=1000 + int(agent_id),
        )
        desk.lock = lock  # type: ignore[attr-defined]
        return desk

    def run(self, jobs: Sequence[Job], shared: object = None) -> JobPool:
        return self.finish(self.master.submit(jobs, shared))

    def finish(self, pool: JobPool) -> JobPool:
        for _ in self.master.rounds(pool, timeout_s=60):
            for desk in self.desks:
                while desk.step() is Step.WORKED:
                    pass
        assert pool.done
        return pool


@contextmanager
def office(folder: Path, kernels: str, *, desks: int = 1) -> Iterator[Office]:
    opened = Office(folder, kernels, desks=desks)
    try:
        yield opened
    finally:
        for desk in opened.desks:
            desk.lock.release()  # type: ignore[attr-defined]
        opened.master.close()
