"""The results of a run that were handed out and are not kept.

    result_pool/<run>/<first>.npz  --handed out-->  named in taken.json  --then-->  removed

The jobs of a generator pass through constant disk: a result that its program has taken is removed.
From then on `job_pool/<run>/taken.json` says that its job is done. Without that, a process
that loads the run, or has not yet seen the result, would run the job again.

1. Only the process that holds `taken.lock` replaces `taken.json`. What it names only grows.
2. A result is removed only after `taken.json` names all its jobs (in a durable run: synced).
3. A process that misses a result, or has read one, reads `taken.json` **afterwards**, unless it
   holds the lock itself.
4. A job that is named there ended well: results with a failure stay, and so do their arguments.
5. A later result of such a job counts for nothing. A guardian may publish that the time of a job
   is up at the moment when its result is taken. A worker that was wrongly taken for dead may have
   run the job; another that has it, too, finds that its record is gone, and publishes that.
6. The space of a record of the append log is given back to the disk when `taken.json` names all its
   jobs. Who gives it back knows where it begins and ends: it wrote the record itself. The last
   record of the log always stays: it says how many jobs there are. Before the byte `offset` the
   whole log has been given back.

Crash points: killed before `taken.json` is replaced, nothing was removed. Killed after it, results
may be left that count for nothing; the next process that takes the lock removes them.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ..errors import BadFileError, OtherVersionError
from .base import Base, number_of
from .files import Files, Lock
from .records import JsonRecord

# Results that were taken one after another are one range; only stragglers leave gaps.
TAKEN_LIMIT = 16 << 20


class Ranges:
    """Disjoint ranges of job numbers, in order."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._stops: list[int] = []
        for first, stop in sorted(ranges):
            self.add(first, stop)

    def add(self, first: int, stop: int) -> None:
        """Add a range; it may overlap others."""
        firsts, stops = self._firsts, self._stops
        low = bisect.bisect_left(stops, first)
        high = bisect.bisect_right(firsts, stop)
        if low < high:
            first, stop = min(first, firsts[low]), max(stop, stops[high - 1])
        firsts[low:high], stops[low:high] = [first], [stop]

    def end_of(self, number: int) -> int:
        """One behind the range that holds a number; the number itself, if none does."""
        at = bisect.bisect_right(self._firsts, number) - 1
        return max(number, self._stops[at]) if at >= 0 else number

    def __contains__(self, number: int) -> bool:
        return self.end_of(number) > number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._stops, strict=True)

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    @property
    def total(self) -> int:
        """How many numbers they hold."""
        return sum(self._stops) - sum(self._firsts)

    @property
    def prefix(self) -> int:
        """All numbers below this one are held."""
        return self.end_of(0)


@dataclass(frozen=True)
class Taken(JsonRecord):
    """Which results of a run were handed out and are not kept."""

    CALLED: ClassVar[str] = "a list of results that were taken"
    INDENT: ClassVar[int | None] = None

    ranges: list[tuple[int, int]] = field(default_factory=list)  # of job numbers
    number: int = 0  # the first job of the record at `offset`
    offset: int = 0  # before this byte, the append log has been given back


def read_taken(files: Files, base: Base, run: str) -> Taken:
    """Which results of a run were taken.

    A list that cannot be read, after a power loss, names none. One of another version raises
    OtherVersionError.
    """
    path = base.taken(run)
    try:
        return Taken.decode(path, files.read(path, TAKEN_LIMIT))
    except OtherVersionError:
        raise
    except (FileNotFoundError, NotADirectoryError, BadFileError):
        return Taken()


class _Stretch(NamedTuple):
    """A record of the append log, or several in a row that were given back."""

    number: int
    stop: int  # one behind its last job
    at: int
    end: int
    given_back: bool = False


class ResultRemover:
    """Removes results of one run that were handed out; of one process at a time."""

    def __init__(
        self, files: Files, base: Base, run: str, *, durable: bool, hands_on: bool = False
    ) -> None:
        """With `hands_on`, sessions may write over what is removed."""
        self._files = files
        self._base = base
        self._run = run
        self._durable = durable
        self._hands_on = hands_on
        self._lock: Lock | None = None
        self._ranges = Ranges()
        self._number = self._offset = 0
        self._log: list[_Stretch] = []  # what this process knows of it, in order
        self._last = 0  # the last record when results were removed before

    def logged(self, number: int, stop: int, at: int, end: int) -> None:
        """Note a record that this process has appended: give it back when its jobs are taken."""
        # Between records that follow each other there is only what was torn.
        self._log.append(_Stretch(number, stop, at if number else 0, end))

    @property
    def has_begun(self) -> bool:
        """Whether this process has the lock: no other takes results."""
        return self._lock is not None

    @property
    def taken(self) -> Ranges:
        """The jobs that `taken.json` names, where this process has the lock."""
        return self._ranges

    def begin(self) -> bool:
        """Take the lock, if need be; False: another process has it, so the results stay."""
        if self._lock is not None:
            return True
        files, base, run = self._files, self._base, self._run
        lock = files.try_lock(base.taken_lock(run))
        if lock is None:
            return False
        try:
            known = read_taken(files, base, run)
            self._ranges = Ranges(known.ranges)
            self._number, self._offset = known.number, known.offset
            if known.number and (not self._log or known.number <= self._log[0].number):
                self._log.insert(0, _Stretch(0, known.number, 0, known.offset, given_back=True))
            if known.ranges:
                self._remove_leftovers()
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        return True

    def _remove_leftovers(self) -> None:
        for name in self._files.names(self._base.result_folder(self._run)):
            first = number_of(name)
            if first is not None and first in self._ranges:
                self._files.remove(self._base.result(self._run, first))

    def remove(self, parcels: Iterable[tuple[int, int]]) -> None:
        """Remove whole parcels of results, named by their ranges of jobs.

        Then give back the records of the append log that list only jobs that were taken.
        """
        files, base, run = self._files, self._base, self._run
        parcels = list(parcels)
        for first, stop in parcels:
            self._ranges.add(first, stop)
        log, free = self._joined(parcels)
        if log and log[0].given_back and not log[0].number:
            self._number, self._offset = log[0].stop, log[0].end
        record = Taken(list(self._ranges), self._number, self._offset)
        temporary = base.temporary()
        files.write_new(temporary, [record.encode()], sync=self._durable)
        files.move(temporary, base.taken(run))
        if self._durable:
            files.sync_folder(base.run_folder(run))
        for first, _ in parcels:
            if self._hands_on:
                files.hand_on(base.result(run, first), base.spare(run))
            else:
                files.remove(base.result(run, first))
        if free:
            with contextlib.closing(files.make_append_file(base.append_log(run))) as file:
                for stretch in free:
                    file.give_back(stretch.at, stretch.end)
        self._log, self._last = log, log[-1].number if log else 0

    def _joined(self, parcels: list[tuple[int, int]]) -> tuple[list[_Stretch], list[_Stretch]]:
        """The log as it is when these parcels are taken, and which stretches of it become free.

        What lies in a row becomes one stretch, since disks free only whole blocks.
        """
        first = min([self._last, *(first for first, _ in parcels)])
        low = max(bisect.bisect_right(self._log, first, key=lambda one: one.number) - 2, 0)
        found: list[_Stretch] = []
        for one in self._log[low:-1]:
            if one.given_back or self._ranges.end_of(one.number) >= one.stop:
                one = one._replace(given_back=True)
                if found and found[-1].given_back and found[-1].stop == one.number:
                    before = found.pop()
                    one = one._replace(number=before.number, at=before.at)
            found.append(one)
        free = sorted({one for one in found if one.given_back}.difference(self._log[low:]))
        return [*self._log[:low], *found, *self._log[-1:]], free

    def close(self) -> None:
        """Let another process remove results; nothing is left to be written over."""
        if self._hands_on and self._lock is not None:
            with contextlib.suppress(OSError):
                prefix = self._base.spare_prefix(self._run)
                for name in self._files.names(self._base.tmp):
                    if name.startswith(prefix):
                        self._files.remove(f"{self._base.tmp}/{name}")
        if self._lock is not None:
            self._lock.release()
            self._lock = None
