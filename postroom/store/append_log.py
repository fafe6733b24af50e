"""The roll: one file of a run that jobs are appended to, each by one write.

    ┌────────┬────────┬─────┬────────┬────────┬─────┬───
    │ header │ parcel │ 0 … │ header │ parcel │ 0 … │ …      headers at multiples of 64 bytes
    └────────┴────────┴─────┴────────┴────────┴─────┴───

    jlog/1 000000017 0000001 0000000a480 00000552 1c291ca3 5d0a3b11⏎
           first job jobs    at byte     length   checksum of the parcel and its zeros, of this line

Nothing in a roll ever changes; it only grows. Whoever appends writes header, parcel and zeros in
one call with O_APPEND, which the kernel puts behind the end whoever else writes. **A record counts
only where it says that it lies.** Its header names the byte where it begins, as far as its writer
knew the end; if somebody else was faster, it lies elsewhere and does not count, and its writer, who
sees where it went, reads on and writes it again. So no lock is needed, and the number in a record
that counts is the number of jobs before it.

A write that was cut short (a full disk, a death) or lost with the power leaves something that is no
record: it is passed over. Readers look for the next header at a multiple of 64 bytes, which a copy
of a roll inside of a job's data cannot fake, since it lies elsewhere. A record that was whole and
has rotted is missed by its number: its jobs fail, and no other changes its number.

The numbers inside of a record's parcel begin at 0, as they are not known when it is packed. A
parcel above RECORD_BYTES has a file of its own, and the record holds its name: a slip.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from isal.isal_zlib import crc32

from ..errors import BadFileError
from ..parcel.container import ALIGNMENT, PARCEL_LIMIT, Buffer
from ..parcel.sheets import JobSheet
from ..parcel.trailer import TRAILER_SIZE, Trailer, read_trailer
from .base import Base
from .files import AppendFile, Files
from .mailbox import is_plain_name

# Larger parcels are files of their own, which are mapped instead of copied.
RECORD_BYTES = 256 << 10

_STAMP = b"jlog/1 "
_SLIP = b"slip/1 "
_HEADER = re.compile(
    rb"jlog/1 ([0-9]{9}) ([0-9]{7}) ([0-9a-f]{11}) ([0-9a-f]{8}) ([0-9a-f]{8}) ([0-9a-f]{8})\n"
)
_HEADER_SIZE = 64
_CRC_SIZE = 9  # at the end of the line, behind what it vouches for
_LONGEST = _HEADER_SIZE + RECORD_BYTES
_CHUNK = 4 * _LONGEST
_FEW = 1 << 16
_PAGE = 1 << 12
# What fills up behind a write that was cut short: never zeros, which might complete it.
_FILLING = b"-"


class Record(NamedTuple):
    """One entry of a roll: jobs `number` up to, not including, `stop`."""

    number: int
    jobs: int
    at: int  # the byte of the roll where its header begins
    length: int  # of its parcel, or of the slip that names it
    file: str = ""  # of a parcel that was just written to a file of its own

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
    """The record at byte `at` of a roll, of which `data` begins at `start`; None: none that counts.

    One that does not fit into `data` is none.
    """
    begin = at - start
    match = _HEADER.fullmatch(data, begin, begin + _HEADER_SIZE)
    if match is None:
        return None
    number, count, said_at, length, crc, header_crc = match.groups()
    record = Record(int(number), int(count), int(said_at, 16), int(length, 16))
    body, end = begin + _HEADER_SIZE, record.end - start
    if record.at != at or record.jobs < 1 or record.length > RECORD_BYTES or end > len(data):
        return None
    line = data[begin : body - _CRC_SIZE]
    if crc32(line) != int(header_crc, 16) or crc32(data[body:end]) != int(crc, 16):
        return None
    return record


def _records(data: bytes, start: int) -> Iterator[Record]:
    """The records that are whole in a part of a roll that begins at byte `start`."""
    at = start
    while True:
        record = _record_at(data, at, start)
        if record is not None:
            yield record
            at = record.end
            continue
        found = data.find(_STAMP, at - start + 1)
        while found >= 0 and (start + found) % ALIGNMENT:
            found = data.find(_STAMP, found + 1)
        if found < 0:
            return
        at = start + found


def _scan(file: AppendFile, at: int, size: int) -> Iterator[tuple[Record, bytes]]:
    """The records from byte `at` on, which is a multiple of 64, each with its parcel."""
    while at < size:
        data = file.read(at, min(_CHUNK, size - at))
        if not data:
            return
        # What is cut off at the end of this part is whole in the next.
        onward = at + max(len(data) - _LONGEST, ALIGNMENT)
        for record in _records(data, at):
            body = record.at - at + _HEADER_SIZE
            yield record, data[body : body + record.length]
            onward = record.end
        if at + len(data) >= size:
            return
        at = onward


def last_record(file: AppendFile) -> Record | None:
    """The newest record of a roll, found from its end."""
    size = file.size()
    window = _PAGE
    while True:
        start = max(size - window, 0) // ALIGNMENT * ALIGNMENT
        found = None
        for record in _records(file.read(start, size - start), start):
            found = record
        if found is not None or start == 0:
            return found
        window *= 16


class AppendLogWriter:
    """Appends to the roll of one run."""

    def __init__(self, files: Files, base: Base, run: str, *, durable: bool) -> None:
        self._files = files
        self._base = base
        self._run = run
        self._durable = durable
        self._path = base.append_log(run)
        self._file = files.make_append_file(self._path)
        self._size = -1  # of the roll when it was last looked at; -1: look again
        self._number = 0  # of the next job

    def append(self, count: int, chunks: Sequence[Buffer]) -> Record:
        """Append a parcel of `count` jobs, packed with numbers from 0 on; return its record."""
        record = self.write(count, chunks)
        self.settle()
        return record

    def write(self, count: int, chunks: Sequence[Buffer]) -> Record:
        """Append a parcel, but leave it to `settle` to make sure that it stays."""
        length = sum(map(len, chunks))
        file = ""
        if length > RECORD_BYTES:
            file = self._write_file(chunks)
            chunks = [b"%b%b\n" % (_SLIP, file[:-4].rsplit("/", 1)[1].encode())]
            length = len(chunks[0])
        zeros = bytes(-length % ALIGNMENT)
        crc = 0
        for chunk in (*chunks, zeros):
            crc = crc32(chunk, crc)
        while True:
            size = self._file.size()
            if size != self._size:
                last = last_record(self._file)
                self._number = last.stop if last is not None else 0
            self._size = -1
            filling = _FILLING * (-size % ALIGNMENT)
            record = Record(self._number, count, size + len(filling), length, file)
            written = [filling, _header(record, crc), *chunks, zeros]
            if self._file.append(written) == size:
                break
        self._size = record.end
        self._number = record.stop
        return record

    def settle(self) -> None:
        """Make sure that what was written stays; raises OSError if it does not."""
        if self._durable:
            # If this fails, the record may be there or not, and its writer is told so. Written
            # again, it is another one: what a failed sync left behind is never relied upon.
            self._file.sync()
        if not self._file.lies_at(self._path):
            # The run has left, and whoever took it away looked at its roll before this was in it.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)

    def close(self) -> None:
        """Let go of the roll."""
        self._file.close()

    def _write_file(self, chunks: Sequence[Buffer]) -> str:
        """Make a large parcel a file of its own, and return its path."""
        files, base = self._files, self._base
        temporary = base.temporary()
        files.write_new(temporary, chunks, sync=self._durable)
        path = base.large_parcel(self._run, temporary.rsplit("/", 1)[1])
        files.move(temporary, path)
        if self._durable:
            files.sync_folder(base.run_folder(self._run))
        return path


class AppendLogReader:
    """Follows a roll: what has come behind what is known."""

    def __init__(self, files: Files, base: Base, run: str) -> None:
        self._files = files
        self._base = base
        self._run = run
        self._at = 0
        self._seen = 0  # how long it was when it was last read
        self.number = 0  # one behind the last job

    def passed(self, record: Record) -> None:
        """A record that is known from elsewhere, and is the next."""
        self._at = self._seen = record.end
        self.number = record.stop

    def read_on(self, *, sync: bool) -> list[Record]:
        """What is new. With `sync` it is safe before it is told, whoever was to see to that.

        Were a job of a durable run begun before, a power loss might take the question and leave
        the answer, for the next job of that number.
        """
        file = self._files.open_append_file(self._base.append_log(self._run))
        if file is None:
            return []
        try:
            size = file.size()
            if size == self._seen:
                return []
            found = [record for record, _ in _scan(file, self._at, size)]
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
    """Opens the parcels of a roll, one after another, for whoever runs their jobs."""

    def __init__(self, files: Files, base: Base, run: str) -> None:
        self._files = files
        self._base = base
        self._run = run
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

    def open_record(self, record: Record) -> JobSheet:
        """The parcel of the record that was found last."""
        return open_record(self._files, self._base, self._run, record, self._content(record))

    def trailer(self, record: Record) -> Trailer:
        """The trailer of the parcel of the record that was found last."""
        data = self._content(record)
        path = _parcel_path(self._base, self._run, record, data)
        tail = data if path is None else self._files.tail(path, TRAILER_SIZE)
        return read_trailer(path or self._path, tail)

    def _content(self, record: Record) -> bytes:
        body = record.at - self._start + _HEADER_SIZE
        return self._data[body : body + record.length]

    def close(self) -> None:
        """Let go of the roll."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _search(self, at: int, job: int) -> Record:
        """The long way: the record is large, or there is something between."""
        file = self._opened()
        for record, _ in _scan(file, at, file.size()):
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


def read_sheets(files: Files, base: Base, run: str) -> Iterator[JobSheet]:
    """Every parcel of a roll in order; BadFileError where one is lost."""
    file = files.open_append_file(base.append_log(run))
    if file is None:
        return
    try:
        number = 0
        for record, data in _scan(file, 0, file.size()):
            if record.number != number:
                raise BadFileError(base.append_log(run), f"has lost job {number}")
            yield open_record(files, base, run, record, data)
            number = record.stop
    finally:
        file.close()


def logged_until(files: Files, path: str) -> int:
    """One behind the last job of a roll; 0 when there is none."""
    file = files.open_append_file(path)
    if file is None:
        return 0
    try:
        last = last_record(file)
        return last.stop if last is not None else 0
    finally:
        file.close()


def lost_jobs(files: Files, base: Base, run: str) -> list[int]:
    """The jobs of a roll whose records were whole once, as those behind them tell, and are not."""
    file = files.open_append_file(base.append_log(run))
    lost: list[int] = []
    if file is not None:
        number = 0
        for record, _ in _scan(file, 0, file.size()):
            lost += range(number, record.number)
            number = record.stop
        file.close()
    return lost


def open_record(files: Files, base: Base, run: str, record: Record, data: Buffer) -> JobSheet:
    """The parcel in a record, or the one that its slip names."""
    path = _parcel_path(base, run, record, data)
    if path is None:
        path = base.append_log(run)
    else:
        data = files.view(path, PARCEL_LIMIT)
    sheet = JobSheet(path, data, number=record.number)
    if sheet.count != record.jobs:
        raise BadFileError(path, f"holds {sheet.count} jobs from {record.number} on, not as said")
    return sheet


def _parcel_path(base: Base, run: str, record: Record, data: Buffer) -> str | None:
    """The file that the slip in a record names; None: the parcel is in the record."""
    if data[: len(_SLIP)] != _SLIP:
        return None
    name = bytes(data[len(_SLIP) : -1]).decode("ascii", "replace")
    if not is_plain_name(name):
        raise BadFileError(base.append_log(run), f"has a slip at {record.at} that names no file")
    return base.large_parcel(run, name)
