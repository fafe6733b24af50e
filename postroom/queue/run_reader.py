"""Reads one run from its folders, and later only what has changed.

A run only grows, so a parcel is read once. The modification time of a folder says whether there is
anything new in it.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Generic, TypeVar

from ..commands.spec import COMMAND
from ..dispatch.send_order import NO_OPTIONS
from ..errors import BadFileError, OtherVersionError
from ..parcel.sheets import FAILED_FLAG, SCHEDULING_FLAG, JobSheet, OutcomeSheet
from ..parcel.trailer import TRAILER_SIZE, read_trailer
from ..store.append_log import AppendLogReader, Record, RecordReader
from ..store.base import Base, attempt_of
from ..store.edited_jobs import list_edited, read_edited
from ..store.files import Files
from ..store.job_ids import JobId
from ..store.runs import RunInfo, gaps, list_firsts, read_parcel_bytes, read_run_info
from ..store.scheduling import SchedulingOptions
from ..store.taken import Ranges, read_taken
from ..text.safe_text import encodable
from .result_cache import read_result_cache, write_result_cache

# Linux updates a folder's time only once per clock tick: a folder that changed a moment ago may
# change again without a new time.
_TICK_NS = 50_000_000
_SHEETS = 64
# Write the result cache after this many new results; for a finished run, after fewer.
_MANY_NEW = 200
_LEAST_RESULTS = 20
_Sheet = TypeVar("_Sheet")


class SheetCache(Generic[_Sheet]):
    """The sheets that were read last, of all runs; bounded, however long the list is."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Sheet] = OrderedDict()

    def get(self, path: str) -> _Sheet | None:
        """A sheet that was read before, or None."""
        if path in self._kept:
            self._kept.move_to_end(path)
        return self._kept.get(path)

    def keep(self, path: str, sheet: _Sheet) -> _Sheet:
        """Keep a sheet until newer ones push it out."""
        self._kept[path] = sheet
        if len(self._kept) > _SHEETS:
            self._kept.popitem(last=False)
        return sheet


class RunReader:
    """One run: its jobs, and their results."""

    def __init__(
        self,
        files: Files,
        base: Base,
        run: str,
        jobs: SheetCache[JobSheet],
        outcomes: SheetCache[OutcomeSheet],
    ) -> None:
        self._files = files
        self._base = base
        self._jobs = jobs
        self._outcomes = outcomes
        self._seen: dict[str, int] = {}  # folder: its time when it was listed; negative: too new
        self.info: RunInfo = read_run_info(files, base, run)
        self.run = run
        self.project = encodable(self.info.project) or ("default" if self.info.queue else "-")
        self.firsts: list[int] = []  # the first job of each parcel of jobs
        self._append_log = AppendLogReader(files, base, run)
        self._places: list[int] = []  # where these parcels are in the append log
        self.asked = 0  # how many jobs were submitted
        self.results: list[int] = []  # the first job of each parcel of results
        self._cache = read_result_cache(files, base, run)
        self._written = len(self._cache.counts)
        self.counts = self._cache.counts  # of those: how many jobs each parcel covers
        self.failures = self._cache.failures  # of those with failures: job, outcome
        self._taken = Ranges()  # jobs whose results were handed out and removed
        self.waiting: list[tuple[int, int]] = []  # ranges of jobs without a result
        self.done = 0
        self.attempts: dict[int, int] = {}  # how many attempts of a job ended with no result
        self.asked_at = 0.0  # when the last job was submitted
        self.changed_at = 0.0  # when the last result came
        self._newest: tuple[int, list[int]] = (0, [])
        self._scheduling: dict[int, SchedulingOptions] = {}
        self._scheduling_read: set[int] = set()
        self._edited: set[int] = set()  # jobs that were changed while they waited

    def refresh(self) -> None:
        """Read what is new: jobs first, then results."""
        asked_more = self._list_asked()
        came_back = self._list_results()
        if asked_more or came_back:
            spans = [(first, first + self.counts[first]) for first in self.results]
            self._taken = Ranges(read_taken(self._files, self._base, self.run).ranges)
            self.waiting = gaps(self.asked, [*spans, *self._taken])
            self.done = self.asked - sum(stop - first for first, stop in self.waiting)
        folder = self._base.attempts(self.run)
        if self._changed(folder):
            self.attempts = {}
            for name in self._files.names(folder):
                found = attempt_of(name)
                if found is not None:
                    self.attempts[found[0]] = max(self.attempts.get(found[0], 0), found[1])

        if self.info.queue and self._changed(self._base.run_folder(self.run)):
            self._list_edited()

    def _list_edited(self) -> None:
        self._edited = set(list_edited(self._files, self._base, self.run))
        for job in self._edited:
            if self.result_of(job) is None:
                with contextlib.suppress(BadFileError, FileNotFoundError, ValueError):
                    asked = self.read_jobs(job).scheduling(job)
                    self._scheduling[job] = SchedulingOptions.decode(asked)

    @property
    def pending(self) -> int:
        """How many jobs have no result."""
        return self.asked - self.done

    def _list_asked(self) -> bool:
        path = self._base.append_log(self.run)
        if not self._changed(path):
            return False
        self.asked_at = self._seen_at(path)
        try:
            for record in self._append_log.read_on(sync=False, look=self._look):
                self.firsts.append(record.number)
                self._places.append(record.at)
        except OtherVersionError:
            raise
        except BadFileError:
            pass
        self.asked = self._append_log.number
        return True

    def _look(self, record: Record, tail: bytes) -> None:
        """See whether any job of a record has scheduling options: if not, it is read only once."""
        with contextlib.suppress(BadFileError):  # it is a slip: see `_read_scheduling`
            if SCHEDULING_FLAG not in read_trailer(self.run, tail).flags:
                self._scheduling_read.add(record.number)

    def _list_results(self) -> bool:
        folder = self._base.result_folder(self.run)
        if not self._changed(folder):
            return False
        self.changed_at = self._seen_at(folder)
        if self._seen[folder] == self._cache.changed_ns:
            self.results = sorted(self.counts)
            return True
        self.results = list_firsts(self._files, folder)
        for first in self.results:
            # The scheduler moves a bad file away; a good one may then take its name.
            if not self.counts.get(first):
                self._take_in(first)
        if len(self.counts) > len(self.results):
            self._forget(set(self.counts).difference(self.results))
        self._write_cache(self._seen[folder])
        return True

    def _forget(self, gone: Collection[int]) -> None:
        for known in (self.counts, self.failures, self._cache.ended_at):
            for first in gone:
                known.pop(first, None)

    def _write_cache(self, changed_ns: int) -> None:
        """Save what was read, when that is worth a file."""
        new = len(self.results) - self._written
        many = new >= max(_MANY_NEW, self._written // 10)
        over = new and len(self.results) >= _LEAST_RESULTS and self._is_over()
        if changed_ns < 0 or not (many or over):
            return
        for first in self.results:
            self.ended_at(first)
        self._cache.changed_ns = changed_ns
        self._written = len(self.results)
        write_result_cache(self._files, self._base, self.run, self._cache)

    def _is_over(self) -> bool:
        covered = sum(self.counts[first] for first in self.results) + self._taken.total
        return covered >= self.asked

    def _take_in(self, first: int) -> None:
        path = self._base.result(self.run, first)
        count = 0
        with contextlib.suppress(BadFileError, FileNotFoundError):
            trailer = read_trailer(path, self._files.tail(path, TRAILER_SIZE))
            count = trailer.jobs
            if FAILED_FLAG in trailer.flags:
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

    def result_of(self, job: int) -> int | None:
        """The parcel with a job's result, named by its first job; None: no result yet."""
        index = bisect.bisect_right(self.results, job) - 1
        if index < 0:
            return None
        first = self.results[index]
        return first if job < first + self.counts[first] else None

    def outcome(self, job: int) -> str | None:
        """How a job ended: "ok", "failed", ...; None: it has not ended."""
        if job in self._taken:
            return "ok"  # whatever came later
        first = self.result_of(job)
        if first is None:
            return None
        return self.failures.get(first, {}).get(job, "ok")

    def ended_at(self, first: int) -> float:
        """When a parcel of results was written."""
        known = self._cache.ended_at.get(first)
        if known is None:
            known = _changed_at(self._base.result(self.run, first))
            self._cache.ended_at[first] = known
        return known

    def newest(self) -> list[int]:
        """The parcels of results, newest first."""
        if self._newest[0] != len(self.results):
            ordered = sorted(self.results, key=lambda first: (-self.ended_at(first), -first))
            self._newest = len(self.results), ordered
        return self._newest[1]

    def submitted_at(self, job: int) -> float:
        """When a job was submitted."""
        submitted_at = 0.0
        if self.info.queue:
            with contextlib.suppress(BadFileError, FileNotFoundError):
                submitted_at = self.read_jobs(job).number(job, "submitted_at")
        return submitted_at or self.info.created_at

    def read_jobs(self, job: int) -> JobSheet:
        """The sheet that holds a job; raises BadFileError or OSError when it cannot be read."""
        if job in self._edited:
            edited = read_edited(self._files, self._base, self.run, job)
            if edited is not None:
                return edited
        index = bisect.bisect_right(self.firsts, job) - 1
        if index < 0:
            raise BadFileError(self._base.append_log(self.run), f"has no job {job} any more")
        place = self._places[index]
        path = f"{self._base.append_log(self.run)}/{place}"
        known = self._jobs.get(path)
        if known is not None:
            return known
        with self._record_reader() as reader:
            return self._jobs.keep(path, reader.open(job, place))

    def _record_reader(self) -> contextlib.closing[RecordReader]:
        return contextlib.closing(RecordReader(self._files, self._base, self.run, recycled=True))

    def read_outcomes(self, first: int) -> OutcomeSheet:
        """One parcel of results; raises BadFileError or OSError when it cannot be read."""
        path = self._base.result(self.run, first)
        known = self._outcomes.get(path)
        if known is not None:
            return known
        data = read_parcel_bytes(self._files, path, recycled=True)
        return self._outcomes.keep(path, OutcomeSheet(path, data))

    def job_id(self, job: int) -> JobId:
        """The full id of a job."""
        return JobId(self.run, job)

    # Scheduling options

    def scheduling(self, job: int) -> SchedulingOptions:
        """The options of a waiting job; call `with_options` first, which reads them."""
        return self._scheduling.get(job, NO_OPTIONS)

    def with_options(self) -> dict[int, SchedulingOptions]:
        """The unfinished jobs that have options; parcels without any are not opened."""
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
                if scheduling and job not in self._edited:
                    with contextlib.suppress(ValueError):
                        self._scheduling[job] = SchedulingOptions.decode(scheduling)


class RunReaders:
    """The readers of a base's runs; they share the cache of sheets."""

    def __init__(self, files: Files, base: Base) -> None:
        self._files = files
        self._base = base
        self._readers: dict[str, RunReader] = {}
        self.other_versions: dict[str, OtherVersionError] = {}  # why runs cannot be read
        self._jobs: SheetCache[JobSheet] = SheetCache()
        self._outcomes: SheetCache[OutcomeSheet] = SheetCache()

    def get(self, run: str) -> RunReader | None:
        """The reader of a run, up to date; None: it is being removed, or is damaged."""
        try:
            reader = self._readers.get(run)
            if reader is None:
                reader = RunReader(self._files, self._base, run, self._jobs, self._outcomes)
            reader.refresh()
        except (OSError, BadFileError) as error:  # `postroom doctor` says which file is bad
            self._readers.pop(run, None)
            if isinstance(error, OtherVersionError):
                self.other_versions[run] = error
            return None
        self.other_versions.pop(run, None)
        self._readers[run] = reader
        return reader

    def keep_only(self, runs: Collection[str]) -> None:
        """Forget all other runs."""
        self._readers = {run: reader for run, reader in self._readers.items() if run in runs}


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def name_of(sheet: JobSheet | None, job: int) -> str:
    """The label of a job; "" if it has none, or its sheet cannot be read."""
    return encodable(sheet.name(job)) if sheet is not None and sheet.names else ""


def command_text(sheet: JobSheet, job: int) -> str:
    """What a job runs: its shell command, or the task with the names of its arguments."""
    if sheet.task == COMMAND:
        return sheet.text(job, "command") or "?"
    return f"{sheet.task}({', '.join(sheet.passed(job))})"


def output_folder(base: Base, reader: RunReader, job: int) -> str:
    """The folder with a command's output; "" for a task. Raises when the job cannot be read."""
    if reader.info.queue:
        return base.job_folder(reader.run, job)
    sheet = reader.read_jobs(job)
    return str(command_fields(sheet, job).get("folder") or "") if sheet.task == COMMAND else ""


def command_fields(sheet: JobSheet, job: int) -> dict[str, Any]:
    """The fields of a queued command; {} for any other job."""
    try:
        return sheet.plain(job)
    except (BadFileError, TypeError, KeyError):
        return {}


def scheduling_in(fields: dict[str, Any]) -> SchedulingOptions:
    """The options among the fields of a queued command; the usual ones when they are bad."""
    with contextlib.suppress(ValueError):
        return SchedulingOptions.decode(fields.get("scheduling", {}))
    return NO_OPTIONS
