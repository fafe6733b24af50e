"""The runs of a base as the acting Master knows them: which are served, and what waits in each.

A run is loaded from its folders (its jobs, its results) and from what agents have in their
mailboxes. Then the end of its append log is followed.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ..errors import BadFileError, OtherVersionError
from ..parcel.sheets import SCHEDULING_FLAG, OutcomeSheet
from ..store.append_log import AppendLogReader, Record, RecordReader
from ..store.base import Base
from ..store.edited_jobs import list_edited, read_edited
from ..store.files import MAP_FROM_BYTES, Files
from ..store.job_ids import JobId
from ..store.journal import Journal
from ..store.mailbox import is_plain_name
from ..store.records import UnknownError
from ..store.requests import Orders
from ..store.runs import (
    RunInfo,
    count_covered,
    count_jobs,
    list_firsts,
    list_runs,
    read_notes,
    read_parcel_bytes,
    read_run_info,
    reject,
)
from ..store.scheduling import SchedulingOptions
from ..store.taken import Ranges, read_taken
from .project_queue import ProjectQueue
from .run_queue import JobRange, RunQueue
from .send_order import RunAge, run_age

# How many of the runs that are over are looked at in each round, in turn.
RESTING = 16

# The ranges of a run that agents have in their mailboxes.
Out = Callable[[str], list[tuple[int, int]]]


@dataclass
class ActiveRun:
    """A run that is being served."""

    info: RunInfo
    queue: RunQueue
    wanted: bool
    append_log: AppendLogReader

    @property
    def age(self) -> RunAge:
        """Its place among runs that take turns."""
        return run_age(self.info)

    @property
    def project(self) -> str:
        """The project whose queue it is; empty for any other run."""
        return self.info.project if self.info.queue else ""


class Registry:
    """The runs of a base: which are served, and what waits in each."""

    def __init__(
        self,
        files: Files,
        base: Base,
        journal: Journal,
        orders: Orders,
        at_rest: set[str] | None = None,
    ) -> None:
        self._files = files
        self._base = base
        self._journal = journal
        self._orders = orders
        self._new: list[str] = []
        self._gone: list[str] = []
        self._awaited: dict[str, set[int]] = {}
        self._named: set[str] | None = set()  # what to look at next; None: everything
        # The runs that nobody wants served; those that are known to rest are not read again.
        self._at_rest = set() if at_rest is None else at_rest
        self._rest_turn = 0
        self._left: set[str] = set()  # files of another version that were named in the log
        self.runs: dict[str, ActiveRun] = {}

    def hint(self, names: set[str] | None) -> None:
        """Something may have changed, in these runs or (None) anywhere."""
        self._named = None if names is None or self._named is None else self._named | names

    def recover(self, out: Out) -> None:
        """Take in every run that is wanted, or out with an agent."""
        for run in list_runs(self._files, self._base):
            sent = out(run)
            if sent or run not in self._at_rest:
                self._load(run, sent)

    def refresh(self, out: Out, *, whole: bool = True) -> bool:
        """See what is new, what was appended and what is wanted; True when something is.

        A base may hold thousands of runs: they are listed only for a `whole` look. Otherwise only
        those are looked at that were named.
        """
        moved = False
        named, self._named = self._named, set()
        if whole or named is None:
            present = list_runs(self._files, self._base)
            self._at_rest.intersection_update(present)
            missing, look_at = set(self.runs) - set(present), self._worth_a_look(present, named)
        else:
            look_at = sorted(filter(is_plain_name, named))
            missing = self.runs.keys() & named
        for run in missing:
            # On some filesystems a listing lags behind.
            if not self._files.exists(self._base.run_folder(run)):
                del self.runs[run]
                self._gone.append(run)
        for run in look_at:
            active = self.runs.get(run)
            if active is None:
                self._load(run, out(run))
                moved |= run in self.runs
            else:
                active.wanted = self._is_wanted(active.info)
                try:
                    moved |= self._extend(active)
                except OtherVersionError as error:
                    self.leave(run, error)
                    continue
                if active.queue.finished and not active.wanted:
                    del self.runs[run]
                    self._at_rest.add(run)
        return moved

    def bring_in(self, run: str) -> None:
        """Take in a run that nobody wants served, so that its jobs can be cancelled."""
        if run not in self.runs:
            self._load(run, [], wanted_or_not=True)

    def _load(self, run: str, sent: list[tuple[int, int]], *, wanted_or_not: bool = False) -> None:
        try:
            self._take_up(run, sent, wanted_or_not)
        except OtherVersionError as error:
            self.leave(run, error)

    def leave(self, run: str, error: OtherVersionError) -> None:
        """Serve nothing more of a run that another version of Postroom has written to."""
        self.runs.pop(run, None)
        self.leave_file(error)

    def leave_file(self, error: OtherVersionError) -> None:
        """Say once that a file stays where it is."""
        if error.path not in self._left:
            self._left.add(error.path)
            self._journal.log("error", f"left as it is, and not used: {error}")

    def _take_up(self, run: str, sent: list[tuple[int, int]], wanted_or_not: bool) -> None:
        files, base = self._files, self._base
        self._at_rest.discard(run)
        try:
            info = read_run_info(files, base, run)
        except FileNotFoundError:  # it is being removed, or its run.json was put aside
            return
        except NotADirectoryError:
            self.reject(BadFileError(base.run_folder(run), "is not a run's folder"))
            return
        except BadFileError as error:
            self.reject(error)
            return
        queue = self._new_queue(info)
        log = AppendLogReader(files, base, run)
        active = ActiveRun(info, queue, self._is_wanted(info), log)
        if not (active.wanted or sent or wanted_or_not):
            self._at_rest.add(run)
            return
        self.runs[run] = active
        # A power loss may have left the jobs and taken the folders for their results.
        files.make_folder(base.result_folder(run))
        files.make_folder(base.attempts(run))
        records = self._read_on(active)
        firsts, offsets = [r.number for r in records], [r.at for r in records]
        found = self._found(run)
        if twice := count_covered(found)[1]:
            self._journal.log(
                "error",
                f"{twice} jobs of run {run} have two results, which must never happen: the one "
                "with the lower file name counts; please report it",
            )
        queue.recover(firsts, log.number, sent, [*found, *self.taken(run)], offsets)
        if isinstance(queue, ProjectQueue):
            for job in list_edited(files, base, run):
                self.apply_edit(active, job)
        for note in read_notes(files, base, run):
            queue.note(note)
        self._await_for(queue)
        self._new.append(run)
        self._journal.event("serves", run=run, asked=queue.n_jobs, done=queue.done)

    def _new_queue(self, info: RunInfo) -> RunQueue:
        if not info.queue:
            return RunQueue(one_job_per_letter=info.one_job_per_letter)
        return ProjectQueue(
            info.run,
            self._orders,
            scheduling=lambda span: self._read_scheduling(info.run, span),
            ended_well=lambda job: self.endings([job])[job],
        )

    def _read_scheduling(self, run: str, span: JobRange) -> Iterator[SchedulingOptions]:
        """The scheduling options of a range of jobs.

        A job whose options cannot be read has none: it is sent, and says why when it runs. Options
        that another version of Postroom has written raise OtherVersionError.
        """
        reader = RecordReader(self._files, self._base, run)
        at: int | None = span.offset
        job = span.first
        while job < span.stop:
            found: list[SchedulingOptions] = []
            end = job + 1
            try:
                record = reader.find(job, at, ahead=span.stop - job)
                end = min(span.stop, record.stop)
                if SCHEDULING_FLAG in reader.trailer(record).flags:
                    sheet = reader.open_record(record)
                    found = [SchedulingOptions.decode(sheet.scheduling(n)) for n in range(job, end)]
            except OtherVersionError:
                raise
            except UnknownError as error:
                raise OtherVersionError(self._base.append_log(run), f"job {job}: {error}") from None
            except (BadFileError, FileNotFoundError, ValueError) as error:
                self._journal.log("error", f"the scheduling options of {run}/{job}: {error}")
            yield from found or [SchedulingOptions()] * (end - job)
            at, job = None, end
        reader.close()

    def apply_edit(self, active: ActiveRun, job: int) -> None:
        """Have a job wait for what its edited form says; one that cannot be read changes nothing.

        Its session says so when it runs.
        """
        assert isinstance(active.queue, ProjectQueue)
        try:
            sheet = read_edited(self._files, self._base, active.info.run, job)
            if sheet is not None:
                active.queue.edit(job, SchedulingOptions.decode(sheet.scheduling(job)))
                self._await_for(active.queue)
        except UnknownError as error:
            path = self._base.edited(active.info.run, job)
            raise OtherVersionError(path, str(error)) from None
        except OtherVersionError:
            raise
        except (BadFileError, ValueError) as error:
            self._journal.log("error", f"the edited options of {active.info.run}/{job}: {error}")

    def _await_for(self, queue: RunQueue) -> None:
        """Remember which jobs are waited for, so that the queue is told when they end."""
        if isinstance(queue, ProjectQueue):
            for job in queue.waits_for():
                self._awaited.setdefault(job.run, set()).add(job.number)

    def awaited(self, run: str) -> set[int]:
        """The jobs of a run that other jobs wait for, or waited for."""
        return self._awaited.get(run, set())

    def take_new(self) -> list[str]:
        """The runs that are served since the last call."""
        new, self._new = self._new, []
        return new

    def take_gone(self) -> list[str]:
        """The runs that were removed since the last call."""
        gone, self._gone = self._gone, []
        return gone

    def endings(self, jobs: Iterable[JobId]) -> dict[JobId, bool | None]:
        """Whether jobs ended well; None: not ended. Nobody knows about a job that was removed.

        Each folder is listed once, and each parcel read once.
        """
        folders: dict[str, list[int] | None] = {}
        sheets: dict[tuple[str, int], OutcomeSheet | None] = {}
        found: dict[JobId, bool | None] = {}
        for job in jobs:
            run, number = job.run, job.number
            if run not in folders:
                here = self._files.exists(self._base.run_folder(run))
                result_folder = self._base.result_folder(run)
                folders[run] = list_firsts(self._files, result_folder) if here else None
            firsts = folders[run]
            if firsts is None:
                found[job] = False
                continue
            found[job] = None
            index = bisect.bisect_right(firsts, number) - 1
            if index >= 0:
                name = run, firsts[index]
                if name not in sheets:
                    sheets[name] = self.read_results(*name)
                sheet = sheets[name]
                if sheet is not None and number < sheet.first + sheet.count:
                    found[job] = number not in sheet.failures
            if found[job] is None and number in self.taken(run):
                found[job] = True
        return found

    def taken(self, run: str) -> Ranges:
        """The jobs whose results were handed out and removed; ask after looking for results."""
        try:
            return Ranges(read_taken(self._files, self._base, run).ranges)
        except OtherVersionError as error:
            self.leave(run, error)
            return Ranges()

    def covered(self, run: str) -> list[tuple[int, int]]:
        """The ranges that have results, or had some that were taken."""
        return [*self._found(run), *self.taken(run)]

    def _found(self, run: str) -> list[tuple[int, int]]:
        """The ranges that have results; what a power loss may have torn is read as a whole."""
        active = self.runs.get(run)
        durable = active is not None and active.info.durable
        spans = []
        for first in list_firsts(self._files, self._base.result_folder(run)):
            if durable:
                try:
                    count = count_jobs(self._files, self._base.result(run, first))
                except BadFileError as error:
                    self.reject(error)
                    continue
            else:
                sheet = self.read_results(run, first)
                count = 0 if sheet is None else sheet.count
            spans.append((first, first + count))
        return spans

    def _worth_a_look(self, present: list[str], named: set[str] | None) -> list[str]:
        """The active runs, new ones, those named by events, and in turn a few that are over.

        A base may hold thousands of runs that are over. Resuming one touches its folder,
        which is an event; where events do not arrive, its turn comes.
        """
        if named is None:
            return present
        awake: list[str] = []
        resting: list[str] = []
        for run in present:
            active = self.runs.get(run)
            if active is None:
                rests = run in self._at_rest
            else:
                rests = active.queue.finished and not active.info.embedded
            (resting if rests and run not in named else awake).append(run)
        turn = self._rest_turn % max(len(resting), 1)
        self._rest_turn = turn + RESTING
        return awake + (resting[turn:] + resting[:turn])[:RESTING]

    def _read_on(self, active: ActiveRun) -> list[Record]:
        try:
            return active.append_log.read_on(sync=active.info.durable)
        except BadFileError as error:
            self.reject(error)
            return []

    def _extend(self, active: ActiveRun) -> bool:
        """Take in new records of the append log."""
        records = self._read_on(active)
        numbers, offsets = [r.number for r in records], [r.at for r in records]
        active.queue.extend(numbers, active.append_log.number, offsets)
        self._await_for(active.queue)
        return bool(records)

    def appended(self, run: str, record: Record) -> bool:
        """Take in what this process has just appended; False: the log has to be read instead.

        Taking in a job of the queue reads its options. If that failed here, nobody would do it
        again; in a round it makes this Master begin again.
        """
        active = self.runs.get(run)
        if active is None or active.append_log.number != record.number:
            return False
        if isinstance(active.queue, ProjectQueue):
            return False
        active.append_log.passed(record)
        active.queue.extend([record.number], record.stop, [record.at])
        job_bytes = record.size // record.jobs
        active.queue.job_bytes = job_bytes if job_bytes >= MAP_FROM_BYTES else 0
        return True

    def _is_wanted(self, info: RunInfo) -> bool:
        if not info.embedded:
            return True
        path = self._base.wanted(info.run)
        if not self._files.exists(path):
            return False
        try:
            lock = self._files.try_lock(path)
        except FileNotFoundError:  # the run is being removed
            return False
        if lock is None:
            return True
        lock.release()
        return False

    def read_results(self, run: str, first: int) -> OutcomeSheet | None:
        """Read a parcel of results; a bad one is put aside, and its jobs run again.

        Only the acting Master puts results aside. If two processes did, the second could take away
        the good parcel that has replaced the bad one.
        """
        path = self._base.result(run, first)
        try:
            active = self.runs.get(run)
            recycled = active is not None and active.info.hands_on
            sheet = OutcomeSheet(path, read_parcel_bytes(self._files, path, recycled=recycled))
            if sheet.first != first:
                raise BadFileError(path, f"holds results from {sheet.first} on")
            return sheet
        except FileNotFoundError:
            return None
        except OtherVersionError as error:
            self.leave(run, error)
            return None
        except BadFileError as error:
            self.reject(error)
            return None

    def reject(self, error: BadFileError) -> None:
        """Put a bad file aside. One of another version is not bad: it raises the error instead."""
        if isinstance(error, OtherVersionError):
            raise error
        self._journal.log("error", f"put aside in rejected/: {error}")
        reject(self._files, self._base, error.path, error.reason)
