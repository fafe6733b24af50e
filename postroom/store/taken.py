"""The results of a run that were handed out and are not kept.

    result_pool/<run>/<first>.npz  --handed out-->  named in taken.json  --then-->  removed

The jobs of a generator pass through constant disk: a result that its program has taken is removed.
From then on `job_pool/<run>/taken.json` says that its job is done. Without that, whoever loads the
run, or has not yet seen the result, would run the job again.

1. Only the process that holds `taken.lock` replaces `taken.json`. What it names only grows.
2. A result is removed only after `taken.json` names all its jobs (in a durable run: synced).
3. Whoever misses a result reads `taken.json` **after** it has looked for the result.
4. A job that is named there ended well: results with a failure stay, and so do their arguments.
5. A later result of such a job counts for nothing. A guardian may publish that the time of a job
   is up at the moment when its result is taken.
6. Before the byte `offset` the append log lists only such jobs, and its space is given back to the
   disk. The last record of the log always stays: it says how many jobs there are.

Crash points: killed before `taken.json` is replaced, nothing was removed. Killed after it, results
may be left that count for nothing; the next process that takes the lock removes them.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

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

    def remove(self, parcels: Iterable[tuple[int, int]], number: int = 0, offset: int = 0) -> None:
        """Remove whole parcels of results, named by their ranges of jobs.

        All records before byte `offset` of the append log, where job `number` begins, hold jobs
        that were taken: their space is given back.
        """
        files, base, run = self._files, self._base, self._run
        parcels = list(parcels)
        for first, stop in parcels:
            self._ranges.add(first, stop)
        self._number, self._offset = max(self._number, number), max(self._offset, offset)
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
        if offset:
            with contextlib.closing(files.make_append_file(base.append_log(run))) as file:
                file.give_back(offset)

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
