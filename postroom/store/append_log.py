"""The append log: one file of a run to which jobs are appended, each record by one write.

    ┌────────┬────────┬─────┬────────┬────────┬─────┬───
    │ header │ parcel │ 0 … │ header │ parcel │ 0 … │ …      headers at multiples of 64 bytes
    └────────┴────────┴─────┴────────┴────────┴─────┴───

    jlog/1 000000017 0000001 0000000a480 00000552 1c291ca3 5d0a3b11⏎
           first job jobs    at byte     length   checksum of the parcel and its zeros, of this line

A log only grows, and a record never changes while one of its jobs may be asked for:

    absent  --one write-->  torn, or whole  --all its jobs taken-->  given back: zeros, or as it was

Any submitter may append. Only the process that holds `taken.lock` gives back, only records whose
jobs `taken.json` names, and never the last one (see `taken`). A submitter writes header, parcel and
zeros in one call with O_APPEND; Linux puts them at the end, even if others write at the same time.
**A record is valid only if its stored offset is its actual offset.** Its header states the offset
that its writer expected, the end of the log. If another writer was faster, the record is at another
offset and not valid; its writer sees where it went, reads the log to its end and writes the record
again. So no lock is needed, and the number in a valid record is the number of jobs before it.

A write that was cut short (a full disk, a death) or lost with the power leaves something that is no
record: readers skip it, and go on at the next header. **Only a header begins with `jlog/`, at any
byte of the log**: a parcel that holds these letters somewhere, as a crafted one may, goes into a
file of its own. So no reader, wherever it begins to look, can take a part of a job's data for a
record. If a valid record rots, the numbers of those behind it show the gap: its jobs fail, and no
other job changes its number. A gap whose jobs `taken.json` names, when one looks there after the
log, was given back. A header of a later version (`jlog/2`) stops every reader and writer.

The numbers inside the parcel of a record begin at 0, because its real ones are not known when it is
packed. A parcel above RECORD_BYTES, and every parcel of a list, is a file of its own, too; the
record holds its name: a slip.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from isal.isal_zlib import crc32

from ..errors import BadFileError, OtherVersionError
from ..parcel.container import ALIGNMENT, PARCEL_LIMIT, Buffer
from ..parcel.sheets import JobSheet
from ..parcel.trailer import TRAILER_SIZE, Trailer, read_trailer
from .base import APPEND_LOG, SUFFIX, Base
from .files import AppendFile, Files
from .mailbox import is_plain_name
from .taken import Ranges, read_taken

# Larger parcels are files of their own, which are mapped instead of copied.
RECORD_BYTES = 256 << 10

_STAMP = b"jlog/"
_SLIP = b"slip/1 "
_SLIP_LINE = re.compile(rb"slip/1 ([!-~]+) ([0-9a-f]{8}) (.*)\n")
_HEADER = re.compile(
    rb"jlog/1 ([0-9]{9}) ([0-9]{7}) ([0-9a-f]{11}) ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n"
)
# Headers of all versions have the same size and end with the checksum of the line before it.
_NEWER = re.compile(rb"jlog/(?!1 )[0-9]+ .*([0-9a-f]{8})\n", re.DOTALL)
_HEADER_SIZE = 64
_CRC_SIZE = 9  # at the end of the line, behind the bytes that it covers
_LONGEST = _HEADER_SIZE + RECORD_BYTES
_CHUNK = 4 * _LONGEST
_FEW = 1 << 16
_PAGE = 1 << 12
# Fills up behind a write that was cut short: not zeros, which might complete it.
_FILLING = b"-"


class Record(NamedTuple):
    """One record of a log: jobs `number` up to, not including, `stop`."""

    number: int
    jobs: int
    at: int  # the byte of the log where its header begins
    length: int  # of its parcel, or of the slip that names it
    file: str = ""  # the name of a parcel that was just written to a file of its own
    size: int = 0  # of that file

    @property
    def stop(self) -> int:
        """One behind its last job."""
        return self.number + self.jobs

    @property
    def end(self) -> int:
        """Where the next record may begin."""
        return self.at + _HEADER_SIZE + self.length + -self.length % ALIGNMENT


def _header(record: Record, crc: int) -> bytes:
    line = b"jlog/1 %09d %07d %011x %08x %08x " % (
        record.number,
        record.jobs,
        record.at,
        record.length,
        crc,
    )
    return b"%b%08x\n" % (line, crc32(line))


def _record_at(data: bytes, at: int, start: int) -> Record | None:
    """The record at byte `at` of a log; `data` is the part of it that begins at `start`.

    None: there is no valid record there, or `data` does not hold all of it.
    """
    begin = at - start
    match = _HEADER.match(data, begin)
    if match is None:
        return None
    number, count, said_at, length, crc, header_crc = match.groups()
    size = int(length, 16)
    body = begin + _HEADER_SIZE
    end = body + size + -size % ALIGNMENT
    if int(said_at, 16) != at or size > RECORD_BYTES or end > len(data):
        return None
    if crc32(data[begin : body - _CRC_SIZE]) != int(header_crc, 16):
        return None
    jobs = int(count)
    if not jobs or crc32(memoryview(data)[body:end]) != int(crc, 16):
        return None
    return Record(int(number), jobs, at, size)


def _records(path: str, data: bytes, start: int) -> list[Record]:
    """The records that are whole in `data`, a part of a log that begins at byte `start`."""
    found: list[Record] = []
    place = 0
    while place >= 0:
        record = _record_at(data, start + place, start)
        if record is not None:
            found.append(record)
            place = record.end - start
            continue
        newer = _NEWER.fullmatch(data, place, place + _HEADER_SIZE)
        if newer and crc32(newer[0][:-_CRC_SIZE]) == int(newer[1], 16):
            raise OtherVersionError(path, f"a record of a later version at byte {start + place}")
        place = data.find(_STAMP, place + 1)
        while place > 0 and place % ALIGNMENT:
            place = data.find(_STAMP, place + 1)
    return found


class _Part(NamedTuple):
    """A part of a log, and the records that are whole in it."""

    records: list[Record]
    start: int
    data: bytes

    def content(self, record: Record) -> bytes:
        """The parcel of a record, or its slip."""
        body = record.at - self.start + _HEADER_SIZE
        return self.data[body : body + record.length]


def _parts(file: AppendFile, path: str, at: int, size: int) -> Iterator[_Part]:
    """The log from byte `at` on, which is a multiple of 64, part by part."""
    while at < size:
        data = file.read(at, min(_CHUNK, size - at))
        if not data:
            return
        part = _Part(_records(path, data, at), at, data)
        yield part
        if at + len(data) >= size:
            return
        if part.records:
            at = part.records[-1].end
        elif data.strip(b"\0"):
            # A record that is cut off at the end of this part is whole in the next.
            at += max(len(data) - _LONGEST, ALIGNMENT)
        else:  # given back, and perhaps much more behind it
            at = file.next_data(at + len(data)) // ALIGNMENT * ALIGNMENT


def _scan(file: AppendFile, path: str, at: int) -> Iterator[tuple[Record, _Part]]:
    """The records from byte `at` on, one by one, each with the part that holds it."""
    for part in _parts(file, path, at, file.size()):
        for record in part.records:
            yield record, part


def last_record(file: AppendFile, path: str) -> Record | None:
    """The newest record of a log, found from its end."""
    size = file.size()
    window = _PAGE
    while True:
        start = max(size - window, 0) // ALIGNMENT * ALIGNMENT
        found = _records(path, file.read(start, size - start), start)
        if found or start == 0:
            return found[-1] if found else None
        window *= 16


class ParcelFile(NamedTuple):
    """A parcel that is a file of its own, and that no slip names yet."""

    name: str
    crc: int  # of its trailer
    size: int


class AppendLogWriter:
    """Appends to the log of one run."""

    def __init__(
        self, files: Files, base: Base, run: str, *, durable: bool, folder: str | None = None
    ) -> None:
        """With `folder`, the log is there, because the run is not visible yet."""
        self._files = files
        self._base = base
        self._durable = durable
        self._folder = folder or base.run_folder(run)
        self._path = f"{self._folder}/{APPEND_LOG}"
        self._file = files.make_append_file(self._path)
        self._visible = folder is None
        self._size = -1  # of the log when it was last read; -1: read it again
        self._number = 0  # of the next job

    def append(self, count: int, chunks: Sequence[Buffer]) -> Record:
        """Append a parcel of `count` jobs, packed with numbers from 0 on; return its record."""
        record = self.write(count, chunks)
        self.settle()
        return record

    def write(
        self, count: int, chunks: Sequence[Buffer], *, apart: bool = False, task: str = ""
    ) -> Record:
        """Append a parcel, but leave it to `settle` to make sure that it stays.

        With `apart` it is a file of its own, however small. A slip says what its jobs' `task` is.
        """
        length = sum(map(len, chunks))
        body = b"" if apart or length > RECORD_BYTES else b"".join(chunks)
        if apart or length > RECORD_BYTES or _STAMP in body:
            return self.name_file(count, self.write_file(chunks), task=task)
        return self._append(count, body)

    def name_file(self, count: int, file: ParcelFile, *, task: str) -> Record:
        """Append the slip of a file that `write_file` has written; `settle` as after `write`."""
        body = b"%b%b %08x %b\n" % (_SLIP, file.name.encode(), file.crc, task.encode())
        return self._append(count, body, f"{file.name}{SUFFIX}", file.size)

    def _append(self, count: int, body: bytes, file: str = "", whole: int = 0) -> Record:
        length = len(body)
        body += bytes(-length % ALIGNMENT)
        crc = crc32(body)
        while True:
            size = self._file.size()
            if size != self._size:
                last = last_record(self._file, self._path)
                self._number = last.stop if last is not None else 0
            self._size = -1
            filling = _FILLING * (-size % ALIGNMENT)
            place = size + len(filling)
            record = Record(self._number, count, place, length, file, whole)
            if self._file.append([filling, _header(record, crc), body]) == size:
                break
        self._size = record.end
        self._number = record.stop
        return record

    def settle(self) -> None:
        """Make sure that what was written stays; raises OSError if it does not."""
        if self._durable:
            # If this fails, the record may be there or not, and the caller gets the error. If it
            # tries again, it writes a new record: after a failed sync the old one is not safe.
            self._file.sync()
        if not self._file.is_at(self._path):
            # The run was removed, by a process that read the log before this record was in it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def write_file(self, chunks: Sequence[Buffer]) -> ParcelFile:
        """Write a parcel to a file of its own, in any thread; its jobs count from its slip on."""
        temporary = self._base.temporary()
        self._files.write_new(temporary, chunks, sync=self._durable, reserve=True)
        # The number is a guess, for people who look: another writer may be faster.
        unique = temporary.rsplit("/", 1)[1]
        name = f"{self._number:09d}-{unique}"
        self._files.move(temporary, f"{self._folder}/{name}{SUFFIX}")
        if self._durable and self._visible:
            self._files.sync_folder(self._folder)  # before the record that names it
        trailer = bytes(chunks[-1][-TRAILER_SIZE:])
        return ParcelFile(name, crc32(trailer), sum(map(len, chunks)))

    def remove_file(self, parcel: ParcelFile) -> None:
        """Remove a parcel that no slip will name."""
        self._files.remove(f"{self._folder}/{parcel.name}{SUFFIX}")


class AppendLogReader:
    """Follows a log: reads what was appended since the last time."""

    def __init__(self, files: Files, base: Base, run: str) -> None:
        self._files = files
        self._base = base
        self._run = run
        self._path = base.append_log(run)
        self._at = 0
        self._seen = 0  # how long it was when it was last read
        self.number = 0  # one behind the last job

    def passed(self, record: Record) -> None:
        """Skip the next record, which the caller knows already."""
        self._at = self._seen = record.end
        self.number = record.stop

    def read_on(
        self, *, sync: bool, look: Callable[[Record, bytes], None] | None = None
    ) -> list[Record]:
        """The new records. With `sync` they survive a power loss when this returns.

        `look` is called with each of them and the end of its parcel, which has the trailer: so it
        need not be read again. A slip that names a parcel has none.

        A job of a durable run must not be sent earlier: a power loss could take the job and leave
        its result, which the next job of that number would get.
        """
        file = self._files.open_append_file(self._path)
        if file is None:
            return []
        try:
            size = file.size()
            if size == self._seen:
                return []
            if not self._at:
                taken = read_taken(self._files, self._base, self._run)
                self._at, self.number = taken.offset, taken.number
            found: list[Record] = []
            for part in _parts(file, self._path, self._at, size):
                found += part.records
                if look is not None:
                    for record in part.records:
                        end = record.at - part.start + _HEADER_SIZE + record.length
                        look(record, part.data[end - TRAILER_SIZE : end])
            if found and sync:
                file.sync()
                self._files.sync_folder(self._base.run_folder(self._run))
        finally:
            file.close()
        self._seen = size
        if found:
            self._at, self.number = found[-1].end, found[-1].stop
        return found


class RecordReader:
    """Opens the parcels of a log, one after another."""

    def __init__(self, files: Files, base: Base, run: str, *, recycled: bool = False) -> None:
        self._files = files
        self._base = base
        self._run = run
        self.recycled = recycled
        self._path = base.append_log(run)
        self._file: AppendFile | None = None
        self._data = b""
        self._start = 0
        self._behind = 0  # where the last parcel ended
        self._each = _PAGE  # how long the last record was

    def open(self, job: int, at: int | None = None, *, ahead: int = 1) -> JobSheet:
        """The parcel that holds a job; see `find`."""
        return self.open_record(self.find(job, at, ahead=ahead))

    def find(self, job: int, at: int | None = None, *, ahead: int = 1) -> Record:
        """The record that holds a job; it begins at byte `at`, or behind the last one found.

        `ahead` is how many jobs will be opened one after another, as far as is known. Raises
        FileNotFoundError when there is no log, BadFileError when the job is not in it.
        """
        at = self._behind = self._behind if at is None else at
        record = None
        if self._start <= at < self._start + len(self._data):
            record = _record_at(self._data, at, self._start)
        if record is None:
            self._read(at, min(max(ahead * self._each, _PAGE), _FEW))
            record = _record_at(self._data, at, self._start)
        if record is None or not record.number <= job < record.stop:
            record = self._search(at, job)
        self._behind = record.end
        self._each = record.end - record.at
        return record

    def peek(self, job: int) -> Record:
        """The record that holds the next job, without going on to it."""
        behind = self._behind
        try:
            return self.find(job)
        finally:
            self._behind = behind

    def open_record(self, record: Record) -> JobSheet:
        """The parcel of the record that was found last."""
        return self.prepare(record)()

    def prepare(self, record: Record) -> Callable[[], JobSheet]:
        """What opens the parcel of the record that was found last, in any thread."""
        data = self._content(record)
        files, base, run, recycled = self._files, self._base, self._run, self.recycled
        return lambda: open_record(files, base, run, record, data, recycled=recycled)

    def is_apart(self, record: Record) -> bool:
        """Whether the parcel of the record that was found last is a file of its own."""
        return self._content(record)[: len(_SLIP)] == _SLIP

    def trailer(self, record: Record) -> Trailer:
        """The trailer of the parcel of the record that was found last."""
        data = self._content(record)
        slip = _read_slip(self._base, self._run, record, data)
        if slip is None:
            return read_trailer(self._path, data)
        tail = self._files.tail(slip.path, TRAILER_SIZE)
        slip.check(tail)
        return read_trailer(slip.path, tail)

    def _content(self, record: Record) -> bytes:
        body = record.at - self._start + _HEADER_SIZE
        return self._data[body : body + record.length]

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _search(self, at: int, job: int) -> Record:
        """Scan for the record: it is large, or there is garbage before it."""
        for record, _ in _scan(self._opened(), self._path, at):
            if record.stop > job:
                if record.number > job:
                    break
                self._read(record.at, record.end - record.at)
                return record
        raise BadFileError(self._path, f"has lost job {job}")

    def _read(self, at: int, size: int) -> None:
        self._data, self._start = self._opened().read(at, size), at

    def _opened(self) -> AppendFile:
        if self._file is None:
            self._file = self._files.open_append_file(self._path)
            if self._file is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return self._file


class GoneParcel(NamedTuple):
    """A parcel, or a part of the log, that is gone because all its jobs are done."""

    first: int
    jobs: int
    task: str


def read_sheets(
    files: Files, base: Base, run: str, *, recycled: bool = False
) -> Iterator[JobSheet | GoneParcel]:
    """Every parcel of a log in order; BadFileError where one is lost."""
    file = files.open_append_file(base.append_log(run))
    if file is None:
        return
    try:
        number = 0
        for record, part in _scan(file, base.append_log(run), _beginning(files, base, run)):
            if record.number != number:
                # Read again: results may be taken meanwhile.
                if Ranges(read_taken(files, base, run).ranges).end_of(number) < record.number:
                    raise BadFileError(base.append_log(run), f"has lost job {number}")
                yield GoneParcel(number, record.number - number, "")
            data = part.content(record)
            try:
                yield open_record(files, base, run, record, data, recycled=recycled)
            except FileNotFoundError:
                slip = _read_slip(base, run, record, data)
                yield GoneParcel(record.number, record.jobs, "" if slip is None else slip.task)
            number = record.stop
    finally:
        file.close()


def _beginning(files: Files, base: Base, run: str) -> int:
    """The byte where the log begins: what was before it has been given back."""
    return read_taken(files, base, run).offset


def logged_until(files: Files, path: str) -> int:
    """How many jobs a log holds; 0 when there is no log."""
    file = files.open_append_file(path)
    if file is None:
        return 0
    try:
        last = last_record(file, path)
        return last.stop if last is not None else 0
    finally:
        file.close()


def lost_jobs(files: Files, base: Base, run: str, *, recycled: bool = False) -> list[int]:
    """The jobs whose records (as the numbers behind them show) or parcels have rotted.

    In a run whose parcels are `recycled`, one that is gone is not lost.
    """
    file = files.open_append_file(base.append_log(run))
    lost: list[int] = []
    if file is not None:
        number = 0
        for record, part in _scan(file, base.append_log(run), _beginning(files, base, run)):
            if number < record.number:
                taken = Ranges(read_taken(files, base, run).ranges)
                lost += [job for job in range(number, record.number) if job not in taken]
            number = record.stop
            try:
                slip = _read_slip(base, run, record, part.content(record))
                if slip is not None:
                    slip.check(files.tail(slip.path, TRAILER_SIZE))
            except BadFileError:
                lost += range(record.number, record.stop)
            except FileNotFoundError:
                lost += [] if recycled else range(record.number, record.stop)
        file.close()
    return lost


def open_record(
    files: Files, base: Base, run: str, record: Record, data: Buffer, *, recycled: bool = False
) -> JobSheet:
    """The parcel in a record, or the one that its slip names, which may be `recycled` later."""
    path = base.append_log(run)
    slip = _read_slip(base, run, record, data)
    if slip is not None:
        path = slip.path
        data = files.view(path, PARCEL_LIMIT, recycled=recycled)
        slip.check(bytes(data[-TRAILER_SIZE:]))
    sheet = JobSheet(path, data, number=record.number)
    if sheet.count != record.jobs:
        raise BadFileError(
            path, f"holds {sheet.count} jobs from {record.number} on, not {record.jobs}"
        )
    return sheet


class _Slip(NamedTuple):
    """What a record says about a parcel that is a file of its own."""

    path: str
    crc: int  # of the parcel's trailer, which has the checksum of all else
    task: str  # of its jobs

    def check(self, trailer: bytes) -> None:
        """Raise BadFileError if another parcel is at the path.

        A file may be written over an older one. If the power fails then, the older one may be
        found under the new name, whole and valid.
        """
        if crc32(trailer) != self.crc:
            raise BadFileError(self.path, "is not the parcel that its append log names")


def _read_slip(base: Base, run: str, record: Record, data: Buffer) -> _Slip | None:
    """The slip in a record; None: the parcel itself is there."""
    if data[: len(_SLIP)] != _SLIP:
        return None
    match = _SLIP_LINE.fullmatch(bytes(data))
    if match is None or not is_plain_name(name := match[1].decode()):
        raise BadFileError(base.append_log(run), f"has a slip at {record.at} that names no file")
    return _Slip(base.parcel(run, name), int(match[2], 16), match[3].decode(errors="replace"))
