"""`postroom run`: each line gets a folder, and only lines that are missing or failed are run.

Every output folder has a base of its own, in `.base`, with one run to which each repetition of the
batch appends. A line is recognised by its key: if it has succeeded it is skipped, if it waits or
runs the batch waits for it, if it failed it becomes a new job with the same folder.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from ..commands.command_source import AHEAD, Source
from ..commands.job_folder import JobFolder
from ..commands.spec import CommandSpec
from ..errors import BaseFolderError
from ..gpus.cards.gpu_list import MOST_SLOTS, GpuFile, cards_of
from ..jobs import Finished, Job, JobPool
from ..master import Master
from ..parcel.sheets import Outcome
from ..session.sessions import Sessions
from ..store.files import LocalFiles
from ..store.mailbox import is_plain_name
from ..store.runs import list_runs
from ..store.scheduling import SchedulingOptions
from ..system.shortage import WAITED_FOR
from .line_order import InOrder, Waiting

if TYPE_CHECKING:
    from ..commands.code_snapshot import CodeSnapshot
    from .memory_packer import Packer

# At most this many lines are submitted between two rounds of the Master.
BURST = 256
GPU_FILE_S = 1.0
# After this long without a running job, say why.
PATIENCE_S = 2.0


@dataclass(frozen=True)
class BatchOptions:
    """What is asked for a whole batch."""

    defaults: CommandSpec  # for commands that do not say otherwise
    prefix: str = "job_"  # of the jobs' folders
    rerun: str = ""  # "all", "failed", or "": what is missing or failed
    stop_after: int | None = None  # begin no more when this many have failed
    snapshot: CodeSnapshot | None = None  # of the folder in which the lines run
    ahead: int | None = None  # at most this many commands of a generator wait; None: all


class Runner:
    """Hooks for each line; subclass it in a file of your own, for `--runner FILE`."""

    def prepare(self, line: CommandSpec) -> CommandSpec | None:
        """Return the line to run, changed or not, or None to leave it out."""
        return line

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """Called when a job of this batch has ended, successfully or not."""


class BatchView(Protocol):
    """Shows the progress of a batch."""

    def finished(self, job: Finished, folder: JobFolder) -> None:
        """One job has ended."""

    def update(self, batch: Batch) -> None:
        """Called after every round."""


@dataclass
class BatchCounts:
    """The lines so far, counted."""

    asked: int = 0
    skipped: int = 0  # they had succeeded before
    done: int = 0
    failed: int = 0
    failures: list[tuple[Finished, JobFolder]] = field(default_factory=list)


class Batch:
    """One repetition of a batch."""

    def __init__(
        self,
        master: Master,
        output: str,
        options: BatchOptions,
        *,
        sessions: Sessions,
        view: BatchView,
        runner: Runner | None = None,
        packer: Packer | None = None,
        pilots: int = 0,
    ) -> None:
        """`pilots`: on how many agents lines may run, besides the sessions of this host."""
        self.master = master
        self.output = output
        self.sessions = sessions
        self.counts = BatchCounts()
        self.started = time.monotonic()
        self._options = options
        self._view = view
        self._runner = runner or Runner()
        self._packer = packer
        self._pilots = pilots
        self._held: Waiting = InOrder() if packer is None else packer
        self._gpu_file: GpuFile | None = None
        self._gpu_file_at = 0.0
        runs = list_runs(LocalFiles(), master.base)
        # Lines that share GPUs are placed one by one, so each is sent by itself.
        self.pool: JobPool = (
            master.resume(runs[-1])
            if runs
            else master.open(project="commands", one_job_per_letter=packer is not None)
        )
        if options.snapshot is not None:
            options.snapshot.put(LocalFiles(), master.base, self.pool.run)
        self._job_of: dict[str, int] = {}
        self._names: set[str] = set(os.listdir(output))
        self._next = 1
        self._mine: set[int] = set()  # jobs that this repetition waits for
        self._unsent: list[Job] = []  # jobs that a full disk has no room for
        self._seen = len(self.pool.arrived)
        self.feed: Source | None = None
        self._idle_since = self.started  # nothing runs although lines wait
        for number, job in enumerate(self.pool.jobs):
            self._job_of[job.arguments["key"]] = number
            self._names.add(os.path.basename(job.arguments["folder"]))

    def watch_gpus(self, file: GpuFile) -> None:
        """Take the list of GPUs from a file, now and whenever it changes."""
        self._gpu_file = file
        self._look_at_gpus(time.monotonic())

    def forget(self, wanted: Sequence[CommandSpec] | None) -> None:
        """Cancel waiting jobs of earlier repetitions that this one does not ask for.

        With None it is not known yet what will be asked for: all waiting jobs are cancelled, and
        become new jobs when their lines come.
        """
        keys = {line.key for line in wanted or ()}
        waiting = {
            number
            for number, job in enumerate(self.pool.jobs)
            if not self.pool.status(number).done and job.arguments["key"] not in keys
        }
        if waiting:
            self.master.step(time.monotonic())
            self.master.cancel(self.pool, waiting, "its line is no longer in the batch")

    def run(self, feed: Source) -> None:
        """Run until every line has ended, or too many have failed."""
        self.feed = feed
        self._admit_lines()
        self._submit(time.monotonic())
        for _ in self.master.rounds(self.pool, until=self._over):
            now = time.monotonic()
            self._collect()
            self._admit_lines()
            self._submit(now)
            self._look_at_gpus(now)
            self.sessions.step(now)
            self._view.update(self)
        self._collect()
        self._view.update(self)

    # How far it is

    @property
    def outstanding(self) -> int:
        """How many jobs of this repetition wait or run."""
        return len(self._mine) + len(self._held) + len(self._unsent)

    @property
    def ended_until(self) -> int:
        """All lines up to this number have ended."""
        jobs = [self.pool.jobs[number] for number in self._mine]
        jobs += [*self._unsent, *self._held.jobs()]
        return min((job.arguments["number"] for job in jobs), default=self.counts.asked + 1) - 1

    @property
    def stopped(self) -> bool:
        """Whether too many jobs have failed to begin more."""
        return (
            self._options.stop_after is not None and self.counts.failed >= self._options.stop_after
        )

    def _over(self) -> bool:
        assert self.feed is not None
        return not self.outstanding and (self.stopped or self.feed.ended)

    # Lines in

    def _admit_lines(self) -> None:
        assert self.feed is not None
        for _ in range(BURST):
            line = self.feed.take() if self._may_take() else None
            if line is None:
                return
            prepared = self._runner.prepare(line)
            job = self._admit(prepared) if prepared is not None else None
            if prepared is not None and job is not None:
                self._held.add(job, prepared)

    def _may_take(self) -> bool:
        """Whether one more line may be taken from the feed now."""
        options = self._options
        outstanding = self.outstanding
        if (
            options.stop_after is not None
            and outstanding + self.counts.failed >= options.stop_after
        ):
            return False  # never more than may still fail, so that it stops exactly there
        if options.ahead is None:
            return True
        # To choose by priority or memory, it must know more lines than it can run.
        more = AHEAD if self._held.order_matters else 0
        return outstanding < options.ahead + 2 * self._places + more

    @property
    def _places(self) -> int:
        """How many lines run at once, at most."""
        return len(self.sessions.slots) + self._pilots

    def _submit(self, now: float) -> None:
        """Submit the jobs that begin next."""
        slots = MOST_SLOTS if self._packer is not None else self._places
        jobs = self._unsent or self._held.begin(now, slots - len(self._mine))
        if jobs:
            known = len(self.pool)
            try:
                self.master.extend(self.pool, jobs)
            except BaseFolderError as error:
                cause = error.__cause__
                if not isinstance(cause, OSError) or cause.errno not in WAITED_FOR:
                    raise
                # The Master says that the disk is full, and these lines wait.
            numbers = {id(job): known + n for n, job in enumerate(self.pool.jobs[known:])}
            for job in jobs:
                if id(job) in numbers:
                    self._mine.add(numbers[id(job)])
                    self._job_of[job.arguments["key"]] = numbers[id(job)]
            self._unsent = [job for job in jobs if id(job) not in numbers]
        if self._packer is not None:
            self.sessions.grow(self._packer.cards, len(self._mine))
            self._tell_waiting(self._packer, now)

    def _tell_waiting(self, packer: Packer, now: float) -> None:
        """Say once what the lines wait for when none of them runs."""
        if self._mine or not packer:
            self._idle_since = now
        elif now >= self._idle_since + PATIENCE_S:
            self._idle_since = inf
            self.sessions.say(f"waiting for GPU memory: {packer.why()}")

    def _admit(self, line: CommandSpec) -> Job | None:
        """Make a job of a line, unless it is done, waits or runs."""
        self.counts.asked += 1
        known = self._job_of.get(line.key)
        folder = ""
        if known is not None:
            if not self.pool.status(known).done:
                self._mine.add(known)
                return None
            earlier = self.pool[known]
            folder = self.pool.jobs[known].arguments["folder"]
            self._complete(earlier, JobFolder(folder))
            if earlier.outcome is Outcome.OK and self._options.rerun != "all":
                self.counts.skipped += 1
                return None
        if self._options.rerun == "failed" and known is None:
            self.counts.skipped += 1
            return None
        return self._job(line, folder or self._new_folder(line))

    def _job(self, line: CommandSpec, folder: str) -> Job:
        spec = line.with_defaults(self._options.defaults).but(
            name=os.path.basename(folder),
            folder=folder,
            **self._in_snapshot(line.cwd),
            number=self.counts.asked,
            # The batch itself sees to these.
            scheduling=SchedulingOptions(),
            memory="",
            repeat=0,
        )
        job = spec.to_job()
        job.arguments["key"] = line.key
        return job

    def _in_snapshot(self, cwd: str) -> dict[str, Any]:
        """What to add to a line so that it runs in the snapshot, if its folder is part of that."""
        snapshot = self._options.snapshot
        if snapshot is None or not f"{cwd}/".startswith(f"{snapshot.source}/"):
            return {}
        return {"snapshot": snapshot.name, "source": snapshot.source, "checkpoint": True}

    def _new_folder(self, line: CommandSpec) -> str:
        name = line.name if is_plain_name(line.name) else ""
        while not name or name in self._names:
            name = f"{line.name if is_plain_name(line.name) else self._options.prefix}{self._next}"
            self._next += 1
        self._names.add(name)
        return f"{self.output}/{name}"

    # Outcomes out

    def _collect(self) -> None:
        arrived = self.pool.arrived
        while self._seen < len(arrived):
            number = arrived[self._seen]
            self._seen += 1
            if number not in self._mine:
                continue
            self._mine.remove(number)
            job = self.pool[number]
            self._held.ended(job.job)
            folder = JobFolder(job.job.arguments["folder"])
            self._complete(job, folder)
            self.counts.done += 1
            if job.outcome is not Outcome.OK:
                self.counts.failed += 1
                self.counts.failures.append((job, folder))
            self._runner.finished(job, folder)
            self._view.finished(job, folder)

    def _complete(self, job: Finished, folder: JobFolder) -> None:
        """Write SUCCESS or FAILURE where the minder was killed before it did, or never ran."""
        if job.outcome is Outcome.CANCELLED or folder.finished:
            return
        with contextlib.suppress(OSError):  # on a full disk, the next call adds it
            os.makedirs(folder.path, exist_ok=True)
            folder.finish(ok=job.outcome is Outcome.OK)

    def _look_at_gpus(self, now: float) -> None:
        if self._gpu_file is None or now < self._gpu_file_at:
            return
        self._gpu_file_at = now + GPU_FILE_S
        places = self._gpu_file.changed()
        if places is None:
            return
        if self._packer is None:
            self.sessions.keep(places)
        else:
            self._packer.cards = cards_of(places)
            self.sessions.keep([])


def completer(cwd: str, env: dict[str, str]) -> Callable[[CommandSpec], CommandSpec]:
    """Give every line a working folder, and the environment of the batch."""

    def complete(line: CommandSpec) -> CommandSpec:
        folder = os.path.abspath(os.path.join(cwd, line.cwd))
        return line.but(cwd=folder, env={**env, **line.env})

    return complete
