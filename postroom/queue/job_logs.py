"""Reads the log of a job: its last lines, and new output as it comes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from ..errors import PostroomError
from ..store.base import Base
from ..store.job_ids import JobId
from ..store.kernel_output import OutputReader
from ..system.regular_file import open_regular
from .rows import JobDetail

BLOCK = 64 << 10


def path_of(detail: JobDetail, *, err: bool = False, attempt: int | None = None) -> str:
    """The path of a job's log: of its last attempt, or of an earlier one."""
    if attempt is not None:
        for one in detail.attempts:
            if one.number == attempt:
                return one.err_path if err else one.out_path
        return ""
    return detail.err_path if err else detail.out_path


def _open(path: str) -> BinaryIO | None:
    try:
        return open_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PostroomError(f"the log {path} cannot be read: {error.strerror}") from None


def _start_of(fd: int, lines: int) -> int:
    """Where the last lines begin, found by reading backwards."""
    at = size = os.fstat(fd).st_size
    found = 0
    while at > 0 and lines > 0:
        start = max(0, at - BLOCK)
        block = os.pread(fd, at - start, start)
        place = len(block)
        if at == size and block.endswith(b"\n"):
            place -= 1  # the last line break starts no new line
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            found += 1
            if found == lines:
                return start + place + 1
        at = start
    return 0 if lines > 0 else size


class Follower:
    """Reads what is added to a file, also when a new attempt replaces it."""

    def __init__(self, path: str, lines: int | None) -> None:
        self._path = path
        self._lines = lines
        self._file: BinaryIO | None = None

    def read(self) -> Iterator[bytes]:
        """What was added since the last call."""
        if self._file is None:
            self._file = _open(self._path)
            if self._file is not None and self._lines is not None:
                self._file.seek(_start_of(self._file.fileno(), self._lines))
                self._lines = None
        while self._file is not None:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0, os.SEEK_END)  # it was truncated: continue at its end
            while block := self._file.read(BLOCK):
                yield block
            if self._is_current(self._file.fileno()):
                return
            self.close()

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except OSError:
            return True  # the next attempt has not started to write

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class PrintedLog:
    """Reads what the kernel of a Python task has printed."""

    def __init__(self, reader: OutputReader, lines: int | None, attempt: int | None) -> None:
        self._reader = reader
        self._lines = lines
        self._attempt = attempt

    def read(self) -> Iterator[bytes]:
        """What was added since the last call; at first, only the last lines."""
        blocks = self._reader.read(self._attempt)
        if self._lines is not None:
            printed = b"".join(blocks).splitlines(keepends=True)
            blocks = iter(printed[len(printed) - min(self._lines, len(printed)) :])
            self._lines = None
        return blocks

    def close(self) -> None:
        """Nothing is open."""


def follow(
    log: Follower | PrintedLog, *, over: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[bytes]:
    """The output of a job, until the job has ended."""
    try:
        ended = False
        while True:
            yield from log.read()
            if ended:
                return
            # Read once more after the end, so that the last output is not missed.
            ended = over()
            if not ended:
                pause()
    finally:
        log.close()


def last_lines(base: Base, detail: JobDetail, lines: int) -> list[str]:
    """The last lines of what a job has printed so far."""
    path, job = path_of(detail), JobId.parse(detail.job.id)
    log: Follower | PrintedLog = Follower(path, lines)
    if not path:
        log = PrintedLog(OutputReader(base, job.run, job.number, err=False), lines, None)
    try:
        return b"".join(log.read()).decode(errors="replace").splitlines()[-lines:]
    finally:
        log.close()
