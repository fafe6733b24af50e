"""Reads the log of a job: its last lines, and new output as it comes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

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


def last_lines(path: str, lines: int | None) -> Iterator[bytes]:
    """The last lines of a file, or (None) all of it; nothing when there is no file."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below, by the generator's end
    except OSError:
        return
    with file:
        if lines is not None:
            file.seek(_start_of(file.fileno(), lines))
        while block := file.read(BLOCK):
            yield block


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
        self._fd = -1

    def read(self) -> Iterator[bytes]:
        """What was added since the last call."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
                if self._lines is not None:
                    os.lseek(self._fd, _start_of(self._fd, self._lines), os.SEEK_SET)
                self._lines = None
        while self._fd >= 0:
            if os.fstat(self._fd).st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
                os.lseek(self._fd, 0, os.SEEK_END)  # it was truncated: continue at its end
            while block := os.read(self._fd, BLOCK):
                yield block
            if self._is_current():
                return
            self.close()

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except OSError:
            return True  # the next attempt has not started to write

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def follow(
    path: str, lines: int | None, *, over: Callable[[], bool], pause: Callable[[], None]
) -> Iterator[bytes]:
    """The output of a job, until the job has ended."""
    follower = Follower(path, lines)
    try:
        ended = False
        while True:
            yield from follower.read()
            if ended:
                return
            # Read once more after the end, so that the last output is not missed.
            ended = over()
            if not ended:
                pause()
    finally:
        follower.close()
