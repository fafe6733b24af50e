"""One run as its folders show it, looked at again only as far as they have changed.

What is in a run never changes, it only grows: a parcel that was read once need not be read again.
A folder's time of change says whether there is anything new in it.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Generic, TypeVar

from ..commands.attempt import COMMAND
from ..dispatch.run_queue import gaps
from ..errors import BadFileError
from ..parcel.sheets import FAILED_FLAG, SCHEDULING_FLAG, Failure, JobSheet, OutcomeSheet
from ..parcel.trailer import TRAILER_SIZE, read_trailer
from ..store.append_log import AppendLogReader, RecordReader
from ..store.base import Base, attempt_of
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.runs import RunInfo, count_submitted, list_firsts, read_parcel_bytes, read_run_info
from ..store.scheduling import SchedulingOptions
from .result_cache import read_result_cache, write_result_cache

# A folder's time is as coarse as the kernel's tick: only an older one says that all was seen.
_TICK_NS = 50_000_000
_SHEETS = 64
# So many new results are worth writing down what was learned of them; of a run that is over, fewer.
_WORTH_WRITING = 200
_WORTH_KEEPING = 20
_NO_WISHES = SchedulingOptions()
_Sheet = TypeVar("_Sheet")


class Recent(Generic[_Sheet]):
    """The sheets that were read last, of all runs: a long list must not fill the memory."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Sheet] = OrderedDict()

    def get(self, path: str) -> _Sheet | None:
        """A sheet that was read already."""
        if path in self._kept:
            self._kept.move_to_end(path)
        return self._kept.get(path)

    def keep(self, path: str, sheet: _Sheet) -> _Sheet:
        """Keep a sheet, as long as no others come."""
        self._kept[path] = sheet
        if len(self._kept) > _SHEETS:
            self._kept.popitem(last=False)
        return sheet


class RunReader:
    """One run: what was asked, and what came back."""

    def __init__(
        self,
        files: Files,
        base: Base,
        run: str,
        jobs: Recent[JobSheet],
        outcomes: Recent[OutcomeSheet],
    ) -> None:
        self._files = files
        self._base = base
        self._jobs = jobs
        self._outcomes = outcomes
        self._seen: dict[str, int] = {}  # folder: its time of change when it was listed
        self.info: RunInfo = read_run_info(files, base, run)
        self.run = run
        self.project = self.info.project or ("-" if not self.info.queue else "default")
        self.firsts: list[int] = []  # of the parcels of jobs
        self._append_log = AppendLogReader(files, base, run) if self.info.append_log else None
        self._places: list[int] = []  # of these parcels in the roll
        self.asked = 0
        self.results: list[int] = []  # the first jobs of the parcels of results
        self._tally = read_result_cache(files, base, run)
        self._written = len(self._tally.counts)
        self.counts = self._tally.counts  # of those: how many jobs each covers
        self.failures = self._tally.failures  # of those with failures: job, outcome
        self.waiting: list[tuple[int, int]] = []  # ranges that nothing covers
        self.done = 0
        self.attempts: dict[int, int] = {}  # how many attempts of a job ended with no result
        self.asked_at = 0.0  # when the last job was handed in
        self.changed_at = 0.0  # when the last result came
        self._newest: tuple[int, list[int]] = (0, [])
        self._scheduling: dict[int, SchedulingOptions] = {}
        self._scheduling_read: set[int] = set()

    def refresh(self) -> None:
        """Look again: at what was asked, then at what came back."""
        asked_more = self._list_asked()
        came_back = self._list_results()
        if asked_more or came_back:
            spans = [(first, first + self.counts[first]) for first in self.results]
            self.waiting = gaps(self.asked, spans)
            self.done = self.asked - sum(stop - first for first, stop in self.waiting)
        folder = self._base.attempts(self.run)
        if self._changed(folder):
            self.attempts = {}
            for name in self._files.names(folder):
                found = attempt_of(name)
                if found is not None:
                    self.attempts[found[0]] = max(self.attempts.get(found[0], 0), found[1])

    @property
    def pending(self) -> int:
        """How many jobs have no result."""
        return self.asked - self.done

    def _list_asked(self) -> bool:
        if self._append_log is not None:
            return self._follow(self._append_log)
        folder = self._base.run_folder(self.run)
        if not self._changed(folder):
            return False
        self.asked_at = self._seen_at(folder)
        self.firsts = list_firsts(self._files, folder)
        with contextlib.suppress(BadFileError):
            self.asked = count_submitted(self._files, self._base, self.run, self.firsts)
        return True

    def _follow(self, append_log: AppendLogReader) -> bool:
        path = self._base.append_log(self.run)
        if not self._changed(path):
            return False
        self.asked_at = self._seen_at(path)
        with contextlib.suppress(BadFileError):
            for record in append_log.read_on(sync=False):
                self.firsts.append(record.number)
                self._places.append(record.at)
        self.asked = append_log.number
        return True

    def _list_results(self) -> bool:
        folder = self._base.result_folder(self.run)
        if not self._changed(folder):
            return False
        self.changed_at = self._seen_at(folder)
        if self._seen[folder] == self._tally.changed_ns:
            self.results = sorted(self.counts)
            return True
        self.results = list_firsts(self._files, folder)
        for first in self.results:
            # A bad file is put aside, and its name may then be taken by a good one.
            if not self.counts.get(first):
                self._take_in(first)
        if len(self.counts) > len(self.results):
            self._forget(set(self.counts).difference(self.results))
        self._write_tally(self._seen[folder])
        return True

    def _forget(self, gone: Collection[int]) -> None:
        for known in (self.counts, self.failures, self._tally.ended_at):
            for first in gone:
                known.pop(first, None)

    def _write_tally(self, changed_ns: int) -> None:
        """Write down what was learned, when that is much."""
        new = len(self.results) - self._written
        much = new >= max(_WORTH_WRITING, self._written // 10)
        over = new and len(self.results) >= _WORTH_KEEPING and self._is_over()
        if changed_ns < 0 or not (much or over):
            return
        for first in self.results:
            self.ended_at(first)
        self._tally.changed_ns = changed_ns
        self._written = len(self.results)
        write_result_cache(self._files, self._base, self.run, self._tally)

    def _is_over(self) -> bool:
        return sum(self.counts[first] for first in self.results) >= self.asked

    def _take_in(self, first: int) -> None:
        path = self._base.result(self.run, first)
        count = 0
        with contextlib.suppress(BadFileError, FileNotFoundError):
            mark = read_trailer(path, self._files.tail(path, TRAILER_SIZE))
            count = mark.jobs
            if FAILED_FLAG in mark.flags:
                sheet = self.read_outcomes(first)
                self.failures[first] = {
                    job: failure.outcome.value for job, failure in sheet.failures.items()
                }
        self.counts[first] = count

    def _changed(self, folder: str) -> bool:
        try:
            changed = os.stat(folder).st_mtime_ns
        except OSError:
            changed = 0
        if self._seen.get(folder) == changed:
            return False
        settled = time.time_ns() - changed > _TICK_NS
        self._seen[folder] = changed if settled else -changed
        return True

    def _seen_at(self, folder: str) -> float:
        return abs(self._seen[folder]) / 1e9

    # One job

    def parcel_of(self, job: int) -> str:
        """The file that holds what a job was asked to do."""
        first = self.firsts[bisect.bisect_right(self.firsts, job) - 1]
        return self._base.parcel(self.run, first)

    def result_of(self, job: int) -> int | None:
        """The first job of the parcel that says how a job ended; None when it has not."""
        index = bisect.bisect_right(self.results, job) - 1
        if index < 0:
            return None
        first = self.results[index]
        return first if job < first + self.counts[first] else None

    def outcome(self, job: int) -> str | None:
        """How a job ended, in a word; None when it has not."""
        first = self.result_of(job)
        return None if first is None else self.failures.get(first, {}).get(job, "ok")

    def ended_at(self, first: int) -> float:
        """When a parcel of results came."""
        known = self._tally.ended_at.get(first)
        if known is None:
            known = _changed_at(self._base.result(self.run, first))
            self._tally.ended_at[first] = known
        return known

    def newest(self) -> list[int]:
        """The parcels of results, the last that came first."""
        if self._newest[0] != len(self.results):
            ordered = sorted(self.results, key=lambda first: (-self.ended_at(first), -first))
            self._newest = len(self.results), ordered
        return self._newest[1]

    def submitted_at(self, job: int) -> float:
        """When a job was handed in."""
        if self._append_log is None:
            return _changed_at(self.parcel_of(job)) or self.info.created_at
        submitted_at = 0.0
        if self.info.queue:
            with contextlib.suppress(BadFileError, FileNotFoundError):
                submitted_at = self.read_jobs(job).number(job, "submitted_at")
        return submitted_at or self.info.created_at

    def read_jobs(self, job: int) -> JobSheet:
        """What a job and its neighbours were asked to do; raises what reading raises."""
        if self._append_log is not None:
            place = self._places[max(bisect.bisect_right(self.firsts, job) - 1, 0)]
            path = f"{self._base.append_log(self.run)}/{place}"
            known = self._jobs.get(path)
            if known is not None:
                return known
            with self._record_reader() as reader:
                return self._jobs.keep(path, reader.open(job, place))
        path = self.parcel_of(job)
        known = self._jobs.get(path)
        return known or self._jobs.keep(path, JobSheet(path, read_parcel_bytes(self._files, path)))

    def _record_reader(self) -> contextlib.closing[RecordReader]:
        return contextlib.closing(RecordReader(self._files, self._base, self.run))

    def read_outcomes(self, first: int) -> OutcomeSheet:
        """What came back in one parcel; raises what reading raises."""
        path = self._base.result(self.run, first)
        known = self._outcomes.get(path)
        if known is not None:
            return known
        data = read_parcel_bytes(self._files, path)
        return self._outcomes.keep(path, OutcomeSheet(path, data))

    def job_id(self, job: int) -> JobId:
        """Its whole name."""
        return JobId(self.run, job)

    # Wishes

    def scheduling(self, job: int) -> SchedulingOptions:
        """What a job that waits wishes; `special` has been asked before."""
        return self._scheduling.get(job, _NO_WISHES)

    def special(self) -> dict[int, SchedulingOptions]:
        """The jobs without a result that wish anything; parcels where none does stay shut."""
        if not self.info.queue:
            return {}
        with self._record_reader() as reader:
            for index, first in enumerate(self.firsts):
                if first in self._scheduling_read:
                    continue
                stop = self.firsts[index + 1] if index + 1 < len(self.firsts) else self.asked
                if self._is_waiting(first, stop):
                    self._read_scheduling(reader, index, stop)
        gone = [job for job in self._scheduling if self.result_of(job) is not None]
        for job in gone:
            del self._scheduling[job]
        return self._scheduling

    def _is_waiting(self, first: int, stop: int) -> bool:
        index = bisect.bisect_right(self.waiting, (first, stop))
        near = self.waiting[max(index - 1, 0) : index + 1]
        return any(start < stop and first < end for start, end in near)

    def _read_scheduling(self, reader: RecordReader, index: int, stop: int) -> None:
        first = self.firsts[index]
        self._scheduling_read.add(first)
        with contextlib.suppress(BadFileError, FileNotFoundError):
            record = reader.find(first, self._places[index], ahead=len(self.firsts) - index)
            if SCHEDULING_FLAG not in reader.trailer(record).flags:
                return
            sheet = reader.open_record(record)
            for job in range(first, stop):
                scheduling = sheet.scheduling(job)
                if scheduling:
                    with contextlib.suppress(ValueError):
                        self._scheduling[job] = SchedulingOptions.decode(scheduling)


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def command_of(sheet: JobSheet, job: int) -> str:
    """What a job runs: the shell line, or the task with the names of its arguments."""
    if sheet.task == COMMAND:
        return sheet.text(job, "command") or "?"
    return f"{sheet.task}({', '.join(sheet.passed(job))})"


def words_of(failure: Failure) -> str:
    """Why a job failed, in a line."""
    if failure.kind == failure.outcome.value:
        return failure.message
    return f"{failure.kind}: {failure.message}"


def folder_of(base: Base, reader: RunReader, job: int) -> str:
    """Where a command leaves its output; empty for a task. Raises what reading raises."""
    if reader.info.queue:
        return base.job_folder(reader.run, job)
    sheet = reader.read_jobs(job)
    return str(plain(sheet, job).get("folder") or "") if sheet.task == COMMAND else ""


def plain(sheet: JobSheet, job: int) -> dict[str, Any]:
    """What a queued command was asked, as far as it is plain; nothing for anything else."""
    try:
        return sheet.plain(job)
    except (BadFileError, TypeError, KeyError):
        return {}
