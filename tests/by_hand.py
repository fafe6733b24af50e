"""Both sides of the mailboxes on a real folder, moved by hand: no processes, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from postroom.dispatch.dispatcher import Dispatcher
from postroom.parcel.sheets import (
    JobEnd,
    JobOptions,
    JobSheet,
    OutcomeSheet,
    RanBy,
    pack_jobs,
    pack_outcomes,
)
from postroom.session.inbox import Inbox, RunAlike
from postroom.store.append_log import AppendLogWriter
from postroom.store.base import create_base
from postroom.store.files import LocalFiles, LocalLock
from postroom.store.journal import NullJournal
from postroom.store.mailbox import Letter
from postroom.store.runs import RunInfo, create_run, read_parcel_bytes


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now

    def monotonic(self) -> float:
        return self.now


def info(run: str = "r", **changes: Any) -> RunInfo:
    fields: dict[str, Any] = {
        "project": "", "import_folder": "/", "shared": None, "embedded": False, "durable": False,
        "created_at": 0.0, "host": "h", "user": "u",
    }  # fmt: skip
    return RunInfo(run=run, **{**fields, **changes})


def jobs(first: int, count: int, **options: Any) -> list[Any]:
    """A parcel of jobs that are passed numbers from `first` on."""
    arguments = [{"x": first + n} for n in range(count)]
    return pack_jobs(0, "kernels:double", JobOptions(**options), None, arguments)


def results(first: int, values: Sequence[Any]) -> list[Any]:
    ran_by = RanBy("0", "cpu", 1, 0.0)
    return pack_outcomes(first, [JobEnd(value, seconds=0.001) for value in values], ran_by)


def double(info: RunInfo, sheet: JobSheet, job: int, attempt: int) -> JobEnd:
    return JobEnd(2 * sheet.arguments(job)["x"], seconds=0.001)


class PostRoom:
    """A base with one run, and the processes that a test needs."""

    def __init__(self, folder: Path, files: LocalFiles | None = None) -> None:
        self.files = files or LocalFiles()
        self.base = create_base(folder / "base")
        self.clock = Clock()
        self.delivered: list[tuple[str, int, int]] = []
        self.locks: dict[str, LocalLock] = {}

    def run(self, count: int, run: str = "r", *, retries: int = 0, **changes: Any) -> RunInfo:
        made = info(run, **changes)

        def fill(log: AppendLogWriter) -> int:
            if count:
                log.write(count, jobs(0, count, retries=retries), apart=True)
            return count

        create_run(self.files, self.base, made, fill)
        return made

    def append(self, first: int, count: int, run: str = "r") -> None:
        """Append jobs that are passed numbers from `first` on."""
        log = AppendLogWriter(self.files, self.base, run, durable=False)
        log.write(count, jobs(first, count), apart=True)
        log.close()

    def parcels(self, run: str = "r") -> list[Path]:
        """The files with the arguments of jobs, in order."""
        return sorted(Path(self.base.run_folder(run)).glob("*.npz"))

    def inbox(
        self,
        agent_id: str = "0",
        run_job: Callable[..., JobEnd | None] = double,
        run_alike: RunAlike | None = None,
    ) -> Inbox:
        lock = self.files.try_lock(self.base.agent_lock(agent_id))
        assert lock is not None
        self.locks[agent_id] = lock
        return Inbox(
            self.files,
            self.base,
            agent_id,
            run_job,
            clock=self.clock,
            journal=NullJournal(),
            pid=1,
            run_alike=run_alike,
        )

    def die(self, agent_id: str = "0") -> None:
        """What Linux does for a dead session: its lock is free, all else stays."""
        self.locks.pop(agent_id).release()

    def dispatcher(self) -> Dispatcher:
        def deliver(run: str, sheet: OutcomeSheet) -> None:
            self.delivered.append((run, sheet.first, sheet.count))

        return Dispatcher(
            self.files, self.base, clock=self.clock, journal=NullJournal(), deliver=deliver
        )

    def step(self, dispatcher: Dispatcher, *, after: float = 2.0) -> None:
        self.clock.now += after
        dispatcher.step(self.clock.now)

    def letter(self, agent_id: str = "0") -> Letter | None:
        return Letter.decode(Path(self.base.mailbox(agent_id)).read_bytes())

    def values(self, run: str = "r") -> dict[int, Any]:
        """Every outcome on disk; a job that is covered twice is an error."""
        found: dict[int, Any] = {}
        for path in sorted(Path(self.base.result_folder(run)).glob("*.npz")):
            sheet = OutcomeSheet(str(path), read_parcel_bytes(self.files, str(path)))
            for job in range(sheet.first, sheet.first + sheet.count):
                assert job not in found, f"job {job} is covered twice"
                done = sheet.done(job)
                found[job] = done.failure.outcome.value if done.failure else done.value
        return found
